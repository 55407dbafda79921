"""Each function that libibverbs.so.1 and librdmacm.so.1 export is tested with invalid arguments."""

from __future__ import annotations

import re

import pytest
from abi.abi_harness import PROGRAMS
from abi.symbols import LIST

#: The programs that pass invalid arguments.
TRIED = ("bad.c", "bad_more.c", "misuse.c", "newer.c", "cm_bad.c")
#: Functions tested elsewhere, with the reason; each pattern must match a complete name.
ELSEWHERE = {
    r"ibv_cmd_\w+|execute_ioctl|__ioctl_final_num_attrs": "commands: test_abi_refused calls each",
    r"verbs_allow_disassociate_destroy": "no function: a flag for providers",
    r"_?verbs_(?!allow)\w+|__verbs_log": "they do nothing: test_abi_refused calls them",
    r"ibv_(node_type|port_state|event_type|wc_status)_str": "of numbers: names.c tries them all",
    r"ibv_rate_to_(mbps|mult)|(mbps|mult)_to_ibv_rate": "of numbers: names.c tries them",
    r"rdma_get_devices": "it takes only a place for a number, which may be NULL: cm.c",
    r"r(?!dma_)\w+": "rsockets: they are led to the system's librdmacm, whose pages they follow",
}


def exported_functions() -> set[str]:
    return {name.partition("@")[0] for name in LIST.read_text("utf-8").split()}


def called_functions() -> set[str]:
    """Return the functions that the programs call; some are declared under a different name."""
    source = "".join((PROGRAMS / name).read_text("utf-8") for name in TRIED)
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    declared = re.findall(r"extern\s[^;]*;", source)
    source = re.sub(r"extern\s[^;]*;", "", source)
    # Some macros get the name of the function to call.
    calls = {*re.findall(r"\b(\w+)\(", source), *re.findall(r"\b[A-Z_]+\((\w+),", source)}
    for declaration in declared:
        other = re.search(r"(\w+)\(.*__asm__\(\"(\w+)\"\)", declaration, re.DOTALL)
        if other and other[1] in calls:
            calls.add(other[2])
    return calls


def is_tested_elsewhere(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in ELSEWHERE)


def test_every_function_is_tried_with_bad_input_or_has_its_reason() -> None:
    # A macro of the header has the same name without the underscore.
    have = called_functions()
    missing = {n for n in exported_functions() if n not in have and n.removeprefix("_") not in have}
    assert not {name for name in missing if not is_tested_elsewhere(name)}


@pytest.mark.parametrize("pattern", ELSEWHERE)
def test_an_exception_is_a_function_that_no_program_tries(pattern: str) -> None:
    names = {name for name in exported_functions() if re.fullmatch(pattern, name)}
    assert names
    assert not names & called_functions()
