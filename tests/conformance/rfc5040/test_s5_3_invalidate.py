"""RFC 5040 sections 4.1, 5.3 and 7.2: Send with Invalidate, with Solicited Event and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from harness.rc_harness import SEND, WRITE, ListenerAndConnector, read_to_end
from harness.verbs_harness import ALL_ACCESS, Rig, octet_pattern, poll
from harness.wire_peer import ScriptedRCPeer, build_read_request, build_send, build_write
from scapy.packet import Raw

from siwarp.inspect import Opcode, split_stream
from siwarp.verbs import MR, AccessFlag, SendFlag, SendWR, WCFlag, WCStatus, WROpcode

INVALIDATE = ALL_ACCESS | AccessFlag.REMOTE_INVALIDATE
INV, SE_INV = Opcode.SEND_INVALIDATE, Opcode.SEND_SE_INVALIDATE
CANNOT = (0, 1, 9)


@pytest.fixture(name="connector")
def listener_and_connector() -> Iterator[ListenerAndConnector]:
    """Yield a listener on 127.0.0.1 and a way to connect to the listener."""
    rig = Rig()
    yield ListenerAndConnector(rig)
    rig.close()


def register_memory_for_peer(
    peer: ScriptedRCPeer, access: int = INVALIDATE, size: int = 1000
) -> MR:
    """Return memory that only this peer may access."""
    return MR(peer.end.rig.pd, bytearray(size), access, qp=peer.end.qp)


def check_invalidate_refused(
    peer: ScriptedRCPeer, stag: int, opcode: int = INV, size: int = 3, msn: int = 1
) -> None:
    """Send a Send with Invalidate of this STag, and check that the Terminate reports that the STag
    cannot be invalidated.
    """
    peer.end.post_receive(9)
    segment = build_send(msn, opcode=opcode, inv_stag=stag)
    peer.send_segments(segment / Raw(bytes(size)))
    t = peer.receive_terminate()
    assert (t.layer, t.etype, t.code) == CANNOT
    assert (t.m, t.d, t.r, t.ddp_seg_len) == (1, 1, 0, 18 + size)
    assert bytes(t.quoted_ddp) == bytes(segment)
    assert poll(peer.end.rcq)[0].status == WCStatus.WR_FLUSH_ERR


# ---- sending


@pytest.mark.parametrize("size", [0, 5, 100_000])
@pytest.mark.parametrize(
    ("flags", "opcode"),
    [(SendFlag(0), INV), (SendFlag.SOLICITED, SE_INV)],
    ids=["quiet", "solicited"],
)
@pytest.mark.clause("RFC5040-5.3-11", "RFC5040-5.3-12", "RFC5040-4.1-03#a", "RFC5040-4.1-03#b")
def test_every_segment_of_a_send_with_invalidate_contains_the_stag(
    connector: ListenerAndConnector, flags: SendFlag, opcode: int, size: int
) -> None:
    with ScriptedRCPeer.accept_from_siwarp(connector, size=1 << 17) as peer:
        end = peer.end
        end.mem.write(octet_pattern(size))
        sg = [end.mem.sge(0, size)] if size else []
        wr = SendWR(
            3,
            WROpcode.SEND_WITH_INV,
            sg=sg,
            invalidate_rkey=0xA1B2C3D4,
            send_flags=SendFlag.SIGNALED | flags,
        )
        assert wr.invalidate_rkey == 0xA1B2C3D4
        end.qp.post_send(wr)
        end.post(SEND, 4, length=2)
        assert [w.wr_id for w in poll(end.scq, 2) if w.ok] == [3, 4]
        got = b""
        while True:
            head = peer.receive_fpdu().ulpdu
            assert (head.opcode, head.qn, head.msn) == (opcode, 0, 1)
            assert (head.inv_stag, head.mo) == (0xA1B2C3D4, len(got))
            got += bytes(head.payload)
            if head.l:
                break
        assert got == octet_pattern(size)
        last = peer.receive_fpdu().ulpdu
        assert (last.opcode, last.msn, last.inv_stag) == (Opcode.SEND, 2, 0)


# ---- receiving


@pytest.mark.parametrize("opcode", [INV, SE_INV])
@pytest.mark.parametrize("size", [0, 100, 20_000])
@pytest.mark.clause("RFC5040-5.3-13#a", "RFC5040-7.2-04")
def test_the_stag_is_invalid_when_the_receive_of_a_send_with_invalidate_completes(
    connector: ListenerAndConnector, opcode: int, size: int
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        mr = register_memory_for_peer(peer)
        end = peer.end
        end.post_receive(1)
        peer.send_segments(build_write(mr.rkey, mr.addr) / Raw(b"before"))
        peer.send_segments(
            build_send(1, opcode=opcode, inv_stag=mr.rkey) / Raw(octet_pattern(size))
        )
        wc = poll(end.rcq)[0]
        assert (wc.ok, wc.byte_len, wc.wc_flags) == (True, size, WCFlag.WITH_INV)
        assert wc.invalidated_rkey == mr.rkey
        assert end.mem.read(size) == octet_pattern(size)
        assert mr.read(6) == b"before"
        segment = build_write(mr.rkey, mr.addr)
        peer.send_segments(segment / Raw(b"after"))
        t = peer.receive_terminate()
        assert (t.layer, t.etype, t.code, bytes(t.quoted_ddp)) == (1, 1, 0, bytes(segment))
        assert mr.read(6) == b"before"
        mr.close()


@pytest.mark.clause("RFC5040-5.3-13#a")
def test_an_invalidated_stag_is_also_invalid_for_reads_and_as_a_local_key(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        mr = register_memory_for_peer(peer)
        peer.end.post_receive(1)
        peer.send_segments(build_send(1, opcode=INV, inv_stag=mr.rkey))
        assert poll(peer.end.rcq)[0].invalidated_rkey == mr.rkey
        peer.send_segments(build_read_request(1, mr.rkey, mr.addr))
        t = peer.receive_terminate()
        assert (t.layer, t.etype, t.code, t.r) == (0, 1, 0, 1)
    with ScriptedRCPeer.accept_from_siwarp(connector) as other:
        other.end.qp.post_send(SendWR(7, sg=[mr.sge(0, 5)]))
        assert poll(other.end.scq)[0].status == WCStatus.LOC_PROT_ERR
    mr.close()


@pytest.mark.clause("RFC5040-5.3-06")
def test_only_a_send_with_invalidate_and_solicited_event_raises_an_event(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        end = peer.end
        for msn, opcode in ((1, INV), (2, SE_INV)):
            mr = register_memory_for_peer(peer)
            end.post_receive(msn)
            end.rcq.req_notify(solicited_only=True)
            peer.send_segments(build_send(msn, opcode=opcode, inv_stag=mr.rkey))
            assert poll(end.rcq)[0].invalidated_rkey == mr.rkey
            event = end.events.get_cq_event(0.02)
            assert (event is end.rcq) == (opcode == SE_INV)


def test_a_send_with_invalidate_invalidates_the_stag_only_with_its_last_segment(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        mr = register_memory_for_peer(peer)
        end = peer.end
        end.post_receive(1)
        peer.send_segments(build_send(1, opcode=INV, inv_stag=mr.rkey, l=0) / Raw(b"one"))
        peer.send_segments(build_write(mr.rkey, mr.addr) / Raw(b"still"))
        peer.send_segments(build_send(1, opcode=INV, inv_stag=mr.rkey, mo=3) / Raw(b"two"))
        assert poll(end.rcq)[0].byte_len == 6
        assert mr.read(5) == b"still"
        peer.send_segments(build_read_request(1, mr.rkey, mr.addr))
        assert peer.receive_terminate().code == 0


@pytest.mark.parametrize("size", [1000, 64 << 20])
def test_no_octet_of_an_invalidated_region_is_transmitted_after_the_completion(
    connector: ListenerAndConnector, size: int
) -> None:
    """A Read Request that is overtaken by an invalidation of the same peer is answered, or the
    connection ends first.
    """
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        end = peer.end
        mr = register_memory_for_peer(peer, size=size)
        end.post_receive(1)
        peer.send_segments(build_read_request(size, mr.rkey, mr.addr))
        peer.send_segments(build_send(1, opcode=INV, inv_stag=mr.rkey))
        wc = poll(end.rcq)[0]
        mr.view[:] = b"\xee" * size
        if wc.ok:
            end.id.disconnect()
        frames = split_stream(read_to_end(peer.sock))
        assert all(f.crc == f.crc_expected() for f in frames.fpdus)
        got = b"".join(bytes(f.ulpdu.payload) for f in frames.fpdus if f.ulpdu.t)
        assert got == bytes(len(got))
        if size == 1000:
            assert (wc.invalidated_rkey, len(got)) == (mr.rkey, 1000)
        else:
            assert (wc.status, wc.vendor_err) == (WCStatus.WR_FLUSH_ERR, 0x000109)
            assert end.next_cm_event().wire_error == 0x000109
        mr.close()


# ---- refused


def _make_region_without_invalidate_right(
    peer: ScriptedRCPeer, connector: ListenerAndConnector
) -> MR:
    return register_memory_for_peer(peer, ALL_ACCESS)


def _register_region_for_whole_pd(peer: ScriptedRCPeer, connector: ListenerAndConnector) -> MR:
    return MR(peer.end.rig.pd, bytearray(1000), ALL_ACCESS)


def _make_region_of_other_qp(peer: ScriptedRCPeer, connector: ListenerAndConnector) -> MR:
    other = peer.end.rig.create_qp(qp_type=peer.end.qp.qp_type)
    return MR(peer.end.rig.pd, bytearray(1000), INVALIDATE, qp=other)


@pytest.mark.parametrize("opcode", [INV, SE_INV])
@pytest.mark.parametrize("size", [0, 3, 20_000])
@pytest.mark.parametrize(
    "make",
    [
        _make_region_without_invalidate_right,
        _register_region_for_whole_pd,
        _make_region_of_other_qp,
    ],
)
@pytest.mark.clause("RFC5040-5.3-13#b", "RFC5040-7.2-05", "RFC5040-8.1.1-08")
def test_invalidation_of_an_stag_without_the_right_is_refused_and_has_no_effect(
    connector: ListenerAndConnector,
    make: Callable[[ScriptedRCPeer, ListenerAndConnector], MR],
    opcode: int,
    size: int,
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        mr = make(peer, connector)
        check_invalidate_refused(peer, mr.rkey, opcode, size)
    mr.write(b"alive")
    with ScriptedRCPeer.accept_from_siwarp(connector) as other:
        other.end.qp.post_send(SendWR(7, sg=[mr.sge(0, 5)]))
        assert poll(other.end.scq)[0].ok
        assert bytes(other.receive_fpdu().ulpdu.payload) == b"alive"


@pytest.mark.parametrize("which", ["never", "closed", "invalidated", "zero"])
@pytest.mark.clause("RFC5040-7.2-04")
def test_invalidation_of_an_invalid_stag_is_refused(
    connector: ListenerAndConnector, which: str
) -> None:
    with ScriptedRCPeer.connect_to_siwarp(connector) as peer:
        mr = register_memory_for_peer(peer)
        stag = {"never": mr.rkey ^ 0x4000, "zero": 0}.get(which, mr.rkey)
        if which == "closed":
            mr.close()
        if which == "invalidated":
            peer.end.post_receive(1)
            peer.send_segments(build_send(1, opcode=INV, inv_stag=stag))
            assert poll(peer.end.rcq)[0].ok
        check_invalidate_refused(peer, stag, msn=2 if which == "invalidated" else 1)


def test_a_send_with_invalidate_with_a_wrong_crc_invalidates_nothing(
    connector: ListenerAndConnector,
) -> None:
    with ScriptedRCPeer.accept_from_siwarp(connector) as peer:
        mr = register_memory_for_peer(peer)
        peer.end.post_receive(1)
        peer.send_segments(
            build_send(1, opcode=INV, inv_stag=mr.rkey) / Raw(octet_pattern(20_000)), crc=1
        )
        t = peer.receive_terminate()
        assert (t.layer, t.etype, t.code) == (2, 0, 2)
    with ScriptedRCPeer.accept_from_siwarp(connector) as other:
        other.end.qp.post_send(SendWR(7, sg=[mr.sge(0, 5)]))
        assert poll(other.end.scq)[0].ok


# ---- access to bound regions


def test_a_region_bound_to_a_queue_pair_is_refused_to_the_peer_of_another(
    connector: ListenerAndConnector,
) -> None:
    with (
        ScriptedRCPeer.connect_to_siwarp(connector) as one,
        ScriptedRCPeer.connect_to_siwarp(connector) as other,
    ):
        mr = register_memory_for_peer(one)
        one.send_segments(build_write(mr.rkey, mr.addr) / Raw(b"mine"))
        other.send_segments(build_write(mr.rkey, mr.addr) / Raw(b"not!"))
        t = other.receive_terminate()
        assert (t.layer, t.etype, t.code) == (1, 1, 2)
        one.end.post_receive(1)
        one.send_segments(build_send(1))
        assert poll(one.end.rcq)[0].ok
        assert mr.read(4) == b"mine"


def test_a_send_with_invalidate_works_between_two_siwarp_ends(
    connector: ListenerAndConnector,
) -> None:
    a, b = connector.connect()
    mr = MR(b.rig.pd, bytearray(1000), INVALIDATE, qp=b.qp)
    a.mem.write(octet_pattern(600))
    a.post(WRITE, 1, length=600, remote=mr.remote())
    b.post_receive(2)
    a.qp.post_send(SendWR(3, WROpcode.SEND_WITH_INV, sg=[a.mem.sge(0, 7)], invalidate_rkey=mr.rkey))
    assert [w.wr_id for w in poll(a.scq, 2) if w.ok] == [1, 3]
    wc = poll(b.rcq)[0]
    assert (wc.byte_len, wc.invalidated_rkey) == (7, mr.rkey)
    assert mr.read(600) == octet_pattern(600)
    a.post(WRITE, 4, length=600, remote=mr.remote())
    b.wait_for_error_state()
