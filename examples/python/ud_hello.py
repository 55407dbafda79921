"""Datagrams between two processes through UD queue pairs and address handles.

python ud_hello.py                  prints its port, answers one message
python ud_hello.py 127.0.0.1 PORT   sends one, prints the answer
"""

import sys

from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    CompChannel,
    Context,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
)

#: The Q_Key of both sides' queue pairs; messages with another Q_Key are dropped.
QKEY = 4711


def main() -> None:
    with (
        Context("127.0.0.1") as ctx,
        PD(ctx) as pd,
        CQ(ctx, channel=CompChannel(ctx)) as cq,
        MR(pd, bytearray(256)) as mr,
        QP(pd, QPInitAttr(QPType.UD, scq=cq, qkey=QKEY)) as qp,
    ):
        qp.to_rts()
        qp.post_recv(RecvWR(1, sg=[mr.sge(128, 128)]))

        def post_message(text: str, ah: AH) -> None:
            mr.write(text.encode())
            # The send is unsignaled, so only received messages cause completions.
            qp.post_send(SendWR(sg=[mr.sge(0, len(text.encode()))], ah=ah, send_flags=0))

        if len(sys.argv) == 3:
            post_message("hello", AH(pd, (sys.argv[1], int(sys.argv[2]))))
        else:
            print(qp.qp_num, flush=True)  # the QPN of a UD queue pair is its UDP port

        (wc,) = cq.wait(timeout=30)
        text = mr.read(wc.check().byte_len, 128).decode()
        print(f"{text!r} from {wc.source}")
        if len(sys.argv) != 3:
            post_message(f"{text} yourself", AH(pd, wc=wc))  # answer to the sender's queue pair


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit(__doc__)
    main()
