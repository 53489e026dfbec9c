"""Which test executes which statement: probes put into a copy of the source, and the pytest plugin that reads them.

A probe is a call before every statement of a function, and in front of a lambda's body; it is a part of the source, so
it also speaks where Thunder's interpreter runs the function, of which ``sys.settrace`` (and so coverage) hears nothing.
"""

from __future__ import annotations

import ast
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

Where = tuple[str, int, int]
_hits: set[Where] = set()


def hit(path: str, line: int, column: int) -> None:
    _hits.add((path, line, column))


class _Probes(ast.NodeTransformer):
    def __init__(self, path: str) -> None:
        self.path = path
        self.inside = False

    def probe(self, node: ast.stmt | ast.Lambda) -> ast.Call:
        place = [ast.Constant(value) for value in (self.path, node.lineno, node.col_offset)]
        return ast.Call(ast.Name("_hit", ast.Load()), place, [])  # type: ignore[arg-type]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer, self.inside = self.inside, True
        self.generic_visit(node)
        self.inside = outer
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        node.body = ast.BoolOp(ast.Or(), [self.probe(node), node.body])
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if self.inside and isinstance(block, list):
                docstring = block[:1] if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) else []
                rest = [part for s in block[len(docstring) :] for part in (ast.Expr(self.probe(s)), s)]
                setattr(node, name, docstring + rest)
        return node


def with_probes(path: str, text: str) -> str:
    tree = _Probes(path).visit(ast.parse(text))
    after = [i for i, s in enumerate(tree.body) if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    tree.body.insert(after[-1] + 1 if after else 0, ast.parse(f"from {__name__} import hit as _hit").body[0])
    return ast.unparse(ast.fix_missing_locations(tree))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    """A line of JSON for every test: its id, its seconds, the probes it met."""
    _hits.clear()
    start = time.perf_counter()
    result = yield
    with open(os.environ["REACHED"], "a") as out:
        print(json.dumps([item.nodeid, round(time.perf_counter() - start, 3), sorted(_hits)]), file=out)
    return result
