"""Keep a kernel inside the storages of its arguments.

On an NPU, a tile that reaches past a tensor silently reads or writes a neighbour. Here every access of the lowered code
to global memory goes through the runtime, which knows the storages: what lies outside reads as NaN (bytes 0xff), as
scratch memory does, and is never written; a store outside is reported when the launch ends.

An access is recognised by following its pointer back to a kernel argument through MLIR's memref descriptors. Pointers
to scratch memory end at an allocation instead and stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["guard"]

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
_DECLARATIONS = """
llvm.func @thunder_npu_load(!llvm.ptr, i32, i64) -> !llvm.ptr
llvm.func @thunder_npu_store(!llvm.ptr, i32, i64) -> !llvm.ptr
llvm.func @thunder_npu_copy(!llvm.ptr, i32, !llvm.ptr, i32, i64)
"""
_SCRATCH = -1
_HELPER = "@dealloc_helper("


def guard(module: str, arguments: Mapping[str, int]) -> str:
    """The functions of an LLVM-dialect module, the kernel's with guarded accesses.

    Args:
        module: the functions' text. SSA names are unique in a function; beside the kernel there may be MLIR's
            `dealloc_helper`, which only sees scratch memory.
        arguments: for every pointer parameter of the kernel ("%arg10"), the number of the argument.
    """
    functions = re.split(r"^(?=\s*llvm\.func )", module, flags=re.M)
    guarded = (text if _HELPER in text.partition("\n")[0] else _guard(text, arguments) for text in functions)
    return "".join(guarded) + _DECLARATIONS


def _guard(function: str, arguments: Mapping[str, int]) -> str:
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


def _field(definitions: Mapping[str, str], structure: str, position: str) -> str:
    """The value last inserted at `position` of `structure`, or "" when it does not come from insertions."""
    while found := _INSERT.match(definitions.get(structure, "")):
        if found.group(3) == position:
            return found.group(1)
        structure = found.group(2)
    return ""


def _size(kind: str) -> int:
    return max(int(re.sub(r"\D", "", kind.removeprefix("bf"))) // 8, 1)
