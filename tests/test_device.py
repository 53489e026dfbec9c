"""The "npu" device type in Thunder, by name alone: nothing here needs torch_npu.

What runs on an npu tensor is tested in virtual_npu/test_device_npu.py.
"""

import copy
import os
import pickle
import subprocess
import sys
import textwrap

import pytest
import thunder
import torch
from thunder.core import devices
from thunder.core.trace import from_trace
from thunder.core.transform_common import Transform

import thunder_npu.device  # noqa: F401  (registers)

NPU = devices.DeviceType.NPU


class TrustInputs(Transform):
    """Drops the prologue's checks of tensors, so that a stand-in for an npu tensor gets past them."""

    def transform_traces_pre_prologue(self, prologue, computation, epilogue, **kwargs):
        trusting = from_trace(prologue)
        trusting.bound_symbols = [b for b in prologue.bound_symbols if b.sym.name != "check_tensor_shape_and_metadata"]
        return trusting, computation, epilogue


def stand_in(*shape, device="npu:0", **kwargs):
    """A meta tensor that Thunder traces as a tensor on `device`, and then runs as what it is."""
    x = torch.empty(*shape, device="meta", **kwargs)
    x._thunder_device = device
    return x


def traced(f, *args):
    """The computation trace that Thunder acquires of f, printed. Nothing is executed."""

    class Acquired(Exception):  # noqa: N818
        pass

    class Stop(Transform):
        def transform_traces_pre_prologue(self, prologue, computation, epilogue, **kwargs):
            raise Acquired(str(computation))

    with pytest.raises(Acquired) as acquired:
        thunder.jit(f, transforms=[Stop()])(*args)
    return str(acquired.value)


def python(code, *argv):
    """Runs `code` in a fresh interpreter without torch_npu; the last line it prints."""
    path = os.pathsep.join(p for p in sys.path if p)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *argv],
        env=dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=path),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1]


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("arguments", "index"),
    [(("npu",), 0), (("npu:0",), 0), (("npu:1",), 1), (("npu", 3), 3), (("npu:3", 3), 3), ((NPU,), 0), ((NPU, 2), 2)],
)
def test_device_keeps_its_index(arguments, index):
    device = devices.Device(*arguments)
    assert (device.type, device.index, device.devicetype) == ("npu", index, NPU)
    assert device.device_str() == f"npu:{index}"
    assert repr(device) == f"thunder.devices.Device(type='npu', index={index})"
    assert device is devices.Device(device.device_str()) is devices.to_device(f"npu:{index}")
    assert device != devices.Device("cpu")


@pytest.mark.parametrize("arguments", [("npu:1", 2), ("npu:-1",), ("npu", -1), ("npu:one",), ("npux",)])
def test_wrong_names_are_refused(arguments):
    with pytest.raises((RuntimeError, ValueError, KeyError)):
        devices.Device(*arguments)


def test_device_type_is_a_full_enum_member():
    assert devices.DeviceType("npu") is devices.DeviceType["NPU"] is devices.DeviceType.NPU
    assert [t.name for t in devices.DeviceType] == ["CPU", "CUDA", "META", "NPU"]
    assert [t.value for t in devices.DeviceType][:3] == [1, 2, 3]
    assert isinstance(NPU, devices.DeviceType)
    assert NPU in devices.DeviceType
    assert NPU in devices.all_devicetypes
    assert len(dict.fromkeys(devices.DeviceType)) == 4
    assert devices.DeviceType.CPU != NPU
    assert devices.devicetype_string(NPU) == "npu"
    assert str(NPU) == "DeviceType.NPU"


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_and_copy_give_the_same_object(protocol):
    for thing in (NPU, devices.Device("npu:1"), devices.Device("cpu"), devices.Device("cuda:1")):
        assert pickle.loads(pickle.dumps(thing, protocol)) is thing
        assert copy.copy(thing) is copy.deepcopy(thing) is thing


def test_unpickling_in_a_process_that_has_not_imported_thunder_npu():
    data = pickle.dumps([devices.Device("npu:1"), NPU]).hex()
    assert python("import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1])))", data) == (
        "[thunder.devices.Device(type='npu', index=1), <DeviceType.NPU: 'npu'>]"
    )


def test_available_devices_without_a_runtime():
    assert all(device.type != "npu" for device in devices.available_devices())


# ---------------------------------------------------------------- traces


def test_traces_print_the_device():
    trace = traced(lambda a: torch.softmax(a, -1) + torch.ones_like(a), stand_in(4, 512))
    assert 'a: "npu:0 f32[4, 512]"' in trace
    assert "cpu" not in trace


def test_prologue_checks_the_device():
    jitted = thunder.jit(torch.neg)
    with pytest.raises(AssertionError, match=r"npu:1.*got.*meta"):
        jitted(stand_in(3, device="npu:1"))


@pytest.mark.parametrize("other", ["npu:1", "cpu"])
def test_tensors_of_two_devices_do_not_mix(other):
    with pytest.raises(RuntimeError, match="Devices were expected to be the same"):
        traced(torch.add, stand_in(3), stand_in(3, device=other))


def test_moves_to_where_a_tensor_is_are_no_moves():
    def stay(a):
        return a.to("npu"), a.to(torch.float32), a.to("npu:0", torch.float32), a.npu(), a.npu(0)

    assert "device_put" not in traced(stay, stand_in(3))
    assert traced(stay, stand_in(3, device="npu:1")).count("device_put") == 4


def test_is_npu():
    def f(a):
        return a + 1.0 if a.is_npu and not a.is_cuda else a * 2.0

    assert "prims.add" in traced(f, stand_in(3))
    assert "prims.mul" in traced(f, torch.ones(3))


CREATORS = {
    "to": (lambda a: a.to("npu:1"), True),
    "to in training": (lambda a: (a * a).to("npu:1").sum(), True),
    "Tensor.npu": (lambda a: a.npu(1), True),
    "zeros": (lambda: torch.zeros(2, device="npu:1"), False),
    "ones": (lambda: torch.ones(2, device=torch.device("npu", 1)), False),
    "full": (lambda: torch.full((2,), 1.0, device="npu:1"), False),
    "arange": (lambda: torch.arange(3, device="npu:1"), False),
    "tensor": (lambda: torch.tensor([1.0, 2.0], device="npu:1"), False),
    "rand": (lambda: torch.rand(2, device="npu:1"), False),
    "randn": (lambda: torch.randn(2, device="npu:1"), False),
    "empty": (lambda: torch.empty(2, device="npu:1"), False),
    "zeros_like": (lambda a: torch.zeros_like(a, device="npu:1"), True),
}


@pytest.mark.parametrize("name", CREATORS)
def test_creating_an_npu_tensor_without_a_runtime_names_cause_and_remedy(name):
    f, takes_tensor = CREATORS[name]
    arguments = (torch.ones(3, requires_grad="training" in name),) if takes_tensor else ()
    with pytest.raises(RuntimeError, match=r"cannot create a tensor on 'npu:1'.*torch_npu is not loaded.*virtual_npu"):
        thunder.jit(f)(*arguments)


# ---------------------------------------------------------------- registration

UNCHANGED = """
    import pickle, sys, threading, importlib
    import torch, thunder
    from thunder.core import devices
    from thunder.executors import torchex

    def outcome(f, *args):
        try:
            return repr(f(*args))
        except Exception as e:
            return f"{type(e).__name__}: {e}"

    def f(a):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = a @ a
        return torch.softmax(b, -1) + torch.ones(3, device="cpu")

    def snapshot():
        names = ["cpu", "cuda", "cuda:1", "cpu:3", "meta", "meta:0", "cuda:-1", "cuda:x", "tpu", "", None, 3]
        names += list(devices.DeviceType)[:3]
        translations = devices.device_from_string, devices.to_device, devices.to_torch_device
        shown = [outcome(devices.Device, name, *index) for name in names for index in ((), (None,), (0,), (2,))]
        shown += [outcome(translate, name) for name in names for translate in translations]
        shown += [repr((d.device_str(), pickle.dumps(d))) for d in map(devices.Device, ("cpu", "cuda:1", "meta"))]
        shown += [repr(devices.available_devices()), repr([t.value for t in list(devices.DeviceType)[:3]])]
        jitted = thunder.jit(f)
        shown.append(repr(jitted(torch.ones(3, 3, requires_grad=True)).dtype))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            shown.append(repr(thunder.jit(f)(torch.ones(3, 3)).dtype))
        traces = (thunder.last_prologue_traces, thunder.last_traces, thunder.last_backward_traces)
        return shown + [str(t(jitted)[-1]).partition(" milliseconds)")[2] for t in traces]

    def patched():
        return devices.to_torch_device, devices.Device.device_str, thunder._get_cache_info, torchex.no_autocast

    before = snapshot()
    threads = [threading.Thread(target=importlib.import_module, args=["thunder_npu.device"]) for _ in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    first = patched()
    for _ in range(3):
        for name in [n for n in sys.modules if n.partition(".")[0] == "thunder_npu"]:
            del sys.modules[name]
        importlib.reload(importlib.import_module("thunder_npu.device")).register_npu_device()
        pickle.loads(pickle.dumps(devices.Device("npu:1")))
    assert patched() == first and torchex.to_torch_device is devices.to_torch_device
    assert [t.name for t in devices.DeviceType] == ["CPU", "CUDA", "META", "NPU"] and len(devices.all_devicetypes) == 3
    for a, b in zip(before, snapshot(), strict=True):
        assert a == b, (a, b)
    print("unchanged")
"""


def test_registration_is_idempotent_and_changes_nothing_for_cpu_and_cuda():
    assert python(UNCHANGED) == "unchanged"


# ---------------------------------------------------------------- autocast

AUTOCAST = """
    import sys, types
    import torch
    # What torch_npu does when it is imported, as far as torch.autocast looks at it.
    runtime = types.ModuleType("torch.npu")
    runtime.is_available = runtime.is_initialized = lambda: True
    runtime.current_device, runtime.device_count = lambda: current, lambda: 2
    runtime.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    torch.utils.rename_privateuse1_backend("npu")
    torch._register_device_module("npu", runtime)
    current = 0
    sys.path.insert(0, sys.argv[1])
    import thunder
    from test_device import TrustInputs, devices, stand_in, traced

    def dtypes(f, *args):
        return [str(x.dtype).removeprefix("torch.") for x in f(*args)]

    def body(a, w):
        return a @ w, torch.nn.functional.linear(a, w), torch.softmax(a @ w, -1), torch.log_softmax(a @ w, -1), a + w

    def inside(a, w):
        with torch.autocast("npu", dtype=torch.float16):
            low = body(a, w)
            with torch.autocast("npu", enabled=False):
                off = a @ w, torch.softmax(low[0], -1)
        return *low, *off, a @ w

    a, w = stand_in(4, 4, requires_grad=True), stand_in(4, 4)
    outside, within = (thunder.jit(f, transforms=[TrustInputs()]) for f in (body, inside))
    lows = {name: [name, name, "float32", "float32", "float32"] for name in ("float16", "bfloat16")}
    for _ in range(2):  # the second time from Thunder's cache
        assert dtypes(outside, a, w) == ["float32"] * 5
        for name in lows:
            with torch.autocast("npu", dtype=getattr(torch, name)):
                assert dtypes(outside, a, w) == lows[name]
                assert torch.is_autocast_enabled("npu") and torch.get_autocast_dtype("npu") is getattr(torch, name)
                assert dtypes(within, a, w) == [*lows["float16"], "float32", "float16", name]
                with torch.autocast("npu", enabled=False):
                    assert dtypes(outside, a, w) == ["float32"] * 5
        assert dtypes(within, a, w) == [*lows["float16"], "float32", "float16", "float32"]
    assert thunder.cache_misses(outside) == 3 and thunder.cache_misses(within) == 3

    # npu's autocast is not cpu's, and cpu's is not npu's
    with torch.autocast("npu", dtype=torch.float16):
        assert dtypes(thunder.jit(body), torch.ones(4, 4), torch.ones(4, 4)) == ["float32"] * 5
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert dtypes(thunder.jit(body, transforms=[TrustInputs()]), a, w) == lows["float16"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert dtypes(thunder.jit(body, transforms=[TrustInputs()]), a, w) == ["float32"] * 5

    # a bare "npu" is the current device, also after it has changed; available_devices asks the runtime
    double = thunder.jit(lambda x: x * 2.0, transforms=[TrustInputs()])
    for current in (0, 1, 0):
        assert devices.Device("npu").index == current
        assert "device_put" not in traced(lambda x: x.to("npu"), stand_in(3, device=f"npu:{current}"))
        double(stand_in(3))
    assert thunder.cache_misses(double) == 2
    assert [d.device_str() for d in devices.available_devices() if d.type == "npu"] == ["npu:0", "npu:1"]
    print("good")
"""


def test_autocast_and_current_device():
    assert python(AUTOCAST, os.path.dirname(__file__)) == "good"
