"""Mends of Thunder's own faults that users of this package meet, each with the version it mends.

Two kinds, both listed in the tables below: what an executor can own (a lookaside or a gradient rule, so that it acts
only where "aclnn" or "triton_ascend" stands in the list) is installed by :func:`register`; the few patches of Thunder
itself that no executor can own are installed by :func:`install`. A mend steps aside where Thunder no longer has the
fault. Nothing here knows a kernel, a route or a region.
"""

from __future__ import annotations

from thunder.extend import Executor

from thunder_npu.mends import (
    copying,
    defaults,
    dynamo,
    factories,
    functional,
    gradients,
    losses,
    operators,
    outputs,
    results,
    spelling,
    transformers,
)
from thunder_npu.mends.mend import Mend

GLOBAL: tuple[Mend, ...] = (
    operators.MOD,
    copying.COPY,
    functional.FUNCTORCH,
    defaults.DEFAULTS,
    spelling.SPELLING,
    factories.DATA,
    factories.ZEROS,
    outputs.OUTPUTS,
    results.PRINTING,
    dynamo.DYNAMO,
    transformers.TRANSFORMERS,
)
OWNED: tuple[Mend, ...] = (factories.EYE, losses.LOSSES, losses.NUMBERS, gradients.GRADIENTS, results.RESULTS)


def install() -> None:
    """Put the global mends in place. Doing it again changes nothing."""
    for mend in GLOBAL:
        if mend.needed():
            mend.apply(None)


def register(executor: Executor) -> None:
    """Let ``executor`` own the mends that an executor can own."""
    for mend in OWNED:
        if mend.needed():
            mend.apply(executor)
