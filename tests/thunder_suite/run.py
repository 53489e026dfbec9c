"""Thunder's own test suite, plain and with this package's executors in front: what fails with them and passes without?

    python tests/thunder_suite/run.py                       test_ops.py and test_grad.py
    python tests/thunder_suite/run.py test_core test_inplace_copy
    python tests/thunder_suite/run.py -k softmax test_ops

The tests are those in the installed package ``thunder.tests``. Beyond the development environment they import
``pytest-benchmark``, ``py-cpuinfo``, ``fdm``, ``plum-dispatch``, ``beartype`` and ``einops``: install these with
``pip install --no-deps --target FOLDER`` and put FOLDER into PYTHONPATH. Everything runs on the CPU; what Thunder
tests on Inductor alone is left out, and nvFuser is not there.

All tests run with this package's executors. What fails is run once more, with them and plain, one at a time and with
five times the time limit: it counts where it fails again with ours and does not fail plain. Each run leaves a line of
JSON a test in ``--results``, written as the test ends.
Exit status: 0 no failure that plain Thunder does not have, 1 otherwise, 2 a run that did not end.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
THUNDER = Path(importlib.util.find_spec("thunder").origin).parent  # found, not imported
RUNS = ("plain", "ours")


def run(
    which: str,
    modules: Sequence[str],
    outcomes: Path,
    limit: int,
    k: str = "",
    only: Sequence[str] | None = None,
    jobs: int = 0,
) -> dict[str, dict]:
    """Run ``modules`` as ``which`` says, and return the outcome of every test by its id."""
    outcomes.unlink(missing_ok=True)
    path = os.pathsep.join([str(HERE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "PYTHONPATH": path,
        "THUNDER_SUITE_EXECUTORS": which,
        "THUNDER_SUITE_OUTCOMES": str(outcomes),
    }
    if only is not None:
        names = outcomes.with_suffix(".txt")
        names.write_text("\n".join(only), encoding="utf-8")
        environment["THUNDER_SUITE_TESTS"] = str(names)
    with tempfile.TemporaryDirectory() as folder:  # neither this project's settings nor its conftest apply
        settings = Path(folder) / "pytest.ini"
        settings.write_text("[pytest]\nfilterwarnings = ignore\n", encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-c", str(settings), f"--rootdir={THUNDER.parent}", "-q", "-q"]
        command += ["-p", "outcomes", "-p", "no:cacheprovider", "--tb=short", "--no-summary", f"--timeout={limit}"]
        command += ["-k", k, "-n", str(jobs), *(str(THUNDER / "tests" / f"{name}.py") for name in modules)]
        status = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    if status not in (0, 1):  # 0 all passed, 1 some failed: anything else is no run
        print(f"the {which} run ended with pytest's status {status}", file=sys.stderr)
        sys.exit(2)
    return read(outcomes)


def read(outcomes: Path) -> dict[str, dict]:
    """By test id; a failure of any phase is the test's."""
    found: dict[str, dict] = {}
    for line in map(json.loads, outcomes.read_text(encoding="utf-8").splitlines()):
        if line["id"] not in found or line["outcome"] == "failed":
            found[line["id"]] = line
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=["test_ops", "test_grad"], help="modules of thunder.tests")
    parser.add_argument("--timeout", type=int, default=120, help="seconds a test")
    parser.add_argument(
        "--results", type=Path, default=None, help="a folder for the outcomes (default: a temporary one)"
    )
    parser.add_argument("-k", default="", help="pytest's choice of tests by name")
    parser.add_argument("-n", type=int, default=0, help="processes of the first run")
    arguments = parser.parse_args()
    results: Path = (arguments.results or Path(tempfile.mkdtemp(prefix="thunder-suite-"))).resolve()
    results.mkdir(parents=True, exist_ok=True)
    files = {which: results / f"{which}-{'-'.join(arguments.modules)}.jsonl" for which in ("first", *RUNS)}
    modules, limit = arguments.modules, arguments.timeout
    first = run("ours", modules, files["first"], limit, arguments.k, jobs=arguments.n)
    print(f"ours: {dict(Counter(line['outcome'] for line in first.values()))}", flush=True)
    failed = sorted(name for name, line in first.items() if line["outcome"] == "failed")
    names = []
    if failed:
        print(f"{len(failed)} failed; run again, each way:", flush=True)
        found = {which: run(which, modules, files[which], 5 * limit, only=failed) for which in RUNS}
        plain = {name: found["plain"][name]["outcome"] for name in failed}
        names = [name for name in failed if found["ours"][name]["outcome"] == "failed" and plain[name] != "failed"]
        both = [name for name in failed if plain[name] == "failed"]
        print(f"{len(both)} fail plain too: {' '.join(both)}")
    for name in names:
        print(f"{name}: {found['ours'][name]['message']}")
    print(f"{len(names)} failures that plain Thunder does not have; outcomes in {results}")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
