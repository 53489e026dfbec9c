"""Keep a kernel inside the storages of its arguments, and its divisions from ending the process.

On an NPU, a tile that reaches past a tensor silently reads or writes a neighbour. Here every access of the lowered code
to global memory goes through the runtime, which knows the storages: what lies outside reads as NaN (bytes 0xff), as
scratch memory does, and is never written; a store outside is reported when the launch ends.

An access is recognised by following its pointer back to a kernel argument through MLIR's memref descriptors. Pointers
to scratch memory end at an allocation instead and stay as they are.

An integer division by zero, as in the lanes outside a mask, traps on x86 and does not on an NPU. Here it gives -1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["DECLARATIONS", "guard_accesses", "guard_divisions"]

_DEFINITION = re.compile(r"^\s*(%\w+) = (.*)$", re.M)
_GEP = re.compile(r"llvm\.getelementptr (?:inbounds )?(%\w+)\[")
_EXTRACT = re.compile(r"llvm\.extractvalue (%\w+)\[([\d, ]+)\]")
_INSERT = re.compile(r"llvm\.insertvalue (%\w+), (%\w+)\[([\d, ]+)\]")
_ACCESS = re.compile(
    r"^\s*(?:(?P<value>%\w+) = llvm\.load (?P<source>%\w+) : !llvm\.ptr -> (?P<loaded>\w+)"
    r"|llvm\.store (?P<stored>%\w+), (?P<target>%\w+) : (?P<kind>\w+), !llvm\.ptr"
    r'|"llvm\.intr\.memcpy"\((?P<to>%\w+), (?P<start>%\w+), (?P<bytes>%\w+)\).*)$',
    re.M,
)
_DIVISION = re.compile(r"^\s*(%\w+) = llvm\.([su])(div|rem) (%\w+), (%\w+) *: (i\d+)$", re.M)
_CONSTANT = re.compile(r"llvm\.mlir\.constant\((-?\d+) : \w+\)")
DECLARATIONS = """
llvm.func @thunder_npu_load(!llvm.ptr, i32, i64) -> !llvm.ptr
llvm.func @thunder_npu_store(!llvm.ptr, i32, i64) -> !llvm.ptr
llvm.func @thunder_npu_copy(!llvm.ptr, i32, !llvm.ptr, i32, i64)
"""
_SCRATCH = -1


def guard_accesses(function: str, arguments: Mapping[str, int]) -> str:
    """A kernel, as a function of the LLVM dialect, with guarded accesses.

    Args:
        function: its text.
        arguments: for every pointer parameter ("%arg10"), the number of the argument.
    """
    definitions = dict(_DEFINITION.findall(function))
    counter = 0

    def argument(pointer: str) -> int:
        """The number of the argument that `pointer` points into, or _SCRATCH."""
        while pointer not in arguments:
            text = definitions.get(pointer, "")
            if found := _GEP.match(text):
                pointer = found.group(1)
            elif found := _EXTRACT.match(text):
                pointer = _field(definitions, *found.groups())
            else:
                return _SCRATCH
        return arguments[pointer]

    def access(match: re.Match[str]) -> str:
        nonlocal counter
        counter += 1
        if match["bytes"]:
            to, start = argument(match["to"]), argument(match["start"])
            return (
                f"%guard_to{counter} = llvm.mlir.constant({to} : i32) : i32\n"
                f"%guard_from{counter} = llvm.mlir.constant({start} : i32) : i32\n"
                f"llvm.call @thunder_npu_copy({match['to']}, %guard_to{counter}, {match['start']}, "
                f"%guard_from{counter}, {match['bytes']}) : (!llvm.ptr, i32, !llvm.ptr, i32, i64) -> ()"
            )
        pointer, kind = match["source"] or match["target"], match["loaded"] or match["kind"]
        number = argument(pointer)
        if number == _SCRATCH:
            return match[0]
        function = "load" if match["source"] else "store"
        checked = (
            f"%guard_number{counter} = llvm.mlir.constant({number} : i32) : i32\n"
            f"%guard_size{counter} = llvm.mlir.constant({_size(kind)} : i64) : i64\n"
            f"%guard{counter} = llvm.call @thunder_npu_{function}({pointer}, %guard_number{counter}, "
            f"%guard_size{counter}) : (!llvm.ptr, i32, i64) -> !llvm.ptr\n"
        )
        if match["source"]:
            return checked + f"{match['value']} = llvm.load %guard{counter} : !llvm.ptr -> {kind}"
        return checked + f"llvm.store {match['stored']}, %guard{counter} : {kind}, !llvm.ptr"

    return _ACCESS.sub(access, function)


def guard_divisions(function: str) -> str:
    """A function whose divisions cannot trap: by zero they give -1, and the least integer by -1 wraps.

    Divisions by a constant other than 0 and -1 stay as they are.
    """
    definitions = dict(_DEFINITION.findall(function))
    counter = 0

    def division(match: re.Match[str]) -> str:
        nonlocal counter
        result, sign, operation, dividend, divisor, kind = match.groups()
        constant = _CONSTANT.match(definitions.get(divisor, ""))
        if constant and constant.group(1) not in ("0", "-1"):
            return match[0]
        counter += 1
        n, by = counter, f"%by{counter}"
        lines = [
            f"%zero{n} = llvm.mlir.constant(0 : {kind}) : {kind}",
            f"%unit{n} = llvm.mlir.constant(1 : {kind}) : {kind}",
            f"%minus{n} = llvm.mlir.constant(-1 : {kind}) : {kind}",
            f'%none{n} = llvm.icmp "eq" {divisor}, %zero{n} : {kind}',
            f"%by{n} = llvm.select %none{n}, %unit{n}, {divisor} : i1, {kind}",
        ]
        if sign == "u":
            lines.append(f"%some{n} = llvm.u{operation} {dividend}, {by} : {kind}")
        else:  # a / -1 is -(a / 1), and a % -1 is a % 1: zero
            lines += [
                f'%turn{n} = llvm.icmp "eq" {by}, %minus{n} : {kind}',
                f"%plain{n} = llvm.select %turn{n}, %unit{n}, {by} : i1, {kind}",
                f"%once{n} = llvm.s{operation} {dividend}, %plain{n} : {kind}",
                f"%turned{n} = llvm.sub %zero{n}, %once{n} : {kind}",
                f"%some{n} = llvm.select %turn{n}, %turned{n}, %once{n} : i1, {kind}",
            ]
        return "\n".join([*lines, f"{result} = llvm.select %none{n}, %minus{n}, %some{n} : i1, {kind}"])

    return _DIVISION.sub(division, function)


def _field(definitions: Mapping[str, str], structure: str, position: str) -> str:
    """The value last inserted at `position` of `structure`, or "" when it does not come from insertions."""
    while found := _INSERT.match(definitions.get(structure, "")):
        if found.group(3) == position:
            return found.group(1)
        structure = found.group(2)
    return ""


def _size(kind: str) -> int:
    return max(int(re.sub(r"\D", "", kind.removeprefix("bf"))) // 8, 1)
