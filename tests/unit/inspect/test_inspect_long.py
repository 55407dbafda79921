"""Long captures, in which dissect must not repeat a search for each message."""

from __future__ import annotations

import pytest
from scapy.packet import Raw
from unit.inspect.inspect_harness import (
    A,
    B,
    TCPConversation,
    add_startup_frames,
    make_read_request_fpdu,
    make_tagged_fpdu,
    make_udp_packet,
)

from siwarp.inspect import (
    DDPDatagram,
    Opcode,
    QuotedUntagged,
    Terminate,
    UDDatagram,
    capture,
)
from siwarp.inspect.messages import Message
from siwarp.inspect.packets import packets_from_scapy


def test_after_a_gap_the_search_for_the_request_of_a_response_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Count the comparisons, whose number could make a long capture with a gap take hours."""
    count, looks = 100, 0
    link = add_startup_frames(TCPConversation().add_handshake())
    for n in range(1, count + 1):
        link.add_data(0, make_read_request_fpdu(n, n, 4)).add_data(
            1, make_tagged_fpdu(Opcode.RDMA_READ_RESPONSE, n, 0, b"1234")
        )
    del link.packets[len(link.packets) // 2]
    fits = capture._response_fits_request

    def count_response_comparison(asked: Message, response: Message) -> bool:
        nonlocal looks
        looks += 1
        return fits(asked, response)

    monkeypatch.setattr(capture, "_response_fits_request", count_response_comparison)
    found = capture.examine_packets(packets_from_scapy(link.packets))
    # The sum contains 1 for the MPA Reply, which answers the MPA Request.
    assert sum(m.answers is not None for m in found.messages) == count
    assert looks < 4 * count


def test_each_error_message_is_attributed_to_the_last_message_with_its_sequence_number() -> None:
    octets = [bytes(UDDatagram(segment=DDPDatagram(msn=n, q_key=5) / Raw(b"x"))) for n in (1, 2)]
    errors = []
    for n in (1, 2):
        told = Terminate(
            layer=1, etype=2, code=5, m=1, d=1, ddp_seg_len=19, quoted_ddp=QuotedUntagged(msn=n)
        )
        head = DDPDatagram(opcode=7, qn=2, q_key=5)
        errors.append(make_udp_packet(bytes(UDDatagram(segment=head / told)), B, A))
    packets = [make_udp_packet(o) for o in [*octets, *octets]] + errors
    found = capture.examine_packets(packets_from_scapy(packets)).messages
    assert [m.about for m in found] == [None] * 4 + [3, 4]
