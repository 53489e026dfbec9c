"""The cache of compiled code: where it is, who may write to it, and what a damaged entry or a second process does."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from thunder_npu import cache
from thunder_npu.kernels import codegen
from thunder_npu.virtual_npu import build

VARIABLES = ("THUNDER_NPU_CACHE_DIR", "XDG_CACHE_HOME", "HOME")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
MODULE = '"""e² · x, as a module of ours may say it."""\n\nfused_rows = {}\n'


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("THUNDER_NPU_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def start(code, **environment):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def outputs(*processes):
    done = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    assert all(code == 0 for *_, code in done), done
    return [out for out, *_ in done]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"THUNDER_NPU_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"THUNDER_NPU_CACHE_DIR": "~/a", "HOME": "/c"}, "/c/a"),
        ({"THUNDER_NPU_CACHE_DIR": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/thunder_npu"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/thunder_npu"),
        ({"HOME": "/c"}, "/c/.cache/thunder_npu"),
    ],
)
def test_the_root(environment, expected, monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache.path() == Path(expected)
    assert cache.path("regions", "x.py") == Path(expected, "regions", "x.py")
    assert codegen.path_of("text").parent == Path(expected, "regions")


def test_a_relative_root_does_not_move_with_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THUNDER_NPU_CACHE_DIR", "here")
    assert cache.path() == tmp_path / "here"


def test_no_home_directory(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(cache.CacheError, match=r"home directory.*set THUNDER_NPU_CACHE_DIR"):
        cache.path()


def test_directories_are_for_their_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("THUNDER_NPU_CACHE_DIR", str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        folder = cache.directory("c", "d")
        cache.write(folder / "entry", "text")
        with cache.locked(folder / "entry"):
            pass
    finally:
        os.umask(before)
    assert folder == tmp_path / "a" / "b" / "c" / "d"
    for made in (folder, *folder.parents[:3]):
        assert made.stat().st_mode & 0o777 == 0o700, made
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
@pytest.mark.parametrize("which", ["", "regions"])
def test_a_directory_that_others_can_write_to(root, which, mode):
    (cache.directory("regions")).joinpath("x").touch()
    (root / which).chmod(mode)
    with pytest.raises(cache.CacheError, match=r"can be written by others.*chmod go-w .*or set THUNDER_NPU") as error:
        codegen.load(MODULE + f"# {which} {mode}\n")
    assert str(root / which) in str(error.value)
    (root / which).chmod(0o755)  # others may read
    codegen.load(MODULE + f"# {which} {mode}\n")


def test_a_directory_of_somebody_else(root, monkeypatch):
    cache.directory()
    monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
    with pytest.raises(cache.CacheError, match=rf"{root} belongs to user .*set THUNDER_NPU_CACHE_DIR"):
        cache.directory("regions")
    assert list(root.iterdir()) == []


def test_a_root_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        monkeypatch.setenv("THUNDER_NPU_CACHE_DIR", str(tmp_path / name))
        with pytest.raises(cache.CacheError, match=rf"{tmp_path}/file.* cannot be made.*set THUNDER_NPU_CACHE_DIR"):
            cache.directory("regions")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_directory_that_cannot_be_written(root, monkeypatch, code):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    entry = cache.directory("regions") / "entry"
    cache.write(entry, "old")
    for name in ("replace", "chmod"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(cache.CacheError, match=rf"{entry.parent} .*{os.strerror(code)}.*set THUNDER_NPU_CACHE"):
                cache.write(entry, "new")
        assert [path.name for path in entry.parent.iterdir()] == ["entry"]
        assert entry.read_text() == "old"
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(cache.CacheError, match="set THUNDER_NPU_CACHE_DIR"), cache.locked(entry):
        pass


def test_an_error_under_the_lock_stays_what_it_is(root):
    with pytest.raises(OSError, match="mine"), cache.locked(cache.directory() / "entry"):
        raise OSError("mine")


LOAD = f"""
import locale, sys
assert locale.getpreferredencoding(False).upper() not in ("UTF-8", "UTF8")
from thunder_npu.kernels import codegen
print(codegen.load({MODULE!a}), codegen.path_of({MODULE!a}))
"""


def test_a_module_with_every_kind_of_letter_in_an_ascii_locale(root):
    first, second = outputs(*(start(LOAD, **ASCII) for _ in range(2)))  # both find no file
    (third,) = outputs(start(LOAD, **ASCII))
    assert first == second == third
    file = Path(first.split()[-1])
    assert file.read_bytes() == MODULE.encode()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", MODULE.encode().replace(b"{}", b"[]"), MODULE.encode()[:-4]])
def test_a_damaged_module_is_written_again(root, damage, monkeypatch):
    monkeypatch.setattr(codegen, "_loaded", {})
    assert codegen.load(MODULE) == {}
    codegen.path_of(MODULE).write_bytes(damage)
    codegen._loaded.clear()
    assert codegen.load(MODULE) == {}
    assert codegen.path_of(MODULE).read_bytes() == MODULE.encode()


def test_seals(root):
    entry = cache.directory("x") / "entry"
    assert not cache.intact(entry)
    cache.write(entry, b"\x00\x01")
    assert not cache.intact(entry)
    cache.seal(entry)
    assert cache.intact(entry)
    for damaged in (b"", b"\x00", b"\x01\x01"):
        entry.write_bytes(damaged)
        assert not cache.intact(entry)
    entry.unlink()
    assert not cache.intact(entry)


def test_the_lock_keeps_two_processes_apart(root):
    code = """
    import time
    from thunder_npu import cache
    file = cache.directory("x") / "count"
    for _ in range(50):
        with cache.locked(file):
            count = int(file.read_text()) if file.exists() else 0
            time.sleep(0.001)
            cache.write(file, str(count + 1))
    """
    outputs(*(start(code) for _ in range(3)))
    assert (root / "x" / "count").read_text() == "150"


@pytest.mark.parametrize("damaged", [build.CORE, "libopapi.so"])
@pytest.mark.parametrize("how", ["truncated", "removed", "other bytes"])
def test_damaged_libraries_are_built_again(root, monkeypatch, damaged, how):
    built = []

    def fake(out, *_):
        built.append(out)
        for name in (build.CORE, *(f"lib{name}.so" for name in build.CANN_NAMES)):
            (out / name).write_text(f"library {name}")
            cache.seal(out / name)

    monkeypatch.setattr(build, "_build", fake)
    monkeypatch.setattr(build, "_package", lambda name: Path(name))
    monkeypatch.setattr(build, "check_versions", lambda: None)
    monkeypatch.setattr(build, "_compiler", lambda: sys.executable)
    monkeypatch.setattr(build.importlib.metadata, "version", lambda name: "2.9.1")
    target = build.libraries()
    assert build.libraries() == target
    assert target.is_relative_to(root / "virtual_npu")
    assert len(built) == 1
    library = target / damaged
    if how == "removed":
        library.unlink()
    else:
        library.write_text("library" if how == "truncated" else f"LIBRARY {damaged}")
    assert build.libraries() == target
    assert len(built) == 2
    assert library.read_text() == f"library {damaged}"
    assert build.libraries() == target
    assert len(built) == 2


def test_the_runtime_of_triton_kernels_lies_there_too_and_is_built_again(root):
    pytest.importorskip("triton.backends.ascend")
    code = """
    from thunder_npu.virtual_npu.triton_cpu import execution
    print(execution._runtime()._name)
    """
    first, second = outputs(start(code), start(code))
    file = Path(first.strip())
    assert first == second
    assert file.parent == root / "triton_cpu"
    whole = file.read_bytes()
    file.write_bytes(whole[:1000])
    outputs(start(code))
    assert len(file.read_bytes()) == len(whole)


def test_the_module_imports_nothing_of_ours_nor_torch():
    code = """
    import sys, thunder_npu
    before = set(sys.modules)
    import thunder_npu.cache
    new = set(sys.modules) - before
    print(sorted(n for n in new if n.split(".")[0] in ("thunder_npu", "torch", "thunder", "triton")))
    """
    assert outputs(start(code)) == ["['thunder_npu.cache']\n"]
