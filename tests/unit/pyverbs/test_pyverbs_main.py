"""The command `python -m siwarp.pyverbs PROGRAM`, which runs a program as `python PROGRAM` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pace
import pytest
from pace import scale_limit

ON_SIWARP = [sys.executable, "-m", "siwarp.pyverbs"]

#: A program that prints everything by which it can detect how it was started.
PRINT_ENVIRONMENT = """
import os, sys
from multiprocessing import current_process
def deep():
    raise KeyError("lost")
print(sys.argv, __name__, __file__, __package__, __spec__, sorted(globals()))
print(sys.modules["__main__"].deep is deep, sys.path[0], current_process().name)
print("to stderr", file=sys.stderr)
"""
PROGRAM_ENDINGS = {
    "falls through": "pass",
    "exits with 7": "sys.exit(7)",
    "exits with a text": "sys.exit('a reason')",
    "raises": "deep()",
    "raises from another": "try:\n    deep()\nexcept KeyError as e:\n    raise OSError(3) from e",
    "is interrupted": "os.kill(os.getpid(), 2)",
}


def run_program(command: list[str], program: Path, *args: str) -> tuple[int, str, str]:
    done = pace.run_command(
        [*command, str(program), *args],
        capture_output=True,
        text=True,
        seconds=60,
        cwd=program.parent,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("end", PROGRAM_ENDINGS)
def test_a_program_on_siwarp_pyverbs_runs_as_python_runs_it(tmp_path: Path, end: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PRINT_ENVIRONMENT + PROGRAM_ENDINGS[end] + "\n")
    plain = run_program([sys.executable], program, "-x", "a b", "--help")
    assert run_program(ON_SIWARP, program, "-x", "a b", "--help") == plain


def test_a_program_with_a_syntax_error_is_reported_as_by_python(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("if this then that\n")
    code, out, err = run_program([sys.executable], program)
    assert run_program(ON_SIWARP, program) == (code, out, err)
    assert "SyntaxError" in err


def test_a_program_that_imports_pyverbs_gets_siwarp_pyverbs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import pyverbs, pyverbs.qp, pyverbs.enums as e\n"
        "from pyverbs.pyverbs_error import PyverbsRDMAError\n"
        "import siwarp.pyverbs.qp, siwarp.pyverbs.pyverbs_error as errors\n"
        "assert pyverbs.qp is siwarp.pyverbs.qp and pyverbs is siwarp.pyverbs\n"
        "assert PyverbsRDMAError is errors.PyverbsRDMAError\n"
        "assert pyverbs.qp.__spec__.name == 'siwarp.pyverbs.qp'\n"
        "try:\n    import pyverbs.nothing\n"
        "except ModuleNotFoundError as error:\n    print(error.name)\n"
    )
    assert run_program(ON_SIWARP, program) == (0, "pyverbs.nothing\n", "")


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_child_processes_of_a_program_import_siwarp_pyverbs(tmp_path: Path, way: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, sys\n"
        "from pyverbs.device import Context\n"
        "def child(queue):\n    queue.put(Context(name='siw_lo').query_port(1).state)\n"
        "if __name__ == '__main__':\n"
        f"    at = multiprocessing.get_context({way!r})\n"
        "    queue = at.Queue()\n"
        "    process = at.Process(target=child, args=(queue,))\n"
        "    process.start()\n    print(queue.get())\n    process.join()\n"
        "    sys.exit(process.exitcode)\n"
    )
    assert run_program(ON_SIWARP, program) == (0, "4\n", "")


def test_vendor_modules_of_pyverbs_can_be_imported_and_raise_eopnotsupp(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import errno\n"
        "import pyverbs.providers.mlx5.mlx5_enums as me\n"
        "from pyverbs.providers.mlx5.mlx5dv import Mlx5Context, Mlx5DVContextAttr\n"
        "from pyverbs.pyverbs_error import PyverbsRDMAError\n"
        "attr = Mlx5DVContextAttr(flags=me.MLX5DV_CONTEXT_FLAGS_DEVX | 4)\n"
        "try:\n    Mlx5Context(attr, 'siw_lo')\n"
        "except PyverbsRDMAError as error:\n"
        "    assert error.error_code == errno.EOPNOTSUPP\n    print(error)\n"
    )
    code, out, err = run_program(ON_SIWARP, program)
    assert (code, err) == (0, "") and "Mlx5Context" in out


def test_siwarp_pyverbs_without_a_program_prints_its_usage(tmp_path: Path) -> None:
    done = subprocess.run(ON_SIWARP, capture_output=True, text=True)
    assert done.returncode == 2 and "PROGRAM [ARGS]" in done.stderr
    done = subprocess.run([*ON_SIWARP, str(tmp_path / "none.py")], capture_output=True, text=True)
    assert done.returncode == 2 and "none.py" in done.stderr


def test_devices_are_rnics_if_the_persona_setting_is_iwarp(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from pyverbs.device import get_device_list\n"
        "print({one.node_type for one in get_device_list()})\n"
    )
    assert run_program(ON_SIWARP, program)[1] == "{<ibv_node_type.IBV_NODE_CA: 1>}\n"
    done = subprocess.run(
        [*ON_SIWARP, str(program)],
        capture_output=True,
        text=True,
        env={**os.environ, "SIWARP_PERSONA": "iwarp"},
    )
    assert done.stdout == "{<ibv_node_type.IBV_NODE_RNIC: 4>}\n"


def test_sigint_ends_a_pyverbs_wait_for_an_event(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from pyverbs.cq import CQ, CompChannel\nfrom pyverbs.device import Context\n"
        "ctx = Context(name='siw_lo')\nchannel = CompChannel(ctx)\ncq = CQ(ctx, 1, None, channel)\n"
        "print('waits', flush=True)\nchannel.get_cq_event(cq)\n"
    )
    with subprocess.Popen(
        [*ON_SIWARP, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waits\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=scale_limit(20))
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in err
