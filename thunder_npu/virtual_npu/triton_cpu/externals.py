"""Bodies, in MLIR, for the functions that triton-ascend calls and leaves to the NPU's libraries.

    func.func private @triton_cumsum_0(tensor<4x256xf32>, i32, i1) -> tensor<4x256xf32>
    %1 = call @triton_cumsum_0(%0, %c1_i32, %true)

has no definition in the kernel's module: on an NPU, BiShengIR's library has it. `define` replaces such declarations by
functions of scalar loops, which the pass pipeline inlines. Covered: tl.cumsum, tl.cumprod, tl.flip, tl.sort,
tl.device_print and the elementwise functions of triton.language.extra.ascend.libdevice. Others stay undefined.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

__all__ = ["define", "undefined"]

_DECLARATION = re.compile(r"^ *func\.func private @(\w+)\((.*?)\)(?: -> (\S+))?(?: attributes \{(.*)\})?$", re.M)
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(\w+)>")

# Name after "__hmf_", without the suffix of its type ("f": float32, "Dh": float16) → the operation on %a, of type T.
_MATH = {
    "atan": "%r = math.atan %a : T",
    "isinf": "%m = math.absf %a : T\n%i = arith.constant INF : T\n%r = arith.cmpf oeq, %m, %i : T",
    "isnan": "%r = arith.cmpf uno, %a, %a : T",
    "log1p": "%r = math.log1p %a : T",
    "pow": "%r = math.powf %a, %b : T",
    "powi": "%r = math.ipowi %a, %b : T",
    "recip": "%i = arith.constant 1.0 : T\n%r = arith.divf %i, %a : T",
    "relu": "%i = arith.constant 0.0 : T\n%r = arith.maximumf %a, %i : T",
    "round": "%r = math.round %a : T",
    "tan": "%r = math.tan %a : T",
    "tanh": "%r = math.tanh %a : T",
}
_INFINITY = {"f32": "0x7F800000", "f16": "0x7C00", "bf16": "0x7F80"}


def define(linalg: str) -> str:
    """The module with a body for every declared function known here."""
    for name, arguments, result, attributes in _DECLARATION.findall(linalg):
        if name.startswith("__hmf_"):
            linalg = _define_math(linalg, name, arguments.split(", "), result)
        elif name.startswith("triton_print"):
            linalg = _define_print(linalg, name, arguments.split(", "), attributes)
        elif match := re.fullmatch(r"triton_(cumsum|cumprod|flip|sort)(?:_\d+)?", name):
            linalg = _define_on_tensor(linalg, name, _TENSOR_FUNCTIONS[match.group(1)])
    return linalg


def undefined(linalg: str) -> list[str]:
    """Names of the functions that a module declares and does not define."""
    return [name for name, *_ in _DECLARATION.findall(linalg)]


def _replace_declaration(linalg: str, name: str, text: str) -> str:
    return re.sub(rf"^ *func\.func private @{name}\(.*$", lambda _: text, linalg, flags=re.M)


def _define_math(linalg: str, name: str, arguments: list[str], result: str) -> str:
    key = re.sub(r"(Dh|(?<!isin)f)$", "", name.removeprefix("__hmf_"))
    if key not in _MATH:
        return linalg
    kind = arguments[0]
    body = re.sub(r"\bT\b", kind, _MATH[key].replace("INF", _INFINITY.get(kind, "")))
    parameters = ", ".join(f"%{letter}: {kind}" for letter, kind in zip("ab", arguments, strict=False))
    text = f"func.func private @{name}({parameters}) -> {result} {{\n{body}\nreturn %r : {result}\n}}"
    return _replace_declaration(linalg, name, text)


def _define_on_tensor(linalg: str, name: str, body: Callable[..., str]) -> str:
    """A function for every call, since the axis and the direction are constants of the call."""
    definitions: list[str] = []

    def call(match: re.Match[str]) -> str:
        tensor, axis, *flag = match.group(1).split(", ")
        shape, element = _TENSOR.findall(match.group(2))[0]
        sizes = [int(n) for n in shape.split("x")[:-1]]
        own = f"{name}_call_{len(definitions)}"
        ahead = _constant(linalg, flag[0]) != 0 if flag else False
        definitions.append(body(own, f"tensor<{shape}{element}>", sizes, element, _constant(linalg, axis), ahead))
        return f"call @{own}({tensor}) : (tensor<{shape}{element}>)"

    linalg = re.sub(rf"call @{name}\((.*?)\) : \((.*?)\)", call, linalg)
    return _replace_declaration(linalg, name, "\n".join(definitions))


def _constant(linalg: str, value: str) -> int:
    found = re.search(rf"{re.escape(value)} = arith\.constant (-?\d+|true|false)\b", linalg)
    if found is None:
        raise ValueError(f"{value} is not a constant of the kernel")
    text = found.group(1)
    return int(text == "true") if text in ("true", "false") else int(text)


def _function(name: str, kind: str, sizes: list[int], first: dict[int, int], inner: str, constants: str = "") -> str:
    """A function from tensor to tensor: loops %i0, %i1, … over the axes around `inner`, which makes %new of %t and %x.

    `first` gives the index at which an axis's loop starts, when not zero.
    """
    opened, closed, before = [], [], "%x"
    for i, size in enumerate(sizes):
        innermost = i == len(sizes) - 1
        carried = "%t" if innermost else f"%t{i}"
        opened.append(
            f"%from{i} = arith.constant {first.get(i, 0)} : index\n%size{i} = arith.constant {size} : index\n"
            f"%r{i} = scf.for %i{i} = %from{i} to %size{i} step %one iter_args({carried} = {before}) -> ({kind}) {{"
        )
        closed.append(f"scf.yield {'%new' if innermost else f'%r{i + 1}'} : {kind}\n}}")
        before = carried
    lines = [
        f"func.func private @{name}(%x: {kind}) -> {kind} {{",
        "%one = arith.constant 1 : index",
        constants,
        *opened,
        inner,
        *reversed(closed),
        f"return %r0 : {kind}\n}}",
    ]
    return "\n".join(lines)


def _indices(rank: int, axis: int, value: str) -> str:
    return ", ".join(value if i == axis else f"%i{i}" for i in range(rank))


def _scan(operation: str) -> Callable[..., str]:
    def body(name: str, kind: str, sizes: list[int], element: str, axis: int, reverse: bool) -> str:
        rank = len(sizes)
        suffix = "i" if element.startswith("i") else "f"
        # Forwards the index counts up from 1, backwards down from the end; the element before is then the one above.
        origin = sizes[axis] - 1 if reverse else 0
        here, before = ("subi", "addi") if reverse else ("addi", "subi")
        inner = f"""%here = arith.{here} %origin, %i{axis} : index
%before = arith.{before} %here, %one : index
%a = tensor.extract %t[{_indices(rank, axis, "%before")}] : {kind}
%b = tensor.extract %t[{_indices(rank, axis, "%here")}] : {kind}
%s = arith.{operation}{suffix} %a, %b : {element}
%new = tensor.insert %s into %t[{_indices(rank, axis, "%here")}] : {kind}"""
        return _function(name, kind, sizes, {axis: 1}, inner, f"%origin = arith.constant {origin} : index")

    return body


def _flip(name: str, kind: str, sizes: list[int], element: str, axis: int, _: bool) -> str:
    rank = len(sizes)
    inner = f"""%last = arith.constant {sizes[axis] - 1} : index
%there = arith.subi %last, %i{axis} : index
%a = tensor.extract %x[{_indices(rank, axis, "%there")}] : {kind}
%new = tensor.insert %a into %t[{_indices(rank, axis, f"%i{axis}")}] : {kind}"""
    return _function(name, kind, sizes, {}, inner)


def _sort(name: str, kind: str, sizes: list[int], element: str, axis: int, descending: bool) -> str:
    """Odd-even transposition: the axis's own loop counts the passes."""
    rank = len(sizes)
    compare = f"arith.cmp{'i s' if element.startswith('i') else 'f o'}{'lt' if descending else 'gt'}"
    here, there = _indices(rank, axis, "%j"), _indices(rank, axis, "%k")
    inner = f"""%two = arith.constant 2 : index
%end = arith.constant {sizes[axis] - 1} : index
%start = arith.remui %i{axis}, %two : index
%new = scf.for %j = %start to %end step %two iter_args(%u = %t) -> ({kind}) {{
%k = arith.addi %j, %one : index
%a = tensor.extract %u[{here}] : {kind}
%b = tensor.extract %u[{there}] : {kind}
%swap = {compare}, %a, %b : {element}
%low = arith.select %swap, %b, %a : {element}
%high = arith.select %swap, %a, %b : {element}
%v = tensor.insert %low into %u[{here}] : {kind}
%w = tensor.insert %high into %v[{there}] : {kind}
scf.yield %w : {kind}
}}"""
    return _function(name, kind, sizes, {}, inner)


_TENSOR_FUNCTIONS: dict[str, Callable[..., str]] = {
    "cumsum": _scan("add"),
    "cumprod": _scan("mul"),
    "flip": _flip,
    "sort": _sort,
}


def _define_print(linalg: str, name: str, arguments: list[str], attributes: str) -> str:
    """tl.device_print of one operand: the runtime prints value by value, with the program and the element's index."""
    kind = arguments[0]
    prefix = re.findall(r'prefix = "(.*?)"', attributes)[0]
    base = 16 if "hex = true" in attributes else 10
    tensor = _TENSOR.fullmatch(kind)
    shape, element = tensor.groups() if tensor else ("", kind)
    sizes = [int(n) for n in shape.split("x")[:-1]]
    opened, index = [], "%zero64"
    for i, size in enumerate(sizes):
        opened.append(
            f"%size{i} = arith.constant {size} : index\nscf.for %i{i} = %zero to %size{i} step %one {{\n"
            f"%l{i} = arith.index_cast %i{i} : index to i64\n%s{i} = arith.constant {prod(sizes[i + 1 :])} : i64\n"
            f"%m{i} = arith.muli %l{i}, %s{i} : i64\n%n{i} = arith.addi {index}, %m{i} : i64"
        )
        index = f"%n{i}"
    where = ", ".join(f"%i{i}" for i in range(len(sizes)))
    value = f"%v = tensor.extract %x[{where}] : {kind}" if tensor else ""
    scalar = "%v" if tensor else "%x"
    widen = []
    if element == "bf16":
        widen.append(f"%f = arith.extf {scalar} : bf16 to f32")
        scalar, element = "%f", "f32"
    wide = "i64" if element.startswith("i") else "f64"
    if element != wide:
        extend = "extf" if wide == "f64" else "extui" if element == "i1" else "extsi"
        widen.append(f"%w = arith.{extend} {scalar} : {element} to {wide}")
        scalar = "%w"
    function = "thunder_npu_print_float" if wide == "f64" else "thunder_npu_print_integer"
    types = "!llvm.ptr, i32, i64, " + ("f64" if wide == "f64" else "i64, i32")
    operands = f"%prefix, %rank, {index}, {scalar}" + ("" if wide == "f64" else ", %base")
    text = f"""llvm.mlir.global internal constant @{name}_prefix("{prefix}\\00")
func.func private @{name}(%x: {kind}) {{
%zero = arith.constant 0 : index
%one = arith.constant 1 : index
%zero64 = arith.constant 0 : i64
%base = arith.constant {base} : i32
%rank = arith.constant {len(sizes)} : i32
%prefix = llvm.mlir.addressof @{name}_prefix : !llvm.ptr
{chr(10).join(opened)}
{value}
{chr(10).join(widen)}
llvm.call @{function}({operands}) : ({types}) -> ()
{"}" * len(sizes)}
return
}}"""
    declaration = f"llvm.func @{function}({types})"
    if declaration not in linalg:
        text = declaration + "\n" + text
    return _replace_declaration(linalg, name, text)
