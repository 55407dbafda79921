"""Error messages on datagrams: how siwarp builds them, and parses them with any content."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from hypothesis import example, given
from hypothesis import strategies as st
from scapy.packet import Raw
from unit.rdmap.rdmap_harness import (
    Dgram,
    RdmapPoller,
    UDDatagram,
    check_result,
    counter_value,
    open_rdmap_poller,
)

from siwarp.inspect import DDPDatagram, QuotedTagged, QuotedUntagged, Terminate

QKEY = 0x22
LONGEST = 4 + 2 + 18 + 28  # octets of RFC 5040's longest Terminate


def build_terminate_body(quoted: Any, **fields: int) -> bytes:
    return bytes(Terminate(**{"m": 1, "d": 1, **fields}, quoted_ddp=quoted))


def inject_error_message(d: Dgram, octets: bytes) -> Any:
    """Send an error message with these octets; return its event, or None if it is malformed."""
    event = ffi.new("struct siw_rdmap_event *")
    before = counter_value("err_malformed")
    d.inject_datagram(octets, opcode=7, qn=2, q_key=QKEY)
    while not lib.siw_rdmap_dgram_recv(d.handle, event):
        if counter_value("err_malformed") == before + 1:
            return None
    assert event.kind == lib.SIW_RDMAP_PEER_ERR
    return event


def is_complete_terminate(octets: bytes) -> bool:
    """Return whether octets are a complete Terminate with segment length and quoted DDP header."""
    if not 6 < len(octets) <= LONGEST or octets[2] & 0xC0 != 0xC0:
        return False
    return len(octets) >= 6 + (14 if octets[6] & 0x80 else 18)


@pytest.mark.clause("DGRAM-ERR-12")
@given(
    st.one_of(
        st.binary(max_size=80),
        st.builds(
            lambda bits, rest: b"\x12\x05" + bytes([bits]) + rest,
            st.integers(0, 255),
            st.binary(max_size=60),
        ),
    )
)
@example(b"\x12\x05\xe0" + bytes(22))  # a Read Request's header is announced, but truncated
def test_any_octets_are_parsed_as_an_error_message_or_dropped(octets: bytes) -> None:
    with open_rdmap_poller() as layer_poller:
        d = layer_poller.create_dgram_endpoint(qkey=QKEY)
        event = inject_error_message(d, octets)
        assert (event is not None) == is_complete_terminate(octets)
        if event is None:
            return
        scapy = Terminate(octets)
        head = scapy.quoted_ddp
        assert (event.err.layer, event.err.type, event.err.code) == (
            scapy.layer,
            scapy.etype,
            scapy.code,
        )
        size = len(bytes(head))
        assert bytes(event.quoted_head)[: event.quoted_head_len] == octets[6 : 6 + size]
        assert (event.quoted_head_len, event.quoted_seg_len) == (size, scapy.ddp_seg_len)
        assert event.quoted_tagged == isinstance(head, QuotedTagged)
        if isinstance(head, QuotedUntagged):
            assert (event.quoted_msn, event.quoted_qn) == (head.msn, head.qn)


@pytest.mark.clause("DGRAM-ERR-12")
def test_every_truncated_and_every_too_long_error_message_is_dropped(
    layer_poller: RdmapPoller,
) -> None:
    d = layer_poller.create_dgram_endpoint(qkey=QKEY)
    whole = build_terminate_body(QuotedUntagged(msn=7), layer=1, etype=2, code=5, ddp_seg_len=30)
    assert inject_error_message(d, whole).quoted_msn == 7
    for n in range(len(whole)):
        assert inject_error_message(d, whole[:n]) is None, n
    assert inject_error_message(d, whole + bytes(LONGEST - len(whole))) is not None
    assert inject_error_message(d, whole + bytes(LONGEST - len(whole) + 1)) is None


def user_data_of_reported_message(d: Dgram, event: Any) -> int | None:
    user_data = ffi.new("uint64_t *")
    return (
        int(user_data[0])
        if lib.siw_rdmap_dgram_match_error_to_sent(d.handle, event, user_data)
        else None
    )


@pytest.mark.clause("DGRAM-ERR-9", "DGRAM-ERR-10")
@pytest.mark.parametrize("before", [0, 1, 255, 256, 257, 1000])
def test_only_the_last_256_messages_are_found_by_their_msn_and_each_only_once(
    layer_poller: RdmapPoller, before: int
) -> None:
    d = layer_poller.create_dgram_endpoint()
    for i in range(before):
        d.transmit([], qkey=QKEY, user_data=10_000 + i)
        d.sock.recv(100)
    window = range(max(1, before - 255), before + 1)
    for msn in {0, 1, before - 256, before - 255, before, before + 1, 2**32 - 1}:
        event = inject_error_message(
            d, build_terminate_body(QuotedUntagged(msn=msn % 2**32, inv_stag=QKEY))
        )
        assert user_data_of_reported_message(d, event) == (
            9_999 + msn if msn in window else None
        ), msn
        assert user_data_of_reported_message(d, event) is None, "a message was found twice"


@pytest.mark.clause("DGRAM-ERR-1", "DGRAM-ERR-5")
@given(
    host=st.sampled_from(["127.0.0.1", "127.0.0.2", "::1", "ff02::1", "224.0.0.1", "0.0.0.0"]),
    port=st.integers(0, 65535),
    layer=st.integers(0, 1),
    etype=st.integers(1, 15),
    code=st.integers(0, 255),
    seg_len=st.integers(18, 65503),
    head=st.binary(min_size=18, max_size=18).map(lambda b: bytes([b[0] & 0x7F]) + b[1:]),
    qn=st.integers(0, 2**32 - 1),
    qkey=st.integers(0, 2**32 - 1),
)
def test_an_error_message_quotes_the_header_and_is_never_sent_to_a_group(
    host: str, port: int, layer: int, etype: int, code: int, seg_len: int, head: bytes, qn: int,
    qkey: int,
) -> None:  # fmt: skip
    with open_rdmap_poller() as layer_poller:
        d = layer_poller.create_dgram_endpoint(qkey=QKEY)
        port = d.sock.getsockname()[1] if host == "127.0.0.1" and port else port
        event = ffi.new("struct siw_rdmap_event *", {"ulp_word": qkey, "quoted_qn": qn})
        check_result(lib.siw_addr_parse(host.encode(), port, ffi.addressof(event, "source")))
        event.err.layer, event.err.type, event.err.code = layer, etype, code
        event.quoted_head_len, event.quoted_seg_len = 18, seg_len
        ffi.memmove(event.quoted_head, head, 18)
        rc = lib.siw_rdmap_dgram_send_error(d.handle, event)
        if host[0] in "f2" or host == "0.0.0.0" or port == 0:
            assert rc == -errno.EPERM
            return
        if host != "127.0.0.1":
            assert rc != -errno.EPERM
            return
        assert rc == 0
        got = d.sock.recv(1 << 16)
        want = DDPDatagram(
            opcode=7,
            q_key=qkey,
            qn=2 | (qn >> 16 & 0xFF) << 8 | (qn >> 8 & 0xFF) << 16,
            msn=1,
        ) / Raw(
            bytes([layer << 4 | etype, code, 0xC0, 0]) + seg_len.to_bytes(2, "big") + head
        )  # fmt: skip
        assert got == bytes(UDDatagram(segment=want))


def test_an_error_message_is_sent_over_ipv6_to_the_source_of_the_invalid_message(
    layer_poller: RdmapPoller,
) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        s.bind(("::1", 0))
        s.settimeout(10)
        handle, _ = layer_poller.open_rdmap_dgram(host="::1")
        event = ffi.new("struct siw_rdmap_event *")
        port = s.getsockname()[1]
        check_result(lib.siw_addr_parse(b"::1", port, ffi.addressof(event, "source")))
        event.err.layer, event.err.type, event.err.code = 1, 2, 4
        event.quoted_head_len = 18
        assert lib.siw_rdmap_dgram_send_error(handle, event) == 0
        assert len(s.recv(100)) == 46
