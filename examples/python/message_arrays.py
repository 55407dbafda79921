"""Messages in NumPy arrays: lists of requests and completions, over reliable datagrams.

python message_arrays.py                  prints its port, adds up the readings of one client
python message_arrays.py 127.0.0.1 PORT   sends 16,000 messages of 8 readings
"""

import sys
import time

import numpy as np
from numpy.typing import NDArray

from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    AccessFlag,
    Context,
    QPInitAttr,
    QPType,
    SendFlag,
    arrays,
)

MESSAGES, READINGS = 16_000, 8
#: Number of messages per list, and of receives that the server keeps posted.
LIST, RECEIVES = 32, 128
#: The Q_Key of both sides' queue pairs; messages with another Q_Key are dropped.
QKEY = 4711


def poll_until_some_complete(cq: CQ, wcs: NDArray[np.void]) -> NDArray[np.void]:
    end = time.monotonic() + 30
    while not (n := cq.poll_array(wcs)):
        if time.monotonic() > end:
            sys.exit("nothing completed within 30 s")
    done = wcs[:n]
    if done["status"].any():
        sys.exit(f"a request failed with status {done['status'].max()}")
    return done


def receive_and_add_readings(pd: PD, cq: CQ) -> None:
    slots = np.zeros((RECEIVES, READINGS))
    size = slots[0].nbytes
    init = QPInitAttr(QPType.RD, scq=cq, qkey=QKEY)
    with MR(pd, slots) as mr, QP(pd, init) as qp:
        recvs = arrays.recv_array(RECEIVES)
        recvs["wr_id"] = np.arange(RECEIVES)
        recvs["addr"] = mr.iova + size * recvs["wr_id"]
        recvs["length"], recvs["lkey"] = size, mr.lkey
        qp.to_rts()
        qp.post_recv_array(recvs)
        print(qp.qp_num, flush=True)  # the queue pair's UDP port
        wcs = arrays.wc_array(RECEIVES)
        total, left = 0.0, MESSAGES
        while left:
            arrived = poll_until_some_complete(cq, wcs)["wr_id"]
            total += slots[arrived].sum()
            qp.post_recv_array(recvs[arrived])
            left -= len(arrived)
    print(f"sum of {MESSAGES * READINGS:,} readings: {total:,.0f}")


def send_readings(pd: PD, cq: CQ, server: tuple[str, int]) -> None:
    readings = np.zeros((LIST, READINGS))
    size = readings[0].nbytes
    init = QPInitAttr(QPType.RD, scq=cq, qkey=QKEY)
    with MR(pd, readings, AccessFlag(0)) as mr, QP(pd, init) as qp, AH(pd, server) as ah:
        qp.to_rts()
        peers = arrays.AHList([ah])  # the field "ah" of a request is an index of this list
        sends = arrays.send_array(LIST)
        sends["addr"] = mr.iova + size * np.arange(LIST, dtype=np.uint64)
        sends["length"], sends["lkey"] = size, mr.lkey
        sends["send_flags"] = 0
        sends["send_flags"][-1] = SendFlag.SIGNALED  # one completion for the list
        wcs = arrays.wc_array(1)
        for first in range(0, MESSAGES, LIST):
            readings[:] = np.arange(first, first + LIST)[:, np.newaxis]
            qp.post_send_array(sends, peers)
            poll_until_some_complete(cq, wcs)  # the memory can be used again
    print(f"sent {MESSAGES:,} messages")


def main() -> None:
    with Context("127.0.0.1") as ctx, PD(ctx) as pd, CQ(ctx, 2 * RECEIVES) as cq:
        if len(sys.argv) == 3:
            send_readings(pd, cq, (sys.argv[1], int(sys.argv[2])))
        else:
            receive_and_add_readings(pd, cq)


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit(__doc__)
    main()
