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
def test_synchronous_ids_connect_and_endpoints_accept_connections(
    compiled_programs: dict[str, Path], persona: str
) -> None:
    run_program(compiled_programs["cm"], "endpoints", SIWARP_PERSONA=persona)


def test_events_are_delivered_in_order_and_valid_until_acknowledged(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm"], "order")


def test_a_thread_that_waits_for_events_of_destroyed_ids_can_be_cancelled(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm"], "threads")


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_queue_pairs_created_by_the_program_are_connected_by_their_number(
    compiled_programs: dict[str, Path], persona: str
) -> None:
    run_program(compiled_programs["cm"], "others", SIWARP_PERSONA=persona)


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_a_connection_may_serve_only_to_exchange_private_data(
    compiled_programs: dict[str, Path], persona: str
) -> None:
    run_program(compiled_programs["cm"], "private", SIWARP_PERSONA=persona)


def test_a_passive_lookup_without_a_port_returns_a_reachable_address(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm"], "names")


@pytest.mark.parametrize("what", ["connect", "left", "ipoib"])
def test_datagram_ids_resolve_the_queue_pair_of_a_listener(
    compiled_programs: dict[str, Path], what: str
) -> None:
    run_program(compiled_programs["cm_ud"], what, SIWARP_SIDR_TIMEOUT_MS="500")


def test_datagram_ids_join_and_leave_multicast_groups(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_ud"], "groups")


def test_a_child_process_of_fork_opens_its_own_devices(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm"], "forked")


def test_a_connection_that_ends_early_is_reported_by_an_event(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_more"], "ends")


def test_each_end_receives_the_depths_that_the_other_announced(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_more"], "depths")


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_immediate_data_is_supported_between_two_siwarp_peers_only(
    compiled_programs: dict[str, Path], persona: str
) -> None:
    run_program(compiled_programs["cm_more"], "immediate", SIWARP_PERSONA=persona)


def test_options_of_ids_are_set_on_the_sockets(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_more"], "options")


def test_rdma_cm_functions_of_releases_after_44_work(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_more"], "newer")


def test_migration_of_an_id_waits_until_its_events_are_acknowledged(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_more"], "moves")


def test_a_signal_interrupts_a_wait_unless_its_handler_has_sa_restart(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_more"], "impatient")


@pytest.mark.parametrize("who", ["servers", "clients"])
def test_peers_that_are_not_rnics_or_use_another_version_are_refused(
    compiled_programs: dict[str, Path], who: str
) -> None:
    run_program(compiled_programs["strange"], who)


def test_a_reset_queue_pair_is_disconnected_and_can_connect_again(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["strange"], "resets")


def test_rdma_getaddrinfo_and_the_device_list_return_what_was_requested(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_more"], "infos")


def test_the_queue_pair_of_one_id_can_be_assigned_to_another_id(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_more"], "given")


def test_queue_pairs_of_ids_use_receives_of_the_shared_receive_queue(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_calls"], "queues")


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_read_depths_of_0_and_255_mean_no_reads_and_the_maximum(
    compiled_programs: dict[str, Path], persona: str
) -> None:
    run_program(compiled_programs["cm_calls"], "depths", SIWARP_PERSONA=persona)


def test_datagram_endpoints_request_and_accept(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["cm_calls"], "datagrams")


@pytest.mark.parametrize("what", ["settings", "moves"])
def test_ids_refuse_late_options_and_migrate_to_synchronous_mode_and_back(
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
def test_an_id_connects_from_its_port_which_is_freed_and_can_be_shared(
    compiled_programs: dict[str, Path], what: str
) -> None:
    run_program(compiled_programs["cm_ports"], what)


def test_a_wildcard_listener_reports_the_device_of_each_connection_request(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(Path("/usr/bin/unshare"), "-rn", str(compiled_programs["cm_devices"]), PATH=PATH)


def test_every_rdma_cm_function_refuses_invalid_arguments(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["cm_bad"])


RSOCKETS = """
    rsocket rbind rlisten raccept rconnect rshutdown rclose rrecv rrecvfrom rrecvmsg rsend rsendto
    rsendmsg rread rreadv rwrite rwritev rpoll rselect rgetpeername rgetsockname rsetsockopt
    rgetsockopt rfcntl riomap riounmap riowrite repoll_create1 repoll_ctl
"""

#: A program that calls rsocket functions; the genuine librdmacm is hidden from the process.
ALONE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1], use_errno=True)
for name in sys.argv[2:]:
    for _ in range(2):
        ctypes.set_errno(0)
        # No rsocket function has more than six parameters.
        assert getattr(library, name)(0, 0, 0, 0, 0, 0) == -1, name
        assert ctypes.get_errno() == %d, (name, ctypes.get_errno())
"""


def test_without_the_genuine_library_each_rsocket_function_fails_with_one_message() -> None:
    names = RSOCKETS.split()
    program, library = ALONE % errno.EOPNOTSUPP, _paths.rdma_core_abi_dir() / _paths.RDMACM
    hide = "for d in /usr/lib/*-linux-gnu /usr/lib64 /usr/lib; do for l in $d/librdmacm.so.1*; do "
    hide += '[ -e "$l" ] && mount --bind /dev/null "$l"; done; done; '
    # The sanitizer's library is preloaded only into the last command.
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
        | {
            "LD_LIBRARY_PATH": str(_paths.rdma_core_abi_dir()),
            "P": os.environ.get("LD_PRELOAD", ""),
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "rsockets" in line]
    assert [line.split()[1] for line in lines] == [f"{name}:" for name in names]


def test_rsocket_functions_are_forwarded_to_the_genuine_library() -> None:
    if not any(Path("/usr/lib").glob("*/librdmacm.so.1")):
        pytest.fail("librdmacm1 is missing: tools/setup installs it with librdmacm-dev")
    library = ctypes.CDLL(str(_paths.rdma_core_abi_dir() / _paths.RDMACM))
    # The genuine library returns EBADF for an invalid socket; a call that is not forwarded would
    # fail with another error.
    for _ in range(2):  # the second call uses the symbol that the first call has looked up
        assert library.rclose(-1) == errno.EBADF
