"""Importing the package: any order, twice, after a reload, without torch_npu or Triton, and what it costs."""

import os
import subprocess
import sys
import textwrap

import pytest


def python(code, path=(), **environment):
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **environment}
    env["PYTHONPATH"] = os.pathsep.join([*map(str, path), env.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


USE = """
x = torch.randn(2, 300)
jitted = thunder.jit(lambda x: torch.softmax(x, -1), executors=["aclnn", "triton_ascend"])
assert torch.equal(jitted(x), torch.softmax(x, -1))
assert "aclnn_softmax" in str(thunder.last_traces(jitted)[-1])
device = thunder.core.devices.to_device("npu:1")
assert (device.type, device.index) == ("npu", 1), device
print("right")
"""


@pytest.mark.parametrize(
    "order",
    [
        "thunder_npu, torch, thunder",
        "torch, thunder, thunder_npu",
        "thunder_npu, thunder, torch",
        "thunder, thunder_npu, torch",
        "thunder_npu, triton, torch, thunder",
    ],
)
def test_every_order_of_import(order):
    assert "right" in python(f"import {order}\n{USE}")


MODULES = (
    "executors.aclnn_ex executors.triton_ascend_ex executors.softmax_family transforms transforms.softmax "
    "transforms.repeat_cat plugin report routing device options kernels"
)


@pytest.mark.parametrize("module", MODULES.split())
def test_every_module_can_be_imported_first(module):
    assert "right" in python(f"import thunder_npu.{module}\nimport torch, thunder\n{USE}")


def test_reload_and_removal_change_nothing():
    code = """
    import sys, importlib, thunder_npu, torch, thunder
    for _ in range(60):
        for name in [n for n in sys.modules if n.split(".")[0] == "thunder_npu"]:
            del sys.modules[name]
        import thunder_npu
    importlib.reload(thunder_npu)
    importlib.reload(thunder_npu)
    finders = [f for f in sys.meta_path if "thunder" in type(f).__name__.lower()]
    assert not finders, finders
    names = [ex.name for ex in thunder.get_all_executors()]
    assert names.count("aclnn") == names.count("triton_ascend") == 1, names
    """
    assert "right" in python(textwrap.dedent(code) + USE)


def test_the_package_alone_loads_neither_torch_nor_thunder():
    loaded = python("""
        import sys, thunder_npu, thunder_npu.virtual_npu
        print([m for m in ("torch", "thunder", "triton", "torch_npu", "rich") if m in sys.modules])
    """)
    assert loaded.strip() == "[]"


def test_torch_npu_is_not_loaded_by_thunder_and_a_broken_one_does_no_harm(tmp_path):
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").write_text("raise ImportError('undefined symbol: _ZFAKE')")
    assert "right" in python(f"import thunder_npu, torch, thunder\n{USE}", [tmp_path])


def test_without_triton(tmp_path):
    hide = """
    import sys
    class Hide:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("triton", "torch_npu"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Hide())
    """
    assert "right" in python(textwrap.dedent(hide) + f"import thunder_npu, torch, thunder\n{USE}")


def test_unknown_names_are_attribute_errors():
    import thunder_npu

    with pytest.raises(AttributeError, match="aclnn_exx"):
        thunder_npu.aclnn_exx  # noqa: B018
    assert {"aclnn_ex", "triton_ascend_ex", "NPU", "explain", "transforms", "options"} <= set(dir(thunder_npu))


THREAD = "import threading; t = threading.Thread(target=__import__, args=('thunder',)); t.start()"
LOOK = "import importlib.util, thunder_npu; assert importlib.util.find_spec('thunder') is not None"


@pytest.mark.parametrize(
    "before",
    [
        LOOK,
        f"{LOOK}; importlib.reload(thunder_npu); importlib.util.find_spec('thunder')",
        f"import thunder_npu; {THREAD}; t.join()",
        f"{THREAD}; import thunder_npu; t.join()",
    ],
    ids=["looked for", "looked for, reloaded", "imported in a thread", "being imported in a thread"],
)
def test_looking_for_thunder_or_importing_it_in_a_thread(before):
    assert "right" in python(f"{before}\nimport torch, thunder\n{USE}")


def test_an_import_of_thunder_that_fails_and_is_tried_again():
    code = """
    import sys, thunder_npu
    class Fail:
        def find_spec(self, name, path=None, target=None):
            if name == "thunder.core":
                sys.meta_path.remove(self)
                raise ImportError("not now")
    sys.meta_path.insert(0, Fail())
    try:
        import thunder
    except ImportError as error:
        assert "not now" in str(error), error
    else:
        raise AssertionError("the import should have failed")
    for name in [n for n in sys.modules if n.split(".")[0] == "thunder"]:
        del sys.modules[name]
    import torch, thunder
    """
    assert "right" in python(textwrap.dedent(code) + USE)
