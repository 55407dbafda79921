"""For the tests of the number of free slots in a send queue."""

from __future__ import annotations

import errno

from harness.verbs_harness import Pair

from siwarp.verbs import SendFlag, SendWR

SIGNALED = SendFlag.SIGNALED
SILENT = SendFlag(0)


def post_sends_until_queue_full(pair: Pair, flags: SendFlag) -> int:
    """Post sends until the send queue is full; return the number of accepted posts."""
    n = 0
    while n < 1000:
        try:
            pair.a.post_send(SendWR(n, ah=pair.to_b, send_flags=flags))
        except OSError as e:
            assert e.errno == errno.ENOMEM
            return n
        n += 1
    raise AssertionError("1000 posts did not fill the send queue")
