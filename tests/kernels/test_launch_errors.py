"""What a failing launch raises: a compile failure by that name, anything else as it is, always naming the kernel."""

from __future__ import annotations

import subprocess

import pytest
import torch

from thunder_npu import kernels
from thunder_npu.kernels import launch, tile_kernels
from thunder_npu.kernels.plan import Plan, ascend_target
from thunder_npu.kernels.region import COLUMN, Node, Region, Tensor
from thunder_npu.kernels.region_kernel import RegionKernel

pytest.importorskip("triton.backends.ascend", reason="needs the package triton-ascend")


class LostError(RuntimeError):
    """A device's error at run time; RuntimeError, as torch's own and Triton's drivers' are."""


PLAN = Plan("tile", rows=1, block=8, one_pass=True, masked=False, tiles=1, grid=1)
ERRORS = {
    "RuntimeError": (RuntimeError, "PassManager::run failed"),
    "CalledProcessError": (subprocess.CalledProcessError, 1, "bishengir-compile"),
    "KeyError": (KeyError, "x"),
}
LOST = {"LostError": (LostError, "device is lost")}


def failing(kind, *arguments):
    """An error that has not been raised yet, and what raises it."""
    error = kind(*arguments)

    def fail(*args, **kwargs):
        raise error

    return error, fail


@pytest.mark.parametrize("how", ERRORS.values(), ids=ERRORS)
def test_whatever_the_compiler_raises_is_a_compile_failure(device, monkeypatch, how):
    error, fail = failing(*how)
    monkeypatch.setattr("triton.compiler.compiler.get_cache_manager", fail)
    tile_kernels.softmax_tiles.cache.clear()
    with pytest.raises(
        kernels.KernelCompileError, match=r"softmax over dim 1 of \(5, 37\) \(float32, float32\)"
    ) as got:
        kernels.softmax(torch.randn(5, 37, device=device), 1)
    assert got.value.__cause__ is error
    assert str(error) in str(got.value)


@pytest.mark.parametrize("how", (LOST | ERRORS).values(), ids=LOST | ERRORS)
def test_what_the_launch_itself_raises_stays_what_it_is(device, monkeypatch, how):
    error, fail = failing(*how)
    x = torch.randn(5, 37, device=device)
    kernels.softmax(x, 1)
    monkeypatch.setattr("thunder_npu.virtual_npu.triton_cpu.execution.Library.launch", fail)
    before = str(error)
    with pytest.raises(type(error)) as got:
        kernels.softmax(x, 1)
    assert got.value is error
    if hasattr(error, "add_note"):
        assert str(error) == before
        assert "in a launch of softmax over dim 1 of (5, 37) (float32, float32)" in error.__notes__[-1]


def test_where_exceptions_take_no_notes():
    class OldError(RuntimeError):
        add_note = property(lambda self: self.no_such_attribute)  # as on Python 3.10

    error = OldError("device is lost")
    assert not hasattr(error, "add_note")
    target = ascend_target("Ascend910B2", 48)
    launch.rename(error, "softmax", target, PLAN)
    assert str(error).splitlines()[0] == "device is lost"
    assert "in a launch of softmax for Ascend910B2" in str(error)
    number = OldError(7)
    launch.rename(number, "softmax", target, PLAN)
    assert number.args == (7,)


def product() -> RegionKernel:
    """softmax(a · b) of rows of 37."""
    rows = Tensor((5, 37), torch.float32, ((1, 5), COLUMN))
    number = Tensor((), torch.float32, ())
    nodes = (
        Node("input", (), torch.float32, 0),
        Node("input", (), torch.float32, 1),
        Node("mul", (0, 1), torch.float32),
        Node("softmax", (2,), torch.float32),
    )
    return RegionKernel(Region(5, 37, nodes, (rows, number), ((3, rows),)), "Chain0")


def test_the_region_of_the_tests_below(device):
    a, b = torch.randn(5, 37, device=device), torch.tensor(0.5, device=device)
    (result,) = product()(a, b)
    torch.testing.assert_close(result, torch.softmax(a * b, -1))


def test_an_error_of_a_regions_launch_names_the_region_and_its_source(device, monkeypatch):
    _, fail = failing(*LOST["LostError"])
    monkeypatch.setattr("thunder_npu.virtual_npu.triton_cpu.execution.Library.launch", fail)
    with pytest.raises(LostError, match="device is lost") as got:
        product()(torch.randn(5, 37, device=device), torch.tensor(0.5, device=device))
    if hasattr(got.value, "add_note"):
        assert "Chain0: the kernel " in got.value.__notes__[-1]
        assert "region_" in got.value.__notes__[-1]
        assert "5 rows of 37 elements" in got.value.__notes__[-1]


def test_only_a_number_may_lie_in_host_memory(device):
    """As in eager; a tensor that silently crossed to the device would hide a wrong placement in every step."""
    kernel = product()
    with pytest.raises(RuntimeError, match=r"Chain0: input 0 of shape \(5, 37\) is on cpu and the region on meta"):
        kernel(torch.randn(5, 37), torch.tensor(0.5, device="meta"))
    with pytest.raises(RuntimeError, match=r"Chain0: input 1 of shape \(1,\) is on cpu and the region on meta"):
        kernel(torch.randn(5, 37, device="meta"), torch.ones(1))
    assert kernel._moved(1, torch.tensor(0.5), torch.device("meta")).device.type == "meta"
    with pytest.raises(RuntimeError, match=r"input 1 of shape .* is on meta and the region on cpu"):
        kernel._moved(1, torch.tensor(0.5, device="meta"), torch.device("cpu"))
