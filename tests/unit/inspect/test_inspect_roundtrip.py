"""Round trips: fields are built and dissected again; octets are dissected and built again."""

from __future__ import annotations

from typing import Any

import crcmod.predefined
from hypothesis import given
from hypothesis import strategies as st
from scapy.packet import Packet, Raw

from siwarp.inspect import (
    DDP,
    FPDU,
    DDPDatagram,
    DDPTagged,
    DDPUntagged,
    MPAReply,
    MPARequest,
    MPAStartup,
    Opcode,
    QuotedReadRequest,
    QuotedTagged,
    QuotedUntagged,
    ReadRequest,
    Terminate,
    UDDatagram,
    ud_qn,
)

crc32c_oracle = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


def n_bit_integer_strategy(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << count) - 1)


payloads = st.binary(max_size=200)
SENDS = [Opcode.SEND, Opcode.SEND_INVALIDATE, Opcode.SEND_SE, Opcode.SEND_SE_INVALIDATE]
TAGGED = [Opcode.RDMA_WRITE, Opcode.RDMA_READ_RESPONSE]
control = {
    "l": n_bit_integer_strategy(1),
    "ddp_rsvd": n_bit_integer_strategy(4),
    "dv": n_bit_integer_strategy(2),
    "rv": n_bit_integer_strategy(2),
    "rdmap_rsvd": n_bit_integer_strategy(2),
}
counters = {
    "qn": n_bit_integer_strategy(32),
    "msn": n_bit_integer_strategy(32),
    "mo": n_bit_integer_strategy(32),
}
tagged_fields = st.fixed_dictionaries(
    {
        **control,
        "opcode": st.sampled_from(TAGGED),
        "stag": n_bit_integer_strategy(32),
        "to": n_bit_integer_strategy(64),
    }
)
untagged_fields = st.fixed_dictionaries(
    {
        **control,
        **counters,
        "opcode": st.sampled_from(SENDS),
        "inv_stag": n_bit_integer_strategy(32),
    }
)
datagram_fields = st.fixed_dictionaries(
    {**control, **counters, "opcode": st.sampled_from(SENDS), "q_key": n_bit_integer_strategy(32)}
)
read_request_fields = st.fixed_dictionaries(
    {
        "sink_stag": n_bit_integer_strategy(32),
        "sink_to": n_bit_integer_strategy(64),
        "size": n_bit_integer_strategy(32),
        "src_stag": n_bit_integer_strategy(32),
        "src_to": n_bit_integer_strategy(64),
    }
)
startup_fields = st.fixed_dictionaries(
    {
        "m": n_bit_integer_strategy(1),
        "c": n_bit_integer_strategy(1),
        "r": n_bit_integer_strategy(1),
        "res": n_bit_integer_strategy(4),
        "private_data": st.binary(max_size=508),
    }
)
enhanced_fields = st.fixed_dictionaries(
    {
        "a": n_bit_integer_strategy(1),
        "b": n_bit_integer_strategy(1),
        "ird": n_bit_integer_strategy(14),
        "c_rtr": n_bit_integer_strategy(1),
        "d_rtr": n_bit_integer_strategy(1),
        "ord": n_bit_integer_strategy(14),
    }
)


def field_values(packet: Packet, names: dict[str, Any]) -> dict[str, Any]:
    return {name: packet.getfieldval(name) for name in names}


def raw_payload(packet: Packet) -> bytes:
    return packet[Raw].load if Raw in packet else b""


@given(fields=tagged_fields, payload=payloads)
def test_tagged_segments_are_parsed_to_the_fields_they_were_built_from(
    fields: dict[str, Any], payload: bytes
) -> None:
    octets = bytes(DDPTagged(**fields) / Raw(payload))
    seen = DDP(octets)
    assert type(seen) is DDPTagged
    assert len(octets) == 14 + len(payload)
    assert (field_values(seen, fields), raw_payload(seen)) == (fields, payload)


@given(fields=untagged_fields, payload=payloads)
def test_untagged_segments_are_parsed_to_the_fields_they_were_built_from(
    fields: dict[str, Any], payload: bytes
) -> None:
    octets = bytes(DDPUntagged(**fields) / Raw(payload))
    seen = DDP(octets)
    assert type(seen) is DDPUntagged
    assert len(octets) == 18 + len(payload)
    assert (field_values(seen, fields), raw_payload(seen)) == (fields, payload)


@given(fields=read_request_fields, msn=n_bit_integer_strategy(32))
def test_read_requests_are_parsed_to_the_fields_they_were_built_from(
    fields: dict[str, Any], msn: int
) -> None:
    octets = bytes(DDPUntagged(msn=msn) / ReadRequest(**fields))
    seen = DDP(octets)
    assert len(octets) == 18 + 28
    assert (seen.opcode, seen.qn, seen.msn) == (Opcode.RDMA_READ_REQUEST, 1, msn)
    assert field_values(seen[ReadRequest], fields) == fields


@given(
    error=st.fixed_dictionaries(
        {
            "layer": n_bit_integer_strategy(4),
            "etype": n_bit_integer_strategy(4),
            "code": n_bit_integer_strategy(8),
        }
    ),
    length=st.none() | n_bit_integer_strategy(16),
    ddp=st.none() | tagged_fields | untagged_fields,
    rdma=st.none() | read_request_fields,
)
def test_terminates_are_parsed_to_the_headers_that_they_quote(
    error: dict[str, Any],
    length: int | None,
    ddp: dict[str, Any] | None,
    rdma: dict[str, Any] | None,
) -> None:
    quoted: dict[str, Any] = {"m": int(length is not None), "d": int(ddp is not None)}
    quoted["r"] = int(rdma is not None)
    if length is not None or ddp is not None:
        quoted["ddp_seg_len"] = length or 0
    if ddp is not None:
        quoted["quoted_ddp"] = (QuotedTagged if "stag" in ddp else QuotedUntagged)(**ddp)
    if rdma is not None:
        quoted["quoted_rdma"] = QuotedReadRequest(**rdma)
    octets = bytes(DDPUntagged() / Terminate(**error, **quoted))
    seen = DDP(octets)[Terminate]
    assert field_values(seen, error) == error
    assert field_values(seen, {"m": 0, "d": 0, "r": 0}) == {k: quoted[k] for k in "mdr"}
    if "ddp_seg_len" in quoted:
        assert seen.ddp_seg_len == quoted["ddp_seg_len"]
    if ddp is not None:
        assert field_values(seen.quoted_ddp, ddp) == ddp
    if rdma is not None:
        assert field_values(seen.quoted_rdma, rdma) == rdma
    expected = 4 + (2 if length is not None or ddp is not None else 0)
    expected += 0 if ddp is None else 14 if "stag" in ddp else 18
    assert len(octets) == 18 + expected + (28 if rdma is not None else 0)


@given(
    fields=startup_fields,
    rev=n_bit_integer_strategy(1),
    cls=st.sampled_from([MPARequest, MPAReply]),
)
def test_revision_0_and_1_start_up_frames_are_parsed_to_the_fields_they_were_built_from(
    fields: dict[str, Any], rev: int, cls: type[MPAStartup]
) -> None:
    octets = bytes(cls(**fields, rev=rev))
    seen = MPAStartup(octets)
    assert type(seen) is cls
    assert (field_values(seen, fields), seen.rev) == (fields, rev)
    assert seen.pd_length == len(octets) - 20 == len(fields["private_data"])


@given(fields=startup_fields, enhanced=enhanced_fields, cls=st.sampled_from([MPARequest, MPAReply]))
def test_revision_2_start_up_frames_are_parsed_to_the_fields_they_were_built_from(
    fields: dict[str, Any], enhanced: dict[str, Any], cls: type[MPAStartup]
) -> None:
    octets = bytes(cls(**fields, **enhanced, s=1, rev=2))
    seen = MPAStartup(octets)
    assert type(seen) is cls
    assert field_values(seen, fields) == fields
    assert field_values(seen, enhanced) == enhanced
    assert seen.pd_length == len(octets) - 20 == len(fields["private_data"]) + 4


@given(fields=untagged_fields | tagged_fields, payload=payloads)
def test_fpdus_are_built_with_padding_and_the_crc_of_an_independent_implementation(
    fields: dict[str, Any], payload: bytes
) -> None:
    segment = (DDPTagged if "stag" in fields else DDPUntagged)(**fields) / Raw(payload)
    octets = bytes(FPDU(ulpdu=segment))
    seen = FPDU(octets)
    assert len(octets) % 4 == 0
    assert seen.ulpdu_length == len(bytes(segment))
    assert 0 <= len(seen.pad) <= 3
    assert field_values(seen.ulpdu, fields) == fields
    assert raw_payload(seen.ulpdu) == payload
    assert octets[-4:] == crc32c_oracle(octets[:-4]).to_bytes(4, "little")
    assert seen.crc == seen.crc_expected()


@given(length=n_bit_integer_strategy(16), crc=n_bit_integer_strategy(32), pad=st.binary(max_size=3))
def test_an_explicit_fpdu_length_padding_or_crc_is_not_corrected(
    length: int, crc: int, pad: bytes
) -> None:
    octets = bytes(FPDU(ulpdu_length=length, ulpdu=DDPTagged(), pad=pad, crc=crc))
    assert octets[:2] == length.to_bytes(2, "big")
    assert octets[2:] == bytes(DDPTagged()) + pad + crc.to_bytes(4, "little")


@given(fields=datagram_fields, payload=payloads)
def test_ud_datagrams_are_built_with_the_crc_of_an_independent_implementation(
    fields: dict[str, Any], payload: bytes
) -> None:
    octets = bytes(UDDatagram(segment=DDPDatagram(**fields) / Raw(payload)))
    seen = UDDatagram(octets)
    assert len(octets) == 18 + len(payload) + 4
    assert field_values(seen.segment, fields) == fields
    assert raw_payload(seen.segment) == payload
    assert octets[-4:] == crc32c_oracle(octets[:-4]).to_bytes(4, "little")
    assert seen.crc == seen.crc_expected()


@given(
    queue=n_bit_integer_strategy(2),
    dest=n_bit_integer_strategy(8),
    source=n_bit_integer_strategy(8),
)
def test_queue_and_indexes_are_parsed_from_a_ud_queue_number(
    queue: int, dest: int, source: int
) -> None:
    header = DDPDatagram(bytes(DDPDatagram(qn=ud_qn(queue, dest, source))))
    assert (header.queue, header.dest_index, header.source_index) == (queue, dest, source)


@given(octets=st.binary(min_size=6, max_size=120))
def test_any_octets_dissected_as_an_fpdu_are_rebuilt_unchanged(octets: bytes) -> None:
    length = int.from_bytes(octets[:2], "big") % (len(octets) - 5)
    pad = -(2 + length) % 4
    whole = length.to_bytes(2, "big") + octets[2 : 2 + length] + bytes(pad) + octets[-4:]
    seen = FPDU(whole)
    assert seen.ulpdu_length == length
    seen.clear_cache()
    assert bytes(seen) == whole


@given(octets=st.binary(max_size=120))
def test_any_octets_are_dissected_as_a_ud_datagram_without_an_exception(octets: bytes) -> None:
    assert bytes(UDDatagram(octets)) == octets


@given(octets=st.binary(max_size=60))
def test_a_terminate_of_any_length_keeps_its_octets(octets: bytes) -> None:
    header = bytes(DDPUntagged(opcode=Opcode.TERMINATE, qn=2))
    assert bytes(DDP(header + octets)) == header + octets
