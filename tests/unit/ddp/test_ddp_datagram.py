"""Sending and receiving DDP segments in datagrams with a CRC."""

from __future__ import annotations

import errno
import socket

import pytest
from _siwarp_layers import lib
from hypothesis import example, given
from hypothesis import strategies as st
from unit.ddp.ddp_harness import (
    PD,
    DdpPoller,
    Memory,
    StreamError,
    counter_value,
    crc32c,
    octet_pattern,
    open_ddp_poller,
    wait_until,
)

from siwarp.inspect import DDPDatagram, DDPTagged, UDDatagram

FAMILIES = [socket.AF_INET, socket.AF_INET6]
MAX = {socket.AF_INET: 65507 - 22, socket.AF_INET6: 65527 - 22}
#: Up to this many octets are copied into one buffer; longer payloads are sent from their own
#: memory.
COPIED = 4096


def build_segment(payload: bytes = b"", **fields: object) -> bytes:
    return bytes(DDPDatagram(**fields)) + payload


# ---- transmit


@pytest.mark.clause("DGRAM-LLP-2", "DGRAM-UD-1", "DGRAM-UD-9")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [0, 1, 64, COPIED - 1, COPIED, COPIED + 1, 60000, -1])
def test_a_message_of_any_size_is_one_datagram(
    layer_poller: DdpPoller, family: int, size: int
) -> None:
    d = layer_poller.create_dgram_endpoint(family=family)
    assert lib.siw_ddp_dgram_max_payload(d.handle) == MAX[family]
    size = MAX[family] if size < 0 else size
    m = layer_poller.register_new_memory(size, octet_pattern(size))
    d.transmit([m.sge()], ulp_octet=0x43, ulp_word=0xDEADBEEF, qn=0x020100)
    got = d.read_sent_datagram()
    datagram = UDDatagram(got)
    head = datagram.segment
    assert got[18:-4] == octet_pattern(size)
    assert datagram.crc == crc32c(got[:-4])
    assert (head.t, head.l, head.dv, head.ddp_rsvd, head.mo) == (0, 1, 1, 0, 0)
    assert (head.rv, head.opcode, head.q_key, head.qn, head.msn) == (1, 3, 0xDEADBEEF, 0x020100, 1)


def test_the_maximum_tagged_segment_depends_on_the_path_and_the_address_family(
    layer_poller: DdpPoller,
) -> None:
    v4, v6 = (
        layer_poller.create_dgram_endpoint(family=socket.AF_INET),
        layer_poller.create_dgram_endpoint(family=socket.AF_INET6),
    )
    overhead = 12 + 14 + 4  # LLP header, DDP header, CRC
    assert lib.siw_ddp_dgram_max_tagged_payload(v4.handle, v4.peer) == 65507 - overhead
    assert lib.siw_ddp_dgram_max_tagged_payload(v4.handle, v6.peer) == -errno.EAFNOSUPPORT


@pytest.mark.clause("DGRAM-LLP-2", "DGRAM-LLP-3")
@given(
    sizes=st.lists(st.integers(0, 1500), max_size=16),
    no_crc=st.booleans(),
    head=st.sampled_from([b"", b"the head"]),
)
@example([300] * 16, False, b"the head")
@example([1] * 16, True, b"the head")
def test_any_gather_list_is_sent_as_its_octets_with_their_crc(
    sizes: list[int], no_crc: bool, head: bytes
) -> None:
    with open_ddp_poller() as layer_poller:
        d = layer_poller.create_dgram_endpoint(no_crc=no_crc)
        memories = [layer_poller.register_new_memory(n, octet_pattern(n, n)) for n in sizes]
        elements = [m.sge() for m in memories]
        d.transmit(elements, ulp_octet=0x43, head=head, head_len=len(head))
        got = d.read_sent_datagram()
        assert got[18:-4] == head + b"".join(m.octets() for m in memories)
        assert got[-4:] == (bytes(4) if no_crc else crc32c(got[:-4]).to_bytes(4, "little"))


@pytest.mark.clause("DGRAM-UD-7")
def test_msns_count_only_transmitted_datagrams(layer_poller: DdpPoller) -> None:
    d = layer_poller.create_dgram_endpoint()
    m = layer_poller.register_new_memory(10)
    msns = []
    for _ in range(3):
        d.transmit([m.sge()])
        with pytest.raises(StreamError, match="EACCES"):
            d.transmit([m.sge(key=m.stag ^ 1)])
        msns.append(UDDatagram(d.read_sent_datagram()).segment.msn)
    assert msns == [1, 2, 3]


@pytest.mark.parametrize("family", FAMILIES)
def test_sending_a_message_longer_than_a_datagram_is_refused(
    layer_poller: DdpPoller, family: int
) -> None:
    d = layer_poller.create_dgram_endpoint(family=family)
    m = layer_poller.register_new_memory(MAX[family] + 1)
    with pytest.raises(StreamError, match="EMSGSIZE"):
        d.transmit([m.sge()])


def test_a_key_of_another_protection_domain_is_refused_and_nothing_is_sent(
    layer_poller: DdpPoller,
) -> None:
    d = layer_poller.create_dgram_endpoint()
    m = layer_poller.register_new_memory(10, pd=PD + 1)
    with pytest.raises(StreamError, match="EACCES"):
        d.transmit([m.sge()])
    d.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        d.read_sent_datagram()


# ---- receive


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [0, 1, 64, 5000, -1])
def test_a_datagram_is_placed_into_the_oldest_posted_buffer(
    layer_poller: DdpPoller, family: int, size: int
) -> None:
    d, q = layer_poller.create_dgram_endpoint(family=family), layer_poller.create_queue()
    size = MAX[family] if size < 0 else size
    m = layer_poller.register_new_memory(size + 5)
    q.post(11, m.sge())
    q.post(12)
    d.inject_datagram(build_segment(octet_pattern(size), q_key=77, qn=0x030000, msn=9))
    seg, source = d.receive_datagram()
    assert (seg.tagged, seg.last, seg.ulp_octet, seg.ulp_word) == (False, True, 0x43, 77)
    assert (seg.qn, seg.msn, seg.mo, seg.payload, seg.seg_len) == (0x030000, 9, 0, size, size + 18)
    assert socket.ntohs(source.port_be) == d.sock.getsockname()[1]
    assert d.place_datagram(q) == (1, 11, size)
    assert m.octets() == octet_pattern(size) + bytes([0xA5]) * 5
    assert q.take_buffer() == 12


@given(st.lists(st.integers(0, 300), min_size=1, max_size=16), st.data())
def test_a_datagram_is_scattered_over_the_elements_of_its_buffer(
    sizes: list[int], data: st.DataObject
) -> None:
    with open_ddp_poller() as layer_poller:
        d, q = layer_poller.create_dgram_endpoint(), layer_poller.create_queue()
        memories = [layer_poller.register_new_memory(n) for n in sizes]
        q.post(1, *[m.sge() for m in memories])
        length = data.draw(st.integers(0, sum(sizes)))
        d.inject_datagram(build_segment(octet_pattern(length)))
        d.receive_datagram()
        assert d.place_datagram(q) == (1, 1, length)
        want = octet_pattern(length) + bytes([0xA5]) * (sum(sizes) - length)
        assert b"".join(m.octets() for m in memories) == want


@pytest.mark.clause("DGRAM-LLP-4")
@pytest.mark.parametrize("bit", range(0, 8 * 26, 7))
def test_a_datagram_with_a_flipped_bit_is_dropped(layer_poller: DdpPoller, bit: int) -> None:
    d = layer_poller.create_dgram_endpoint()
    good = build_segment(b"abcd")
    octets = bytearray(good + crc32c(good).to_bytes(4, "little"))
    octets[bit // 8] ^= 1 << bit % 8
    before = counter_value("drop_crc")
    d.sock.sendto(octets, (d.host, d.port))
    wait_until(lambda: d.poll_datagram() or counter_value("drop_crc") == before + 1)
    assert d.poll_datagram() is None


@pytest.mark.clause("DGRAM-UD-1")
@pytest.mark.parametrize("opcode", [0, 0xF])
def test_a_tagged_segment_without_an_llp_header_is_dropped(
    layer_poller: DdpPoller, opcode: int
) -> None:
    d = layer_poller.create_dgram_endpoint()
    before = counter_value("drop_header")
    d.inject_datagram(bytes(DDPTagged(opcode=opcode, stag=0x100, to=0)) + bytes(40))
    wait_until(lambda: d.poll_datagram() or counter_value("drop_header") == before + 1)
    assert counter_value("drop_header") == before + 1
    assert d.poll_datagram() is None


@pytest.mark.clause("DGRAM-LLP-5")
@pytest.mark.parametrize("length", [0, 1, 4, 18, 21])
def test_a_datagram_too_short_for_header_and_crc_is_dropped(
    layer_poller: DdpPoller, length: int
) -> None:
    d = layer_poller.create_dgram_endpoint()
    before = counter_value("drop_short")
    d.sock.sendto(bytes(length), (d.host, d.port))
    wait_until(lambda: d.poll_datagram() or counter_value("drop_short") == before + 1)
    assert d.poll_datagram() is None


@pytest.mark.clause("DGRAM-LLP-1", "DGRAM-UD-1")
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"dv": 0}, "drop_version"),
        ({"dv": 2}, "drop_version"),
        ({"dv": 3}, "drop_version"),
        ({"t": 1}, "drop_header"),
    ],
)
def test_a_datagram_with_an_invalid_ddp_header_is_dropped(
    layer_poller: DdpPoller, fields: dict[str, int], name: str
) -> None:
    d = layer_poller.create_dgram_endpoint()
    before = counter_value(name)
    d.inject_datagram(build_segment(b"abcd", **fields))
    wait_until(lambda: d.poll_datagram() or counter_value(name) == before + 1)
    d.inject_datagram(build_segment(b"good"))
    seg, _ = d.receive_datagram()
    assert seg.payload == 4


@pytest.mark.clause("DGRAM-UD-1")
@pytest.mark.parametrize("fields", [{"l": 0}, {"mo": 1}])
def test_a_datagram_that_is_only_a_part_of_a_message_is_reported(
    layer_poller: DdpPoller, fields: dict[str, int]
) -> None:
    d = layer_poller.create_dgram_endpoint()
    d.inject_datagram(build_segment(b"abcd", q_key=77, **fields))
    seg, _ = d.receive_datagram()
    assert (seg.last, seg.mo) == (fields.get("l", 1) == 1, fields.get("mo", 0))
    assert (seg.ulp_word, seg.payload) == (77, 4)


@pytest.mark.clause("DGRAM-LLP-6")
def test_reserved_bits_of_the_ddp_header_are_ignored(layer_poller: DdpPoller) -> None:
    d = layer_poller.create_dgram_endpoint()
    d.inject_datagram(build_segment(b"abcd", ddp_rsvd=15))
    assert d.receive_datagram()[0].payload == 4


@pytest.mark.clause("DGRAM-LLP-3")
def test_a_datagram_endpoint_without_crc_ignores_the_crc_field(layer_poller: DdpPoller) -> None:
    d, q = layer_poller.create_dgram_endpoint(no_crc=True), layer_poller.create_queue()
    m = layer_poller.register_new_memory(4)
    q.post(1, m.sge())
    d.inject_datagram(build_segment(b"abcd"), crc=0x12345678)
    d.receive_datagram()
    assert d.place_datagram(q) == (1, 1, 4)
    assert m.octets() == b"abcd"


def test_a_datagram_without_a_posted_buffer_is_dropped_and_counted(layer_poller: DdpPoller) -> None:
    d, q = layer_poller.create_dgram_endpoint(), layer_poller.create_queue()
    before = counter_value("drop_no_buffer")
    d.inject_datagram(build_segment(b"abcd"))
    d.receive_datagram()
    assert d.place_datagram(q)[0] == -errno.ENOBUFS
    assert counter_value("drop_no_buffer") == before + 1


def test_a_datagram_longer_than_its_buffer_consumes_it_and_writes_nothing(
    layer_poller: DdpPoller,
) -> None:
    d, q = layer_poller.create_dgram_endpoint(), layer_poller.create_queue()
    m = layer_poller.register_new_memory(3)
    q.post(5, m.sge())
    d.inject_datagram(build_segment(b"abcd"))
    d.receive_datagram()
    assert d.place_datagram(q) == (-errno.EMSGSIZE, 5, 4)
    assert m.is_untouched()
    assert q.take_buffer() is None


def test_a_buffer_with_an_invalid_key_is_consumed_and_nothing_is_written(
    layer_poller: DdpPoller,
) -> None:
    d, q = layer_poller.create_dgram_endpoint(), layer_poller.create_queue()
    good, bad = layer_poller.register_new_memory(2), Memory(2)
    q.post(5, good.sge(), bad.sge(key=good.stag))
    d.inject_datagram(build_segment(b"abcd"))
    d.receive_datagram()
    assert d.place_datagram(q)[:2] == (-errno.EACCES, 5)
    assert good.is_untouched()
    assert bad.is_untouched()
    assert q.take_buffer() is None


def test_an_unplaced_datagram_is_dropped_by_the_next_receive(layer_poller: DdpPoller) -> None:
    d, q = layer_poller.create_dgram_endpoint(), layer_poller.create_queue()
    m = layer_poller.register_new_memory(4)
    q.post(1, m.sge())
    d.inject_datagram(build_segment(b"lost"))
    d.receive_datagram()
    d.inject_datagram(build_segment(b"kept"))
    d.receive_datagram()
    assert d.place_datagram(q) == (1, 1, 4)
    assert m.octets() == b"kept"


def test_a_datagram_sent_by_one_endpoint_is_received_by_another(layer_poller: DdpPoller) -> None:
    a, b, q = (
        layer_poller.create_dgram_endpoint(),
        layer_poller.create_dgram_endpoint(),
        layer_poller.create_queue(),
    )
    source, sink = (
        layer_poller.register_new_memory(9000, octet_pattern(9000)),
        layer_poller.register_new_memory(9000),
    )
    q.post(3, sink.sge())
    assert lib.siw_addr_parse(b"127.0.0.1", b.port, a.peer) == 0
    a.transmit([source.sge()], ulp_octet=0x45)
    seg, from_ = b.receive_datagram()
    assert seg.ulp_octet == 0x45
    assert socket.ntohs(from_.port_be) == a.port
    assert b.place_datagram(q) == (1, 3, 9000)
    assert sink.octets() == source.octets()


def test_a_datagram_endpoint_adopts_a_socket_of_the_program(layer_poller: DdpPoller) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
        d = layer_poller.create_dgram_endpoint(fd=own.detach())
    assert d.port == port
    d.inject_datagram(build_segment(b"abcd"))
    assert d.receive_datagram()[0].payload == 4
