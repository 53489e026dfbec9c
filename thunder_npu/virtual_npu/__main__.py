"""python -m thunder_npu.virtual_npu [options] (script.py | -m module | -c code) …: run a program on virtual NPUs."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

from thunder_npu.virtual_npu import enable, record, summary
from thunder_npu.virtual_npu.soc import DEFAULT_SOC, SOCS


def main(arguments: list[str]) -> None:
    """Enable the virtual NPU, then become the program."""
    parser = argparse.ArgumentParser(
        prog="python -m thunder_npu.virtual_npu",
        description="Run a PyTorch program on virtual Ascend NPUs made of host memory.",
        epilog="The options come first; what follows the script, module or code is the program's.",
    )
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="number of devices (default 1)")
    parser.add_argument("--soc", default=DEFAULT_SOC, help=f"default {DEFAULT_SOC}; known: {', '.join(SOCS)}")
    parser.add_argument("--memory", type=int, metavar="BYTES", help="memory of each device (default: the SoC's)")
    parser.add_argument("--log", metavar="FILE", help="write a line for each operator, copy and allocation; -: stderr")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace of the aclnn and Triton calls")
    parser.add_argument("--summary", action="store_true", help="print the calls by operator and kernel at the end")
    parser.add_argument("--force", action="store_true", help="even on a machine with a real NPU")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="module", help="run a module")
    parser.add_argument("-c", dest="code", nargs=argparse.REMAINDER, metavar="code", help="run a piece of code")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="run a script")
    options = parser.parse_args(arguments)
    program = next((given for given in (options.module, options.code, options.script) if given), None)
    if program is None:
        parser.error("give a script, -m module, or -c code")
    try:
        enable(options.devices, options.soc, memory_limit=options.memory, log=options.log, force=options.force)
    except (ValueError, RuntimeError) as error:
        parser.exit(2, f"virtual NPU: {error}\n")

    with ExitStack() as at_end:  # also when the program ends by sys.exit or an exception
        if options.summary:
            at_end.callback(lambda: print(summary(), file=sys.stderr))
        if options.trace:
            calls = at_end.enter_context(record())
            at_end.callback(calls.chrome_trace, options.trace)
        if options.module:
            sys.argv = ["-m", *program[1:]]
            sys.path[0] = os.getcwd()
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        elif options.code:
            sys.argv = ["-c", *program[1:]]
            sys.path[0] = ""
            sys.modules["__main__"] = main_module = ModuleType(
                "__main__"
            )  # where pickle looks for what the code defines
            exec(compile(program[0], "<string>", "exec"), main_module.__dict__)
        else:
            sys.argv = program
            sys.path[0] = str(Path(program[0]).resolve().parent)
            runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
