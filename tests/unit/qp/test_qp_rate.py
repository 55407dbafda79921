"""The rate limit of UD when no thread polls; other tests are in tests/sim/uc/test_uc_rate.py."""

from __future__ import annotations

import socket
import time

from harness.verbs_harness import LIMIT, Rig

from siwarp.verbs import QPAttr, SendWR

SIZE, KBITS, MANY = 1000, 1000, 20
#: The rate limit allows a burst of 2 ms, and the test does not wait after the last datagram.
LEAST_S = (MANY - 1) * (SIZE + 22) * 8 / KBITS / 1000 - 0.002


def test_the_progress_thread_sends_messages_delayed_by_the_rate_limit(rig: Rig) -> None:
    out = rig.reg_mr(bytearray(SIZE))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, rig.create_ud_qp() as qp:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(LIMIT)
        qp.modify(QPAttr(rate_limit=KBITS))
        began = time.monotonic()
        qp.post_send([SendWR(1, sg=[out.sge()], ah=rig.create_ah(sock.getsockname()))] * MANY)
        for _ in range(MANY):  # the test makes no call into siwarp meanwhile
            assert len(sock.recv(2000)) == SIZE + 22
        assert time.monotonic() - began >= LEAST_S
