"""A training step of BERT and one of Llama through thunder-npu: what ran where, and how far it is from eager.

    python -m thunder_npu.virtual_npu examples/demo.py --device npu     # on the virtual NPU
    python examples/demo.py                                             # on the CPU, by the reference path

On the virtual NPU it also shows which aclnn operators and Triton kernels a compiled step calls.
"""

from __future__ import annotations

import argparse
from collections import Counter

import bert
import llama_rope
import torch
from _common import Comparison, Workload, placed, train_beside_eager

import thunder_npu
from thunder_npu.virtual_npu import AclnnCall, record

SHOWN = 12


def show_calls(workload: Workload, comparison: Comparison, device: str) -> None:
    """What one more forward and backward of the compiled model calls, the most frequent first."""
    batch = placed(workload.batch, device, torch.float32)
    with record() as calls:
        _, loss = comparison.compiled(**batch)
        loss.backward()
    for kind, events in (
        ("aclnn operators", [call.name for call in calls if isinstance(call, AclnnCall)]),
        ("Triton kernels", [call.name for call in calls if not isinstance(call, AclnnCall)]),
    ):
        frequent = ", ".join(f"{name} {count}" for name, count in Counter(events).most_common(SHOWN))
        print(f"{kind}: {len(events)} calls: {frequent}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or npu (with CANN, or on the virtual NPU)")
    device = parser.parse_args().device
    for workload in bert.workload(), llama_rope.workload():
        comparison = train_beside_eager(workload, device, steps=1)
        print(f"{workload.name}: a training step in float32 on {torch.empty(0, device=device).device}")
        print(thunder_npu.explain(comparison.compiled))
        if device.startswith("npu"):
            show_calls(workload, comparison, device)
        print(comparison, end="\n\n")
    print("equal to eager")


if __name__ == "__main__":
    main()
