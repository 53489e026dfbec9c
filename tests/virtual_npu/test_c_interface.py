"""No C++ exception leaves the stand-in libraries: it would end the process, for no frame beyond can catch it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from thunder_npu.virtual_npu import build, library


def message() -> str:
    handle = library.require()
    handle.aclGetRecentErrMsg.restype = ctypes.c_char_p
    return handle.aclGetRecentErrMsg().decode()


def test_an_exception_becomes_a_code_and_a_text() -> None:
    handle = library.require()
    handle.aclCreateTensorDesc.restype = ctypes.c_void_p
    desc = ctypes.c_void_p(handle.aclCreateTensorDesc(0, 1, (ctypes.c_int64 * 1)(5), 2))
    size = ctypes.c_int64(-1)
    assert handle.aclGetTensorDescDimV2(desc, ctypes.c_size_t(7), ctypes.byref(size)) == 500000
    assert "7" in message()
    assert handle.aclGetTensorDescDimV2(desc, ctypes.c_size_t(0), ctypes.byref(size)) == 0
    assert size.value == 5
    handle.aclDestroyTensorDesc(desc)


def test_an_exception_becomes_a_null_pointer_and_a_text() -> None:
    handle = library.require()
    handle.aclCreateFloatArray.restype = ctypes.c_void_p
    before = library.data("vnpu_memory")["acl_objects"]
    # More elements than a vector can have: thrown before anything is read.
    assert handle.aclCreateFloatArray(ctypes.c_void_p(8), ctypes.c_uint64(2**61)) is None
    assert "exception in the virtual NPU" in message()
    assert library.data("vnpu_memory")["acl_objects"] == before


def test_a_function_without_a_result_keeps_the_text() -> None:
    library.require().vnpu_set_lost(999, 1)
    assert "999" in message()
    torch.testing.assert_close(torch.ones(2, device="npu").sum().item(), 2.0)


@pytest.mark.parametrize("source", sorted(build.SOURCES.glob("*.[ch]*")), ids=lambda path: path.name)
def test_every_exported_function_is_guarded(source: Path) -> None:
    text = re.sub(r"#define VNPU_.*", "", source.read_text())
    defined = r'(?:^|\n)[^\n/]*(?:VNPU_API|visibility\("default"\)+|extern "C" int) [^;{}]*?\)( try)? *(?=\{)'
    for match in re.finditer(defined, text):
        assert match[1] == " try", f"{source.name}: {match[0].strip()} lets exceptions out"
