"""The program under test: transfers data by one-sided Writes, and sends requests by datagrams."""

from __future__ import annotations

import threading

from siwarp.verbs import AH, CQ, MR, QP, RecvWR, RemoteBuffer, SendWR, WROpcode

ASK, ANSWER = 1, 2


def write_region_to_peer(qp: QP, cq: CQ, mr: MR, remote: RemoteBuffer, piece: int = 4096) -> int:
    """Write all of mr to the peer's memory, in pieces; return the number of Writes."""
    posted = 0
    for at in range(0, mr.length, piece):
        length = min(piece, mr.length - at)
        there = remote.part(at, length)
        qp.post_send(SendWR(posted, WROpcode.RDMA_WRITE, sg=[mr.sge(at, length)], remote=there))
        (wc,) = cq.wait(timeout=30, num_entries=1)
        wc.check()
        posted += 1
    return posted


def send_request_until_answered(
    qp: QP, cq: CQ, mr: MR, ah: AH, question: bytes, *, number: int, tries: int, patience: float
) -> bytes:
    """Send a datagram until its answer arrives; request and answer may be lost."""
    half = mr.length // 2
    qp.post_recv(RecvWR(ANSWER, sg=[mr.sge(half, half)]))
    mr.write(bytes([number]) + question)
    for _ in range(tries):
        qp.post_send(SendWR(ASK, sg=[mr.sge(0, 1 + len(question))], ah=ah))
        while wcs := cq.wait(timeout=patience, num_entries=1):
            if wcs[0].check().wr_id == ASK:
                continue  # this end's request datagram was sent, and its answer is still awaited
            data = mr.read(wcs[0].byte_len, half)
            if data[0] == number:
                return data[1:]
            # The datagram answers an earlier request.
            qp.post_recv(RecvWR(ANSWER, sg=[mr.sge(half, half)]))
    raise TimeoutError(f"no answer to {question!r} after {tries} tries")


def answer_requests(qp: QP, cq: CQ, mr: MR, ah: AH, stop: threading.Event) -> None:
    """Answer each request with its text in capital letters."""
    half = mr.length // 2
    qp.post_recv(RecvWR(ASK, sg=[mr.sge(0, half)]))
    while not stop.is_set():
        for wc in cq.wait(timeout=0.05, num_entries=1):
            if wc.check().wr_id == ANSWER:
                continue  # the completion of this end's answer datagram
            mr.write(mr.read(wc.byte_len).upper(), offset=half)
            qp.post_send(SendWR(ANSWER, sg=[mr.sge(half, wc.byte_len)], ah=ah))
            qp.post_recv(RecvWR(ASK, sg=[mr.sge(0, half)]))
