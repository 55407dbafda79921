# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp run`` and ``siwarp env``: run programs that are compiled against libibverbs on siwarp.

The path to the program imports only the standard library, so that the program starts quickly; the
check of an option may import more. The program replaces this process.
"""

from __future__ import annotations

import os
import resource
import shlex
import sys
from dataclasses import dataclass, field

from siwarp.cli.capture_file import prepare_capture_environment
from siwarp.cli.execute import replace_this_process
from siwarp.cli.main import UsageError, apply_settings
from siwarp.cli.run_preload import ld_preload_environment
from siwarp.cli.run_view import expose_device_files_to_this_process

__all__ = ["main"]

#: Limit of open files for the program: each UD or UC queue pair needs a socket. Programs that use
#: select(), for which more than 1024 files are dangerous, are not expected to be run.
MAX_FILES = 65536

_USAGE = {
    "run": """\
Usage: siwarp run [OPTIONS] [--] PROGRAM [ARGUMENT]...

  Run a program that is compiled against libibverbs and librdmacm, with
  siwarp's devices as its adapters.

  siwarp run ibv_rc_pingpong -g 0 -d siw_eth0
  siwarp run --faults 'loss=1%' -- ib_send_bw -c UD -d siw_eth0

  The program replaces this process, so its exit status, signals, terminal and
  arguments are as without siwarp. It finds the libraries through
  LD_LIBRARY_PATH and LD_PRELOAD, and the devices' files under
  /sys/class/infiniband and /dev/infiniband in a private mount namespace, in
  which setuid programs (sudo, ping) gain no privileges unless you are root. If
  the system refuses this namespace, a message is printed and the program runs
  without these files.

Options:
  --no-view        Create no namespace and no files in it.
""",
    "env": """\
Usage: siwarp env [OPTIONS]

  Print what `siwarp run` puts into the environment, for a shell:
  eval "$(siwarp env)".

  Every program that the shell starts then finds siwarp's libibverbs and
  librdmacm. Only `siwarp run` shows the files under /sys and /dev and raises
  the limit of open files.

Options:
""",
}
_USAGE_END = """\
  --faults PLAN    Lose, delay or change packets; `siwarp wan --help`
                   describes the plans.
  --capture FILE   Write all packets sent and received to a pcapng file; %p
                   is replaced by the PID.
  --SETTING VALUE  Any setting that `siwarp config` lists, for example
                   --persona iwarp.
  -h, --help       Show this message.
"""


@dataclass
class _Options:
    faults: str | None = None
    capture: str | None = None
    view: bool = True
    help: bool = False
    command: list[str] = field(default_factory=list)


def _option_value(option: str, equals: str, value: str, rest: list[str]) -> str:
    if equals:
        return value
    if not rest:
        raise UsageError(f"{option} needs a value")
    return rest.pop(0)


def _parse_options(name: str, arguments: list[str]) -> _Options:
    """Parse the options before the program; the arguments after its name belong to the program."""
    options, rest = _Options(), list(arguments)
    while rest and rest[0].startswith("-"):
        before = list(rest)
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if word == "--":
            break
        if word in ("-h", "--help"):
            options.help = True
        elif word == "--no-view" and name == "run":
            options.view = False
        elif option == "--faults":
            options.faults = _option_value(option, equals, value, rest)
        elif option == "--capture":
            options.capture = _option_value(option, equals, value, rest)
        else:
            rest = apply_settings(before)
            if rest == before:
                raise UsageError(f"{name}: no such option: {option}")
    options.command = rest
    return options


def _added_environment_variables(options: _Options) -> dict[str, str]:
    """Return the variables that the options and the library add to the environment."""
    from_settings = {k: v for k, v in os.environ.items() if k.startswith("SIWARP_")}
    added = {**from_settings, **ld_preload_environment(os.environ)}
    if options.faults is not None:
        from siwarp.cli.libsiwarp import normalize_fault_plan

        added["SIWARP_FAULTS"] = normalize_fault_plan(options.faults)
    if options.capture is not None:
        program = options.command[0] if options.command else "sh"
        added.update(prepare_capture_environment(options.capture, program))
    return added


def _raise_open_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(name: str, arguments: list[str]) -> int:
    """Run ``siwarp run`` or ``siwarp env`` with these arguments and return the exit status."""
    options = _parse_options(name, arguments)
    if options.help:
        print(_USAGE[name] + _USAGE_END, end="")
        return 0
    if name == "env" and options.command:
        raise UsageError("env accepts no program: use siwarp run")
    if name == "run" and not options.command:
        raise UsageError("run: no program: give one after the options")
    try:
        added = _added_environment_variables(options)
    except ValueError as e:
        raise UsageError(f"{name}: {e}") from None
    if name == "env":
        for variable, value in sorted(added.items()):
            print(f"export {variable}={shlex.quote(value)}")
        return 0
    _raise_open_file_limit()
    if options.view:
        missing = expose_device_files_to_this_process()
        if missing:
            print(f"siwarp run: {missing}", file=sys.stderr)
    sys.stdout.flush()
    return replace_this_process(options.command, {**os.environ, **added})
