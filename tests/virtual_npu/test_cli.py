"""The launcher, `enable` in a fresh process, and what they refuse. Each test starts processes of its own."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from thunder_npu import cache
from thunder_npu.virtual_npu import activation, build

# What a user's shell has: nothing of this process's virtual NPU.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("VIRTUAL_NPU_") and name not in ("LD_LIBRARY_PATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")
}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env={**ENVIRONMENT, **environment}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def launch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "thunder_npu.virtual_npu", *arguments, **environment)


def test_code_with_every_option(tmp_path: Path) -> None:
    trace, log = tmp_path / "trace.json", tmp_path / "log"
    code = (
        "import sys, torch; x = torch.randn(4, 8, device='npu:1'); print(torch.softmax(x, -1).sum().item());"
        "print(sys.argv, torch.npu.device_count(), torch.npu.get_device_name(1), torch.npu.mem_get_info(1)[1]);"
        "print(torch.npu.get_device_properties(0).vector_core_num)"
    )
    result = launch(
        "--devices", "2", "--soc", "ascend910b4", "--memory", str(1 << 30), "--log", str(log), "--trace", str(trace),
        "--summary", "-c", code, "--flag", "x",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    total, facts, cores = result.stdout.splitlines()
    assert float(total) == pytest.approx(4)
    assert facts == f"['-c', '--flag', 'x'] 2 Ascend910B4 {1 << 30}"
    assert cores == "40"
    assert "aclnnSoftmax" in {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert any(
        line.startswith('aclnnSoftmax {"dtype":"float32","shape":[4,8]},-1,') for line in log.read_text().splitlines()
    )
    assert "aclnnSoftmax" in result.stderr


def test_script_and_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("import torch\nvalue = torch.ones(3, device='npu').sum().item()\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, helper\nassert __name__ == '__main__'\nprint(helper.value, sys.argv[1:], __file__)\nsys.exit(3)\n"
    )
    trace = tmp_path / "trace.json"
    result = launch("--trace", str(trace), str(script), "--devices", "7")
    assert result.returncode == 3, result.stderr
    assert result.stdout.split(" ", 1)[1].strip() == f"['--devices', '7'] {script}"
    assert json.loads(trace.read_text())["traceEvents"]  # written although the program ended by sys.exit


def test_module_and_traceback() -> None:
    result = launch(
        "-m", "timeit", "-n1", "-r1", "import torch; raise KeyError(torch.ones(2, device='npu').sum().item())"
    )
    assert result.returncode == 1
    assert result.stderr.strip().endswith("KeyError: 2.0")


def test_child_processes_and_data_loader_workers() -> None:
    """A child process finds the virtual NPU without asking; forked workers feed the parent's."""
    code = (
        "import subprocess, sys, torch; from torch.utils.data import DataLoader, TensorDataset\n"
        "child = 'import torch, torch_npu as n; print(n.npu.device_count(), torch.ones(3).npu().sum().item())'\n"
        "print(subprocess.check_output([sys.executable, '-c', child], text=True).split()[-2:])\n"
        "data = DataLoader(TensorDataset(torch.arange(8.)), batch_size=4, num_workers=2)\n"
        "print([batch[0].to('npu').sum().item() for batch in data])"
    )
    result = launch("--devices", "3", "-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["['3', '3.0']", "[6.0, 22.0]"]


@pytest.mark.parametrize("torch_first", [False, True])
def test_enable_before_and_after_torch(torch_first: bool) -> None:
    code = (
        ("import torch\n" if torch_first else "")
        + "from thunder_npu import virtual_npu; virtual_npu.enable(); virtual_npu.enable()\n"
        + "import torch, torch_npu; print(torch.softmax(torch.zeros(1, 4, device='npu'), -1).tolist())\n"
        + "try: virtual_npu.enable(devices=2)\n"
        + "except RuntimeError as error: print(error)"
    )
    result = run("-c", code, **({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if torch_first else {}))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "[[0.25, 0.25, 0.25, 0.25]]",
        "the virtual NPU is enabled already, with other values of VIRTUAL_NPU_DEVICES",
    ]


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, thunder_npu.virtual_npu; print({'torch', 'torch_npu', 'triton', 'thunder'} & set(sys.modules))"
    assert run("-c", code).stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a script, -m module, or -c code"),
        (("--soc", "H200", "-c", "1"), "unknown SoC 'H200'; known: Ascend910B1"),
        (("--devices", "0", "-c", "1"), "devices must be 1 to 64, not 0"),
        (("--memory", "-5", "-c", "1"), "memory_limit must be a positive number of bytes, not -5"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], message: str) -> None:
    result = launch(*arguments)
    assert result.returncode == 2
    assert message in result.stderr


def test_no_compiler(tmp_path: Path) -> None:
    result = launch("-c", "1", PATH=str(tmp_path), THUNDER_NPU_CACHE_DIR=str(tmp_path))
    assert result.returncode == 2
    assert "there is no g++, c++ or clang++: install g++" in result.stderr
    result = launch("-c", "1", CXX="no-such-compiler", THUNDER_NPU_CACHE_DIR=str(tmp_path))
    assert "there is no no-such-compiler" in result.stderr


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'fatal error: out of stars' >&2\nexit 1\n")
    compiler.chmod(0o755)
    result = launch("-c", "1", CXX=str(compiler), THUNDER_NPU_CACHE_DIR=str(tmp_path / "cache"))
    assert result.returncode == 2
    assert "out of stars" in result.stderr
    built = [path for path in (tmp_path / "cache" / "virtual_npu").iterdir() if path.suffix != ".lock"]
    assert [path.name for path in built] in ([], ["objects"])


def test_versions_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.9.1+cpu", "torch_npu": "2.8.0"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    with pytest.raises(RuntimeError, match=r"torch_npu 2\.8\.0 does not fit torch 2\.9\.1.*install torch_npu==2\.9"):
        build.check_versions()
    versions["torch_npu"] = "2.9.0.post2"
    build.check_versions()


def test_a_missing_package_is_named() -> None:
    with pytest.raises(RuntimeError, match="needs no_such_package, which is not installed"):
        build._package("no_such_package")


def test_real_npu_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(activation, "DEVICE_NODES", str(tmp_path / "davinci[0-9]*"))
    activation._refuse_beside_real_npu(force=False)
    (tmp_path / "davinci_manager").touch()
    activation._refuse_beside_real_npu(force=False)
    (tmp_path / "davinci0").touch()
    with pytest.raises(RuntimeError, match=r"real NPU \(.*davinci0\).*--force"):
        activation._refuse_beside_real_npu(force=False)
    activation._refuse_beside_real_npu(force=True)


@pytest.mark.parametrize("overwritten", [False, True])
def test_triton_over_triton_ascend(monkeypatch: pytest.MonkeyPatch, overwritten: bool) -> None:
    content = b"__version__ = '3.2.0'\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()

    class Init:
        hash = SimpleNamespace(value=digest)

        def __str__(self) -> str:
            return "triton/__init__.py"

        def read_binary(self) -> bytes:
            return b"__version__ = '3.5.1'\n" if overwritten else content

    found = SimpleNamespace(files=[Init()], version="3.2.0")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
    if not overwritten:
        return activation._check_triton()
    with pytest.raises(RuntimeError, match=r"overwritten.*pip uninstall -y triton triton-ascend"):
        activation._check_triton()


def test_pytest_plugin(tmp_path: Path) -> None:
    """The fixtures work in a session that imported torch first, and clean up after a test."""
    (tmp_path / "test_user.py").write_text(
        "import torch\n"
        "def test_calls(npu_calls):\n"
        "    torch.exp(torch.ones(2, device='npu'))\n"
        "    assert npu_calls.names[-1] == 'aclnnExp'\n"
        "def test_fault(virtual_npu):\n"
        "    assert virtual_npu.counters() == {}\n"
        "    virtual_npu.inject_fault('aclnnExp')\n"
        "def test_no_fault_is_left(virtual_npu):\n"
        "    torch.exp(torch.ones(2, device='npu'))\n"
    )
    result = run("-m", "pytest", "-q", "-p", "thunder_npu.virtual_npu.pytest_plugin", str(tmp_path))
    assert "3 passed" in result.stdout, result.stdout + result.stderr


def test_two_first_uses_at_once(tmp_path: Path) -> None:
    """Both find no libraries in the cache; one builds them, the other waits for it, and both run."""
    (tmp_path / "virtual_npu").mkdir(mode=0o700)
    (tmp_path / "virtual_npu" / "objects").symlink_to(cache.path("virtual_npu", "objects"))  # compiling takes a minute
    code = "import torch; print(torch.ones(2, device='npu').sum().item())"
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "thunder_npu.virtual_npu", "-c", code],
            env={**ENVIRONMENT, "THUNDER_NPU_CACHE_DIR": str(tmp_path)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=280) for process in both]
    assert [out for out, _ in outputs] == ["2.0\n", "2.0\n"], outputs
    assert sum("built in" in err for _, err in outputs) == 1
