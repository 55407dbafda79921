"""Each function that libibverbs.so.1 and librdmacm.so.1 export is tested with invalid arguments."""

from __future__ import annotations

import re

from abi.abi_harness import PROGRAMS
from abi.symbols import LIST
from table import run_test_for_each_row

#: The C programs that call functions with invalid arguments.
TRIED = ("bad.c", "bad_more.c", "misuse.c", "newer.c", "cm_bad.c")
#: Patterns of functions that the programs in TRIED do not call, with the reason; a pattern
#: matches a complete name.
ELSEWHERE = {
    r"ibv_cmd_\w+|execute_ioctl|__ioctl_final_num_attrs": "test_abi_refused calls each command",
    r"verbs_allow_disassociate_destroy": "a flag for providers, not a function",
    r"_?verbs_(?!allow)\w+|__verbs_log": "no operation: test_abi_refused calls them",
    r"ibv_(node_type|port_state|event_type|wc_status)_str": "names.c passes them invalid numbers",
    r"ibv_rate_to_(mbps|mult)|(mbps|mult)_to_ibv_rate": "names.c passes them invalid numbers",
    r"rdma_get_devices": "its only argument may be NULL: cm.c calls it",
    r"r(?!dma_)\w+": "rsockets: the system's librdmacm executes the calls",
}


def exported_functions() -> set[str]:
    return {name.partition("@")[0] for name in LIST.read_text("utf-8").split()}


def functions_called_by_programs() -> set[str]:
    """Return the functions that the programs call; some are declared under a different name."""
    source = "".join((PROGRAMS / name).read_text("utf-8") for name in TRIED)
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    declared = re.findall(r"extern\s[^;]*;", source)
    source = re.sub(r"extern\s[^;]*;", "", source)
    # Some macros of the programs have the name of the function to call as an argument.
    calls = {*re.findall(r"\b(\w+)\(", source), *re.findall(r"\b[A-Z_]+\((\w+),", source)}
    for declaration in declared:
        other = re.search(r"(\w+)\(.*__asm__\(\"(\w+)\"\)", declaration, re.DOTALL)
        if other and other[1] in calls:
            calls.add(other[2])
    return calls


def is_tested_elsewhere(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in ELSEWHERE)


def test_every_exported_function_is_called_with_invalid_arguments_or_excepted() -> None:
    # Programs call a function whose name begins with an underscore through a macro of verbs.h that
    # has the name without the underscore.
    have = functions_called_by_programs()
    missing = {n for n in exported_functions() if n not in have and n.removeprefix("_") not in have}
    assert not {name for name in missing if not is_tested_elsewhere(name)}


@run_test_for_each_row("pattern", ELSEWHERE)
def test_no_program_calls_an_excepted_function_with_invalid_arguments(pattern: str) -> None:
    names = {name for name in exported_functions() if re.fullmatch(pattern, name)}
    assert names
    assert not names & functions_called_by_programs()
