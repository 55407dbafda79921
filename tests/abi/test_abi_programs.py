"""Verbs programs, compiled against <infiniband/verbs.h> and run with siwarp's libibverbs.so.1."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from abi.abi_harness import CC, PROGRAMS, run_program
from cli.cli_harness import dissect_to_json, environment_without_sanitizer, run_siwarp
from namespaces.ns_harness import PATH
from pace import scale_limit

from siwarp import _paths

UDP_GRO = 104  # the socket option from <linux/udp.h>


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
@pytest.mark.parametrize("kind", ["rc", "uc"])
def test_every_operation_of_a_connected_queue_pair_does_what_it_says(
    compiled_programs: dict[str, Path], kind: str, persona: str
) -> None:
    run_program(compiled_programs["connected"], kind, SIWARP_PERSONA=persona)


def test_extended_queues_build_requests_and_read_completions(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["extended"])


@pytest.mark.parametrize("gid_index", ["0", "1"], ids=["IPv4", "IPv6"])
def test_datagrams_begin_with_a_grh_by_which_they_are_replied_to(
    compiled_programs: dict[str, Path], gid_index: str
) -> None:
    run_program(compiled_programs["datagrams"], gid_index)


def test_devices_regions_queues_and_events_are_what_their_pages_say(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["objects"])


def test_two_devices_reach_each_other_and_one_changes_and_goes(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(Path("/usr/bin/unshare"), "-rn", str(compiled_programs["devices"]), PATH=PATH)


@pytest.mark.parametrize("way", ["poll", "memory", "epoll"])
@pytest.mark.parametrize("kind", ["rc", "uc", "ud"])
def test_a_program_that_only_polls_or_watches_or_sleeps_is_answered(
    compiled_programs: dict[str, Path], kind: str, way: str
) -> None:
    run_program(compiled_programs["watchers"], kind, way)


def test_a_capture_has_what_a_program_of_verbs_sends(
    compiled_programs: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "verbs.pcapng"
    words = ["--persona", "iwarp", "--capture", file, compiled_programs["connected"], "rc"]
    done = run_siwarp("run", "--no-view", *words)
    assert (done.returncode, done.stderr) == (0, "")
    kinds = [message["kind"] for message in dissect_to_json(file)]
    assert kinds[:2] == ["MPA_REQUEST", "MPA_REPLY"]
    assert {"SEND", "RDMA_WRITE", "RDMA_READ_REQUEST"} <= set(kinds)


def test_a_list_of_datagrams_leaves_in_one_system_send(compiled_programs: dict[str, Path]) -> None:
    """Datagrams sent in one call arrive in one receive call at a loopback socket with UDP_GRO."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        sink.bind(("127.0.0.1", 0))
        sink.settimeout(scale_limit(10))
        run_program(compiled_programs["batch"], str(sink.getsockname()[1]))
        octets, ((level, kind, size), *_), *_ = sink.recvmsg(1 << 16, 64)
    each = int.from_bytes(size[:4], sys.byteorder)
    assert (level, kind, len(octets)) == (socket.IPPROTO_UDP, UDP_GRO, 32 * each)
    for i in range(32):
        assert octets[i * each : (i + 1) * each][-68:-4] == bytes([i]) * 64


def test_every_value_has_a_name_and_rates_are_numbers(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["names"])


def test_each_step_of_a_queue_pair_needs_and_takes_what_its_table_says(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["steps"])


@pytest.mark.parametrize("when", ["idle", "busy"])
@pytest.mark.parametrize("kind", ["rc", "uc", "ud"])
def test_a_peer_that_is_killed_ends_rc_in_time_and_the_others_never(
    compiled_programs: dict[str, Path], kind: str, when: str
) -> None:
    run_program(compiled_programs["killed"], kind, when)


def test_events_name_their_objects_which_wait_for_their_acknowledgement(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["events"])


def test_each_limit_of_the_device_is_reached_and_not_passed(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["limits"])


def test_functions_of_releases_after_44_work_or_say_eopnotsupp(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["newer"])


def test_with_few_descriptors_each_call_says_so_and_nothing_is_left(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["scarce"], "descriptors")


def test_threads_make_and_destroy_objects_of_one_device(compiled_programs: dict[str, Path]) -> None:
    run_program(compiled_programs["threads"])


def test_every_function_refuses_bad_input_with_the_errno_of_its_page(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["bad"])


def test_results_that_have_no_place_and_functions_of_no_handle_take_bad_input(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["bad_more"])


def test_objects_of_other_or_closed_devices_and_wrong_requests_are_refused(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["misuse"])


def compile_with_siwarp(source: Path, folder: Path) -> Path:
    """Compile a program that also uses functions of siwarp."""
    program = folder / source.stem
    libraries = [str(_paths.library()), str(_paths.abi_dir() / _paths.VERBS)]
    libraries.append(f"-Wl,-rpath,{_paths.library().parent}")
    command = [*CC, str(source), "-o", str(program), *libraries]
    subprocess.run(command, check=True, env=environment_without_sanitizer())
    return program


def test_the_error_queue_is_polled_by_ibv_ext(tmp_path: Path) -> None:
    run_program(compile_with_siwarp(PROGRAMS / "ext/reported.c", tmp_path))


def test_the_example_of_ibv_ext_sends_reliable_datagrams_and_write_records(
    root: Path, tmp_path: Path
) -> None:
    printed = run_program(compile_with_siwarp(root / "examples/c/ibv_rd.c", tmp_path))
    assert printed == (
        "received: a reliable datagram\nwritten: a Write-Record, octets 0 to 15 of 15\n"
    )
