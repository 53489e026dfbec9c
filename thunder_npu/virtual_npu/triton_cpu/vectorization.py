"""Help LLVM's vectoriser where IEEE semantics or a scalar library call stand in its way.

`reductions` rewrites the kernel's linalg, `exponentials` the optimised LLVM IR. Neither gives up accuracy: a sum may be
taken in any order, as on an NPU, and the exponential errs by at most 0.51 units in the last place.
"""

from __future__ import annotations

import math
import re
import struct

__all__ = ["exponentials", "reductions"]

_COMBINE = re.compile(r"%(\w+) = arith\.(maxnumf|minnumf|addf|mulf) (%in\w*), (%init\w*) : f32")
_EXP = re.compile(r"@llvm\.exp\.((?:v\d+)?f32)\b")

_DEGREE = 8  # of the power series: for |r| <= ln(2)/2 its error is 2e-10, while half an ulp of float32 is 6e-8
_ROUND = 1.5 * 2.0**52  # added to a double, leaves its nearest integer in the low bits
_LIMIT = 200.0  # e^±200 is infinity and zero in float32, and well inside float64


def reductions(linalg: str) -> str:
    """Let float32 reductions be vectorised.

    Sums and products get leave to be reordered. maxnum and minnum, which LLVM only vectorises where there is no NaN,
    become maximum and minimum of what is not NaN: the same, since a reduction starts from ±inf.
    """

    def combine(match: re.Match[str]) -> str:
        name, operation, value, total = match.groups()
        if operation in ("addf", "mulf"):
            return f"%{name} = arith.{operation} {value}, {total} fastmath<reassoc> : f32"
        strict, start = {"maxnumf": ("maximum", "0xFF800000"), "minnumf": ("minimum", "0x7F800000")}[operation]
        return (
            f"%nan_{name} = arith.cmpf uno, {value}, {value} : f32\n%start_{name} = arith.constant {start} : f32\n"
            f"%number_{name} = arith.select %nan_{name}, %start_{name}, {value} : f32\n"
            # LLVM's own operation: arith.maximumf would be expanded to compares that are not vectorised.
            f"%{name} = llvm.intr.{strict}(%number_{name}, {total}) : (f32, f32) -> f32"
        )

    return _COMBINE.sub(combine, linalg)


def exponentials(module: str) -> str:
    """Replace LLVM's float32 exp, a call of expf for every element, by vector arithmetic in float64.

    e^x = 2^n · e^r with n = round(x / ln 2) and r = x − n·ln 2, rounded to float32 once. Lanes and single elements are
    computed alike, so that a value does not depend on its place in a tile.
    """
    kinds = sorted(set(_EXP.findall(module)))
    module = re.sub(r"^declare .*@llvm\.exp\.(?:v\d+)?f32\(.*$", "", module, flags=re.M)
    module = _EXP.sub(r"@thunder_npu_exp_\1", module)
    fma = {f"{kind[:-3]}f64" for kind in kinds}
    for suffix in sorted(fma):
        double = _vector("double", suffix)
        if f"@llvm.fma.{suffix}(" not in module:
            module += f"declare {double} @llvm.fma.{suffix}({double}, {double}, {double})\n"
    return module + "".join(_exponential(kind) for kind in kinds)


def _vector(element: str, suffix: str) -> str:
    lanes = re.match(r"v(\d+)", suffix)
    return f"<{lanes.group(1)} x {element}>" if lanes else element


def _exponential(kind: str) -> str:
    """LLVM IR of the exponential for "f32", "v8f32", …"""
    float_, double, integer, boolean = (_vector(element, kind) for element in ("float", "double", "i64", "i1"))
    lanes = int(kind[1:-3]) if kind.startswith("v") else 0

    def constant(element: str, text: str) -> str:
        return f"<{', '.join([f'{element} {text}'] * lanes)}>" if lanes else text

    def number(value: float) -> str:
        return constant("double", f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}")

    def fma(name: str, a: str, b: str, c: str) -> str:
        return f"%{name} = call {double} @llvm.fma.{kind[:-3]}f64({double} {a}, {double} {b}, {double} {c})"

    series = [1 / math.factorial(i) for i in range(_DEGREE + 1)]
    lines = [
        f"define internal {float_} @thunder_npu_exp_{kind}({float_} %x) {{",
        f"%wide = fpext {float_} %x to {double}",
        # Comparisons with NaN are false: it passes through.
        f"%low = fcmp olt {double} %wide, {number(-_LIMIT)}",
        f"%above = select {boolean} %low, {double} {number(-_LIMIT)}, {double} %wide",
        f"%high = fcmp ogt {double} %above, {number(_LIMIT)}",
        f"%v = select {boolean} %high, {double} {number(_LIMIT)}, {double} %above",
        f"%quotient = fmul {double} %v, {number(1 / math.log(2))}",
        f"%shifted = fadd {double} %quotient, {number(_ROUND)}",
        f"%n = fsub {double} %shifted, {number(_ROUND)}",
        fma("r", "%n", number(-math.log(2)), "%v"),
        fma(f"sum{_DEGREE - 1}", number(series[_DEGREE]), "%r", number(series[_DEGREE - 1])),
        *(fma(f"sum{i}", f"%sum{i + 1}", "%r", number(series[i])) for i in reversed(range(_DEGREE - 1))),
        f"%bits = bitcast {double} %shifted to {integer}",
        f"%exponent = shl {integer} %bits, {constant('i64', '52')}",
        f"%scale = add {integer} %exponent, {constant('i64', str(1023 << 52))}",
        f"%power = bitcast {integer} %scale to {double}",
        f"%result = fmul {double} %sum0, %power",
        f"%rounded = fptrunc {double} %result to {float_}",
        f"ret {float_} %rounded\n}}\n",
    ]
    return "\n".join(lines)
