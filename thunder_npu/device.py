"""Teaches Thunder the "npu" device type.

Thunder 0.2 knows cpu, cuda and meta. Its first look at an npu tensor ends in ``KeyError: 'npu'``, it drops the index of
every device that is not cuda, and it follows torch.autocast on cpu and cuda only. `register_npu_device` adds the device
type and puts a function of this module in front of each of Thunder's that has to know it; whatever is not about an npu
goes straight through to Thunder's own function, so nothing changes for cpu and cuda.

Importing this module is enough. It never imports torch_npu and never starts a device: tracing needs names only. Where a
trace would create an npu tensor in a process without the runtime, compiling it raises an error that says what to do.
"""

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import thunder
import thunder.torch as ltorch
import torch
from thunder.core import devices, dtypes, prims
from thunder.core.compile_data import get_compile_data
from thunder.core.interpreter import get_interpretercompilectx_if_available
from thunder.core.proxies import TensorProxy
from thunder.core.pytree import tree_flatten
from thunder.executors import torchex
from thunder.torch.langctx import register_method, register_property
from thunder.transforms import autocast

__all__ = ["npu_device", "register_npu_device"]

NAME = "npu"


def register_npu_device() -> None:
    """Make Thunder accept the device type "npu". Idempotent and thread-safe.

    The mark that says "done", and the lock, live on Thunder's module and not here: this module may be dropped from
    sys.modules and imported again, and must then find the patches of its former self instead of wrapping them.
    """
    with vars(devices).setdefault("_thunder_npu_lock", threading.Lock()):  # setdefault on a dict is atomic
        if vars(devices).get("_thunder_npu_registered", False):
            return
        _add_device_type()
        for owner, name, function in _PATCHES:
            _put_in_front(owner, name, function)
        device_put = torchex.ex.implmap[prims.device_put.id]
        device_put.execution_transform = functools.partial(_device_put, device_put.execution_transform)
        register_method("npu", _npu)
        register_property("is_npu", _is_npu_tensor)
        devices._thunder_npu_registered = True


def npu_device(device: str) -> "devices.Device":
    """Thunder's Device for `device`: "npu" or "npu:<index>".

    Pickles of npu devices name this function, so that they load in any process that has thunder_npu installed, whether
    or not it has imported it.
    """
    register_npu_device()
    return devices.Device(device)


def _add_device_type() -> None:
    """DeviceType.NPU, a full member of Thunder's Enum: found by name, value and iteration, one object per process.

    Enum has no public way to add a member, and one with members has no subclasses; these steps are what EnumType does
    for a member of a class body, the same from Python 3.10 to 3.13. The value is the string "npu" and not the next
    number: a member is pickled by its value, and a number could mean another member in another process.
    """
    enum: Any = devices.DeviceType
    member = object.__new__(enum)
    member.__dict__.update(_name_="NPU", _value_=NAME, _sort_order_=len(enum), __objclass__=enum)
    enum._member_names_.append("NPU")
    enum._member_map_["NPU"] = member
    enum._value2member_map_[NAME] = member
    type.__setattr__(enum, "NPU", member)  # EnumType.__setattr__ refuses to set a name that is a member

    devices.all_devicetypes += (member,)
    devices._devicetype_prettyprint_map[member] = NAME
    devices._inverse_devicetype_prettyprint_map[NAME] = member


def _put_in_front(owner: Any, name: str, function: Callable) -> None:
    """Replace `owner.name`, and what modules of Thunder have imported of it by name, by `function`, which gets what it
    replaces as its first argument."""
    own = vars(owner)[name]

    @functools.wraps(own)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return function(own, *args, **kwargs)

    importers = [module for key, module in list(sys.modules.items()) if key.partition(".")[0] == "thunder"]
    for holder in (owner, *importers):
        if vars(holder).get(name) is own:
            setattr(holder, name, patched)


# ---------------------------------------------------------------- the runtime: torch.npu, if there is one


def _runtime() -> Any | None:
    """torch.npu, which torch_npu registers when imported. Not by getattr, which searches all of torch on a miss."""
    return vars(torch).get(NAME)


def _current_index() -> int:
    """The device that a bare "npu" means: torch.npu.current_device(), as in PyTorch; 0 before the runtime is in use."""
    runtime = _runtime()
    return runtime.current_device() if runtime is not None and runtime.is_initialized() else 0


def _require_runtime(device: str) -> None:
    runtime = _runtime()
    if runtime is None:
        cause = (
            f"torch_npu is not loaded. Install CANN and the torch_npu that goes with PyTorch {torch.__version__}, and"
            " import it (PyTorch does that by itself unless TORCH_DEVICE_BACKEND_AUTOLOAD=0)"
        )
    elif not runtime.is_available():
        cause = "torch_npu finds no NPU. Check npu-smi info, CANN's set_env.sh and ASCEND_RT_VISIBLE_DEVICES"
    else:
        return
    raise RuntimeError(
        f"cannot create a tensor on {device!r}: {cause}; on a machine without an NPU, run the program with"
        " python -m thunder_npu.virtual_npu"
    )


# ---------------------------------------------------------------- thunder.core.devices


def _is_npu(device: Any) -> bool:
    """Whether a Device, DeviceType, torch.device, device string or None says npu."""
    if isinstance(device, devices.Device):
        device = device.devicetype
    if isinstance(device, devices.DeviceType):
        return device is devices.DeviceType.NPU
    return device is not None and str(device).split(":")[0] == NAME


def _device_from_string_helper(own: Callable, devicestr: str) -> tuple[Any, int | None]:
    return (devices.DeviceType.NPU, None) if devicestr == NAME else own(devicestr)


def _parse_device_info(own: Callable, device: Any, index: int | None = None, /) -> tuple[Any, int | None]:
    """(type, index). As Thunder does for cuda: two different indices are an error, and the index is never None."""
    if not _is_npu(device):
        return own(device, index)
    in_string = devices._device_from_string_helper(device)[1] if isinstance(device, str) else None
    if None not in (index, in_string) and index != in_string:
        raise RuntimeError(f"device {device!r} was given a second index, {index}")
    chosen = next((i for i in (in_string, index) if i is not None), None)
    if chosen is None:
        chosen = _current_index()
    if chosen < 0:
        raise RuntimeError(f"invalid npu index {chosen}, which must not be negative")
    return devices.DeviceType.NPU, chosen


def _device_from_string(own: Callable, devicestr: str) -> Any:
    return devices.Device(devicestr) if _is_npu(devicestr) else own(devicestr)


def _device_str(own: Callable, device: Any) -> str:
    return f"{NAME}:{device.index}" if _is_npu(device) else own(device)


def _device_repr(own: Callable, device: Any) -> str:
    return f"thunder.devices.Device(type='{NAME}', index={device.index})" if _is_npu(device) else own(device)


def _device_reduce(own: Callable, device: Any) -> Any:
    if not _is_npu(device):
        return own(device)
    # Not this module's own npu_device: pickle insists on the one in sys.modules, and that module may be a later import.
    return importlib.import_module("thunder_npu.device").npu_device, (device.device_str(),)


def _available_devices(own: Callable) -> Any:
    runtime = _runtime()
    if runtime is None or not runtime.is_available():
        return own()
    return (*own(), *(devices.Device(devices.DeviceType.NPU, i) for i in range(runtime.device_count())))


def _to_torch_device(own: Callable, device: Any, /) -> Any:
    """Every factory function and Tensor.to passes here on its way into an executable trace."""
    if _is_npu(device):
        _require_runtime(device.device_str() if isinstance(device, devices.Device) else str(device))
    return own(device)


def _device_put(own: Callable, a: Any, device: Any) -> Any:
    """The torch executor's transform of prims.device_put, which writes the device into the trace as a string."""
    if _is_npu(device):
        _require_runtime(device.device_str())
    return own(a, device)


def _npu(a: Any, /, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """Tensor.npu, which torch_npu adds to PyTorch. `device` may be an index."""
    return ltorch.to(a, NAME if device is None else f"{NAME}:{device}" if isinstance(device, int) else device, **kwargs)


def _is_npu_tensor(a: Any) -> bool:
    """Tensor.is_npu."""
    return _is_npu(a.device)


# ---------------------------------------------------------------- torch.autocast


def _ambient_autocast_dtype() -> torch.dtype | None:
    """The dtype of the torch.autocast("npu") under which a compiled function is called; None: there is none.

    Not affected by autocast regions within the function being traced: Thunder tracks those on its own stack.
    """
    if _runtime() is None or not torch.is_autocast_enabled(NAME):
        return None
    return torch.get_autocast_dtype(NAME)


def _get_cache_info(own: Callable) -> dict[str, Any]:
    """What a compiled function's prologue checks besides its inputs.

    Thunder has filled in the autocast state of cpu and cuda by the time it reads this, and npu's is laid over that. The
    current device is there because a bare "npu" was traced as it.
    """
    info = own()
    if _runtime() is not None:
        info["npu_current_device"] = _current_index()
        if (dtype := _ambient_autocast_dtype()) is not None:
            info["is_autocast_enabled"] = True
            info["autocast_npu_dtype"] = str(dtype)
    return info


def _downcast(sym: Any, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
    """Thunder's own rule for `sym`, one for all devices: matmul, linear, convolutions, attention."""
    return autocast.autocast_impls[sym.id](*args, **kwargs, dtype=dtypes.to_dtype(dtype))


def _softmax_in_float32(sym: Any, _: torch.dtype, *args: Any, **kwargs: Any) -> Any:
    """torch_npu lists softmax with what autocast runs with dtype=torch.float32 unless the call has a dtype; and ATen's
    _safe_softmax calls softmax."""
    call = inspect.signature(sym.meta).bind(*args, **kwargs)
    if call.arguments.get("dtype") is None and call.args[0].dtype in (dtypes.float16, dtypes.bfloat16):
        call.arguments["dtype"] = dtypes.float32
    return sym(*call.args, **call.kwargs)


def _npu_autocast_rule(sym: Any) -> Callable | None:
    return _downcast if sym.id in autocast.autocast_impls else _FLOAT32_RULES.get(sym.id)


_FLOAT32_RULES = dict.fromkeys((ltorch._softmax.id, ltorch.log_softmax.id, "torch._safe_softmax"), _softmax_in_float32)


def _npu_autocast_dtype(regions: Iterable[tuple[str, Any, bool]]) -> Any | None:
    """The dtype of the innermost autocast of npu: of the traced function's `regions`, else of the call itself.

    The latter counts only while Thunder interprets the function. Afterwards transforms call the symbols of the trace
    again, which has its casts by then and no longer knows where the function had switched autocast off.
    """
    own = [(dtype, enabled) for device, dtype, enabled in regions if device == NAME]
    if own:
        dtype, enabled = own[-1]
        return dtype if enabled else None
    return _ambient_autocast_dtype() if get_interpretercompilectx_if_available() is not None else None


def _maybe_apply_autocast(own: Callable, sym: Any) -> Callable | None:
    """Thunder's hook on each symbol that is called: None, or the function to call in its place.

    Thunder's own answer takes the autocast of cpu if an argument is on the cpu, else that of cuda; with an npu argument
    it is that of npu.
    """
    elsewhere = own(sym)
    rule = _npu_autocast_rule(sym)
    compile_data = get_compile_data()
    if rule is None or compile_data is None or not autocast.is_autocast_enabled():
        return elsewhere
    dtype = _npu_autocast_dtype(compile_data.autocast_stack.stack)
    if elsewhere is None and dtype is None:
        return None

    @functools.wraps(sym)
    def autocast_sym(*args: Any, **kwargs: Any) -> Any:
        on_npu = any(isinstance(x, TensorProxy) and _is_npu(x.device) for x in tree_flatten((args, kwargs))[0])
        if elsewhere is not None and not on_npu:
            return elsewhere(*args, **kwargs)
        with autocast.disable_autocast():  # `sym`, also as called by the rule, would come here again
            return rule(sym, dtype, *args, **kwargs) if on_npu and dtype is not None else sym(*args, **kwargs)

    return autocast_sym


def _no_autocast(own: Callable, fn: Callable) -> Callable:
    """Decorator of generated functions, which run as they were traced: also with npu's autocast off."""
    without_cpu_and_cuda = own(fn)

    @functools.wraps(fn)
    def no_autocast_fn(*args: Any, **kwargs: Any) -> Any:
        if _runtime() is None or not torch.is_autocast_enabled(NAME):
            return without_cpu_and_cuda(*args, **kwargs)
        torch.set_autocast_enabled(NAME, False)
        try:
            return without_cpu_and_cuda(*args, **kwargs)
        finally:
            torch.set_autocast_enabled(NAME, True)

    return no_autocast_fn


_PATCHES: tuple[tuple[Any, str, Callable], ...] = (
    (devices, "_device_from_string_helper", _device_from_string_helper),
    (devices, "_parse_device_info", _parse_device_info),
    (devices, "device_from_string", _device_from_string),
    (devices, "available_devices", _available_devices),
    (devices, "to_torch_device", _to_torch_device),
    (devices.Device, "device_str", _device_str),
    (devices.Device, "__repr__", _device_repr),
    (devices.Device, "__reduce__", _device_reduce),
    (thunder, "_get_cache_info", _get_cache_info),
    (autocast, "maybe_apply_autocast", _maybe_apply_autocast),
    (torchex, "no_autocast", _no_autocast),
)

register_npu_device()
