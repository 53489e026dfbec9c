"""What can be installed: no set of ours has two packages that own the module triton, and the pinned set is whole."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PINNED = ROOT / "requirements" / "npu.txt"
TRITON = {"triton", "triton-ascend"}
"""Both own the module ``triton``."""


def pinned(path=PINNED):
    """Package → version of a requirements file, for this machine."""
    versions = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            versions |= pinned(path.with_name(line[3:].strip()))
        elif line and not line.startswith("#"):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", line
            if requirement.marker is None or requirement.marker.evaluate():
                assert versions.setdefault(canonicalize_name(requirement.name), specifier.version) == specifier.version
    return versions


def required_by(name, extra=""):
    """What a package asks for here, by its metadata: an extra's part too."""
    for text in importlib.metadata.requires(name) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def project(table):
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][table]


def test_no_extra_asks_for_both_owners_of_the_module_triton():
    """torch's wheel for x86-64 asks for triton, so nothing that pip resolves beside torch may ask for triton-ascend."""
    base = [Requirement(text) for text in project("dependencies")]
    asked = {canonicalize_name(r.name) for r in base}
    for name, texts in project("optional-dependencies").items():
        names = {canonicalize_name(Requirement(text).name) for text in texts}
        assert not (names | asked) & TRITON, f"the extra {name} asks for {names & TRITON}"
        assert "torch-npu" not in names, f"the extra {name}: pip cannot be told to take torch's version of torch_npu"


def test_the_pinned_set_holds_all_that_its_members_ask_for_and_no_triton():
    versions = pinned()
    assert versions.keys() & TRITON == {"triton-ascend"}
    roots = [Requirement(text) for text in project("dependencies")]
    roots += [Requirement(name) for name in ("torch_npu", "triton-ascend", "ascendnpu-ir")]
    missing = []
    for root in roots:
        assert root.specifier.contains(versions[canonicalize_name(root.name)]), root
    for name in versions:
        if importlib.metadata.version(name) != versions[name].split("+")[0]:
            pytest.skip(f"the environment has another {name} than the pinned one, so other requirements")
        for requirement in required_by(name):
            version = versions.get(canonicalize_name(requirement.name))
            # torch_npu's wheel for x86-64 asks for the build +cpu, which the package index does not have.
            builds = () if version is None else (version, f"{version}+cpu")
            if not any(requirement.specifier.contains(build, prereleases=True) for build in builds):
                missing.append((name, str(requirement), version))
    assert [entry for entry in missing if Requirement(entry[1]).name != "triton"] == []


def test_torch_npu_fits_torch():
    versions = pinned()
    assert Version(versions["torch"]).release[:2] == Version(versions["torch-npu"]).release[:2]


def test_the_development_set_contains_it():
    development = pinned(ROOT / "requirements" / "dev.txt")
    assert development.items() >= pinned().items()
    assert "triton" not in development


@pytest.mark.slow
def test_pip_resolves_the_pinned_set():
    """Against the package index, if it can be reached: every pin exists for this machine. Nothing is installed."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = [*pip, "install", "--dry-run", "--ignore-installed", "--no-deps", "-r", str(PINNED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    if "Temporary failure in name resolution" in done.stderr or "NewConnectionError" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr[-2000:]
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("Would install"), last
    installed = {canonicalize_name(item.rpartition("-")[0]) for item in last.split()[2:]}
    assert installed == set(pinned())
