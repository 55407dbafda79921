"""Parsing of captures with struct, compared with the scapy layers on the same octets."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pace
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siwarp.inspect import (
    MPAReply,
    MPARequest,
    MPAStartup,
    QuotedUntagged,
    Terminate,
    examine,
)
from siwarp.inspect.messages import parse_header
from siwarp.inspect.rd import RDDatagram, RDType
from siwarp.inspect.wire import parse_mpa_startup, parse_rd_header, parse_terminate


@given(st.booleans(), st.binary(min_size=2, max_size=2), st.binary(max_size=12))
def test_parse_startup_returns_the_same_fields_as_the_scapy_layer(
    asks: bool, head: bytes, data: bytes
) -> None:
    key = bytes(MPARequest() if asks else MPAReply())[:16]
    octets = key + head + len(data).to_bytes(2, "big") + data
    ours, theirs = parse_mpa_startup(octets), MPAStartup(octets)
    assert ours.asks is isinstance(theirs, MPARequest)
    for name in ("m", "c", "r", "s", "rev"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.private_data == theirs.private_data
    enhanced = theirs.s and theirs.rev >= 2 and theirs.pd_length >= 4
    names = ("ird", "ord", "a", "b", "c_rtr", "d_rtr") if enhanced else ()
    assert ours.enhanced == {name: getattr(theirs, name) for name in names}


@given(st.sampled_from(list(RDType)), st.binary(min_size=35, max_size=35), st.binary(max_size=40))
def test_parse_rd_returns_the_same_fields_as_the_scapy_layer(
    kind: RDType, head: bytes, body: bytes
) -> None:
    octets = bytes([kind << 4]) + head + body + bytes(4)
    ours, theirs = parse_rd_header(octets), RDDatagram(octets)
    beyond = ours.pop("beyond", None)
    assert {name: int(getattr(theirs, name)) for name in ours} == ours
    assert beyond == (len(theirs.received()) if kind == RDType.ACK else None)


@given(st.binary(max_size=40))
def test_parse_terminate_returns_the_same_fields_as_the_scapy_layer(octets: bytes) -> None:
    ours = parse_terminate(octets)
    try:
        theirs = Terminate(octets)
    except (struct.error, ValueError, IndexError):
        assert ours is None
        return
    if len(octets) < 4:
        assert ours is None
        return
    assert ours is not None
    assert (ours.layer, ours.etype, ours.code) == (theirs.layer, theirs.etype, theirs.code)
    if not theirs.d:
        assert ours.quoted is None
        return
    header = parse_header(ours.quoted or b"")
    assert header is not None
    if isinstance(theirs.quoted_ddp, QuotedUntagged):
        assert (header.b, header.msn) == (theirs.quoted_ddp.qn, theirs.quoted_ddp.msn)
    else:
        assert (header.a, header.b) == (theirs.quoted_ddp.stag, theirs.quoted_ddp.to)


@pytest.mark.parametrize("length", range(6))
def test_parse_terminate_returns_none_for_a_truncated_terminate(length: int) -> None:
    assert parse_terminate(b"\x00\x00\x80\x00\x00"[:length]) is None


def test_reading_a_capture_does_not_import_scapy_but_using_a_layer_does() -> None:
    code = (
        "import sys; from siwarp.inspect import examine, dissect, Opcode\n"
        "assert 'scapy' not in sys.modules\n"
        "from siwarp.inspect import DDPUntagged\n"
        "segment = DDPUntagged(bytes([0x41, 0x47]) + bytes(16) + b'\\x01\\x02\\x00\\x00')\n"
        "assert segment.payload.name == 'RDMAP Terminate', segment.payload.name"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_captures_are_read_identically_without_scapy(root: Path) -> None:
    files = [str(file) for file in sorted((root / "tests/captures").glob("*.pcap*"))]
    assert files
    code = (
        "import json, sys; sys.modules['scapy'] = None\n"
        "from dataclasses import asdict\n"
        "from siwarp.inspect import examine\n"
        "print(json.dumps([[asdict(m) for m in examine(f).messages] for f in sys.argv[1:]]))"
    )
    done = pace.run_command(
        [sys.executable, "-c", code, *files], capture_output=True, text=True, seconds=60
    )
    assert done.returncode == 0, done.stderr
    here = [[asdict(m) for m in examine(Path(file)).messages] for file in files]
    assert json.loads(done.stdout) == json.loads(json.dumps(here))
