"""Tests run on the CPU; those of tests/virtual_npu run on the virtual NPU (see the Makefile)."""

import os

# torch_npu is installed here without CANN, so `import torch` must not load it; the virtual NPU's launcher knows better.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
