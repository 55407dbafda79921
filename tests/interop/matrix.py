# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The interoperability matrix: siwarp and Linux siw in a VM, one test for each cell.

Only tests/interop/run collects this file, because the tests need a guest, which `make test` does
not boot.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from interop import vm
from interop.conftest import ECHO_PORT, RPING_LARGEST
from interop.rping import (
    Connection,
    ConnectionEnded,
    EchoClient,
    Listener,
    MpaParameters,
    RpingClient,
    RpingServer,
    Stack,
    Terminate,
    data_pattern,
    make_c_string_payload,
)

CloseAfterTest = Callable[[Connection | Listener], None]

ROUNDS = 3

SIZES_REFUSED_BY_RPING = list(range(1, 23))  # message sizes that rping itself refuses
SIZES = [23, 24, 64, 100, 1000, 1456, 1500, 4096, 16384, 65535]
TOO_LARGE = 65536
START_UP_SIZES = [64, 1456, 4096, 65535]  # sizes for modes that affect only the start-up

PLAIN_TERMS = [MpaParameters(crc=False), MpaParameters(crc=True)]
PEER_TO_PEER_TERMS = [
    MpaParameters(crc=crc, rtr=rtr) for rtr in ("write", "read") for crc in (False, True)
]  # fmt: skip
REVISION_1_TERMS = [MpaParameters(crc=False, revision=1), MpaParameters(crc=True, revision=1)]

ROW_FROM_SIWARP = "siwarp -> rping -s, {}"
ROW_FROM_SIW = "rping -c -> siwarp, {}"
RPING_RANGE = f"rping takes no sizes but 23 to {RPING_LARGEST} on its command line"


def interop_matrix_test_params(
    row: str, terms: Sequence[MpaParameters], sizes: Sequence[int], impossible: str = ""
) -> Iterator[Any]:
    """Yield the test parameters of some cells of the matrix: each combination of MPA parameters and
    message size. ``row`` is the name of the cells' row, with a placeholder for the MPA parameters.
    """
    for one in terms:
        for size in sizes:
            column = (
                f"1-{SIZES_REFUSED_BY_RPING[-1]}" if size in SIZES_REFUSED_BY_RPING else str(size)
            )
            mark = pytest.mark.cell(row.format(one), column, impossible=impossible)
            yield pytest.param(one, size, marks=mark, id=f"{one}-{size}".replace(", ", "-"))


def connect_to_guest(
    stack_under_test: Stack,
    guest: vm.Guest,
    close_after_test: CloseAfterTest,
    port: int,
    terms: MpaParameters,
) -> Connection:
    """Connect to the guest with the requested terms, and wait until siw is ready for FPDUs."""
    connection = stack_under_test.connect(port, terms)
    close_after_test(connection)
    assert connection.agreed == terms
    guest.wait_until_siw_ready()
    return connection


def configure_siw_as_initiator(guest: vm.Guest, terms: MpaParameters) -> None:
    """Make siw request these terms in the connections that it initiates."""
    rtr = {"": vm.RTR_WRITE | vm.RTR_READ, "write": vm.RTR_WRITE, "read": vm.RTR_READ}
    guest.set_siw_parameters(
        mpa_crc_required=int(terms.crc),
        mpa_version=terms.revision,
        peer_to_peer=int(bool(terms.rtr)),
        rtr_type=rtr[terms.rtr],
    )


class GuestClient:
    """The program ``rping -c``, which runs in the guest while siwarp serves its connection."""

    def __init__(self, guest: vm.Guest, port: int, size: int, rounds: int) -> None:
        self._pool = ThreadPoolExecutor(1)
        command = f"rping -c -a {vm.HOST_ADDRESS} -p {port} -S {size} -C {rounds} -V -v"
        self._result = self._pool.submit(guest.run_command, command, 20)

    def wait_for_result(self) -> tuple[int, str]:
        """Return the exit status and the output of rping, after rping has ended."""
        status = self._result.result(40)
        self._pool.shutdown()
        return status


# ---------------------------------------------------------------- rev 2, rping


@pytest.mark.parametrize(
    ("terms", "size"),
    [
        *interop_matrix_test_params(
            ROW_FROM_SIWARP, PLAIN_TERMS, [*SIZES_REFUSED_BY_RPING, *SIZES]
        ),
        *interop_matrix_test_params(ROW_FROM_SIWARP, PEER_TO_PEER_TERMS, START_UP_SIZES),
    ],
)
def test_rping_server_on_siw_reads_and_writes_back_the_advertised_memory_of_siwarp(
    stack_under_test: Stack,
    guest: vm.Guest,
    rping_server_port: int,
    close_after_test: CloseAfterTest,
    terms: MpaParameters,
    size: int,
) -> None:
    guest.set_siw_parameters()
    client = RpingClient(
        connect_to_guest(stack_under_test, guest, close_after_test, rping_server_port, terms), size
    )
    for turn in range(ROUNDS):
        data = make_c_string_payload(size, turn)
        assert client.exchange_data(data) == data


@pytest.mark.parametrize(
    ("terms", "size"),
    [
        *interop_matrix_test_params(ROW_FROM_SIW, PLAIN_TERMS, SIZES),
        *interop_matrix_test_params(ROW_FROM_SIW, PEER_TO_PEER_TERMS, START_UP_SIZES),
        *interop_matrix_test_params(ROW_FROM_SIW, REVISION_1_TERMS, SIZES),
    ],
)
def test_rping_client_on_siw_receives_its_data_back_from_siwarp(
    stack_under_test: Stack,
    guest: vm.Guest,
    close_after_test: CloseAfterTest,
    terms: MpaParameters,
    size: int,
) -> None:
    configure_siw_as_initiator(guest, terms)
    listener = stack_under_test.listen()
    close_after_test(listener)
    client = GuestClient(guest, listener.port, size, ROUNDS)
    connection = listener.accept()
    close_after_test(connection)
    assert connection.agreed == terms
    server = RpingServer(connection, RPING_LARGEST)
    for turn in range(ROUNDS):
        data = server.serve_round()
        assert len(data) == size
        assert data.startswith(f"rdma-ping-{turn}: "[: size - 1].encode())
    # rping prints the data of a round after it has compared the data. The exit status of rping is
    # less reliable: occasionally one of its threads finds a channel that another thread has closed,
    # and exits with 255.
    _, output = client.wait_for_result()
    assert output.count("ping data:") == ROUNDS, output
    assert "mismatch" not in output


@pytest.mark.parametrize(
    ("terms", "size"),
    list(
        interop_matrix_test_params(
            ROW_FROM_SIW,
            [*PLAIN_TERMS, *REVISION_1_TERMS],
            [1, SIZES_REFUSED_BY_RPING[-1], TOO_LARGE],
            RPING_RANGE,
        )
    ),
)
def test_rping_client_itself_refuses_sizes_outside_its_range(
    guest: vm.Guest, terms: MpaParameters, size: int
) -> None:
    configure_siw_as_initiator(guest, terms)
    status, output = guest.run_command(f"rping -c -a {vm.HOST_ADDRESS} -p 9 -S {size} -C 1", 10)
    assert status != 0
    assert f"Invalid size {size}" in output


@pytest.mark.parametrize(
    ("terms", "size"),
    list(interop_matrix_test_params(ROW_FROM_SIWARP, PLAIN_TERMS, [TOO_LARGE], RPING_RANGE)),
)
def test_rping_server_itself_refuses_sizes_outside_its_range(
    guest: vm.Guest, terms: MpaParameters, size: int
) -> None:
    status, output = guest.run_command(f"rping -s -p 9 -S {size} -C 1", 10)
    assert status != 0
    assert f"Invalid size {size}" in output


# ------------------------------------------- siwarp's operations on siw's memory

ECHO_SIZES = [*SIZES_REFUSED_BY_RPING, *SIZES, TOO_LARGE]


@pytest.mark.parametrize(
    ("terms", "size"),
    list(interop_matrix_test_params("our Send, {}", [*PLAIN_TERMS, *REVISION_1_TERMS], ECHO_SIZES)),
)
def test_siw_sends_back_the_messages_that_siwarp_sends(
    stack_under_test: Stack,
    guest: vm.Guest,
    echo_server_port: int,
    close_after_test: CloseAfterTest,
    terms: MpaParameters,
    size: int,
) -> None:
    guest.set_siw_parameters()
    client = EchoClient(
        connect_to_guest(stack_under_test, guest, close_after_test, echo_server_port, terms)
    )
    for turn in range(ROUNDS):
        data = b"E" + data_pattern(size - 1, turn)
        assert client.echo(data) == data


@pytest.mark.parametrize(
    ("terms", "size"),
    list(
        interop_matrix_test_params("our Write, {}", [*PLAIN_TERMS, *REVISION_1_TERMS], ECHO_SIZES)
    ),
)
def test_the_memory_of_siw_holds_the_data_that_siwarp_writes(
    stack_under_test: Stack,
    guest: vm.Guest,
    echo_server_port: int,
    close_after_test: CloseAfterTest,
    terms: MpaParameters,
    size: int,
) -> None:
    guest.set_siw_parameters()
    client = EchoClient(
        connect_to_guest(stack_under_test, guest, close_after_test, echo_server_port, terms)
    )
    for turn in range(ROUNDS):
        data = data_pattern(size, turn)
        client.write(data, client.memory_address_and_key())
        assert client.request_memory_content(size) == data


@pytest.mark.parametrize(
    ("terms", "size"),
    list(interop_matrix_test_params("our Read, {}", [*PLAIN_TERMS, *REVISION_1_TERMS], ECHO_SIZES)),
)
def test_siwarp_reads_the_memory_of_siw(
    stack_under_test: Stack,
    guest: vm.Guest,
    echo_server_port: int,
    close_after_test: CloseAfterTest,
    terms: MpaParameters,
    size: int,
) -> None:
    guest.set_siw_parameters()
    client = EchoClient(
        connect_to_guest(stack_under_test, guest, close_after_test, echo_server_port, terms)
    )
    memory = client.memory_address_and_key()
    guest.wait_until_server_sleeps(ECHO_PORT)
    data = b""
    for turn in range(ROUNDS):
        data = data_pattern(size, 100 + turn)
        client.write(data, memory)
        assert client.read(size, memory) == data
    assert client.request_memory_content(size) == data


# ------------------------------------- persona roce: siw confirms what siwarp has sent


@pytest.fixture
def use_roce_persona(stack_under_test: Stack) -> Iterator[None]:
    """Select persona roce, in which siwarp's queue pairs confirm delivery by Reads of length 0.

    siw answers some of these Reads with data.
    """
    stack_under_test.set_persona("roce")
    asked = stack_under_test.read_counter("confirm_reads")
    yield
    stack_under_test.set_persona("auto")
    assert stack_under_test.read_counter("confirm_reads") > asked


@pytest.mark.usefixtures("use_roce_persona")
@pytest.mark.parametrize(
    ("terms", "size"),
    list(interop_matrix_test_params("roce: our Send, {}", PLAIN_TERMS, START_UP_SIZES)),
)
def test_siw_answers_confirming_reads_and_sends_back_the_messages_of_siwarp(
    stack_under_test: Stack,
    guest: vm.Guest,
    echo_server_port: int,
    close_after_test: CloseAfterTest,
    terms: MpaParameters,
    size: int,
) -> None:
    test_siw_sends_back_the_messages_that_siwarp_sends(
        stack_under_test, guest, echo_server_port, close_after_test, terms, size
    )


@pytest.mark.usefixtures("use_roce_persona")
@pytest.mark.parametrize(
    ("terms", "size"),
    list(interop_matrix_test_params("roce: our Write, {}", PLAIN_TERMS, START_UP_SIZES)),
)
def test_siw_answers_confirming_reads_and_its_memory_holds_the_data_of_siwarp(
    stack_under_test: Stack,
    guest: vm.Guest,
    echo_server_port: int,
    close_after_test: CloseAfterTest,
    terms: MpaParameters,
    size: int,
) -> None:
    test_the_memory_of_siw_holds_the_data_that_siwarp_writes(
        stack_under_test, guest, echo_server_port, close_after_test, terms, size
    )


@pytest.mark.usefixtures("use_roce_persona")
@pytest.mark.parametrize(
    ("terms", "size"),
    list(interop_matrix_test_params("roce: rping -s, {}", PLAIN_TERMS, START_UP_SIZES)),
)
def test_rping_server_on_siw_answers_confirming_reads_of_siwarp(
    stack_under_test: Stack,
    guest: vm.Guest,
    rping_server_port: int,
    close_after_test: CloseAfterTest,
    terms: MpaParameters,
    size: int,
) -> None:
    test_rping_server_on_siw_reads_and_writes_back_the_advertised_memory_of_siwarp(
        stack_under_test, guest, rping_server_port, close_after_test, terms, size
    )


# --------------------------------------------------------------- a wrong STag

# The layer RDMAP, a remote protection error, an invalid STag.
INVALID_STAG_IN_READ = Terminate(layer=0, kind=1, code=0)
# Layer DDP, tagged buffer error, invalid STag.
INVALID_STAG_IN_TAGGED = Terminate(layer=1, kind=1, code=0)
WRONG_STAG = "wrong STag"
#: The fast response of siwarp may arrive while siw's Send is still in progress, about once in 50
#: runs on a busy machine.
TRIES = 5


def swap_terminate_layer_and_error_type(terminate: Terminate) -> Terminate:
    """Swap layer and error type, which siw exchanges in the Terminates that it sends and
    receives.
    """
    return Terminate(terminate.kind, terminate.layer, terminate.code)


def find_logged_terminate(guest: vm.Guest, verb: str) -> Terminate | None:
    """Return the Terminate that siw "got" or "sent", from the part of its log that was not read
    yet.

    Return None if siw logs that it could not send a Terminate, which happens while a Send of siw is
    in progress.
    """
    said = {"got": r"got TERMINATE\.", "sent": r"sent TERM: success,"}[verb]
    deadline = time.monotonic() + 30  # the guest may be emulated and slow to write
    log = ""
    while time.monotonic() < deadline:
        log += guest.new_kernel_messages()
        found = re.search(rf"{said} layer (\d+), type (\d+), code (\d+)", log)
        if found:
            layer, kind, code = map(int, found.groups())
            return Terminate(layer, kind, code)
        if "cannot send TERMINATE: op" in log:
            return None
        time.sleep(0.1)
    raise AssertionError(f"siw {verb} no Terminate; its log:\n{log}")


@pytest.mark.cell(WRONG_STAG, "siw's Read")
def test_siwarp_refuses_a_read_by_siw_with_an_invalid_stag(
    stack_under_test: Stack,
    guest: vm.Guest,
    rping_server_port: int,
    close_after_test: CloseAfterTest,
) -> None:
    guest.set_siw_parameters()
    guest.new_kernel_messages()
    client = RpingClient(
        connect_to_guest(
            stack_under_test, guest, close_after_test, rping_server_port, MpaParameters()
        ),
        64,
        spoil="source",
    )
    with pytest.raises(ConnectionEnded) as ended:
        client.exchange_data(make_c_string_payload(64))
    assert ended.value.terminate == INVALID_STAG_IN_READ
    assert find_logged_terminate(guest, "got") == swap_terminate_layer_and_error_type(
        INVALID_STAG_IN_READ
    )


@pytest.mark.cell(WRONG_STAG, "siw's Write")
def test_siwarp_refuses_a_write_by_siw_with_an_invalid_stag(
    stack_under_test: Stack,
    guest: vm.Guest,
    rping_server_port: int,
    close_after_test: CloseAfterTest,
) -> None:
    guest.set_siw_parameters()
    guest.new_kernel_messages()
    client = RpingClient(
        connect_to_guest(
            stack_under_test, guest, close_after_test, rping_server_port, MpaParameters()
        ),
        64,
        spoil="sink",
    )
    with pytest.raises(ConnectionEnded) as ended:
        client.exchange_data(make_c_string_payload(64))
    assert ended.value.terminate == INVALID_STAG_IN_TAGGED
    assert bytes(client.sink.memory) == bytes(64)
    assert find_logged_terminate(guest, "got") == swap_terminate_layer_and_error_type(
        INVALID_STAG_IN_TAGGED
    )


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        pytest.param("read", INVALID_STAG_IN_READ, marks=pytest.mark.cell(WRONG_STAG, "our Read")),
        pytest.param(
            "write", INVALID_STAG_IN_TAGGED, marks=pytest.mark.cell(WRONG_STAG, "our Write")
        ),
    ],
)
def test_siw_refuses_an_operation_of_siwarp_on_a_wrong_stag_with_a_terminate(
    stack_under_test: Stack,
    guest: vm.Guest,
    close_after_test: CloseAfterTest,
    operation: Any,
    expected: Terminate,
) -> None:
    for _ in range(TRIES):
        sent, got = provoke_terminate_of_siw(stack_under_test, guest, close_after_test, operation)
        assert got == sent  # siw swaps the fields on the wire, and siwarp corrects the order
        if sent is not None:
            break
    assert sent == expected


def provoke_terminate_of_siw(
    stack_under_test: Stack, guest: vm.Guest, close_after_test: CloseAfterTest, operation: Any
) -> tuple[Terminate | None, Terminate | None]:
    """Return the Terminate that siw sent for a wrong STag, and the Terminate that siwarp
    received.
    """
    guest.set_siw_parameters()
    guest.new_kernel_messages()
    listener = stack_under_test.listen()
    close_after_test(listener)
    client = GuestClient(guest, listener.port, 64, 1)
    connection = listener.accept()
    close_after_test(connection)
    server = RpingServer(connection, 64, spoil=operation)
    with pytest.raises(ConnectionEnded) as ended:
        server.serve_round()
        connection.recv()
    sent = find_logged_terminate(guest, "sent")
    assert "ping data:" not in client.wait_for_result()[1]
    return sent, ended.value.terminate


# ----------------------------------------------------------- limitations of siw

LIMITS = "siw's own limits"


@pytest.mark.cell(
    LIMITS,
    "rping -s, rev 1",
    impossible="without IRD and ORD in the request a passive siw takes 0 for its own ORD, so "
    "rping -s cannot Read",
)
def test_a_passive_siw_cannot_read_on_a_connection_of_revision_1(
    stack_under_test: Stack,
    guest: vm.Guest,
    rping_server_port: int,
    close_after_test: CloseAfterTest,
) -> None:
    guest.set_siw_parameters()
    client = RpingClient(
        connect_to_guest(
            stack_under_test, guest, close_after_test, rping_server_port, MpaParameters(revision=1)
        ),
        64,
    )
    with pytest.raises(ConnectionEnded):
        client.exchange_data(make_c_string_payload(64))
    assert bytes(client.sink.memory) == bytes(64)


#: The RTR message that siw requests: an FPDU without CRC with an RDMA Write of length 0 (RFC 6581
#: section 9.1, RFC 5040 section 4.3): length, DDP and RDMAP control, STag, TO, CRC field.
WRITE_AS_RTR = struct.pack(">HBBIQI", 14, 0xC1, 0x40, 0, 0, 0)


def exchange_mpa_frames_with_siw(
    guest: vm.Guest, port: int, flags: int, private: bytes, rtr: bytes = b""
) -> tuple[int, bytes]:
    """Return flags and private data of siw's Reply to an MPA Request that siwarp would not send.

    With ``rtr``, the function sends that message and waits for siw's log line "established" before
    it closes the connection. Linux stops (BUG at iwcm.c:969) if an accepted connection closes
    earlier, as README.md explains.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stream:
        stream.sendall(b"MPA ID Req Frame" + struct.pack(">BBH", flags, 2, len(private)) + private)
        with stream.makefile("rb") as reply:
            head = reply.read(20)
            assert head[:16] == b"MPA ID Rep Frame"
            private = reply.read(struct.unpack(">H", head[18:])[0])
        if rtr:
            stream.sendall(rtr)
            guest.wait_until_siw_ready()
    return head[16], private


@pytest.mark.cell(LIMITS, "markers", impossible="siw rejects an MPA Request that asks for markers")
def test_siw_rejects_a_request_for_markers(guest: vm.Guest, rping_server_port: int) -> None:
    guest.set_siw_parameters()
    flags, _ = exchange_mpa_frames_with_siw(guest, rping_server_port, 0x80, b"")
    assert flags & 0x20  # the R bit of a Reply, which means "rejected"


@pytest.mark.cell(
    LIMITS,
    "RTR Send",
    impossible="siw answers a request with the zero-length Send as its only RTR by naming others",
)
def test_siw_does_not_agree_to_a_send_as_ready_to_receive_message(
    guest: vm.Guest, rping_server_port: int
) -> None:
    guest.set_siw_parameters()
    # RFC 6581 section 9.1: A (peer-to-peer) and B (Send) precede the IRD; C and D are clear.
    request = struct.pack(">HH", 0xC000 | 1, 1)
    flags, private = exchange_mpa_frames_with_siw(
        guest, rping_server_port, 0x10, request, WRITE_AS_RTR
    )
    assert flags & 0x30 == 0x10
    ird, ord_ = struct.unpack(">HH", private[:4])
    assert ird & 0x8000
    assert not ird & 0x4000
    assert ord_ & 0x8000
