"""RDMAP Sends in UD datagrams, and invalid datagrams, which are dropped."""

from __future__ import annotations

import errno
import time

import pytest
from _siwarp_layers import ffi, lib
from hypothesis import given
from hypothesis import strategies as st
from unit.rdmap.rdmap_harness import (
    PD,
    RdmapPoller,
    StreamError,
    UDDatagram,
    check_result,
    counter_value,
    octet_pattern,
    open_rdmap_poller,
    wait_until,
)

from siwarp.inspect import ud_qn

QKEY = 0x11


@pytest.mark.clause("DGRAM-UD-2", "DGRAM-UD-3")
@given(size=st.integers(0, 65485), solicited=st.booleans(), qkey=st.integers(0, 2**32 - 1))
def test_a_ud_send_is_one_datagram_with_the_q_key(size: int, solicited: bool, qkey: int) -> None:
    with open_rdmap_poller() as layer_poller:
        d = layer_poller.create_dgram_endpoint()
        m = layer_poller.register_new_memory(size, octet_pattern(size))
        d.transmit([m.sge()], qkey=qkey, solicited=solicited)
        got = d.sock.recv(1 << 17)
        head = UDDatagram(got).segment
        assert (head.q_key, head.qn, head.msn) == (qkey, 0, 1)
        assert (head.rv, head.opcode) == (1, 5 if solicited else 3)
        assert got[18:-4] == octet_pattern(size)


@pytest.mark.clause("DGRAM-UD-2", "DGRAM-UD-7", "DGRAM-UD-14")
@pytest.mark.parametrize(("opcode", "solicited"), [(3, False), (5, True)])
def test_a_ud_message_is_reported_with_its_source(
    layer_poller: RdmapPoller, opcode: int, solicited: bool
) -> None:
    d = layer_poller.create_dgram_endpoint(qkey=QKEY)
    m = layer_poller.register_new_memory(10)
    d.recvs.post(8, m.sge())
    d.inject_datagram(b"abc", opcode=opcode, q_key=QKEY, qn=ud_qn(0, 0, 5), msn=77)
    e = d.next_event()
    port = d.sock.getsockname()[1]
    assert (e.kind, e.user_data, e.length, e.solicited) == ("RECV", 8, 3, solicited)
    assert (e.ulp_word, e.msn) == (QKEY, 77)
    assert (e.src_qpn, e.source_port) == (5 << 16 | port, port)
    assert m.octets()[:3] == b"abc"


@pytest.mark.clause("DGRAM-UD-4", "DGRAM-UD-8")
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"q_key": QKEY + 1}, "drop_qkey"),
        ({"q_key": 0}, "drop_qkey"),
        ({"rv": 0}, "drop_version"),
        ({"rv": 2}, "drop_version"),
        ({"rv": 3}, "drop_version"),
        ({"qn": 1}, "drop_qn"),
        ({"qn": 2}, "drop_qn"),
        ({"qn": 3}, "drop_qn"),
        ({"qn": 4}, "drop_qn"),
        ({"qn": 0x100}, "drop_qn"),
        ({"qn": 1 << 31}, "drop_qn"),
        ({"qn": 2, "opcode": 7, "l": 0}, "drop_qn"),
        *(({"opcode": op, "qn": 2}, "drop_qn") for op in (3, 5, 6, 15)),
        *(({"opcode": op, "q_key": QKEY + 1}, "drop_qkey") for op in (0, 4, 7, 15)),
        ({"l": 0, "q_key": QKEY + 1}, "drop_qkey"),
        ({"mo": 1, "q_key": QKEY + 1}, "drop_qkey"),
        ({"opcode": 7}, "drop_opcode"),
        ({"opcode": 7, "l": 0}, "drop_header"),
    ],
)
def test_an_invalid_ud_datagram_is_dropped_without_consuming_a_receive(
    layer_poller: RdmapPoller, fields: dict[str, int], name: str
) -> None:
    d = layer_poller.create_dgram_endpoint(qkey=QKEY)
    m = layer_poller.register_new_memory(10)
    d.recvs.post(1, m.sge())
    before = counter_value(name)
    d.inject_datagram(b"bad", **{"opcode": 3, "q_key": QKEY, **fields})
    wait_until(lambda: d.poll_event() or counter_value(name) == before + 1)
    assert m.is_untouched()
    d.inject_datagram(b"good", opcode=3, q_key=QKEY)
    e = d.next_event()
    assert (e.kind, e.user_data, e.length) == ("RECV", 1, 4)


OPCODE, NOT_WHOLE, TOO_LONG = (0, 2, 6), (1, 2, 4), (1, 2, 5)


@pytest.mark.parametrize(
    ("fields", "name", "err"),
    [
        *(({"opcode": op}, "drop_opcode", OPCODE) for op in range(16) if op not in (3, 5, 7)),
        ({"l": 0}, "drop_header", NOT_WHOLE),
        ({"mo": 1}, "drop_header", NOT_WHOLE),
        ({"mo": 2**32 - 1}, "drop_header", NOT_WHOLE),
        ({"mo": 4, "opcode": 9}, "drop_header", NOT_WHOLE),
    ],
)
def test_ud_protocol_errors_with_a_valid_q_key_are_reported_without_consuming_a_receive(
    layer_poller: RdmapPoller, fields: dict[str, int], name: str, err: tuple[int, int, int]
) -> None:
    d = layer_poller.create_dgram_endpoint(qkey=QKEY)
    m = layer_poller.register_new_memory(10)
    d.recvs.post(1, m.sge())
    before = counter_value(name)
    d.inject_datagram(b"bad", **{"opcode": 3, "q_key": QKEY, "msn": 77, **fields})
    e = d.next_event()
    assert (e.kind, e.err, e.quoted, e.quoted_msn, e.quoted_qn) == ("BAD_MSG", err, True, 77, 0)
    assert e.source_port == d.sock.getsockname()[1]
    assert counter_value(name) == before + 1
    assert m.is_untouched()
    d.inject_datagram(b"good", opcode=3, q_key=QKEY)
    e = d.next_event()
    assert (e.kind, e.user_data, e.length) == ("RECV", 1, 4)


def test_a_ud_message_without_a_receive_is_dropped_and_the_next_one_is_received(
    layer_poller: RdmapPoller,
) -> None:
    d = layer_poller.create_dgram_endpoint(qkey=QKEY)
    m = layer_poller.register_new_memory(10)
    before = counter_value("drop_no_buffer")
    d.inject_datagram(b"lost", q_key=QKEY)
    wait_until(lambda: d.poll_event() or counter_value("drop_no_buffer") == before + 1)
    d.recvs.post(1, m.sge())
    d.inject_datagram(b"here", q_key=QKEY)
    assert d.next_event().length == 4
    assert m.octets()[:4] == b"here"


def test_a_ud_message_longer_than_its_receive_completes_the_receive_in_error(
    layer_poller: RdmapPoller,
) -> None:
    d = layer_poller.create_dgram_endpoint(qkey=QKEY)
    m = layer_poller.register_new_memory(3)
    d.recvs.post(1, m.sge())
    d.inject_datagram(b"long", q_key=QKEY)
    e = d.next_event()
    assert (e.kind, e.status, e.user_data, e.length) == ("BAD_RECV", -errno.EMSGSIZE, 1, 4)
    assert (e.err, e.quoted) == (TOO_LONG, True)
    assert m.is_untouched()


def test_a_receive_with_a_key_of_another_protection_domain_completes_in_error(
    layer_poller: RdmapPoller,
) -> None:
    d = layer_poller.create_dgram_endpoint(qkey=QKEY)
    m = layer_poller.register_new_memory(10, pd=PD + 1)
    d.recvs.post(1, m.sge())
    d.inject_datagram(b"abc", q_key=QKEY)
    e = d.next_event()
    assert (e.kind, e.status, e.user_data) == ("BAD_RECV", -errno.EACCES, 1)
    assert m.is_untouched()


def test_one_receive_call_processes_only_a_part_of_a_flood_of_invalid_datagrams(
    layer_poller: RdmapPoller,
) -> None:
    d = layer_poller.create_dgram_endpoint(qkey=QKEY)
    before = counter_value("drop_qkey")
    for _ in range(200):
        d.inject_datagram(b"x", q_key=QKEY + 1)
    time.sleep(0.05)
    assert d.poll_event() is None
    dropped = counter_value("drop_qkey") - before
    assert 0 < dropped < 200, "one call must process some datagrams and not all"
    wait_until(lambda: d.poll_event() or counter_value("drop_qkey") - before == 200)


def test_the_poller_returns_the_handler_of_a_socket_with_data(layer_poller: RdmapPoller) -> None:
    handler = ffi.cast("struct siw_io_handler *", 7)
    handle, llp = layer_poller.open_rdmap_dgram(handler=handler)
    addr = ffi.new("struct siw_addr *")
    check_result(lib.siw_llp_local_addr(llp, addr))
    other = layer_poller.create_dgram_endpoint()
    other.peer = addr
    handlers = ffi.new("struct siw_io_handler *[8]")
    event = ffi.new("struct siw_rdmap_event *")
    wait_until(
        lambda: (
            lib.siw_llp_poller_poll(layer_poller.poller, handlers, 8) == 0
            or not receive_one_event(handle, event)
        )
    )
    other.transmit([], qkey=0)
    n = wait_until(lambda: lib.siw_llp_poller_poll(layer_poller.poller, handlers, 8))
    assert handler in [handlers[i] for i in range(n)]


def receive_one_event(handle: object, event: object) -> int:
    """Receive one event; return 0 if none is left, after which the socket counts as idle."""
    return int(lib.siw_rdmap_dgram_recv(handle, event))


def test_a_ud_send_from_a_region_of_another_protection_domain_is_refused(
    layer_poller: RdmapPoller,
) -> None:
    d = layer_poller.create_dgram_endpoint()
    m = layer_poller.register_new_memory(10, pd=PD + 1)
    with pytest.raises(StreamError, match="EACCES"):
        d.transmit([m.sge()])


def test_network_interfaces_are_listed_and_an_event_ends_a_wait(layer_poller: RdmapPoller) -> None:
    found = ffi.new("struct siw_llp_interface[32]")
    n = check_result(lib.siw_llp_list_interfaces(found, 32))
    names = [ffi.string(found[i].name).decode() for i in range(n)]
    assert "lo" in names
    lo = found[names.index("lo")]
    assert bytes(lo.addrs[0].v4) == b"\x7f\0\0\1"
    fd = check_result(lib.siw_llp_event_fd_open())
    waitset = ffi.new("struct siw_llp_waitset *")
    lib.siw_llp_waitset_fill(layer_poller.poller, waitset)
    assert lib.siw_llp_wait(waitset, fd, 1000) == 0
    lib.siw_llp_event_fd_set(fd)
    assert lib.siw_llp_wait(waitset, fd, 10_000_000) == 1
    lib.siw_llp_event_fd_clear(fd)
    assert lib.siw_llp_wait(waitset, fd, 1000) == 0
    lib.siw_llp_event_fd_close(fd)


def test_a_wake_ends_a_wait_on_a_poller_which_can_be_armed_and_disarmed(
    layer_poller: RdmapPoller,
) -> None:
    d = layer_poller.create_dgram_endpoint()
    assert d.poll_event() is None
    assert not lib.siw_llp_poller_is_armed(layer_poller.poller)
    check_result(lib.siw_llp_poller_arm_for_sleep(layer_poller.poller))
    assert lib.siw_llp_poller_is_armed(layer_poller.poller)
    waitset = ffi.new("struct siw_llp_waitset *")
    lib.siw_llp_waitset_fill(layer_poller.poller, waitset)
    lib.siw_llp_poller_wake(layer_poller.poller)
    assert lib.siw_llp_wait(waitset, -1, 10_000_000) == 1
    lib.siw_llp_poller_disarm(layer_poller.poller)
    assert not lib.siw_llp_poller_is_armed(layer_poller.poller)
