"""What a routed operation costs the host beyond the ATen call that it makes.

    python benchmarks/host_overhead.py [--device cpu|npu]

Calls what a trace calls, for each operation of both executors, and ATen's entry point for it, on a tensor so small that
the kernel hardly counts. On the CPU both executors run ATen's kernels. On an npu (python -m thunder_npu.virtual_npu …)
only aclnn_ex does: a Triton kernel's launch has no ATen call to be compared with.

The bound: 2 µs of host time a call.
"""

from __future__ import annotations

import argparse
import functools
import timeit
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import _overhead  # first: it makes the repository importable
import torch

import thunder_npu

BOUND = 2.0
CALLS, ROUNDS = 100, 1000


def aten(op: str, x: torch.Tensor, grad: torch.Tensor, out: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A call of ATen's own entry point for `op`."""
    return {
        "softmax": lambda: torch._softmax(x, -1, False),
        "log_softmax": lambda: torch._log_softmax(x, -1, False),
        "safe_softmax": lambda: torch._safe_softmax(x, -1),
        "softmax_backward": lambda: torch._softmax_backward_data(grad, out, -1, x.dtype),
        "log_softmax_backward": lambda: torch._log_softmax_backward_data(grad, out, -1, x.dtype),
        "safe_softmax_backward": lambda: torch._softmax_backward_data(grad, out, -1, x.dtype),
    }[op]


def called_by_trace(symbol: Any) -> Callable[..., torch.Tensor]:
    """The function that the line of a trace calls: a symbol hands it to each symbol bound from it."""
    bound = SimpleNamespace()
    symbol._bind_postprocess(bound)
    return bound._call_ctx[symbol.name]


def microseconds(*calls: Callable[[], torch.Tensor]) -> list[float]:
    """Of each call, in the fastest of many short rounds that take turns: what other processes add is not ours."""
    rounds = zip(*([timeit.timeit(call, number=CALLS) for call in calls] for _ in range(ROUNDS)), strict=True)
    return [min(times) / CALLS * 1e6 for times in rounds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    x, grad = (torch.randn(1, 8, device=device) for _ in range(2))
    out = torch.softmax(x, -1)

    rows = []
    print("operation                            routed      ATen   added  ratio")
    executors = [thunder_npu.aclnn_ex] + [thunder_npu.triton_ascend_ex] * (device == "cpu")
    for executor in executors:
        for name, symbol in executor.opmap.items():
            op = name.removeprefix(f"{executor.name}_")
            function = called_by_trace(symbol)
            arguments = (grad, out, -1, x.dtype) if op.endswith("_backward") else (x, -1)
            routed, direct = microseconds(functools.partial(function, *arguments), aten(op, x, grad, out))
            rows.append({"operation": name, "routed_us": routed, "aten_us": direct, "added_us": routed - direct})
            print(f"{name:34} {routed:6.2f} µs {direct:6.2f} µs {routed - direct:+7.2f} {routed / direct:6.2f}")
    worst = max(rows, key=lambda row: row["added_us"])
    verdict = "within" if worst["added_us"] <= BOUND else "beyond"
    print(f"at most {worst['added_us']:.2f} µs a call ({worst['operation']}): {verdict} the bound of {BOUND} µs")
    path = _overhead.write_results("host_overhead", {"device": device, "rows": rows, "bound_us": BOUND})
    print(f"written to {path.relative_to(_overhead.ROOT)}")


if __name__ == "__main__":
    main()
