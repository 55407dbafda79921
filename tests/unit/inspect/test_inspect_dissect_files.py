"""Capture files: formats, damaged files, and octets that violate the protocols."""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.inspect.inspect_harness import (
    READ_RESPONSE,
    RECORDED,
    TCPConversation,
    add_startup_frames,
    make_read_request_fpdu,
    make_send_fpdu,
    make_tagged_fpdu,
    make_terminate_fpdu,
    make_ud_datagram,
    make_udp_packet,
    message_kinds,
    write_capture,
)

from siwarp.inspect import (
    Dissection,
    MPAReply,
    MPARequest,
    QuotedUntagged,
    examine,
)
from siwarp.inspect.capture import examine_packets
from siwarp.inspect.packets import packets_from_scapy


def write_sample_capture(path: Path) -> Path:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(
        0, make_send_fpdu(1, b"a" * 30) + make_read_request_fpdu(1, 7, 4)
    )
    link.add_data(
        1,
        make_tagged_fpdu(READ_RESPONSE, 7, 0, b"1234") + make_terminate_fpdu(QuotedUntagged(msn=1)),
    )
    link.packets += [
        make_udp_packet(make_ud_datagram(1, b"u")),
        make_udp_packet(make_ud_datagram(2, b"v"), ("::1", 5), ("::2", 6)),
    ]
    return write_capture(link.add_fins().packets, path)


@pytest.mark.parametrize("suffix", [".pcap", ".pcapng"])
def test_a_truncated_capture_file_is_dissected_up_to_the_truncation(
    tmp_path: Path, suffix: str
) -> None:
    file = write_sample_capture(tmp_path / f"x{suffix}")
    octets, whole = file.read_bytes(), examine(file)
    assert whole.damage is None
    sizes = set()
    for end in range(0, len(octets), 5):
        file.write_bytes(octets[:end])
        if end < (24 if suffix == ".pcap" else 28):
            with pytest.raises(ValueError, match=re.escape(str(file))):
                examine(file)
            continue
        found = examine(file)
        assert [m.kind for m in found.messages if m.transport == "ud"] == [
            m.kind for m in whole.messages if m.transport == "ud"
        ][: sum(m.transport == "ud" for m in found.messages)]
        sizes.add(len(found.messages))
        assert found.damage is None or "after frame" in found.damage
    assert len(sizes) > 5


def test_a_compressed_capture_is_read_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    file = write_sample_capture(tmp_path / "x.pcapng")
    whole, packed = examine(file), gzip.compress(file.read_bytes())
    file.write_bytes(packed)
    assert examine(file) == whole
    file.write_bytes(packed[:-20])
    assert "damaged" in str(examine(file).damage)


def test_captures_with_big_endian_headers_and_nanosecond_times_are_read(tmp_path: Path) -> None:
    link = add_startup_frames(TCPConversation().add_handshake()).add_data(
        0, make_send_fpdu(1, b"a" * 30)
    )
    swapped = bytearray(struct.pack(">IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 1))
    for n, packet in enumerate(link.packets):
        octets = bytes(packet)
        swapped += struct.pack(">IIII", 7, n * 250, len(octets), len(octets)) + octets
    (tmp_path / "x").write_bytes(swapped)
    found = examine(tmp_path / "x")
    assert message_kinds(found) == ["MPA_REQUEST", "MPA_REPLY", "SEND"]
    assert found.messages[-1].when_ns == 7_000_000_000 + 5 * 250


def mutated_octets(octets: bytes, changes: list[tuple[int, int, int]]) -> bytes:
    out = bytearray(octets)
    for where, kind, value in changes:
        at = where % len(out)
        if kind == 0:
            out[at] = value & 0xFF
        elif kind == 1:
            out[at : at + 4] = value.to_bytes(4, "little")
        elif kind == 2:
            out[at : at + 2] = (value & 0xFFFF).to_bytes(2, "big")
        elif kind == 3:
            del out[at : at + value % 64]
        else:
            out[at:at] = out[at : at + value % 64]
        if not out:
            break
    return bytes(out)


@pytest.fixture(scope="module")
def corpus_of_capture_files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("corpus")
    made = [write_sample_capture(folder / f"x{suffix}") for suffix in (".pcap", ".pcapng")]
    return [file.read_bytes() for file in [*made, *RECORDED]]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 4),
    changes=st.lists(
        st.tuples(
            st.integers(0, 1 << 16),
            st.integers(0, 4),
            st.one_of(
                st.sampled_from([0, 1, 0xFF, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF]),
                st.integers(0, (1 << 32) - 1),
            ),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_no_mutation_of_a_capture_file_raises_more_than_a_value_error(
    corpus_of_capture_files: list[bytes],
    tmp_path: Path,
    which: int,
    changes: list[tuple[int, int, int]],
) -> None:
    file = tmp_path / "hostile"
    file.write_bytes(mutated_octets(corpus_of_capture_files[which], changes))
    try:
        found = examine(file)
    except ValueError as e:
        assert str(file) in str(e)
        return
    check_dissection_invariants(found)


def check_dissection_invariants(found: Dissection) -> None:
    """Check the invariants of every dissection, regardless of the octets."""
    assert [m.number for m in found.messages] == list(range(1, len(found.messages) + 1))
    assert [s.number for s in found.streams] == list(range(1, len(found.streams) + 1))
    told = {s.number: 0 for s in found.streams}
    for m in found.messages:
        told[m.stream] += 1
        assert m.kind and m.length >= 0 and m.first_frame <= m.frame
        if m.answers is not None:
            assert found.messages[m.answers - 1].answered_by == m.number
    assert told == {s.number: sum(s.messages.values()) for s in found.streams}


@given(
    octets=st.binary(max_size=300),
    who=st.integers(0, 1),
    begin=st.sampled_from([b"", bytes(MPARequest()), bytes(MPAReply(m=1)), b"MPA ID Re"]),
)
def test_no_octets_on_a_connection_cause_an_exception_in_dissect(
    octets: bytes, who: int, begin: bytes
) -> None:
    link = (
        add_startup_frames(TCPConversation().add_handshake(), m=1)
        if not begin
        else TCPConversation().add_handshake()
    )
    link.add_data(who, begin + octets, [33])
    link.packets.append(make_udp_packet(octets))
    check_dissection_invariants(examine_packets(packets_from_scapy(link.packets)))
