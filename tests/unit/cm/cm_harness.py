"""Functions shared by the tests of the connection manager."""

from __future__ import annotations

from harness.rc_harness import (
    READ,
    SEND,
    WRITE,
    End,
)
from harness.verbs_harness import octet_pattern, poll


def assert_transfers_work_both_ways(a: End, b: End, size: int = 300) -> None:
    """Assert that Sends, Writes and Reads work in both directions, first those of ``a``."""
    for one, other in ((a, b), (b, a)):
        one.mem.write(octet_pattern(size, 9))
        other.mem.view[:size] = bytes(size)
        other.post_receive(wr_id=1, length=size)
        one.post(SEND, 2, length=size)
        assert poll(other.rcq)[0].byte_len == size
        assert other.mem.read(size) == octet_pattern(size, 9)
        one.post(WRITE, 3, length=size, remote=other.mem.remote(1000, size))
        one.post(READ, 4, offset=2000, length=size, remote=other.mem.remote(1000, size))
        assert [w.wr_id for w in poll(one.scq, 3) if w.ok] == [2, 3, 4]
        assert one.mem.read(size, 2000) == octet_pattern(size, 9)


GARBAGE = [
    b"HTTP/1.0 400 Bad Request\r\n\r\n",
    bytes(64),
    b"MPA ID Req Frame" + bytes(4),
    b"x" * 20,
]
