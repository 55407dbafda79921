"""Two connected queue pairs without a connection manager, by entering the peer's address and QPN.

python rc_by_qpn.py 127.0.0.1      in two terminals: enter the line that the other one prints
"""

import sys

from siwarp.verbs import (
    CQ,
    MR,
    PD,
    QP,
    AHAttr,
    CompChannel,
    Context,
    QPAttr,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
)


def exchange_greetings(host: str, context: Context) -> None:
    pd = PD(context)
    cq = CQ(context, 16, channel=CompChannel(context))
    qp = QP(pd, QPInitAttr(QPType.RC, scq=cq, by_qpn=True))
    into, out = MR(pd, 64), MR(pd, bytearray(f"hello from QPN {qp.qp_num}".encode()))
    qp.to_init()
    qp.post_recv(RecvWR(1, sg=[into.sge()]))
    print(host, qp.qp_num, flush=True)

    said = sys.stdin.readline().split()
    if len(said) != 2 or not said[1].isdigit():
        sys.exit("enter the line that the other process printed: its address and QPN")
    peer, number = said
    # Either side may start first: posted requests wait for the other side, here for 8 x 4.3 s.
    where = AHAttr(peer, source=host)
    qp.to_rts(QPAttr(ah_attr=where, dest_qp_num=int(number), timeout=20, retry_cnt=7))
    qp.post_send(SendWR(2, sg=[out.sge()]))
    done: dict[int, int] = {}
    while len(done) < 2:
        for wc in cq.wait(60, 2):
            wc.check()
            done[wc.wr_id] = wc.byte_len
    print("the peer says:", into.read(done[1]).decode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with Context(sys.argv[1]) as context:
        exchange_greetings(sys.argv[1], context)
