# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``python -m siwarp.pyverbs PROGRAM [ARGS]``: runs an unchanged pyverbs program on siwarp."""

from __future__ import annotations

import builtins
import io
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

_USAGE = """usage: python -m siwarp.pyverbs PROGRAM [ARGS]

Runs a Python program that imports pyverbs on siwarp's devices, as `python PROGRAM ARGS` would
run it on adapters. `siwarp devices` lists the devices; programs select a device by its name, for
example siw_lo.
"""


def _make_main_module(program: str) -> types.ModuleType:
    """Return a module ``__main__`` like the one that Python creates for a program."""
    main = types.ModuleType("__main__")
    main.__file__ = program
    main.__loader__ = SourceFileLoader("__main__", program)
    main.__dict__.update(__builtins__=builtins, __cached__=None, __annotations__={})
    return main


def _hide_runner_stack_frames(own: types.CodeType) -> None:
    """Make tracebacks start at the program, as if Python had run the program directly."""
    show = sys.excepthook

    def print_program_traceback(
        kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> None:
        here = trace
        while here is not None and here.tb_frame.f_code is not own:
            here = here.tb_next
        if here is not None:
            trace = here.tb_next
            error.__traceback__ = trace  # Python's own hook prints the error's traceback
        show(kind, error, trace)

    sys.excepthook = print_program_traceback


def run_program_as_main(program: str, args: list[str]) -> None:
    """Run a program as ``__main__`` with the given arguments.

    Raises:
        OSError: the program cannot be read.

    """
    with io.open_code(str(Path(program).absolute())) as file:
        source = file.read()
    sys.argv[:] = [program, *args]
    sys.path[0] = str(Path(program).resolve().parent)
    sys.path.insert(1, str(Path(__file__).resolve().parent / "alias"))
    main = _make_main_module(program)
    sys.modules["__main__"] = main
    _hide_runner_stack_frames(run_program_as_main.__code__)
    exec(compile(source, program, "exec", dont_inherit=True), main.__dict__)


def _main() -> None:
    args = sys.argv[1:]
    if not args or args[0] in ("-h", "--help"):
        print(_USAGE, end="", file=sys.stdout if args else sys.stderr)
        sys.exit(0 if args else 2)
    program, *rest = args
    if not Path(program).is_file():
        where = str(Path(program).absolute())
        print(f"{sys.executable}: can't open file {where!r}: no such file", file=sys.stderr)
        sys.exit(2)
    run_program_as_main(program, rest)


if __name__ == "__main__":
    _main()
