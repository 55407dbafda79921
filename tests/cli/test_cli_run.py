"""siwarp run and siwarp env: the environment that they give to a program."""

from __future__ import annotations

import os
import pty
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pace
import pytest
from cli.cli_harness import run_siwarp_command, run_siwarp_in_process
from cli.run_harness import (
    DEVICE_LIST_SOURCE,
    OTHER_LIBIBVERBS_SOURCE,
    compile_bundled_libibverbs,
    compile_program,
)
from harness.siwarp_process import COMMAND, SiwarpProcess
from pace import scale_limit

from siwarp import _paths
from siwarp.cli import run_view
from siwarp.cli.run_preload import ld_preload_environment

SIWARP_LIBIBVERBS = _paths.rdma_core_abi_dir() / "libibverbs.so.1"
#: Shell script: runs a program as a child process and waits for its end.
RUN_AS_CHILD = '"$1"; exit $?'
CALL_SHOW = "\nint main(void) { return show(); }\n"


def list_devices_under_siwarp_run(
    program: Path | str, *more: str, env: dict[str, str] | None = None
) -> list[str]:
    """Return the devices that a program sees under siwarp run."""
    done = run_siwarp_command("run", "--no-view", program, *more, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def siwarp_device_names() -> list[str]:
    from siwarp.verbs import get_device_list

    return sorted(device.name for device in get_device_list())


@pytest.mark.parametrize("view", [[], ["--no-view"]], ids=["view", "no-view"])
def test_siwarp_run_passes_status_arguments_and_standard_input_unchanged(view: list[str]) -> None:
    script = 'for a in "$@"; do printf "<%s>" "$a"; done; cat; exit 7'
    words = ["--", "-h", "a b", "", "*", "--faults"]
    done = pace.run_command(
        [*COMMAND, "run", *view, "--", "sh", "-c", script, "sh", *words],
        input="from here",
        capture_output=True,
        text=True,
        seconds=30,
        start=SiwarpProcess,
    )
    assert done.stdout == "<--><-h><a b><><*><--faults>from here"
    assert done.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_siwarp_run_reaches_the_program_itself(number: signal.Signals) -> None:
    script = 'trap "echo caught; exit 5" INT TERM; echo $$; while :; do sleep 0.05; done'
    with SiwarpProcess(
        [*COMMAND, "run", "sh", "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(number)
        assert process.stdout.read() == "caught\n"
        assert process.wait(timeout=scale_limit(20)) == 5


def test_siwarp_run_ends_with_the_signal_that_ended_the_program() -> None:
    assert run_siwarp_command("run", "sh", "-c", "kill -KILL $$").returncode == -signal.SIGKILL


def test_the_program_under_siwarp_run_has_the_terminal() -> None:
    parent, child = pty.openpty()
    try:
        done = pace.run_command(
            [*COMMAND, "run", "sh", "-c", "tty; test -t 0 && test -t 2"],
            stdin=child,
            stdout=subprocess.PIPE,
            stderr=child,
            text=True,
            seconds=30,
        )
        assert (done.stdout.strip(), done.returncode) == (os.ttyname(child), 0)
    finally:
        os.close(parent)
        os.close(child)


def test_signals_ignored_by_the_interpreter_are_not_ignored_by_the_program() -> None:
    done = run_siwarp_command("run", "grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))


def test_a_program_that_cannot_be_run_has_the_exit_status_of_a_shell(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program")
    missing = run_siwarp_command("run", "--no-view", tmp_path / "nothing")
    assert (missing.returncode, missing.stderr) == (
        127,
        f"siwarp: cannot run {tmp_path}/nothing: No such file or directory\n",
    )
    assert run_siwarp_command("run", "--no-view", text).returncode == 126


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "no program"),
        (["run", "--nonsense", "1", "true"], "--nonsense"),
        (["run", "--faults"], "needs a value"),
        (["run", "--faults", "loss=nonsense", "true"], "invalid fault plan"),
        (["run", "--persona", "nobody", "true"], "--persona"),
        (["run", "--capture", "/nonsense/x", "true"], "/nonsense"),
        (["env", "true"], "env accepts no program"),
        (["env", "--no-view"], "--no-view"),
    ],
)
def test_a_wrong_command_line_of_run_or_env_is_refused_with_one_line(
    words: list[str], said: str
) -> None:
    done = run_siwarp_command(*words)
    assert done.returncode in (1, 2)
    assert said in done.stderr and len(done.stderr.splitlines()) == 1


def test_settings_faults_and_capture_are_passed_to_the_program(tmp_path: Path) -> None:
    file = tmp_path / "run.pcapng"
    done = run_siwarp_command(
        "--crc", "0", "run", "--persona", "iwarp", "--faults", "loss=1%", "--capture", file,
        "--no-view", "env",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    got = dict(line.split("=", 1) for line in done.stdout.splitlines() if line[:7] == "SIWARP_")
    assert got["SIWARP_CRC"] == "0"
    assert got["SIWARP_PERSONA"] == "iwarp"
    assert "loss=1%" in got["SIWARP_FAULTS"]
    assert got["SIWARP_CAPTURE"] == str(file)
    assert not file.exists()


def test_a_low_limit_of_open_files_is_raised_and_a_high_limit_is_kept() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    for low, then in ((256, most), (most, most)):
        done = pace.run_command(
            ["sh", "-c", f'ulimit -Sn {low}; exec "$@"', "sh",
             *COMMAND, "run", "--no-view", "sh", "-c", "ulimit -Sn; ulimit -Hn"],
            capture_output=True, text=True, seconds=30,
        )  # fmt: skip
        kept = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        assert done.stdout.split() == [str(then), kept]


def test_the_preloads_and_library_paths_of_the_program_are_kept() -> None:
    mine = {"LD_LIBRARY_PATH": "/somewhere::/else", "LD_PRELOAD": "libm.so.6 libdl.so.2"}
    got = ld_preload_environment(mine)
    assert got["LD_LIBRARY_PATH"] == f"{SIWARP_LIBIBVERBS.parent}:/somewhere::/else"
    assert got["LD_PRELOAD"].split(":")[:2] == ["libm.so.6", "libdl.so.2"]
    # The loader splits LD_PRELOAD at blanks. If the path of siwarp has a blank, only the file name
    # is preloaded, and LD_LIBRARY_PATH locates the file.
    entry = (
        SIWARP_LIBIBVERBS.name
        if re.search(r"\s", str(SIWARP_LIBIBVERBS))
        else str(SIWARP_LIBIBVERBS)
    )
    assert entry in got["LD_PRELOAD"].split(":")[2:]
    assert ld_preload_environment(got) == got, "a second call must add nothing"
    assert ld_preload_environment({})["LD_LIBRARY_PATH"] == str(SIWARP_LIBIBVERBS.parent)


def test_every_libibverbs_and_librdmacm_of_the_folder_is_preloaded(tmp_path: Path) -> None:
    for name in ("libibverbs.so.1", "librdmacm.so.1", "libother.so"):
        (tmp_path / name).touch()
    got = ld_preload_environment({}, tmp_path)["LD_PRELOAD"].split(":")
    assert got == [str(tmp_path / "libibverbs.so.1"), str(tmp_path / "librdmacm.so.1")]


def test_a_path_that_the_loader_cannot_use_is_reported_or_avoided(tmp_path: Path) -> None:
    blank, colon, none = tmp_path / "a b" / "of" / "it", tmp_path / "a:b", tmp_path / "none"
    for folder in (blank, colon, none):
        folder.mkdir(parents=True)
    (blank / "libibverbs.so.1").symlink_to(SIWARP_LIBIBVERBS)
    library = Path(
        os.path.normpath(blank / os.path.relpath(_paths.library_path(), SIWARP_LIBIBVERBS.parent))
    )
    library.symlink_to(_paths.library_path())
    got = ld_preload_environment({}, blank)
    assert got == {"LD_LIBRARY_PATH": str(blank), "LD_PRELOAD": "libibverbs.so.1"}
    done = subprocess.run(
        ["grep", "-c", "libibverbs", "/proc/self/maps"],
        capture_output=True,
        text=True,
        env={**os.environ, **ld_preload_environment(os.environ, blank)},
    )
    assert int(done.stdout) > 0 and done.stderr == ""
    (colon / "libibverbs.so.1").symlink_to(SIWARP_LIBIBVERBS)
    with pytest.raises(ValueError, match="a:b"):
        ld_preload_environment({}, colon)
    with pytest.raises(FileNotFoundError, match=r"libibverbs\.so\.1"):
        ld_preload_environment({}, none)


def test_a_shell_can_evaluate_the_output_of_siwarp_env(tmp_path: Path) -> None:
    file = tmp_path / "a 'b'.pcapng"
    done = run_siwarp_command("env", "--persona", "roce", "--capture", file)
    assert done.returncode == 0, done.stderr
    script = 'eval "$1"; printf "%s\\n" "$SIWARP_PERSONA" "$SIWARP_CAPTURE" "$LD_LIBRARY_PATH"'
    shell = subprocess.run(
        ["sh", "-c", script, "sh", done.stdout], capture_output=True, text=True, check=True
    )
    persona, capture, path = shell.stdout.splitlines()
    assert (persona, capture) == ("roce", str(file))
    assert path.split(":")[0] == str(SIWARP_LIBIBVERBS.parent)


def test_the_help_of_run_and_env_lists_the_options_and_needs_no_typer() -> None:
    every = run_siwarp_in_process("--help").stdout
    for name in ("run", "env"):
        done = run_siwarp_command(name, "--help")
        assert done.returncode == 0
        assert done.stdout.startswith(f"Usage: siwarp {name}")
        assert "--faults" in done.stdout
        assert f" {name} " in every


def test_siwarp_run_imports_only_the_standard_library_before_the_program() -> None:
    code = (
        "import os, sys\n"
        "from siwarp.cli import main\n"
        "os.execvpe = lambda *a: print(sorted({m.split('.')[0] for m in sys.modules}))\n"
        "main.main(['run', 'true'])\n"
    )
    done = pace.run_command(
        [sys.executable, "-c", code], capture_output=True, text=True, seconds=30
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout
    assert "'siwarp'" in loaded
    for other in ("typer", "click", "cffi", "_cffi_backend", "rich", "numpy", "scapy"):
        assert f"'{other}'" not in loaded


# ---- the libibverbs that a program's calls reach


def test_a_program_linked_to_libibverbs_uses_the_library_of_siwarp(tmp_path: Path) -> None:
    others = tmp_path / "system"
    others.mkdir()
    compile_program(
        others,
        "libibverbs.so.1",
        OTHER_LIBIBVERBS_SOURCE,
        "-shared",
        "-fPIC",
        "-Wl,-soname,libibverbs.so.1",
    )
    program = compile_program(
        tmp_path, "list", DEVICE_LIST_SOURCE + CALL_SHOW, str(others / "libibverbs.so.1")
    )
    alone = subprocess.run([program], env={"LD_LIBRARY_PATH": str(others)}, capture_output=True)
    assert alone.stdout == b"others\n"
    assert (
        sorted(list_devices_under_siwarp_run(program, env={"LD_LIBRARY_PATH": str(others)}))
        == siwarp_device_names()
    )


def test_a_renamed_libibverbs_of_a_wheel_is_replaced_by_the_library_of_siwarp(
    tmp_path: Path,
) -> None:
    copy = compile_bundled_libibverbs(tmp_path)
    program = compile_program(
        tmp_path, "list", DEVICE_LIST_SOURCE + CALL_SHOW, str(copy), f"-Wl,-rpath,{tmp_path}"
    )
    assert subprocess.run([program], capture_output=True).stdout == b"others\n"
    assert sorted(list_devices_under_siwarp_run(program)) == siwarp_device_names()


def test_a_module_loaded_with_rtld_local_uses_the_library_of_siwarp(tmp_path: Path) -> None:
    copy = compile_bundled_libibverbs(tmp_path)
    compile_program(
        tmp_path,
        "module.so",
        DEVICE_LIST_SOURCE,
        "-shared",
        "-fPIC",
        str(copy),
        f"-Wl,-rpath,{tmp_path}",
    )
    loader = compile_program(
        tmp_path,
        "loader",
        """
        #include <dlfcn.h>
        int main(int argc, char **argv)
        {
            void *module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
            int (*show)(void) = module ? dlsym(module, "show") : 0;
            return show ? show() : 9;
        }
        """,
    )
    assert (
        sorted(list_devices_under_siwarp_run(loader, str(tmp_path / "module.so")))
        == siwarp_device_names()
    )


def test_dlsym_and_dlvsym_find_the_library_of_siwarp(tmp_path: Path) -> None:
    program = compile_program(
        tmp_path,
        "finder",
        """
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        static void where(void *symbol)
        {
            Dl_info info;
            printf("%s\\n", symbol && dladdr(symbol, &info) ? info.dli_fname : "nowhere");
        }
        int main(void)
        {
            void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
            where(dlsym(RTLD_DEFAULT, "ibv_open_device"));
            where(dlsym(library, "ibv_open_device"));
            where(dlvsym(library, "ibv_open_device", "IBVERBS_1.1"));
            where(dlvsym(library, "ibv_open_device", "IBVERBS_9.9"));
            return 0;
        }
        """,
    )
    found = run_siwarp_command("run", "--no-view", program).stdout.splitlines()
    assert [Path(place).resolve() for place in found[:3]] == [SIWARP_LIBIBVERBS.resolve()] * 3
    assert found[3] == "nowhere"


def test_a_static_program_runs_unchanged_under_siwarp_run(tmp_path: Path) -> None:
    program = compile_program(tmp_path, "static", "int main(void) { return 3; }", "-static")
    for words in ([program], ["sh", "-c", RUN_AS_CHILD, "sh", program]):
        done = run_siwarp_command("run", *words)
        assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.programs
def test_a_32_bit_program_under_siwarp_run_gets_only_the_warning_of_the_loader(
    tmp_path: Path,
) -> None:
    try:
        program = compile_program(tmp_path, "narrow", "int main(void) { return 4; }", "-m32")
    except subprocess.CalledProcessError:
        pytest.skip("no 32-bit programs: needs lib32gcc-12-dev and libc6-dev-i386")
    for words in ([program], ["sh", "-c", RUN_AS_CHILD, "sh", program]):
        done = run_siwarp_command("run", "--no-view", *words)
        assert done.returncode == 4
        lines = done.stderr.splitlines()
        assert lines and all("wrong ELF class" in line and "ignored" in line for line in lines)


def test_the_preloaded_library_is_inactive_before_the_first_call(tmp_path: Path) -> None:
    script = (
        "ls /proc/self/task | wc -l; ls -l /proc/self/fd | grep -c -e socket -e anon_inode; "
        "grep -c libsiwarp /proc/self/maps"
    )
    threads, descriptors, mapped = list_devices_under_siwarp_run(
        "sh", "-c", script, env={"TMPDIR": str(tmp_path)}
    )
    assert (threads, descriptors) == ("1", "0")
    assert int(mapped) > 0
    assert list(tmp_path.iterdir()) == []


def test_python_under_siwarp_run_loads_the_siwarp_library_only_once(tmp_path: Path) -> None:
    code = (
        "import ctypes\n"
        "from siwarp.verbs import get_device_list\n"
        "get_device_list()\n"
        "ctypes.CDLL('libibverbs.so.1')\n"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if 'libsiwarp.so' in line}\n"
        "print(len(maps), *maps)\n"
    )
    count, *_ = list_devices_under_siwarp_run(sys.executable, "-c", code)
    assert count == "1"


def test_another_preloaded_library_remains_active_under_siwarp_run(tmp_path: Path) -> None:
    """A malloc replacement such as jemalloc serves the program and the library of siwarp."""
    counter = compile_program(
        tmp_path,
        "counter.so",
        """
        #define _GNU_SOURCE
        #include <errno.h>
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        extern void *__libc_calloc(size_t, size_t);
        static int seen;
        void *calloc(size_t n, size_t size)
        {
            const char *me = program_invocation_short_name;

            if (me && strcmp(me, "list") == 0 && !seen++)
                (void)!write(1, "counted\\n", 8);
            return __libc_calloc(n, size);
        }
        """,
        *("-shared", "-fPIC"),
    )
    copy = compile_bundled_libibverbs(tmp_path)
    program = compile_program(
        tmp_path, "list", DEVICE_LIST_SOURCE + CALL_SHOW, str(copy), f"-Wl,-rpath,{tmp_path}"
    )
    before = os.environ.get("LD_PRELOAD", "")
    if "san.so" in before:
        pytest.skip("the sanitizer's malloc stands before everybody's")
    seen = list_devices_under_siwarp_run(program, env={"LD_PRELOAD": f"{before} {counter}".strip()})
    assert seen.count("counted") == 1
    assert sorted(word for word in seen if word != "counted") == siwarp_device_names()


@pytest.mark.programs
def test_a_preloaded_jemalloc_remains_active_under_siwarp_run(tmp_path: Path) -> None:
    before = os.environ.get("LD_PRELOAD", "")
    if "san.so" in before:
        pytest.skip("the sanitizer's malloc stands before everybody's")
    preload = {**os.environ, "LD_PRELOAD": "libjemalloc.so.2"}
    if subprocess.run(["true"], env=preload, capture_output=True, check=True).stderr:
        pytest.skip("no jemalloc here: make abi installs libjemalloc2; a stand-in is tried above")
    copy = compile_bundled_libibverbs(tmp_path)
    program = compile_program(
        tmp_path, "list", DEVICE_LIST_SOURCE + CALL_SHOW, str(copy), f"-Wl,-rpath,{tmp_path}"
    )
    env = {"LD_PRELOAD": f"{before} libjemalloc.so.2".strip(), "MALLOC_CONF": "stats_print:true"}
    done = run_siwarp_command("run", "--no-view", program, env=env)
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == siwarp_device_names()
    # Each process that uses jemalloc prints statistics at exit.
    assert "Begin jemalloc statistics" in done.stderr


def test_a_device_whose_interface_was_just_removed_gets_no_link(tmp_path: Path) -> None:
    # The device was listed, but its interface was removed before the interface's name was read.
    for name in ("", "gone0"):
        run_view._link_device_to_interface(tmp_path, name)
    assert not list(tmp_path.iterdir())
    run_view._link_device_to_interface(tmp_path, "lo")
    assert (tmp_path / "net" / "lo").is_symlink()
