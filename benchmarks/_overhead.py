"""What the overhead benchmarks share: the model, and the record of a run."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

PACKAGES = ("torch", "lightning-thunder", "litgpt")


def write_results(name: str, figures: dict[str, Any]) -> Path:
    """Writes the figures, with the versions and the machine they come from, to benchmarks/results/<name>.json."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    versions = {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}
    record = {"benchmark": name, "versions": versions, "machine": platform.machine(), "cpus": os.cpu_count(), **figures}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
