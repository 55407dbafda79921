"""Data transfer by Send, Write and Read between connected RC queue pairs."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator

import pytest
from harness.peer_harness import connected_plain_peer
from harness.rc_harness import READ, SEND, WRITE, End, ListenerAndConnector
from harness.verbs_harness import (
    Rig,
    errno_raised_by,
    octet_pattern,
    poll,
    temporary_settings,
    wait_until,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from siwarp.cm import ConnParam
from siwarp.verbs import (
    SGE,
    QPState,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCOpcode,
)

# Message sizes around the limits of segments: an Ethernet MTU, a copied message, loopback's EMSS,
# and MPA's largest ULPDU.
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 1407, 1408, 4095, 4096, 4097, 32742, 32743, 32744, 64767, 64768]
SIZES += [65475, 65483, 65535, 65536, 65537, 100001, 1 << 20, (1 << 20) + 1]


@pytest.fixture(scope="module")
def connected_pair() -> Iterator[tuple[End, End]]:
    a, b = Rig(), Rig()
    yield ListenerAndConnector(a, b).connect(
        size=2 << 20, max_send_sge=16, max_recv_sge=16, max_inline_data=256, max_send_wr=64
    )
    a.close()
    b.close()


@pytest.mark.parametrize("size", SIZES)
def test_an_rc_send_of_any_size_consumes_one_receive(
    connected_pair: tuple[End, End], size: int
) -> None:
    a, b = connected_pair
    data = octet_pattern(size, size)
    a.mem.write(data)
    b.mem.view[: size + 64] = b"\xee" * (size + 64)
    b.post_receive(wr_id=7, length=size + 32)
    a.post(SEND, 8, length=size)
    (sent,) = poll(a.scq)
    (got,) = poll(b.rcq)
    assert (sent.wr_id, sent.ok, sent.opcode) == (8, True, WCOpcode.SEND)
    assert (got.wr_id, got.ok, got.opcode, got.byte_len) == (7, True, WCOpcode.RECV, size)
    assert (got.qp_num, sent.qp_num, got.source) == (b.qp.qp_num, a.qp.qp_num, None)
    assert b.mem.read(size) == data
    assert b.mem.read(64, size) == b"\xee" * 64


@pytest.mark.parametrize("size", SIZES)
def test_a_write_of_any_size_is_placed_before_the_following_send_is_received(
    connected_pair: tuple[End, End], size: int
) -> None:
    a, b = connected_pair
    data = octet_pattern(size, size + 1)
    a.mem.write(data)
    b.mem.view[: size + 64] = b"\xee" * (size + 64)
    b.qp.post_recv(RecvWR(1))
    a.post(WRITE, 3, length=size, remote=b.mem.remote(16, size))
    a.post(SEND, 4)
    (got,) = poll(b.rcq)
    assert (got.ok, got.byte_len) == (True, 0)
    assert b.mem.read(size, 16) == data
    assert b.mem.read(16) == b"\xee" * 16 and b.mem.read(48, size + 16) == b"\xee" * 48
    done = poll(a.scq, 2)
    assert [(w.wr_id, w.ok, w.opcode) for w in done] == [
        (3, True, WCOpcode.RDMA_WRITE),
        (4, True, WCOpcode.SEND),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_an_rc_read_of_any_size_returns_the_content_of_the_peers_memory(
    connected_pair: tuple[End, End], size: int
) -> None:
    a, b = connected_pair
    data = octet_pattern(size, size + 2)
    b.mem.write(data, offset=24)
    a.mem.view[: size + 64] = b"\xee" * (size + 64)
    a.post(READ, 5, offset=32, length=size, remote=b.mem.remote(24, size))
    (done,) = poll(a.scq)
    assert (done.wr_id, done.ok, done.opcode) == (5, True, WCOpcode.RDMA_READ)
    assert done.byte_len == size
    assert a.mem.read(size, 32) == data
    assert a.mem.read(32) == b"\xee" * 32 and a.mem.read(32, size + 32) == b"\xee" * 32
    assert b.rcq.poll(4) == []


def test_a_write_a_read_and_a_send_of_20_mib_transfer_all_octets(
    connector: ListenerAndConnector,
) -> None:
    size = 20 << 20
    a, b = connector.connect(size=size)
    data = octet_pattern(1 << 16) * (size >> 16)
    a.mem.view[:] = data
    a.post(WRITE, 1, length=size, remote=b.mem.remote())
    b.post_receive(wr_id=9, length=size)
    assert poll(a.scq)[0].ok
    a.mem.view[:] = bytes(size)
    a.post(READ, 2, length=size, remote=b.mem.remote())
    assert poll(a.scq)[0].ok
    assert a.mem.view == data and b.mem.view == data
    b.mem.view[:] = bytes(size)
    a.post(SEND, 3, length=size)
    assert poll(b.rcq)[0].byte_len == size
    assert poll(a.scq)[0].ok
    assert b.mem.view == data


@pytest.mark.parametrize(("budget", "received"), [(64, 20), (4, 4)])
def test_sends_that_arrive_together_are_received_by_one_poll_up_to_the_budget(
    budget: int, received: int
) -> None:
    with temporary_settings(progress_thread=0, lanes=1, budget=budget):
        rig = Rig()
        with connected_plain_peer(ListenerAndConnector(rig), gone=True, max_recv_wr=32) as (
            a,
            peer,
        ):
            for i in range(20):
                a.post_receive(i, 64 * i, 64)
            peer.send_segments(*(peer.build_send(b"%d" % i) for i in range(20)))
            assert len(a.rcq.poll(64)) == received
        rig.close()


def test_both_ends_may_send_at_the_same_time(connected_pair: tuple[End, End]) -> None:
    size = 512 << 10
    for end in connected_pair:
        end.mem.write(octet_pattern(size))
        for i in range(4):
            end.post_receive(wr_id=i, offset=1 << 20, length=size)
    for i in range(4):
        for end in connected_pair:
            end.post(SEND, i, length=size)
    got: dict[End, list[int]] = {end: [] for end in connected_pair}

    def all_messages_are_received() -> bool:
        for end in connected_pair:
            got[end] += [w.wr_id for w in end.rcq.poll(8) if w.ok]
            end.scq.poll(8)
        return all(len(g) == 4 for g in got.values())

    wait_until(all_messages_are_received)
    assert all(g == [0, 1, 2, 3] for g in got.values())
    for end in connected_pair:
        wait_until(lambda end=end: not end.scq.poll(8))


# ---- scatter and gather


@settings(max_examples=40)
@given(
    st.sampled_from([SEND, WRITE, READ]),
    st.lists(st.one_of(st.integers(0, 9), st.integers(0, 20000)), max_size=16),
    st.lists(st.integers(0, 1 << 19), max_size=15),
    st.integers(0, 15),
)
def test_any_split_into_scatter_gather_elements_transfers_the_same_octets(
    connected_pair: tuple[End, End], opcode: int, pieces: list[int], marks: list[int], shift: int
) -> None:
    a, b = connected_pair
    total = sum(pieces)
    data = octet_pattern(total, total)
    offsets, at = [], 8 + shift
    for n in pieces:
        offsets.append(at)
        at += n + 8
    sg = [a.mem.sge(o, n) for o, n in zip(offsets, pieces, strict=True)]
    a.mem.view[: at + 8] = b"\xa5" * (at + 8)
    b.mem.view[: total + 64] = b"\x5a" * (total + 64)
    if opcode == READ:
        b.mem.write(data, offset=shift)
        a.qp.post_send(SendWR(1, READ, sg=sg, remote=b.mem.remote(shift, total)))
        assert poll(a.scq)[0].ok
        wanted = bytearray(b"\xa5" * (at + 8))
        done = 0
        for o, n in zip(offsets, pieces, strict=True):
            wanted[o : o + n] = data[done : done + n]
            done += n
        assert a.mem.read(at + 8) == wanted
        return
    done = 0
    for o, n in zip(offsets, pieces, strict=True):
        a.mem.write(data[done : done + n], offset=o)
        done += n
    if opcode == WRITE:
        b.qp.post_recv(RecvWR(2))
        a.qp.post_send(SendWR(1, WRITE, sg=sg, remote=b.mem.remote(shift, total)))
        a.post(SEND, 3)
        assert poll(b.rcq)[0].ok
        assert all(w.ok for w in poll(a.scq, 2))
        assert b.mem.read(total + 16) == b"\x5a" * shift + data + b"\x5a" * (16 - shift)
        return
    bounds = [0, *sorted(m % (total + 1) for m in marks), total]
    parts = [(x, y - x) for x, y in itertools.pairwise(bounds)]
    # A canary separates each piece of the receive buffer from the previous piece.
    sinks = [(x + 8 * i, n) for i, (x, n) in enumerate(parts)]
    area = total + 8 * len(parts) + 8
    b.mem.view[:area] = b"\x5a" * area
    b.qp.post_recv(RecvWR(2, sg=[b.mem.sge(o, n) for o, n in sinks]))
    a.qp.post_send(SendWR(1, SEND, sg=sg))
    assert poll(b.rcq)[0].byte_len == total
    assert poll(a.scq)[0].ok
    wanted = bytearray(b"\x5a" * area)
    for (x, n), (o, _) in zip(parts, sinks, strict=True):
        wanted[o : o + n] = data[x : x + n]
    assert b.mem.read(area) == wanted


# ---- work requests


def test_send_completions_are_in_posting_order_also_around_reads(
    connected_pair: tuple[End, End],
) -> None:
    a, b = connected_pair
    kinds = [SEND, READ, WRITE, READ, READ, SEND, WRITE, WRITE, SEND, READ]
    for i in range(kinds.count(SEND)):
        b.post_receive(wr_id=i, offset=1 << 20, length=4096)
    wrs = []
    for i, opcode in enumerate(kinds):
        # No request writes memory that a Read reads, and no Read writes memory that is being sent.
        at, size = (1 << 17, 60000) if opcode == READ else (0, 40)
        remote = None if opcode == SEND else b.mem.remote(at, size)
        wrs.append(SendWR(i, opcode, sg=[a.mem.sge(at, size)], remote=remote))
    a.qp.post_send(wrs)
    done = poll(a.scq, len(kinds))
    assert [w.wr_id for w in done] == list(range(len(kinds)))
    assert all(w.ok for w in done)
    assert [w.wr_id for w in poll(b.rcq, 3)] == [0, 1, 2]


def test_with_sq_sig_all_every_request_creates_a_completion(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(sig_all=True)
    b.qp.post_recv([RecvWR(1), RecvWR(2)])
    a.post(SEND, 1, flags=0)
    a.post(READ, 2, length=10, remote=b.mem.remote(0, 10), flags=0)
    a.post(SEND, 3, flags=0)
    assert [w.wr_id for w in poll(a.scq, 3)] == [1, 2, 3]


@pytest.mark.parametrize("opcode", [SEND, WRITE])
def test_inline_data_may_change_after_the_post_and_needs_no_key(
    connected_pair: tuple[End, End], opcode: int
) -> None:
    a, b = connected_pair
    b.post_receive(wr_id=1, length=4096)
    memory = a.rig.reg_mr(bytearray(octet_pattern(200, 3)))
    sg = [SGE(memory.addr, 150, 12345), SGE(memory.addr + 150, 50, 0)]
    flags = SendFlag.INLINE | SendFlag.SIGNALED
    remote = b.mem.remote(0, 200) if opcode == WRITE else None
    a.qp.post_send(SendWR(1, opcode, sg=sg, send_flags=flags, remote=remote))
    memory.view[:] = bytes(200)
    if opcode == WRITE:
        a.post(SEND, 2, flags=0)
    assert poll(b.rcq)[0].ok
    assert poll(a.scq)[0].ok
    assert b.mem.read(200) == octet_pattern(200, 3)


def test_an_inline_read_is_refused(connected_pair: tuple[End, End]) -> None:
    a, b = connected_pair
    wr = SendWR(
        1, READ, sg=[a.mem.sge(0, 8)], remote=b.mem.remote(0, 8), send_flags=SendFlag.INLINE
    )
    assert errno_raised_by(a.qp.post_send, wr) == errno.EINVAL


def test_an_rc_request_above_the_maximum_message_size_is_refused(
    connected_pair: tuple[End, End],
) -> None:
    a, b = connected_pair
    most = a.rig.ctx.query_device().max_rc_msg
    for opcode in (SEND, WRITE, READ):
        wr = SendWR(1, opcode, sg=[a.mem.sge(0, 8), a.mem.sge(0, 8)], remote=b.mem.remote())
        wr.sg[0].length = most - 7
        assert errno_raised_by(a.qp.post_send, wr) == errno.EINVAL


def test_only_a_solicited_send_notifies_a_cq_armed_for_solicited_events(
    connected_pair: tuple[End, End],
) -> None:
    a, b = connected_pair
    b.qp.post_recv([RecvWR(i) for i in range(3)])
    b.rcq.req_notify(solicited_only=True)
    a.post(SEND, 1)
    poll(b.rcq)
    assert b.events.get_cq_event(0) is None
    a.post(SEND, 2, flags=SendFlag.SOLICITED | SendFlag.SIGNALED)
    assert b.events.get_cq_event(5) is b.rcq
    poll(b.rcq)
    a.post(SEND, 3)
    poll(b.rcq)
    assert len(poll(a.scq, 3)) == 3


@pytest.mark.parametrize("ord_", [1, 2, 5, 128])
def test_reads_beyond_the_ord_limit_wait_and_all_complete(
    connector: ListenerAndConnector, ord_: int
) -> None:
    a, b = connector.connect(ConnParam(initiator_depth=ord_), size=1 << 18, max_send_wr=256)
    n = 200
    for i in range(1024):
        b.mem.view[4 * i : 4 * i + 4] = i.to_bytes(4, "big")
    a.qp.post_send(
        [SendWR(i, READ, sg=[a.mem.sge(8 * i, 4)], remote=b.mem.remote(4 * i, 4)) for i in range(n)]
    )
    done = poll(a.scq, n)
    assert [w.wr_id for w in done] == list(range(n)) and all(w.ok for w in done)
    for i in range(n):
        assert a.mem.read(4, 8 * i) == i.to_bytes(4, "big")


def test_both_ends_may_read_from_each_other_at_the_same_time(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect(size=1 << 20)
    for end in (a, b):
        end.mem.write(octet_pattern(1 << 19, id(end) & 7))
    for i in range(8):
        for one, other in ((a, b), (b, a)):
            one.post(
                READ,
                i,
                offset=(1 << 19) + (i << 16),
                length=1 << 16,
                remote=other.mem.remote(i << 16, 1 << 16),
            )
    for one, other in ((a, b), (b, a)):
        assert [w.wr_id for w in poll(one.scq, 8)] == list(range(8))
        assert one.mem.read(1 << 19, 1 << 19) == other.mem.read(1 << 19)


def test_a_fenced_request_waits_for_the_preceding_reads(connector: ListenerAndConnector) -> None:
    size = 1 << 20
    a, b = connector.connect(size=2 * size)
    for i in range(20):
        b.mem.view[:size] = bytes([i]) * size
        # Without the fence, the Write would be sent before the Read Response arrives.
        a.post(READ, 1, offset=size, length=size, remote=b.mem.remote(0, size), flags=0)
        a.post(
            WRITE,
            2,
            offset=2 * size - 64,
            length=64,
            remote=b.mem.remote(size, 64),
            flags=SendFlag.FENCE | SendFlag.SIGNALED,
        )
        b.qp.post_recv(RecvWR(1))
        a.post(SEND, 3)
        assert [w.wr_id for w in poll(a.scq, 2)] == [2, 3]
        poll(b.rcq)
        assert b.mem.read(64, size) == bytes([i]) * 64


def test_a_read_without_scatter_elements_completes_with_length_0(
    connected_pair: tuple[End, End],
) -> None:
    a, b = connected_pair
    a.qp.post_send(SendWR(1, READ, remote=RemoteBuffer(b.mem.addr, 0, b.mem.rkey)))
    assert poll(a.scq)[0].byte_len == 0


def test_a_connected_queue_pair_returns_its_local_and_peer_addresses(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect()
    assert (a.qp.addr, a.qp.peer) == (b.qp.peer, b.qp.addr)
    assert b.qp.addr == connector.address
    assert a.qp.qp_state == b.qp.qp_state == QPState.RTS
    fresh = connector.active.create_qp(qp_type=QPType.RC)
    assert errno_raised_by(lambda: fresh.addr) == errno.ENOTCONN


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_rc_send_arrives_over_ipv4_and_over_ipv6(rig: Rig, host: str) -> None:
    a, b = ListenerAndConnector(rig, host=host).connect()
    assert a.qp.peer[0] == host
    b.post_receive()
    a.mem.write(b"hello")
    a.post(SEND, length=5)
    assert poll(b.rcq)[0].byte_len == 5 and b.mem.read(5) == b"hello"


def test_rc_queue_pairs_have_unique_numbers_above_65535(rig: Rig) -> None:
    numbers = {rig.create_qp(qp_type=QPType.RC).qp_num for _ in range(100)}
    assert len(numbers) == 100 and min(numbers) > 0xFFFF and max(numbers) < 0xFFFFFF
