"""rdma_cm programs, compiled against <rdma/rdma_cma.h> and run with siwarp's librdmacm.so.1."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from abi.abi_harness import run_program
from cli.cli_harness import environment_without_sanitizer
from namespaces.ns_harness import PATH

from siwarp import _paths


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_ids_connect_without_a_channel_and_endpoints_serve(
    compiled_programs: dict[str, Path], persona: str
) -> None:
    run_program(compiled_programs["cm"], "endpoints", SIWARP_PERSONA=persona)


def test_events_come_in_order_and_live_until_they_are_acknowledged(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm"], "order")


def test_a_thread_waits_for_events_while_ids_go_and_is_cancelled(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm"], "threads")


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_queue_pairs_of_the_programs_own_are_connected_by_their_number(
    compiled_programs: dict[str, Path], persona: str
) -> None:
    run_program(compiled_programs["cm"], "others", SIWARP_PERSONA=persona)


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_a_connection_may_carry_private_data_alone(
    compiled_programs: dict[str, Path], persona: str
) -> None:
    run_program(compiled_programs["cm"], "private", SIWARP_PERSONA=persona)


def test_a_listener_without_a_port_is_told_an_address_that_others_reach(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm"], "names")


@pytest.mark.parametrize("what", ["connect", "left", "ipoib"])
def test_ids_of_datagrams_ask_for_queue_pairs(
    compiled_programs: dict[str, Path], what: str
) -> None:
    run_program(compiled_programs["cm_ud"], what, SIWARP_SIDR_TIMEOUT_MS="500")


def test_groups_are_joined_and_left(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_ud"], "groups")


def test_a_child_of_fork_has_devices_of_its_own(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm"], "forked")


def test_connections_that_end_early_say_so_and_nothing_waits_for_ever(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_more"], "ends")


def test_each_end_learns_what_the_other_one_gave(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_more"], "depths")


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_immediate_data_is_sent_without_a_setting_to_a_siwarp_alone(
    compiled_programs: dict[str, Path], persona: str
) -> None:
    run_program(compiled_programs["cm_more"], "immediate", SIWARP_PERSONA=persona)


def test_options_reach_the_sockets(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_more"], "options")


def test_functions_of_later_releases(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_more"], "newer")


def test_an_id_that_moves_waits_until_its_events_are_acknowledged(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_more"], "moves")


def test_a_signal_ends_a_wait_unless_its_handler_restarts(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_more"], "impatient")


@pytest.mark.parametrize("who", ["servers", "clients"])
def test_peers_that_are_no_rnic_or_of_another_version_are_refused(
    compiled_programs: dict[str, Path], who: str
) -> None:
    run_program(compiled_programs["strange"], who)


def test_a_queue_pair_that_is_reset_disconnects_and_may_connect_again(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["strange"], "resets")


def test_addresses_and_devices_are_told_as_asked(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_more"], "infos")


def test_a_queue_pair_of_another_id_may_be_put_into_an_id(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_more"], "given")


def test_queue_pairs_of_ids_take_receives_from_their_shared_receive_queues(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_calls"], "queues")


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_depths_of_0_and_255_are_none_and_the_devices_most(
    compiled_programs: dict[str, Path], persona: str
) -> None:
    run_program(compiled_programs["cm_calls"], "depths", SIWARP_PERSONA=persona)


def test_endpoints_of_datagrams_ask_and_serve(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_calls"], "datagrams")


@pytest.mark.parametrize("what", ["settings", "moves"])
def test_ids_refuse_late_options_and_become_synchronous_and_back(
    compiled_programs: dict[str, Path], what: str
) -> None:
    run_program(compiled_programs["cm_calls"], what)


@pytest.mark.parametrize(
    "what",
    [
        "told",  # the server sees the client port that rdma_get_src_port reports
        "again",  # a port chosen by the client is free again when its connection has ended
        "families",  # 0.0.0.0 and :: listen on one port, with RDMA_OPTION_ID_AFONLY
    ],
)
def test_a_port_is_the_ids_own(compiled_programs: dict[str, Path], what: str) -> None:
    run_program(compiled_programs["cm_ports"], what)


def test_a_listener_at_no_address_hands_out_ids_of_the_device_each_request_came_in_on(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(Path("/usr/bin/unshare"), "-rn", str(compiled_programs["cm_devices"]), PATH=PATH)


def test_every_function_refuses_bad_input(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_bad"])


RSOCKETS = """
    rsocket rbind rlisten raccept rconnect rshutdown rclose rrecv rrecvfrom rrecvmsg rsend rsendto
    rsendmsg rread rreadv rwrite rwritev rpoll rselect rgetpeername rgetsockname rsetsockopt
    rgetsockopt rfcntl riomap riounmap riowrite repoll_create1 repoll_ctl
"""

#: A process that finds no other librdmacm, because the genuine library is hidden.
ALONE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1], use_errno=True)
for name in sys.argv[2:]:
    for _ in range(2):
        ctypes.set_errno(0)
        # Six arguments are as many as any of them takes.
        assert getattr(library, name)(0, 0, 0, 0, 0, 0) == -1, name
        assert ctypes.get_errno() == %d, (name, ctypes.get_errno())
"""


def test_each_rsocket_function_without_a_genuine_library_says_so_once() -> None:
    names = RSOCKETS.split()
    program, library = ALONE % errno.EOPNOTSUPP, _paths.abi_dir() / _paths.RDMACM
    hide = "for d in /usr/lib/*-linux-gnu /usr/lib64 /usr/lib; do for l in $d/librdmacm.so.1*; do "
    hide += '[ -e "$l" ] && mount --bind /dev/null "$l"; done; done; '
    # The sanitizer is preloaded only into the last command.
    hide += 'exec env ${P:+"LD_PRELOAD=$P"} "$@"'
    done = subprocess.run(
        [
            "unshare",
            "-rm",
            "sh",
            "-c",
            hide,
            "sh",
            sys.executable,
            "-c",
            program,
            str(library),
            *names,
        ],
        capture_output=True,
        text=True,
        env=environment_without_sanitizer()
        | {"LD_LIBRARY_PATH": str(_paths.abi_dir()), "P": os.environ.get("LD_PRELOAD", "")},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "rsockets" in line]
    assert [line.split()[1] for line in lines] == [f"{name}:" for name in names]


def test_rsockets_are_the_genuine_librarys_where_it_is_installed() -> None:
    if not any(Path("/usr/lib").glob("*/librdmacm.so.1")):
        pytest.fail("librdmacm1 is missing: tools/setup installs it with librdmacm-dev")
    library = ctypes.CDLL(str(_paths.abi_dir() / _paths.RDMACM))
    # The genuine library's error for an invalid socket differs from that of a call that is not
    # forwarded.
    for _ in range(2):  # the second call uses the symbol that the first one looked up
        assert library.rclose(-1) == errno.EBADF
