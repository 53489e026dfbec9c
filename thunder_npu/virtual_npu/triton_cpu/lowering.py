"""Lower the linalg that triton-ascend emits to a shared library for this CPU.

    linalg ──(bishengir-opt: upstream MLIR passes)──► LLVM dialect ──(libtriton)──► object ──(C linker)──► library

Only the two wheels and a C linker are used. The arithmetic keeps IEEE semantics: no fast-math flag is set. Nothing here
executes a kernel or looks at the unified buffer.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from pathlib import Path

from .externals import define, undefined
from .guards import DECLARATIONS, guard_accesses, guard_divisions
from .toolchain import host_cpu, link, program
from .vectorization import exponentials, reductions

__all__ = ["ENTRY", "SERIAL_ENTRY", "UnsupportedOperationError", "build_library"]

ENTRY = "thunder_npu_entry"
"""Symbol of the libraries built here: void (const void *arguments, int32 gx, gy, gz, x, y, z), one slot of eight bytes
an argument, in the order of the kernel's run-time parameters; a memref's slot is its pointer."""

SERIAL_ENTRY = "thunder_npu_serial_entry"
"""The same, of a kernel whose programs must run one after the other: atomics are lowered to plain loads and stores."""

_ATOMIC = re.compile(r"GenericAtomicRMW|atomic = <|sync_block_lock")

_HIDDEN_ARGUMENTS = 2  # the lock and workspace pointers that triton-ascend puts first
_GRID_ARGUMENTS = 6  # the grid's three sizes and the program's three indices, which it puts last

_NOT = re.compile(
    r"(%\w+) = hfusion\.elemwise_unary \{fun = #hfusion\.unary_fn<vnot>\} ins\((%[\w#]+) : (\S+)\).*$", re.M
)
_CAST = re.compile(
    r"(%\w+) = hfusion\.cast (\{.*round_mode = #hfusion\.round_mode<(\w+)>\}) "
    r"ins\((%[\w#]+) : (\S+)\) outs\((.*)\) -> (\S+)$",
    re.M,
)
_ROUNDINGS = {"rint": "roundeven", "round": "round", "floor": "floor", "ceil": "ceil", "trunc": "trunc"}
_OPERATION = re.compile(r"^\s*(?:%\S+ = )?\"?([a-z_]+\.[a-z_.]+)", re.MULTILINE)
_PASSES = (
    "inline",
    "execution-engine-convert-hfusion-to-upstream",
    "execution-engine-convert-hivm-to-upstream",
    "func.func(decompose-tensor-concat)",
    # bfloat16 arithmetic in float32, rounded after every operation, as NPU and PyTorch do.
    "arith-emulate-unsupported-floats{source-types=bf16 target-type=f32}",
    "func.func(math-legalize-to-f32)",
    "convert-elementwise-to-linalg",
    "linalg-generalize-named-ops",
    "linalg-fuse-elementwise-ops",
    "empty-tensor-to-alloc-tensor",
    "one-shot-bufferize{allow-return-allocs-from-loops=true}",
    "expand-realloc",
    "canonicalize",
    "ownership-based-buffer-deallocation",
    "canonicalize",
    "buffer-deallocation-simplification",
    "bufferization-lower-deallocations",
    "cse",
    "canonicalize",
    "convert-bufferization-to-memref",
    "annotation-lowering",
    "convert-linalg-to-loops",
    "expand-strided-metadata",
    "convert-scf-to-cf",
    "lower-affine",
    "arith-expand{include-bf16=true}",
    "convert-vector-to-llvm",
    "convert-math-to-llvm",
    "convert-math-to-libm",
    "finalize-memref-to-llvm",
    "convert-func-to-llvm",
    "convert-cf-to-llvm",
    "convert-index-to-llvm",
    "convert-arith-to-llvm",
    "reconcile-unrealized-casts",
)


class UnsupportedOperationError(RuntimeError):
    """The kernel uses an operation that cannot be lowered to the CPU; the message names it."""


def build_library(linalg: str) -> bytes:
    """The shared library, as bytes, that executes a kernel.

    Args:
        linalg: the text of triton-ascend's "ttadapter" stage, for any SoC, or of BiShengIR after its fusion passes.

    Raises:
        UnsupportedOperationError: an operation has no lowering.
    """
    with tempfile.TemporaryDirectory() as directory:
        object_file, library = Path(directory, "kernel.o"), Path(directory, "kernel.so")
        entry = SERIAL_ENTRY if _ATOMIC.search(linalg) else ENTRY
        object_file.write_bytes(_object(_llvm_dialect(linalg), entry, directory))
        link(library, object_file)
        return library.read_bytes()


def _llvm_dialect(linalg: str) -> str:
    linalg = reductions(define(_upstream(linalg)))
    if names := undefined(linalg):
        raise UnsupportedOperationError(f"no CPU implementation of {', '.join(names)}")
    command = [program("bishengir-opt"), "-", f"--pass-pipeline=builtin.module({','.join(_PASSES)})"]
    result = subprocess.run(command, input=linalg, capture_output=True, encoding="utf-8")
    if result.returncode:
        raise UnsupportedOperationError(f"bishengir-opt cannot lower this kernel to the CPU:\n{result.stderr.strip()}")
    if leftover := sorted({name for name in _OPERATION.findall(result.stdout) if not name.startswith("llvm.")}):
        raise UnsupportedOperationError(f"no CPU lowering for {', '.join(leftover)}")
    return result.stdout


def _upstream(module: str) -> str:
    """Repair what BiShengIR's conversion of its own dialects to upstream ones (1.2.0) gets wrong.

    "not" becomes the identity there, and a cast's rounding mode is ignored, which is all there is to tl.floor.
    """
    count = 0

    def invert(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        result, operand, kind = match.groups()
        ones = "true" if kind.endswith("i1>") else "-1"
        constant = f"%all_ones_{count} = arith.constant dense<{ones}> : {kind}\n"
        return f"{constant}{result} = arith.xori {operand}, %all_ones_{count} : {kind}"

    def round_first(match: re.Match[str]) -> str:
        nonlocal count
        result, attributes, mode, operand, kind, outputs, target = match.groups()
        to_integer = re.search(r"xi\d+>$", target)
        if mode not in _ROUNDINGS or not re.search(r"xb?f\d+>$", kind) or not (to_integer or kind == target):
            return match[0]
        if kind == target:
            return f"{result} = math.{_ROUNDINGS[mode]} {operand} : {kind}"
        count += 1
        rounded = f"%rounded_{count} = math.{_ROUNDINGS[mode]} {operand} : {kind}\n"
        return (
            f"{rounded}{result} = hfusion.cast {attributes} ins(%rounded_{count} : {kind}) outs({outputs}) -> {target}"
        )

    module = re.sub(r"^module attributes \{dlti.*\} \{$", "module {", module, flags=re.M)
    return _CAST.sub(round_first, _NOT.sub(invert, module))


def _object(module: str, entry: str, directory: str) -> bytes:
    from triton._C.libtriton import ir, llvm

    triple, cpu = host_cpu()
    source = Path(directory, "kernel.llvm.mlir")
    # LLVM's vectoriser asks the target for its widths, and finds the target through the module's triple.
    source.write_text(
        f'module attributes {{llvm.target_triple = "{triple}"}} {{\n{_body_with_entry(module, entry)}}}\n',
        encoding="utf-8",
    )
    context = ir.context()
    ir.load_dialects(context)
    parsed = ir.parse_mlir_module(str(source), context)
    parsed.context = context
    llvm.init_targets()
    # The LLVM context must outlive the module.
    llvm_context = llvm.context()
    llvm_module = llvm.to_module(parsed, llvm_context)
    llvm.attach_datalayout(llvm_module, triple, cpu, "")
    llvm.optimize_module(llvm_module, llvm.OPTIMIZE_O2, cpu, "", [], False)
    return bytes(llvm.translate_to_asm(exponentials(str(llvm_module)), triple, cpu, "", [], False, True))


def _body_with_entry(module: str, entry: str) -> str:
    """The module's functions, made self-contained: scratch memory from the runtime, and the uniform entry point.

    malloc becomes the runtime's own function before LLVM optimises: LLVM knows that what malloc returns is undefined
    and would fold reads of it away, and with them the NaN that shows a read outside a mask.
    """
    module = re.sub(r"^(\s*llvm\.func .*?) attributes \{.*\} \{$", r"\1 {", module, flags=re.M)
    module = _bfloat_as_integer(re.sub(r" \{(?:hacc|hivm|tt)\.[^{}]*\}", "", module))
    module = re.sub(r"@malloc\(i64\) -> !llvm\.ptr", "@malloc(i64) -> (!llvm.ptr {llvm.noalias})", module)
    for name, own in (("malloc", "scratch"), ("free", "scratch_free"), ("memrefCopy", "copy_strided")):
        module = module.replace(f"@{name}(", f"@thunder_npu_{own}(")
    kernel, types = _kernel_signature(module)
    body: list[str] = []
    call: list[str] = []
    pointers: dict[str, int] = {}
    slots = 0
    for i, kind in enumerate(_parameters(types)):
        name = f"%v{i}"
        if kind in ("hidden", "memref"):
            if kind == "hidden":
                body.append(f"{name} = llvm.mlir.zero : !llvm.ptr")
            else:
                body += _load(name, slots, "!llvm.ptr")
                pointers |= {f"%arg{len(call)}": slots, f"%arg{len(call) + 1}": slots}
            call += [name, name, "%zero", "%most", "%one"]
        elif kind == "first":
            call.append("%zero")
        elif kind == "i1":
            body += [*_load(f"%b{i}", slots, "i8"), f"{name} = llvm.trunc %b{i} : i8 to i1"]
            call.append(name)
        else:
            body += _load(name, slots, kind)
            call.append(name)
        slots += kind not in ("hidden", "first")
    call += [f"%g{i}" for i in range(_GRID_ARGUMENTS)]
    grid = ", ".join(f"%g{i}: i32" for i in range(_GRID_ARGUMENTS))
    lines = [
        f"llvm.func @{entry}(%arguments: !llvm.ptr, {grid}) {{",
        "%zero = llvm.mlir.constant(0 : i64) : i64",
        "%one = llvm.mlir.constant(1 : i64) : i64",
        f"%most = llvm.mlir.constant({2**62} : i64) : i64",
        *body,
        f"llvm.call @{kernel}({', '.join(call)}) : ({', '.join(types)}) -> ()",
        "llvm.return",
        "}",
    ]
    # SSA names are unique in a function only. Beside the kernel there may be MLIR's helper for deallocation.
    functions = re.split(r"^(?= *llvm\.func )", module[module.index("{") + 1 : module.rindex("}")], flags=re.M)
    for i, function in enumerate(functions):
        if f"@{kernel}(" in function.partition("\n")[0]:
            functions[i] = guard_accesses(guard_divisions(_keep_outer_loops(function)), pointers)
    return "\n".join([*functions, DECLARATIONS, *lines, ""])


def _keep_outer_loops(function: str) -> str:
    """Forbid unrolling of loops around loops: a tile's rows, unrolled, cost three times the compile time for no gain.

    Blocks are numbered in the order of the text, so that a branch to a block not below it closes a loop.
    """
    lines = function.split("\n")
    loops: list[tuple[int, int, int]] = []  # (line of the closing branch, first block, last block)
    block = 0
    for i, line in enumerate(lines):
        if label := re.match(r"\s*\^bb(\d+)", line):
            block = int(label.group(1))
        elif (branch := re.match(r"\s*llvm\.br \^bb(\d+)", line)) and int(branch.group(1)) <= block:
            loops.append((i, int(branch.group(1)), block))
    for i, first, last in loops:
        if any(first < inner_first and inner_last < last for _, inner_first, inner_last in loops):
            lines[i] += " {loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}"
    return "\n".join(lines)


def _bfloat_as_integer(module: str) -> str:
    """bfloat16 held as i16. By now its arithmetic is float32 and its conversions are integer operations; what is left
    moves values, and LLVM would turn a select of bfloat16 into calls of a rounding function that libgcc 12 lacks.
    """

    def constant(match: re.Match[str]) -> str:
        text = match.group(1)
        bits = int(text, 16) if text.startswith("0x") else int.from_bytes(struct.pack(">f", float(text))[:2], "big")
        return f"llvm.mlir.constant({bits - (bits >> 15 << 16)} : i16) : i16"

    return re.sub(r"\bbf16\b", "i16", re.sub(r"llvm\.mlir\.constant\((\S+) : bf16\) : bf16", constant, module))


def _load(name: str, slot: int, kind: str) -> list[str]:
    return [
        f"%p{slot} = llvm.getelementptr inbounds %arguments[{8 * slot}] : (!llvm.ptr) -> !llvm.ptr, i8",
        f"{name} = llvm.load %p{slot} : !llvm.ptr -> {kind}",
    ]


def _kernel_signature(module: str) -> tuple[str, list[str]]:
    """(name, LLVM types of the parameters) of the one function defined in `module` that takes a launch's grid."""
    for name, parameters in re.findall(r"llvm\.func @(\w+)\((%arg0: [^\n]*)\) \{$", module, re.M):
        types = [p.split(": ", 1)[1].split(" {")[0].strip() for p in re.split(r", (?=%arg\d)", parameters)]
        if types[-_GRID_ARGUMENTS:] == ["i32"] * _GRID_ARGUMENTS:
            return name, types
    raise UnsupportedOperationError("the lowered module defines no kernel")


def _parameters(types: list[str]) -> list[str]:
    """One word per source-level parameter, grid left out.

    "first" for the address that BiShengIR adds; "hidden" and "memref", of five LLVM values; else a scalar's type.
    """
    types = types[:-_GRID_ARGUMENTS]
    kinds: list[str] = []
    if types[0] == "i64":
        kinds.append("first")
        types.pop(0)
    hidden = len(kinds) + _HIDDEN_ARGUMENTS
    while types:
        if types[0] == "!llvm.ptr":
            kinds.append("hidden" if len(kinds) < hidden else "memref")
            types = types[5:]
        else:
            kinds.append(types.pop(0))
    return kinds
