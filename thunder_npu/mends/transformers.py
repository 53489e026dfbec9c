"""transformers beside a torch_npu that cannot be loaded, as on a development machine without CANN.

transformers (seen with 4.55.4) imports torch_npu wherever it finds it installed, and with it fails the import of every
model: "libhccl.so: cannot open shared object file". Here it is told that there is no npu, and a warning says why.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from thunder.extend import Executor

from thunder_npu.mends.mend import Mend

_MODULE = "transformers.utils.import_utils"
_LIBRARY = "libhccl.so"
"""The first of CANN's libraries that torch_npu links to."""


def _whether_available(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.cache
    def why_not() -> str | None:
        try:
            ctypes.CDLL(_LIBRARY)
        except OSError as error:
            warnings.warn(f"transformers goes on without npu: torch_npu needs CANN, and {error}", stacklevel=4)
            return str(error)
        return None

    @functools.wraps(original)
    def is_torch_npu_available(*args: Any, **kwargs: Any) -> bool:
        installed = importlib.util.find_spec("torch_npu") is not None
        if installed and "torch_npu" not in sys.modules and why_not() is not None:
            return False
        return original(*args, **kwargs)

    return is_torch_npu_available


def _mend(module: ModuleType) -> None:
    module.is_torch_npu_available = _whether_available(module.is_torch_npu_available)  # type: ignore[attr-defined]


class _MendAfterLoading(importlib.abc.MetaPathFinder):
    """Finds the one module as it would be found anyway, and mends it once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_then_mend(module: ModuleType) -> None:
                load(module)
                _mend(module)

            spec.loader.exec_module = load_then_mend  # type: ignore[method-assign]
        return spec


def _apply(executor: Executor | None) -> None:
    # Once transformers is loaded, its other modules have taken the function along: then its import has gone well.
    if _MODULE not in sys.modules and not any(type(f).__name__ == _MendAfterLoading.__name__ for f in sys.meta_path):
        sys.meta_path.insert(0, _MendAfterLoading())


TRANSFORMERS = Mend(
    "transformers' models cannot be imported where torch_npu is installed without CANN", _apply, lambda: True
)
