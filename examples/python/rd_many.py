"""A hundred queue pairs increment one counter by FetchAdd, over reliable datagrams.

python rd_many.py                  prints its port, waits until all have counted
python rd_many.py 127.0.0.1 PORT   a hundred queue pairs, each of which adds one and reports it
"""

import sys
from contextlib import ExitStack

from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    AccessFlag,
    CompChannel,
    Context,
    QPInitAttr,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    WROpcode,
)

PEERS = 100
#: The Q_Key of both sides' queue pairs; messages with another Q_Key are dropped.
QKEY = 4711
ACCESS = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_ATOMIC


def serve_shared_counter(pd: PD, cq: CQ) -> None:
    with (
        MR(pd, bytearray(64), ACCESS) as mr,
        QP(pd, QPInitAttr(QPType.RD, scq=cq, qkey=QKEY)) as qp,
    ):
        qp.to_rts()
        qp.post_recv(RecvWR(0, sg=[mr.sge(32, 32)]))
        print(qp.qp_num, flush=True)  # the queue pair's UDP port
        (wc,) = cq.wait(timeout=30)
        # Send the address of the shared counter to the queue pair that sent the request.
        mr.write(mr.remote(0, 8).pack(), offset=8)
        with AH(pd, wc=wc.check()) as ah:
            qp.post_send(SendWR(sg=[mr.sge(8, 20)], ah=ah))
            cq.wait(timeout=30)
            qp.post_recv(RecvWR(0, sg=[mr.sge(32, 32)]))
            cq.wait(timeout=30)
        print(f"counted {int.from_bytes(mr.read(8), sys.byteorder)} queue pairs")


def increment_counter_from_each_qp(pd: PD, cq: CQ, server: tuple[str, int]) -> None:
    with ExitStack() as stack:
        ah = stack.enter_context(AH(pd, server))
        mr = stack.enter_context(MR(pd, bytearray(64)))
        init = QPInitAttr(QPType.RD, scq=cq, qkey=QKEY)
        qps = [stack.enter_context(QP(pd, init)) for _ in range(PEERS)]
        for qp in qps:
            qp.to_rts()
        qps[0].post_recv(RecvWR(0, sg=[mr.sge(0, 32)]))
        qps[0].post_send(SendWR(ah=ah, send_flags=0))
        (wc,) = cq.wait(timeout=30)
        word = RemoteBuffer.unpack(mr.read(wc.check().byte_len))
        for qp in qps:
            add = WROpcode.ATOMIC_FETCH_AND_ADD
            qp.post_send(SendWR(1, add, sg=[mr.sge(32, 8)], remote=word, ah=ah, compare_add=1))
        done = 0
        while done < PEERS:
            done += len([wc.check() for wc in cq.wait(timeout=30, num_entries=PEERS)])
        qps[0].post_send(SendWR(ah=ah))
        cq.wait(timeout=30)
        print(f"{done} queue pairs added one each")


def main() -> None:
    with (
        Context("127.0.0.1") as ctx,
        PD(ctx) as pd,
        CQ(ctx, 2 * PEERS, channel=CompChannel(ctx)) as cq,
    ):
        if len(sys.argv) == 3:
            increment_counter_from_each_qp(pd, cq, (sys.argv[1], int(sys.argv[2])))
        else:
            serve_shared_counter(pd, cq)


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit(__doc__)
    main()
