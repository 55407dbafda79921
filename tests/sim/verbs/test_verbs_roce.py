"""Persona roce: a completed request has reached the peer, and a failed request has a reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness.peer_harness import PlainPeer, connected_plain_peer
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    assert_no_completion,
    counter_value,
    errno_raised_by,
    octet_pattern,
    open_device_without_progress_thread,
    poll,
    temporary_settings,
    wait_until,
)

from siwarp.base.library import lib
from siwarp.cm import RTR, CMEventType, ConnParam
from siwarp.inspect import DDPTagged, DDPUntagged, Opcode, Queue, ReadRequest
from siwarp.verbs import (
    SGE,
    Persona,
    QPInitAttr,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCOpcode,
    WCStatus,
)

FLUSHED = WCStatus.WR_FLUSH_ERR
PEER_MEMORY = RemoteBuffer(0x1000, 1 << 20, 0x123456)


#: The ways in which the peer confirms requests: by answering Reads, or by delivery counts.
CONFIRMATIONS = {"by Reads": {}, "by counts": {"private_messages": True}}


@pytest.fixture(params=CONFIRMATIONS.values(), ids=list(CONFIRMATIONS))
def roce_acknowledgement_options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = request.param
    with temporary_settings(
        mpa_announce=0
    ):  # without announcements, an end knows about its peer only what the program states
        yield found


def connect_roce_ends(connector: ListenerAndConnector, **kw: object) -> tuple[End, End]:
    return connector.connect(persona=Persona.ROCE, **kw)  # type: ignore[arg-type]


# ---- selection of the persona


def test_a_queue_pair_has_persona_iwarp_unless_another_persona_is_requested(
    connector: ListenerAndConnector,
) -> None:
    for asked, is_now in [
        (Persona.AUTO, Persona.IWARP),
        (Persona.IWARP, Persona.IWARP),
        (Persona.ROCE, Persona.ROCE),
    ]:
        qp = connector.active.create_qp(qp_type=QPType.RC, persona=asked)
        assert qp.query()[1].persona == is_now


def test_the_setting_determines_the_persona_if_the_call_does_not(
    connector: ListenerAndConnector,
) -> None:
    assert lib.siw_setting_set_text(b"persona", b"roce") == 0
    try:
        of_setting = connector.active.create_qp(qp_type=QPType.RC)
        of_call = connector.active.create_qp(qp_type=QPType.RC, persona=Persona.IWARP)
    finally:
        assert lib.siw_setting_set_text(b"persona", b"auto") == 0
    assert of_setting.query()[1].persona == Persona.ROCE
    assert of_call.query()[1].persona == Persona.IWARP


def test_an_unknown_persona_is_refused(connector: ListenerAndConnector) -> None:
    cq = connector.active.create_cq()
    for persona in (-1, 3):
        assert (
            errno_raised_by(connector.active.create_qp, cq, qp_type=QPType.RC, persona=persona)
            == 22
        )
    assert QPInitAttr().persona == Persona.AUTO


# ---- a completion means that the peer has the data


@pytest.mark.parametrize("opcode", [SEND, WRITE], ids=["send", "write"])
def test_a_request_completes_when_the_confirming_read_is_answered(
    connector: ListenerAndConnector, opcode: int
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        a.post(opcode, 5, length=100, remote=PEER_MEMORY)
        head, _ = peer.receive_segment()
        assert head.opcode == opcode or (head.opcode, opcode) == (Opcode.SEND, SEND)
        head, rest = peer.receive_segment()
        assert head.opcode == Opcode.RDMA_READ_REQUEST
        request = ReadRequest(rest)
        assert request.size == 0 and request.sink_stag != 0
        assert_no_completion(a.scq)
        assert peer.is_silent()
        peer.send_segments(peer.build_read_response(request))
        (wc,) = poll(a.scq)
        assert (wc.wr_id, wc.status) == (5, WCStatus.SUCCESS)


def test_with_persona_iwarp_a_request_completes_without_a_confirmation_of_the_peer(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.IWARP) as (a, peer):
        a.post(SEND, 5, length=100)
        assert poll(a.scq)[0].ok
        assert peer.receive_segment()[0].opcode == Opcode.SEND
        assert peer.is_silent()


def test_only_one_confirming_read_is_outstanding_and_it_covers_all_earlier_requests(
    connector: ListenerAndConnector,
) -> None:
    with (
        connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer),
        assert_counter_grows("confirm_reads", 2),
    ):
        a.post(WRITE, 0, length=8, remote=PEER_MEMORY)
        first = peer.receive_read_request()
        for i in range(1, 9):
            a.post(WRITE, i, length=8, remote=PEER_MEMORY)
        for _ in range(8):
            assert peer.receive_segment()[0].opcode == Opcode.RDMA_WRITE
        assert peer.is_silent()
        peer.send_segments(peer.build_read_response(first))
        assert [w.wr_id for w in poll(a.scq)] == [0]
        second = peer.receive_read_request()
        assert_no_completion(a.scq)
        peer.send_segments(peer.build_read_response(second))
        assert [w.wr_id for w in poll(a.scq, 8)] == list(range(1, 9))


def test_a_list_of_requests_and_its_confirming_read_are_sent_in_one_write(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        sg = [a.mem.sge(0, 16)]
        a.qp.post_send([SendWR(i, WRITE, sg=sg, remote=PEER_MEMORY) for i in range(4)])
        wait_until(lambda: counter_value("confirm_reads"))
        octets = peer.sock.recv(65536)
        assert len(octets) == 4 * (2 + 14 + 16 + 4) + (2 + 18 + 28 + 4)


def test_the_confirming_read_of_a_long_request_precedes_the_next_request(
    connector: ListenerAndConnector,
) -> None:
    size = 4 << 20
    with connected_plain_peer(connector, size=size, persona=Persona.ROCE) as (a, peer):
        sg, there = [a.mem.sge()], RemoteBuffer(0x1000, size, PEER_MEMORY.rkey)
        a.qp.post_send([SendWR(i, WRITE, sg=sg, remote=there) for i in range(3)])
        seen = []
        while len(seen) < 4:
            head, _ = peer.receive_segment()
            if head.l or head.opcode == Opcode.RDMA_READ_REQUEST:
                seen.append(head.opcode)
        write, question = Opcode.RDMA_WRITE, Opcode.RDMA_READ_REQUEST
        assert seen == [write, question, write, write]


def test_an_rdma_read_of_the_program_confirms_earlier_writes(
    connector: ListenerAndConnector,
) -> None:
    with (
        connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer),
        assert_counter_grows("confirm_reads", 0),
    ):
        a.qp.post_send(
            [
                SendWR(1, WRITE, sg=[a.mem.sge(0, 8)], remote=PEER_MEMORY),
                SendWR(2, READ, sg=[a.mem.sge(8, 8)], remote=PEER_MEMORY),
            ]
        )
        request = peer.receive_read_request()
        assert request.size == 8
        assert_no_completion(a.scq)
        peer.send_segments(peer.build_read_response(request, b"answered"))
        assert [(w.wr_id, w.opcode) for w in poll(a.scq, 2)] == [
            (1, WCOpcode.RDMA_WRITE),
            (2, WCOpcode.RDMA_READ),
        ]
        assert a.mem.read(8, 8) == b"answered"


def test_an_rdma_read_does_not_confirm_a_send_that_waits_for_a_receive() -> None:
    # The device of the requester has no progress thread, so the polls of this test place the data
    # of the Read.
    connector = ListenerAndConnector(Rig(), open_device_without_progress_thread())
    b, a = connect_roce_ends(connector, size=4096, ask=ConnParam(peer_to_peer=RTR.WRITE))
    b.mem.view[1024:1032] = b"answered"
    a.post(WRITE, 1, length=8, remote=b.mem.remote(0, 8))
    a.post(SEND, 2, length=8)
    a.post(READ, 3, offset=512, length=8, remote=b.mem.remote(1024, 8))
    # The Read is executed while the Send waits; the Write that precedes both has completed.
    assert [w.wr_id for w in poll(a.scq)] == [1]
    wait_until(lambda: a.scq.poll(1) == [] and bytes(a.mem.view[512:520]) == b"answered")
    assert_no_completion(a.scq)
    assert b.rcq.poll(1) == []
    b.post_receive(4, offset=2048, length=64)
    assert [(w.wr_id, w.status) for w in poll(a.scq, 2)] == [(2, 0), (3, 0)]
    assert poll(b.rcq)[0].wr_id == 4
    connector.active.close()
    connector.passive.close()


def test_an_rdma_read_after_a_send_is_followed_by_a_confirming_read(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        a.qp.post_send(
            [
                SendWR(1, SEND, sg=[a.mem.sge(0, 8)]),
                SendWR(2, READ, sg=[a.mem.sge(8, 8)], remote=PEER_MEMORY),
            ]
        )
        assert peer.receive_segment()[0].opcode == Opcode.SEND
        request, question = peer.receive_read_request(), peer.receive_read_request()
        assert (request.size, question.size) == (8, 0)
        peer.send_segments(peer.build_read_response(request, b"response"))
        assert_no_completion(a.scq)
        peer.send_segments(peer.build_read_response(question))
        assert [w.wr_id for w in poll(a.scq, 2)] == [1, 2]
        # A Read after a Send that is already being confirmed needs no further confirmation.
        a.post(SEND, 3, length=8)
        assert peer.receive_segment()[0].opcode == Opcode.SEND
        question = peer.receive_read_request()
        a.post(READ, 4, offset=8, length=8, remote=PEER_MEMORY)
        request = peer.receive_read_request()
        assert request.size == 8 and peer.is_silent()
        peer.send_segments(
            peer.build_read_response(question), peer.build_read_response(request, b"response")
        )
        assert [w.wr_id for w in poll(a.scq, 2)] == [3, 4]


def test_unsignaled_requests_are_confirmed_only_when_half_of_the_send_queue_waits(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE, max_send_wr=16) as (a, peer):
        for i in range(7):
            a.post(WRITE, i, length=8, remote=PEER_MEMORY, flags=0)
            assert peer.receive_segment()[0].opcode == Opcode.RDMA_WRITE
        assert peer.is_silent()
        a.post(WRITE, 7, length=8, remote=PEER_MEMORY, flags=0)
        peer.send_segments(peer.build_read_response(peer.receive_read_request()))
        a.post(WRITE, 8, length=8, remote=PEER_MEMORY, flags=SendFlag.SIGNALED)
        peer.send_segments(peer.build_read_response(peer.receive_read_request()))
        assert [w.wr_id for w in poll(a.scq)] == [8]
        assert_no_completion(a.scq)


# ---- the ORD


def test_confirming_reads_do_not_exceed_the_ord(connector: ListenerAndConnector) -> None:
    with connected_plain_peer(connector, ird=1, persona=Persona.ROCE) as (a, peer):
        for i in range(3):
            a.post(WRITE, 2 * i, length=8, remote=PEER_MEMORY)
            a.post(READ, 2 * i + 1, offset=64, length=8, remote=PEER_MEMORY)
        sizes: list[int] = []
        while sizes.count(8) < 3:
            request = peer.receive_read_request()
            assert all(s[1] & 0xF == Opcode.RDMA_WRITE for s in peer.receive_until_silent())
            sizes.append(request.size)
            peer.send_segments(
                peer.build_read_response(request, b"octets.." if request.size else b"")
            )
        assert len(sizes) <= 6
        assert [w.wr_id for w in poll(a.scq, 6)] == list(range(6))


def test_a_persona_roce_end_requests_one_read_although_the_program_requests_none(
    connector: ListenerAndConnector,
) -> None:
    none = ConnParam(initiator_depth=0, responder_resources=0)
    with temporary_settings(mpa_announce=0):
        a, b = connector.connect(none, none, persona=Persona.ROCE)
    b.post_receive()
    with assert_counter_grows("confirm_reads", 1):
        a.post(SEND, 1, length=8)
        assert poll(a.scq)[0].ok and poll(b.rcq)[0].ok


@pytest.mark.parametrize(
    ("ird", "rev", "depth", "confirms"),
    [(0, 2, 5, 0), (1, 2, None, 1), (0x3FFF, 2, None, 1), (0, 1, None, 0), (0, 1, 5, 1)],
)
def test_requests_complete_without_confirmation_if_the_peer_grants_no_reads(
    connector: ListenerAndConnector, ird: int, rev: int, depth: int | None, confirms: int
) -> None:
    param = ConnParam(rev=rev) if depth is None else ConnParam(rev=rev, initiator_depth=depth)
    with (
        assert_counter_grows("confirm_none", 1 - confirms),
        assert_counter_grows("confirm_reads", confirms),
        connected_plain_peer(connector, ird=ird, rev=rev, ask=param, persona=Persona.ROCE) as (
            a,
            peer,
        ),
    ):
        a.post(SEND, 1, length=8)
        if confirms:
            peer.send_segments(peer.build_read_response(peer.receive_read_request()))
        assert poll(a.scq)[0].ok


# ---- siwarp at both ends


@pytest.mark.parametrize("other", [Persona.IWARP, Persona.ROCE])
@pytest.mark.parametrize("size", [0, 1, 5000, 3 << 20])
def test_sends_and_writes_complete_regardless_of_the_persona_of_the_peer(
    two_device_connector: ListenerAndConnector,
    other: Persona,
    size: int,
    roce_acknowledgement_options: dict[str, Any],
) -> None:
    asked = counter_value("confirm_reads")
    a = two_device_connector.begin_connect(
        size=4 << 20, persona=Persona.ROCE, **roce_acknowledgement_options
    )
    b = End(
        two_device_connector.passive,
        two_device_connector.next_connection_request().id,
        two_device_connector.p_channel,
        size=4 << 20,
        persona=other,
        **roce_acknowledgement_options,
    )
    b.id.accept()
    assert a.next_cm_event().type == b.next_cm_event().type == CMEventType.ESTABLISHED
    data = octet_pattern(size, 3)
    a.mem.view[:size] = data
    b.post_receive(1)
    a.post(SEND, 1, length=size)
    assert poll(a.scq)[0].ok
    # The data has been placed without a poll of `b`.
    assert bytes(b.mem.view[:size]) == data
    assert b.rcq.poll(1)[0].byte_len == size
    b.mem.view[:size] = bytes(size)
    a.post(WRITE, 2, length=size, remote=b.mem.remote(0, size) if size else PEER_MEMORY)
    assert poll(a.scq)[0].ok
    assert bytes(b.mem.view[:size]) == data
    assert (counter_value("confirm_reads") > asked) == (not roce_acknowledgement_options)


def test_the_last_message_completes_although_its_receiver_disconnects_immediately(
    two_device_connector: ListenerAndConnector, roce_acknowledgement_options: dict[str, Any]
) -> None:
    for _ in range(20):
        a, b = connect_roce_ends(two_device_connector, size=1 << 16, **roce_acknowledgement_options)
        b.post_receive(1)
        a.post(SEND, 1, length=1000)
        assert poll(b.rcq)[0].ok
        b.id.disconnect()
        assert [(w.wr_id, w.status) for w in poll(a.scq)] == [(1, WCStatus.SUCCESS)]
        a.close()
        b.close()


def test_a_request_completes_although_the_program_of_the_peer_polls_only_once() -> None:
    a, lazy = Rig(), open_device_without_progress_thread()
    connector = ListenerAndConnector(a, lazy)
    with temporary_settings(delivery_counts=0):
        x, y = connect_roce_ends(connector)
    for i in range(8):
        y.post_receive(i)
        x.post(SEND, i, length=100)
        assert poll(y.rcq)[0].wr_id == i
        # The peer did not expect the first confirming Read.
        if i == 0:
            wait_until(lambda: y.rcq.poll(1) == [] and x.scq.poll(1))
        else:
            assert poll(x.scq)[0].wr_id == i
    for rig in (a, lazy):
        rig.close()


def test_requests_preceding_a_locally_failed_request_complete(
    two_device_connector: ListenerAndConnector, roce_acknowledgement_options: dict[str, Any]
) -> None:
    a, b = connect_roce_ends(two_device_connector, **roce_acknowledgement_options)
    for i in range(2):
        b.post_receive(i)
    good = SendWR(1, sg=[a.mem.sge(0, 100)])
    a.qp.post_send([good, good, SendWR(2, sg=[SGE(a.mem.addr, 8, 0xBAD)]), good])
    assert [w.status for w in poll(a.scq, 4)] == [0, 0, WCStatus.LOC_PROT_ERR, FLUSHED]


def test_a_send_into_an_invalid_receive_completes_with_a_remote_operation_error(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = connect_roce_ends(two_device_connector)
    b.post_receive(1)
    a.post(SEND, 1)
    assert poll(a.scq)[0].status == WCStatus.SUCCESS
    b.qp.post_recv(RecvWR(7, sg=[SGE(b.mem.addr, 64, 0xBAD)]))
    for i in (2, 3):
        a.post(SEND, i, length=8)
    assert [(w.wr_id, w.status) for w in poll(b.rcq, 2)] == [
        (1, WCStatus.SUCCESS),
        (7, WCStatus.LOC_PROT_ERR),
    ]
    assert [(w.wr_id, w.status) for w in poll(a.scq, 2)] == [
        (2, WCStatus.REM_OP_ERR),
        (3, FLUSHED),
    ]


# ---- Terminate messages


def post_three_writes(a: End, peer: PlainPeer, length: int = 64) -> list[bytes]:
    """Post three signaled Writes to adjacent memory; return their segments."""
    for i in range(3):
        where = RemoteBuffer(PEER_MEMORY.addr + 64 * i, 64, PEER_MEMORY.rkey)
        a.post(WRITE, i, length=length, remote=where)
    segments: list[bytes] = []
    while len(segments) < 3:
        segment = peer.receive_segment_octets()
        if segment[1] & 0xF == Opcode.RDMA_WRITE:
            segments.append(segment)
    return segments


@pytest.mark.parametrize(
    ("err", "status"),
    [
        ((0, 1, 0), WCStatus.REM_ACCESS_ERR),
        ((0, 1, 1), WCStatus.REM_ACCESS_ERR),
        ((0, 1, 2), WCStatus.REM_ACCESS_ERR),
        ((1, 1, 0), WCStatus.REM_ACCESS_ERR),
        ((1, 1, 3), WCStatus.REM_ACCESS_ERR),
        ((0, 2, 6), WCStatus.REM_INV_REQ_ERR),
        ((0, 2, 0xFF), WCStatus.REM_OP_ERR),
        ((1, 0, 0), WCStatus.REM_OP_ERR),
    ],
)
def test_a_terminate_about_one_of_three_writes_determines_the_status_of_each(
    connector: ListenerAndConnector, err: tuple[int, int, int], status: WCStatus
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        segments = post_three_writes(a, peer)
        assert_no_completion(a.scq)
        peer.send_segments(peer.build_terminate(*err, quoted=segments[1]))
        word = err[0] << 16 | err[1] << 8 | err[2]
        assert [(w.wr_id, w.status, w.vendor_err) for w in poll(a.scq, 3)] == [
            (0, WCStatus.SUCCESS, 0),
            (1, status, word),
            (2, FLUSHED, word),
        ]


@pytest.mark.parametrize(
    ("err", "status"),
    [
        ((1, 2, 2), WCStatus.RNR_RETRY_EXC_ERR),
        ((1, 2, 5), WCStatus.REM_INV_REQ_ERR),
        ((1, 2, 1), WCStatus.REM_INV_REQ_ERR),
    ],
)
def test_a_terminate_identifies_a_send_by_its_number(
    connector: ListenerAndConnector, err: tuple[int, int, int], status: WCStatus
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        for i in range(3):
            a.post(SEND, i, length=64)
        sends = [
            s
            for s in (peer.receive_segment_octets() for _ in range(4))
            if s[1] & 0xF == Opcode.SEND
        ]
        peer.send_segments(peer.build_terminate(*err, quoted=sends[2]))
        assert [w.status for w in poll(a.scq, 3)] == [0, 0, status]


def build_quoted_write(length: int, to: int, stag: int = PEER_MEMORY.rkey) -> bytes:
    """Return a segment of a Write for a Terminate message to quote."""
    return bytes(DDPTagged(opcode=Opcode.RDMA_WRITE, stag=stag, to=to)) + bytes(length)


@pytest.mark.clause("RFC5040-6.2.1-02")
@pytest.mark.parametrize(
    ("length", "at"), [(0, 0), (1, 0), (2, 0), (2, 1), (64, 0), (64, 1), (64, 63)]
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_terminate_identifies_a_write_by_any_octet_or_by_the_offset_of_an_empty_write(
    connector: ListenerAndConnector, length: int, at: int, which: int
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        post_three_writes(a, peer, length)
        quoted = build_quoted_write(length - at, PEER_MEMORY.addr + 64 * which + at)
        peer.send_segments(peer.build_terminate(0, 1, 2, quoted=quoted))
        refused = [WCStatus.SUCCESS] * which + [WCStatus.REM_ACCESS_ERR] + [FLUSHED] * (2 - which)
        assert [w.status for w in poll(a.scq, 3)] == refused


@pytest.mark.clause("RFC5040-6.2.1-02")
@pytest.mark.parametrize("length", [0, 1, 63])
@pytest.mark.parametrize("to", [-1, "behind", 1 << 32])
def test_a_terminate_about_an_offset_outside_all_writes_identifies_no_write(
    connector: ListenerAndConnector, length: int, to: int | str
) -> None:
    behind = max(length, 1) if to == "behind" else int(to)
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        post_three_writes(a, peer, length)
        peer.send_segments(
            peer.build_terminate(0, 1, 1, quoted=build_quoted_write(1, PEER_MEMORY.addr + behind))
        )
        assert [w.status for w in poll(a.scq, 3)] == [FLUSHED] * 3


@pytest.mark.clause("RFC5040-6.2.1-02")
def test_a_terminate_about_another_region_identifies_no_write(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        post_three_writes(a, peer)
        peer.send_segments(
            peer.build_terminate(
                0, 1, 0, quoted=build_quoted_write(64, PEER_MEMORY.addr, PEER_MEMORY.rkey ^ 1)
            )
        )
        assert [w.status for w in poll(a.scq, 3)] == [FLUSHED] * 3


def test_a_terminate_about_a_read_request_does_not_identify_a_send(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        a.post(SEND, 1, length=8)
        peer.receive_segment_octets()
        a.post(READ, 2, length=8, remote=PEER_MEMORY)
        head = DDPUntagged(opcode=Opcode.RDMA_READ_REQUEST, qn=Queue.READ_REQUEST, msn=1)
        peer.send_segments(peer.build_terminate(0, 1, 1, quoted=bytes(head) + bytes(28)))
        statuses = {w.wr_id: w.status for w in poll(a.scq, 2)}
        assert statuses[1] != WCStatus.REM_ACCESS_ERR


def test_a_terminate_identifies_a_read_by_its_number(connector: ListenerAndConnector) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        for i in range(3):
            a.post(READ, i, length=64, remote=PEER_MEMORY)
        reads = [peer.receive_segment_octets() for _ in range(3)]
        peer.send_segments(peer.build_terminate(0, 1, 1, quoted=reads[1]))
        assert [w.status for w in poll(a.scq, 3)] == [FLUSHED, WCStatus.REM_ACCESS_ERR, FLUSHED]


def test_a_terminate_that_identifies_no_request_flushes_unconfirmed_requests(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        post_three_writes(a, peer)
        peer.send_segments(peer.build_terminate(2, 0, 2))
        assert [w.status for w in poll(a.scq, 3)] == [FLUSHED] * 3


def test_a_write_with_an_invalid_key_fails_with_an_access_error_between_two_writes(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = connect_roce_ends(two_device_connector)
    good = b.mem.remote(0, 64)
    bad = RemoteBuffer(good.addr, 64, good.rkey ^ 0x100)
    a.mem.view[:64] = b"\x55" * 64
    a.qp.post_send(
        [SendWR(i, WRITE, sg=[a.mem.sge(0, 64)], remote=r) for i, r in enumerate((good, bad, good))]
    )
    assert [w.status for w in poll(a.scq, 3)] == [0, WCStatus.REM_ACCESS_ERR, FLUSHED]
    assert b.mem.read(64) == b"\x55" * 64


def test_requests_that_a_closing_peer_did_not_confirm_are_flushed(
    connector: ListenerAndConnector,
) -> None:
    with connected_plain_peer(connector, persona=Persona.ROCE) as (a, peer):
        post_three_writes(a, peer)
        peer.sock.close()
        assert [w.status for w in poll(a.scq, 3)] == [FLUSHED] * 3
