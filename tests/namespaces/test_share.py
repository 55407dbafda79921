"""Several UD queue pairs that share one full socket: the link is slower than the senders."""

from __future__ import annotations

import pytest
from namespaces.ns_harness import Namespace, wait_for_json_output

#: Program: each sender posts all its messages to its send queue. Prints the progress of all senders
#: when the first sender has finished. On a busy machine the first sender may be far ahead before
#: the last sender has posted; then all senders start again.
SENDERS = """
import json, sys, time
from siwarp.verbs import *
own, other, n, each = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with Context(own) as ctx, PD(ctx) as pd, MR(pd, bytearray(1000)) as mr:
    cqs = [CQ(ctx, 512) for _ in range(n)]
    cap = QPCap(max_send_wr=each, max_recv_wr=1)
    first = QP(pd, QPInitAttr(scq=cqs[0], cap=cap, addr=(own, 0)))
    qps = [first] + [QP(pd, QPInitAttr(scq=cq, cap=cap, shared_socket_qp=first)) for cq in cqs[1:]]
    ah = AH(pd, (other, 9))
    for qp in qps:
        qp.to_rts(QPAttr(qkey=7))
    requests = [SendWR(k, sg=[mr.sge()], ah=ah) for k in range(each)]
    end = time.monotonic() + 25
    for _ in range(20):
        for qp in qps:
            qp.post_send(requests)
        head = done = [len(cq.poll(each)) for cq in cqs]
        at_first = None
        while sum(done) < n * each:
            assert time.monotonic() < end, done
            done = [d + len(cq.poll(64)) for d, cq in zip(done, cqs)]
            if at_first is None and max(done) == each:
                at_first = done
        if max(head) <= each // 4:
            break
    else:
        raise AssertionError("never did all begin together")
    print(json.dumps(at_first))
"""


@pytest.mark.clause("DGRAM-SHARE-9")
def test_queue_pairs_that_share_a_full_socket_transmit_at_similar_rates(
    cabled_namespaces: tuple[Namespace, Namespace],
) -> None:
    a, b = cabled_namespaces
    slow = ["tbf", "rate", "20mbit", "burst", "5000", "limit", "1000000"]
    a.run("tc", "qdisc", "add", "dev", a.link, "root", *slow)
    try:
        found = wait_for_json_output(
            a.start_python(SENDERS, a.v4, b.v4, "4", "256", SIWARP_SNDBUF="16384")
        )
    finally:
        a.run("tc", "qdisc", "del", "dev", a.link, "root")
    # The first sender has finished, and every other sender has completed at least half of its
    # messages.
    assert max(found) == 256
    assert min(found) >= 128, found
