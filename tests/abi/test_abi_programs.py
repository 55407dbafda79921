"""Verbs programs, compiled against <infiniband/verbs.h> and run with siwarp's libibverbs.so.1."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from abi.abi_harness import CC, PROGRAMS, run_program
from cli.cli_harness import dissect_to_json, environment_without_sanitizer, run_siwarp_command
from namespaces.ns_harness import PATH
from pace import scale_limit

from siwarp import _paths

UDP_GRO = 104  # the socket option from <linux/udp.h>


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
@pytest.mark.parametrize("kind", ["rc", "uc"])
def test_every_operation_of_rc_and_uc_queue_pairs_transfers_its_data(
    compiled_programs: dict[str, Path], kind: str, persona: str
) -> None:
    run_program(compiled_programs["connected"], kind, SIWARP_PERSONA=persona)


def test_extended_queues_build_requests_and_read_completions(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["extended"])


@pytest.mark.parametrize("gid_index", ["0", "1"], ids=["IPv4", "IPv6"])
def test_ud_messages_begin_with_a_grh_from_which_replies_are_addressed(
    compiled_programs: dict[str, Path], gid_index: str
) -> None:
    run_program(compiled_programs["datagrams"], gid_index)


def test_calls_on_devices_regions_queues_and_events_return_documented_results(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["objects"])


def test_two_devices_communicate_and_report_changes_and_deletion_of_an_interface(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(Path("/usr/bin/unshare"), "-rn", str(compiled_programs["devices"]), PATH=PATH)


@pytest.mark.parametrize("way", ["poll", "memory", "epoll"])
@pytest.mark.parametrize("kind", ["rc", "uc", "ud"])
def test_a_program_that_only_polls_or_reads_memory_or_sleeps_receives_answers(
    compiled_programs: dict[str, Path], kind: str, way: str
) -> None:
    run_program(compiled_programs["watchers"], kind, way)


def test_a_capture_contains_the_messages_of_a_verbs_program(
    compiled_programs: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "verbs.pcapng"
    words = ["--persona", "iwarp", "--capture", file, compiled_programs["connected"], "rc"]
    done = run_siwarp_command("run", "--no-view", *words)
    assert (done.returncode, done.stderr) == (0, "")
    kinds = [message["kind"] for message in dissect_to_json(file)]
    assert kinds[:2] == ["MPA_REQUEST", "MPA_REPLY"]
    assert {"SEND", "RDMA_WRITE", "RDMA_READ_REQUEST"} <= set(kinds)


def test_a_list_of_ud_messages_is_transmitted_with_one_system_call(
    compiled_programs: dict[str, Path],
) -> None:
    """A loopback socket with UDP_GRO receives datagrams of one send call with one receive call."""
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


def test_every_enum_value_has_a_name_and_rates_are_converted(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["names"])


def test_each_transition_of_a_queue_pair_accepts_the_documented_attributes(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["steps"])


@pytest.mark.parametrize("when", ["idle", "busy"])
@pytest.mark.parametrize("kind", ["rc", "uc", "ud"])
def test_a_killed_peer_fails_rc_requests_in_time_but_no_uc_or_ud_requests(
    compiled_programs: dict[str, Path], kind: str, when: str
) -> None:
    run_program(compiled_programs["killed"], kind, when)


def test_events_name_their_objects_and_destruction_waits_for_acknowledgement(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["events"])


def test_each_limit_of_the_device_can_be_reached_but_not_exceeded(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["limits"])


def test_functions_of_releases_after_44_work_or_return_eopnotsupp(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["newer"])


def test_with_few_descriptors_each_call_reports_the_shortage_and_leaks_nothing(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["scarce"], "descriptors")


def test_threads_create_and_destroy_objects_of_one_device_concurrently(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["threads"])


def test_every_function_refuses_invalid_arguments_with_the_documented_errno(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["bad"])


def test_null_result_pointers_and_invalid_values_cause_no_crash(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["bad_more"])


def test_objects_of_other_devices_and_unsupported_requests_are_refused(
    compiled_programs: dict[str, Path],
) -> None:
    run_program(compiled_programs["misuse"])


#: The refused calls of programs/reasons.c, and words that the log line of each must contain.
REASONS = {
    "port": "ibv_query_port: Invalid argument: port_num is 0: a device has one port",
    "gid index": "ibv_query_gid: Invalid argument: index 99 is not in the GID table",
    "access": "access flags 0x80000",
    "remote write": "add IBV_ACCESS_LOCAL_WRITE",
    "comp_vector": "comp_vector is 1000",
    "no attributes": "qp_init_attr is NULL",
    "type": "qp_type is 77: use IBV_QPT_RC",
    "raw packets": "Operation not supported: siwarp has no raw packet",
    "no CQ": "send_cq is NULL",
    "is_global": "ibv_create_ah: Invalid argument: is_global of the address vector is 0",
    "ah port": "port_num of the address vector is 2",
    "sgid_index": "grh.sgid_index is 200",
    "dgid": "grh.dgid of the address vector is all zero",
    "post in RESET": "ibv_post_send: Invalid argument: the QP is in RESET: move it to RTS with "
    "ibv_modify_qp first",
    "RESET to RTR": "ibv_modify_qp: Invalid argument: there is no transition from RESET to RTR",
    "mtu in octets": "path_mtu is 1024: use a value of enum ibv_mtu",
    "missing bits": "the transition from INIT to RTR requires IBV_QP_RQ_PSN",
    "more bits": "the transition from INIT to RTR does not accept IBV_QP_QKEY",
    "dest_qp_num": "dest_qp_num 0x12345678 exceeds 24 bits",
    "busy CQ": "ibv_destroy_cq: Device or resource busy: 2 queues of QPs use the CQ",
    "destroyed": "is not a live queue pair of this process",
}


def test_the_log_contains_the_reason_of_each_refused_call_of_a_verbs_program(
    compiled_programs: dict[str, Path],
) -> None:
    done = run_siwarp_command("run", "--no-view", "--log", "warn", compiled_programs["reasons"])
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    logged = dict(zip(lines[::2], lines[1::2], strict=True))
    assert list(logged) == [f"# {name}" for name in REASONS]
    for name, words in REASONS.items():
        assert words in logged[f"# {name}"]
        assert not re.search(r"siw_|SIW_", logged[f"# {name}"])


def test_refused_calls_of_a_verbs_program_are_not_logged_by_default(
    compiled_programs: dict[str, Path],
) -> None:
    done = run_siwarp_command("run", "--no-view", compiled_programs["reasons"])
    assert done.returncode == 0
    assert all(line.startswith("# ") for line in done.stderr.splitlines())


def compile_with_siwarp(source: Path, folder: Path) -> Path:
    """Compile a verbs program that also uses functions of libsiwarp.so.0; return its path."""
    program = folder / source.stem
    libraries = [str(_paths.library_path()), str(_paths.rdma_core_abi_dir() / _paths.VERBS)]
    libraries.append(f"-Wl,-rpath,{_paths.library_path().parent}")
    command = [*CC, str(source), "-o", str(program), *libraries]
    subprocess.run(command, check=True, env=environment_without_sanitizer())
    return program


def test_a_program_reads_the_error_queue_through_ibv_ext(tmp_path: Path) -> None:
    run_program(compile_with_siwarp(PROGRAMS / "ext/reported.c", tmp_path))


def test_the_ibv_rd_example_sends_reliable_datagrams_and_write_records(
    root: Path, tmp_path: Path
) -> None:
    printed = run_program(compile_with_siwarp(root / "examples/c/ibv_rd.c", tmp_path))
    assert printed == (
        "received: a reliable datagram\nwritten: a Write-Record, octets 0 to 15 of 15\n"
    )
