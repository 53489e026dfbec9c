"""Does a process with a virtual NPU end as it should, every time?  python benchmarks/virtual_npu_exit.py [times [jobs]]

Starts programs that leave the device in one of several states, and checks exit code and output of each. Prints
"N of N clean" and fails if that is not so. 200 processes take about ten minutes on two cores.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

START = "import torch; x = torch.randn(4, 8, device='npu'); y = torch.softmax(x, -1).sum().item(); "
PROGRAMS = (
    # (what is left behind, code, exit code)
    ("nothing", "del x", 0),
    ("live tensors and a graph", "keep = torch.exp(x.requires_grad_()); keep.sum().backward()", 0),
    ("streams and events", "s = torch.npu.Stream(); e = torch.npu.Event(); e.record(s)", 0),
    (
        "a failed operator",
        "import sys, contextlib\nwith contextlib.suppress(RuntimeError): torch.linalg.svd(x)\nsys.exit(3)",
        3,
    ),
    (
        "a lost device",
        "from thunder_npu import virtual_npu as v; v.inject_fault('device'); import contextlib\n"
        "with contextlib.suppress(RuntimeError): x.cpu()",
        0,
    ),
    ("an open recording", "from thunder_npu import virtual_npu as v; r = v.record(); r.__enter__(); torch.exp(x)", 0),
)


def run(index: int) -> str | None:
    """None if the process ended as it should, else what it did."""
    state, code, expected = PROGRAMS[index % len(PROGRAMS)]
    command = [sys.executable, "-W", "ignore", "-m", "thunder_npu.virtual_npu", "-c", f"{START}{code}\nprint('end')"]
    if expected:
        command[-1] = START + code
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    ended = result.stdout.split()[-1:] == ([] if expected else ["end"])
    if result.returncode == expected and ended:
        return None
    return f"{state}: exit code {result.returncode}, {result.stdout[-200:]!r}, {result.stderr[-2000:]}"


def main(times: int, at_once: int) -> None:
    clean = 0
    with ThreadPoolExecutor(at_once) as pool:
        for done, failure in enumerate(pool.map(run, range(times)), 1):
            clean += failure is None
            if failure:
                print(failure)
            if done % 10 == 0 or done == times:
                print(f"{clean} of {done} clean", flush=True)
    sys.exit(clean != times)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 200, int(sys.argv[2]) if sys.argv[2:] else 2)
