# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""One end of one flow over `siwarp wan`: a TCP connection of the kernel, or an RD flow of siwarp.

A source prints ``ready`` when the sink has answered, waits for a line on standard input, and then
sends; at the end it prints, for each tenth of a second, how many octets the sink has received.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

__all__ = ["PORTS"]

#: Ports of the sinks; a second flow of a kind is named tcp.2 or rd.2.
PORTS = {"tcp": 7001, "rd": 7002, "tcp.2": 7003, "rd.2": 7004}
MESSAGE = 65536
DEPTH = 64
QKEY = 0x77616E
STEP_S = 0.1
#: Offset of tcpi_bytes_acked in struct tcp_info, and the number of octets to read.
_BYTES_ACKED, _TCP_INFO = 120, 232


# ---- sinks of flows


def _run_tcp_sink(there: tuple[str, int]) -> None:
    with socket.create_server(there) as listener:
        conn, _ = listener.accept()
        while conn.recv(1 << 18):
            pass


def _run_rd_sink(there: tuple[str, int]) -> None:
    from siwarp.verbs import CQ, MR, PD, QP, CompChannel, Context, QPInitAttr, QPType, RecvWR

    with (
        Context(there[0]) as context,
        PD(context) as pd,
        CQ(context, 2 * DEPTH, channel=CompChannel(context)) as cq,
        QP(pd, QPInitAttr(QPType.RD, scq=cq, addr=there, qkey=QKEY)) as qp,
        MR(pd, DEPTH * MESSAGE) as mr,
    ):
        recvs = [RecvWR(i, sg=[mr.sge(i * MESSAGE, MESSAGE)]) for i in range(DEPTH)]
        qp.to_rts()
        qp.post_recv(recvs)
        while True:
            for wc in cq.wait(3600, DEPTH):
                qp.post_recv(recvs[wc.check().wr_id])


# ---- sources of flows


def _run_flow_and_print_octets_per_step(
    seconds: float,
    flow: threading.Thread,
    octets: Callable[[], int],
    again: Callable[[], int] = lambda: 0,
) -> None:
    """Start the flow after reading a line; then print the acknowledged octets of each step."""
    print("ready", flush=True)
    sys.stdin.readline()
    flow.start()
    began, before, steps = time.monotonic(), octets(), []
    while time.monotonic() - began < seconds:
        time.sleep(STEP_S)
        now = octets()
        steps.append(now - before)
        before = now
    took = time.monotonic() - began
    told = {"octets": sum(steps), "seconds": took, "again": again(), "steps": steps}
    print(json.dumps(told))


def _run_tcp_source(there: tuple[str, int], seconds: float, congestion: str) -> None:
    def acknowledged_octets() -> int:
        info = conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO)
        return int(struct.unpack_from("=Q", info, _BYTES_ACKED)[0])

    def send_continuously() -> None:
        while True:
            conn.sendall(bytes(MESSAGE))

    conn = _connect_when_listening(lambda: socket.create_connection(there))
    if congestion:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    _run_flow_and_print_octets_per_step(
        seconds, threading.Thread(target=send_continuously, daemon=True), acknowledged_octets
    )


def _connect_when_listening(connect: Callable[[], socket.socket]) -> socket.socket:
    """Return a connection to the sink; wait up to ten seconds until the sink listens."""
    for _ in range(500):
        try:
            return connect()
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise ConnectionRefusedError("no sink is listening")


def _run_rd_source(there: tuple[str, int], seconds: float) -> None:
    from siwarp.base.counters import read_own_counters
    from siwarp.verbs import AH, CQ, MR, PD, QP, CompChannel, Context, QPInitAttr, QPType, SendWR

    with (
        Context.toward(there) as context,
        PD(context) as pd,
        CQ(context, 2 * DEPTH, channel=CompChannel(context)) as cq,
        QP(pd, QPInitAttr(QPType.RD, scq=cq, qkey=QKEY)) as qp,
        MR(pd, MESSAGE) as mr,
        AH(pd, there) as ah,
    ):
        qp.to_rts()
        wr = SendWR(sg=[mr.sge(0, MESSAGE)], ah=ah)
        stop = threading.Event()
        done = 0

        def send_continuously() -> None:
            nonlocal done
            for _ in range(DEPTH - 1):
                qp.post_send(wr)
            while not stop.is_set():
                for wc in cq.wait(0.05, DEPTH):
                    wc.check()
                    done += 1
                    qp.post_send(wr)

        qp.post_send(wr)
        if not any(wc.ok for wc in cq.wait(10, 1)):
            raise TimeoutError("the sink does not answer")
        flow = threading.Thread(target=send_continuously)
        _run_flow_and_print_octets_per_step(
            seconds, flow, lambda: done * MESSAGE, lambda: read_own_counters()["rd_retransmits"]
        )
        stop.set()
        flow.join()


def main() -> None:
    """Run one end of a flow: ``sink KIND HOST`` or ``source KIND HOST SECONDS [CONGESTION]``."""
    role, kind, host, *more = sys.argv[1:]
    there = host, PORTS[kind]
    kind = kind.partition(".")[0]
    if role == "sink":
        {"tcp": _run_tcp_sink, "rd": _run_rd_sink}[kind](there)
    elif kind == "tcp":
        _run_tcp_source(there, float(more[0]), more[1])
    else:
        _run_rd_source(there, float(more[0]))


if __name__ == "__main__":
    main()
