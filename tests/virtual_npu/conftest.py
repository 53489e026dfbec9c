"""These tests run on the virtual NPU: `python -m thunder_npu.virtual_npu -m pytest tests/virtual_npu`."""

import sys

import pytest

from thunder_npu.virtual_npu import library

if library.loaded() is None and "--collect-only" not in sys.argv:
    pytest.exit("run these tests with: python -m thunder_npu.virtual_npu -m pytest tests/virtual_npu", returncode=4)
