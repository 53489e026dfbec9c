"""pytest plugin: Thunder's own tests, plain or with this package's executors in front; one line of JSON an outcome.

Loaded by ``run.py`` with ``-p outcomes``. ``THUNDER_SUITE_EXECUTORS=ours`` puts aclnn and triton_ascend before
Thunder's torch executor in its ``TorchTestExecutor``, and before the default executors that a bare ``thunder.jit(f)``
takes; a list that a test writes itself stays as it is. Names of tests stay the same, so that both runs know a test by
one name. Every test starts from the same seed: Thunder draws its samples at random, and both runs have to see the same
ones. The plain run never imports this package.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

RUN_NAMES = ("plain", "ours")


def _put_in_front() -> None:
    import thunder.extend
    from thunder.tests import framework

    from thunder_npu import aclnn_ex, triton_ascend_ex

    before = framework.TorchTestExecutor.executors_list
    framework.TorchTestExecutor.executors_list = lambda self: [aclnn_ex, triton_ascend_ex, *before(self)]
    thunder.extend.set_default_executors([aclnn_ex, triton_ascend_ex, *thunder.extend.get_default_executors()])


def pytest_configure(config: pytest.Config) -> None:
    which = os.environ["THUNDER_SUITE_EXECUTORS"]
    if which not in RUN_NAMES:
        raise pytest.UsageError(f"THUNDER_SUITE_EXECUTORS={which!r}: one of {RUN_NAMES}")
    if which == "ours":
        _put_in_front()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs on Inductor alone (the same in both runs), and in a second run all but what failed."""
    wanted = os.environ.get("THUNDER_SUITE_TESTS")
    names = None if wanted is None else set(Path(wanted).read_text(encoding="utf-8").splitlines())
    keep = [
        item for item in items if "_torchcompile_" not in item.name and (names is None or test_id(item.nodeid) in names)
    ]
    kept = set(keep)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = keep


def test_id(nodeid: str) -> str:
    """``test_ops.py::test_errors_cat_torch_cpu_None``: the node's id without the folder of the installation."""
    path, _, rest = nodeid.partition("::")
    return f"{Path(path).name}::{rest}"


test_id.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line a phase that ended otherwise than well, and one for every call. Only the controlling process writes."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    errors = [text[1:].strip() for text in report.longreprtext.splitlines() if text.startswith("E  ")]
    line = {
        "id": test_id(report.nodeid),
        "outcome": report.outcome if not hasattr(report, "wasxfail") else f"x{report.outcome}",
        "seconds": round(report.duration, 2),
        "message": errors[0] if errors else "",  # of a chain of exceptions, the cause
    }
    with open(os.environ["THUNDER_SUITE_OUTCOMES"], "a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
