"""What a mend says of itself: the fault, the Thunder that has it, whether it is needed here, how it is put in place."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from looseversion import LooseVersion
from thunder.extend import Executor

LAST_TRIED = "0.2.6"
"""The newest Thunder on which every fault was seen."""


@cache
def thunder_version() -> str:
    return importlib.metadata.version("lightning-thunder")


def not_newer_than_tried() -> bool:
    """Whether the installed Thunder is one of those whose fault was seen (or older)."""
    return bool(LooseVersion(thunder_version()) <= LooseVersion(LAST_TRIED))


@dataclass(frozen=True)
class Mend:
    """A fault of Thunder and its mend.

    Attributes:
        fault: what goes wrong without it, in a sentence.
        apply: puts the mend in place; given the executor that owns it, None for a patch of Thunder itself. Idempotent.
        needed: whether the installed Thunder has the fault; by default its version, :data:`LAST_TRIED` or older.
    """

    fault: str
    apply: Callable[[Executor | None], None]
    needed: Callable[[], bool] = not_newer_than_tried
