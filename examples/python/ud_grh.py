"""UD at every address of a device, with a GRH: the IP header precedes each received message.

python ud_grh.py                       prints its QPN, then the GRH of one message; answers it
python ud_grh.py 127.0.0.1 QPN         sends one to that queue pair, prints the answer
"""

import ipaddress
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


def grh_addresses(grh: bytes) -> tuple[str, str]:
    """Return source and destination of a GRH; its first octet distinguishes IPv4 and IPv6."""
    at, size = (8, 16) if grh[0] >> 4 == 6 else (32, 4)
    source, dest = grh[at : at + size], grh[at + size : at + 2 * size]
    return str(ipaddress.ip_address(source)), str(ipaddress.ip_address(dest))


def main() -> None:
    asks = len(sys.argv) == 3
    with (
        Context("127.0.0.1") as ctx,
        PD(ctx) as pd,
        CQ(ctx, channel=CompChannel(ctx)) as cq,
        MR(pd, bytearray(256)) as mr,
        QP(pd, QPInitAttr(QPType.UD, scq=cq, qkey=QKEY, grh=True, every_addr=True)) as qp,
    ):
        qp.to_rts()
        qp.post_recv(RecvWR(1, sg=[mr.sge(0, 40 + 64)]))

        def post_message(text: str, ah: AH, qpn: int) -> None:
            mr.write(text.encode(), offset=128)
            sge = mr.sge(128, len(text.encode()))
            qp.post_send(SendWR(sg=[sge], ah=ah, remote_qpn=qpn, send_flags=0))

        if asks:
            post_message("hello", AH(pd, (sys.argv[1], 0)), int(sys.argv[2]))
        else:
            print(qp.qp_num, flush=True)

        (wc,) = cq.wait(timeout=30)
        octets = mr.read(wc.check().byte_len)
        source, dest = grh_addresses(octets[:40])
        print(f"{octets[:40].hex()}\n{octets[40:].decode()!r} from {source} to {dest}")
        if not asks:
            # The answer is sent from the address at which the message arrived.
            post_message("hello yourself", AH(pd, wc=wc), wc.src_qp)


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit(__doc__)
    main()
