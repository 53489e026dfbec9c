"""Lightning Thunder on Huawei Ascend NPUs: routed softmax executors, trace transforms and a virtual NPU.

Importing this package imports neither torch nor Thunder: ``thunder_npu.virtual_npu`` has to run before torch does. As
soon as Thunder is (or has been) imported, the executors "aclnn" and "triton_ascend" are registered and Thunder knows
the "npu" device; the names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# name -> (module, attribute; None: the module itself)
_PUBLIC: dict[str, tuple[str, str | None]] = {
    "aclnn_ex": ("thunder_npu.executors.aclnn_ex", "aclnn_ex"),
    "triton_ascend_ex": ("thunder_npu.executors.triton_ascend_ex", "triton_ascend_ex"),
    "NPU": ("thunder_npu.plugin", "NPU"),
    "explain": ("thunder_npu.report", "explain"),
    "transforms": ("thunder_npu.transforms", None),
    "options": ("thunder_npu.options", None),
    "virtual_npu": ("thunder_npu.virtual_npu", None),
}
__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    if name != "virtual_npu":
        import thunder  # noqa: F401  (completes the registration below before anything of ours is loaded)
    loaded = importlib.import_module(module)
    value = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])


def _register() -> None:
    """Teach Thunder the npu device and our executors. Doing it again changes nothing."""
    for module in ("device", "executors.aclnn_ex", "executors.triton_ascend_ex"):  # each registers as it is imported
        importlib.import_module(f"thunder_npu.{module}")
    importlib.import_module("thunder_npu.mends").install()


class _RegisterAfterThunder(importlib.abc.MetaPathFinder):
    """Finds the module ``thunder`` by the other finders, and calls :func:`_register` once it is loaded.

    It stays until Thunder has been loaded: looking for the module, or an import of it that fails, changes nothing.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "thunder":
            return None
        finders = (f.find_spec for f in [*sys.meta_path] if f is not self and hasattr(f, "find_spec"))
        spec = next((spec for find in finders if (spec := find(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_then_register(module: ModuleType) -> None:
                load(module)
                _register()
                sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

            spec.loader.exec_module = load_then_register  # type: ignore[method-assign]
        return spec


sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != _RegisterAfterThunder.__name__]
if "thunder" in sys.modules:
    importlib.import_module("thunder")  # waits where another thread is importing it right now
    _register()
else:
    sys.meta_path.insert(0, _RegisterAfterThunder())
