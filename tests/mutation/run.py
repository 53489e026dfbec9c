"""Mutation run: small faults put one by one into the compiler's source; the quick tests must fail for each.

    python -m tests.mutation.run --jobs 2              all; the verdicts are written to --out
    python -m tests.mutation.run --only lowering -n 20 --list
    python -m tests.mutation.run --again mutants.txt   what survived or stayed undecided there

Mutants are made from the syntax tree (a comparison, an operator or a constant replaced, a condition negated, a
statement dropped, two arguments swapped, an operator inside a generated line of source replaced) and drawn with a fixed
seed, of every file in proportion to its candidates. Each lives in a scratch copy of the repository: the checkout
is never changed. First the quick tests of :data:`TESTS` run once on a copy with probes (reached.py); a mutant then
meets the tests that execute its statement, the shortest first, until one fails. A mutant that does not import, or that
no test can tell from the original for a reason written in judged.json, is not counted. One whose tests do not end in
time is undecided, not killed: a slow machine would kill it too.

Existing tools (mutmut, cosmic-ray) mutate no generated text, and a run of the whole suite per mutant would take
hours.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutation.reached import Where, with_probes

Reached = dict[Where | None, list[str]]
ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

MODULES = (
    "thunder_npu/executors/lowering.py",
    "thunder_npu/kernels/codegen.py",
    "thunder_npu/kernels/region.py",
    "thunder_npu/executors/softmax_family.py",
    "thunder_npu/transforms/softmax.py",
    "thunder_npu/transforms/live_rows.py",
    "thunder_npu/transforms/sink_repeat.py",
    "thunder_npu/transforms/repeat_cat.py",
    "thunder_npu/mends/gradients.py",
    "thunder_npu/mends/losses.py",
)
TESTS = (
    "tests/fusion",
    "tests/mends",
    "tests/bug_reports",
    "tests/test_executors.py",
    "tests/test_function_transforms.py",
    "tests/test_routing.py",
    "tests/test_safe_softmax.py",
    "tests/test_sink_repeat.py",
    "tests/test_repeat_cat.py",
)
COPIED = ("thunder_npu", "tests", "benchmarks", "examples", "pyproject.toml", "README.md", "Makefile", "docs")

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
# Operators in a line of generated source stand between spaces.
GENERATED = {"+": "-", "-": "+", "*": "+", "/": "*", "<": "<=", ">": ">=", "<=": "<", ">=": ">", "&": "|", "|": "&"}


@dataclass(frozen=True)
class Mutant:
    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int
    code: str  # the line's text
    probe: Where | None  # of its statement; None: outside of any function, so executed on import

    @property
    def key(self) -> str:
        """By the line's text, so that a judgement outlives lines added above, and holds for no other line."""
        return f"{self.code}: {self.before} → {self.after}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind}: {self.before} → {self.after}"


def changed(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What `node` may become."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            new.ops = [COMPARISONS[type(op)]()]
            yield "comparison", new
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not isinstance(new.left, (ast.JoinedStr, ast.Constant)):
            new.op = ARITHMETIC[type(op)]()
            yield "operator", new
        case ast.BoolOp(op=op):
            new.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and/or", new
        case ast.UnaryOp(op=ast.Not()):
            yield "not dropped", new.operand
        case ast.UnaryOp(op=ast.USub()) if not isinstance(new.operand, ast.Constant):
            yield "minus dropped", new.operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Call(args=[first, second, *rest]) if not any(isinstance(a, ast.Starred) for a in new.args):
            new.args = [second, first, *rest]
            yield "arguments swapped", new
        case ast.IfExp(test=test):
            new.test = ast.UnaryOp(ast.Not(), test)
            yield "condition negated", new


def candidates(path: str, text: str) -> list[Mutant]:
    """Every mutant of a source file, in the order of the text."""
    tree = ast.parse(text)
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    data = text.encode()
    rows = text.splitlines()
    found: list[Mutant] = []

    def add(node: ast.AST, kind: str, after: str, probe: Where | None) -> None:
        start = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        before = data[start:end].decode()
        if before != after:
            short = [re.sub(r"\s+", " ", part)[:110] for part in (before, after)]
            number = node.lineno  # type: ignore[attr-defined]
            found.append(Mutant(path, number, kind, *short, start, end, rows[number - 1].strip(), probe))
            replacements[found[-1]] = after

    def visit(node: ast.AST, probe: Where | None, inside: bool) -> None:
        if isinstance(node, ast.Lambda) or (inside and isinstance(node, ast.stmt)):
            probe = (path, node.lineno, node.col_offset)
        inside |= isinstance(node, ast.FunctionDef)
        if isinstance(node, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)):
            return  # texts of errors
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # docstrings
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Refusal", "dataclass"):
            return
        if isinstance(node, (ast.Expr, ast.AugAssign)):
            add(node, "statement dropped", "pass", probe)
        if isinstance(node, (ast.If, ast.While)):
            add(node.test, "condition negated", f"not ({ast.unparse(node.test)})", probe)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            segment = ast.get_source_segment(text, node) or ""
            for match in re.finditer(r"(?<= )([-+*/<>&|]|<=|>=)(?= )", segment):
                add(node, "generated", segment[: match.start()] + GENERATED[match[0]] + segment[match.end() :], probe)
            return
        for kind, new in changed(node):
            add(node, kind, f"({ast.unparse(new)})" if isinstance(new, ast.expr) else ast.unparse(new), probe)
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for part in child if isinstance(child, list) else [child]:
                if isinstance(part, ast.AST):
                    visit(part, probe, inside)

    visit(tree, None, False)
    return found


replacements: dict[Mutant, str] = {}


def sample(count: int, seed: int, only: str) -> list[Mutant]:
    """`count` mutants, of every file in proportion to its candidates and at least four."""
    files = {p: candidates(p, (ROOT / p).read_text()) for p in MODULES if only in p}
    total = sum(map(len, files.values()))
    drawn: list[Mutant] = []
    for path, mutants in files.items():
        share = min(len(mutants), max(4, round(count * len(mutants) / total)))
        drawn += random.Random(f"{seed} {path}").sample(mutants, share)
    return sorted(drawn, key=lambda m: (m.path, m.line))


def pytest(folder: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *arguments],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
             "PYTHONDONTWRITEBYTECODE": "1", "REACHED": str(folder / "reached.jsonl")}, **more,
    )  # fmt: skip


def record(folder: Path, files: Collection[str]) -> Reached:
    """The quick tests, run on the source with probes."""
    originals = {folder / f: (folder / f).read_bytes() for f in files}
    try:
        for path in files:
            (folder / path).write_text(with_probes(path, originals[folder / path].decode()))
        result = pytest(folder, "-p", "tests.mutation.reached", *TESTS)
    finally:
        for file, original in originals.items():
            file.write_bytes(original)
    if result.returncode:
        raise SystemExit(f"the quick tests fail without a mutant:\n{result.stdout[-4000:]}{result.stderr[-4000:]}")
    reached: Reached = {None: []}
    lines = map(json.loads, (folder / "reached.jsonl").read_text().splitlines())
    for name, _, hits in sorted(lines, key=lambda line: line[1]):
        for probe in (None, *map(tuple, hits)):
            reached.setdefault(probe, []).append(name)
    return reached


def run(mutant: Mutant, folder: Path, tests: list[str], timeout: int) -> tuple[str, str]:
    """("killed" | "survived" | "undecided" | "does not import", by which test)."""
    if not tests:
        return "survived", "no test executes it"
    file = folder / mutant.path
    original = file.read_bytes()
    data = original[: mutant.start] + replacements[mutant].encode() + original[mutant.end :]
    file.write_bytes(data)
    try:
        compile(data, mutant.path, "exec")
        result = pytest(folder, "-x", *tests, timeout=timeout)
    except SyntaxError:
        return "does not import", ""
    except subprocess.TimeoutExpired:
        return "undecided", f"its tests did not end in {timeout} s"
    finally:
        file.write_bytes(original)
    if result.returncode == 0:
        return "survived", f"{len(tests)} tests execute it"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - |$)", result.stdout, re.MULTILINE)
    if result.returncode == 1 and failed:
        return "killed", failed[1]
    if result.returncode < 0:
        return "killed", f"the process ended by signal {-result.returncode}"
    return "does not import", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a module's path")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one mutant")
    parser.add_argument("--list", action="store_true", help="print the sample and stop")
    parser.add_argument("--again", type=Path, help="only what is not killed in this file of results")
    parser.add_argument("--out", type=Path, default=Path("mutants.txt"))
    given = parser.parse_args()
    mutants = sample(given.count, given.seed, given.only)
    if given.again:
        lines = given.again.read_text().splitlines()
        open_ = {line.split(" ", 1)[1].split("  [")[0] for line in lines if line.startswith(("survived", "undecided"))}
        mutants = [m for m in mutants if str(m) in open_]
    if given.list:
        print(*mutants, f"{len(mutants)} mutants", sep="\n")
        return 0
    judged: dict[str, str] = json.loads((HERE / "judged.json").read_text())
    folders: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(given.jobs):
            folders.put(Path(scratch) / str(i))
            for name in COPIED:
                source, target = ROOT / name, Path(scratch) / str(i) / name
                shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)

        folder = folders.get()
        reached = record(folder, {m.path for m in mutants})
        folders.put(folder)

        def one(mutant: Mutant) -> str:
            folder = folders.get()
            try:
                verdict, by = run(mutant, folder, reached.get(mutant.probe, []), given.timeout)
            finally:
                folders.put(folder)
            if verdict == "survived" and mutant.key in judged:
                verdict, by = "equivalent", judged[mutant.key]
            line = f"{verdict} {mutant}" + (f"  [{by}]" if by else "")
            print(line, flush=True)
            return line

        with ThreadPoolExecutor(given.jobs) as pool:
            lines = list(pool.map(one, mutants))
    killed, survived, undecided = (
        sum(line.startswith(word) for line in lines) for word in ("killed", "survived", "undecided")
    )
    total = max(killed + survived + undecided, 1)
    lines.append(f"{killed} of {total} mutants killed ({100 * killed / total:.1f} %), {undecided} undecided")
    print(lines[-1])
    given.out.write_text("\n".join(lines) + "\n")
    return int(killed < 0.95 * total)


if __name__ == "__main__":
    raise SystemExit(main())
