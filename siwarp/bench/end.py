# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Client or server of a run through the Python API; the steps are those of siwarp-bench in C.

Started by ``siwarp.bench.runner`` with the arguments of siwarp-bench.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import signal
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from siwarp.cm import CMID, CMEventChannel, CMEventType, ConnParam
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    WC,
    AccessFlag,
    CompChannel,
    Context,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendFlag,
    SendWR,
    WCOpcode,
    WROpcode,
)

if TYPE_CHECKING:  # NumPy is imported only if --arrays is given
    import numpy as np
    from numpy.typing import NDArray

LOOPBACK = "127.0.0.1"
#: Seconds to wait for the peer, and the number of polls that wait about as long.
IDLE_S = 10
IDLE_POLLS = 20_000_000
RECVS_OF_LAT = 16
SIGNAL_EVERY = 16
BATCH = 32
CREDIT_OCTETS = 4
EXIT_LOST = 3

#: struct siw_bench_hello of bench.h: port, zero, rkey, addr, length.
_HELLO = struct.Struct("=HHIQQ")
_NUMBER = struct.Struct("=Q")

_ALL = AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE | AccessFlag.REMOTE_READ


def exit_because_messages_were_lost(text: str) -> NoReturn:
    """Exit the process with the status that means lost messages."""
    print(text, file=sys.stderr)
    sys.exit(EXIT_LOST)


class ControlSocket:
    """The socket pair to the other process, for control messages."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)

    def _exchange_octets(self, mine: bytes) -> bytes:
        try:
            self._socket.sendall(mine)
            got = self._socket.recv(len(mine), socket.MSG_WAITALL)
        except OSError:
            got = b""
        if len(got) < len(mine):
            sys.exit("the peer process has ended")
        return got

    def exchange_number(self, number: int = 0) -> int:
        """Send a number to the other process; return the number that it sends."""
        return int(_NUMBER.unpack(self._exchange_octets(_NUMBER.pack(number)))[0])

    def check_peer_alive(self) -> None:
        """Exit this process if the other process of the run has ended."""
        with contextlib.suppress(BlockingIOError):
            if not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                sys.exit("the peer process has ended")

    def exchange_hello(self, port: int, mr: MR) -> tuple[int, RemoteBuffer]:
        """Send this end's port and memory to the other process; return the other's port and
        memory.
        """
        mine = _HELLO.pack(port, 0, mr.rkey, mr.addr, mr.length)
        port, _zero, rkey, addr, length = _HELLO.unpack(self._exchange_octets(mine))
        return port, RemoteBuffer(addr, length, rkey)


class End:
    """A QP in RTS with its memory: the octets to send, then slots to receive into."""

    def __init__(self, o: argparse.Namespace, slots: int) -> None:
        self.o = o
        self.server: bool = o.side == "server"
        self.ctl = ControlSocket(o.ctl)
        self.stride: int = -(-o.size // 64) * 64
        self.pattern = bytes((i * 31 + (i >> 8) + 7) & 0xFF for i in range(min(o.size, 4096)))
        self.context = Context(LOOPBACK)
        self.pd = PD(self.context)
        self.channel = CompChannel(self.context) if o.wait == "event" else None
        self.cq = CQ(self.context, 2 * slots + 2 * o.depth + 128, channel=self.channel)
        self.memory = mmap.mmap(-1, self.stride * (slots + 1))
        self.mr = MR(self.pd, self.memory, _ALL)
        self.mr.view[: len(self.pattern)] = self.pattern
        self.cap = QPCap(max_send_wr=2 * o.depth + 64, max_recv_wr=slots)
        self.recvs = [
            RecvWR(i, sg=[self.mr.sge(self.slot_offset(i), self.stride)]) for i in range(slots)
        ]
        self.ah: AH | None = None
        self.parts: list[CMID | CMEventChannel] = []
        if o.qp == "rc":
            self._connect_rc()
        else:
            self._create_ud_queue_pair()
        if o.cpu is not None:
            os.sched_setaffinity(0, {o.cpu})  # pins only this thread, as siwarp-bench does

    def slot_offset(self, slot: int) -> int:
        """Return the offset of a receive slot in the memory of this end."""
        return self.stride * (1 + slot)

    def _create_ud_queue_pair(self) -> None:
        init = QPInitAttr(QPType.UD, cap=self.cap, scq=self.cq, addr=(LOOPBACK, 0))
        self.qp = QP(self.pd, init)
        self.qp.to_rts()
        self.qp.post_recv(self.recvs)
        port, self.peer = self.ctl.exchange_hello(self.qp.addr[1], self.mr)
        self.ah = AH(self.pd, (LOOPBACK, port))

    def _connect_rc(self) -> None:
        channel = CMEventChannel(self.context)
        own = CMID(channel)
        self.parts = [own, channel]
        if self.server:
            own.listen((LOOPBACK, 0), 1)
            _, self.peer = self.ctl.exchange_hello(own.local_addr[1], self.mr)
            request = channel.get_event(5)
            assert request is not None and request.type == CMEventType.CONNECT_REQUEST
            self.id = request.id
            self.parts.insert(0, self.id)
        else:
            port, self.peer = self.ctl.exchange_hello(0, self.mr)
            self.id = own
        # The peer runs the same program, so it understands siwarp's private messages.
        init = QPInitAttr(QPType.RC, cap=self.cap, scq=self.cq, rcq=self.cq, private_messages=True)
        self.qp = QP(self.pd, init)
        self.id.bind_qp(self.qp)
        self.qp.post_recv(self.recvs)
        if self.server:
            self.id.accept()
        else:
            self.id.connect((LOOPBACK, port), ConnParam())
        event = channel.get_event(10)
        if event is None or event.check().type != CMEventType.ESTABLISHED:
            sys.exit("the connection was not established")

    def close(self) -> None:
        """Disconnect, and close all verbs objects of this end."""
        if self.o.qp == "rc":
            self.id.disconnect()
        for part in (*self.parts, self.ah, self.qp, self.mr, self.cq, self.channel):
            if part is not None:
                part.close()
        self.pd.close()
        self.context.close()

    def check_pattern(self, at: int) -> None:
        """Exit if the memory at ``at`` does not hold the octets that the other process sent."""
        if self.mr.view[at : at + len(self.pattern)] != self.pattern:
            sys.exit("the received octets are wrong")

    # ---- steps of every run

    def make_send_request(self, size: int, flags: int = 0) -> SendWR:
        """Return a request that sends octets from the start of the memory."""
        return SendWR(send_flags=flags, sg=[self.mr.sge(0, size)], ah=self.ah)

    def make_send_function(self, size: int) -> Callable[[], None]:
        """Return a function that sends one message; one of SIGNAL_EVERY messages is signalled."""
        silent, reported = (
            self.make_send_request(size),
            self.make_send_request(size, SendFlag.SIGNALED),
        )
        post = self.qp.post_send
        count = 0

        def post_next_send() -> None:
            nonlocal count
            count += 1
            post(silent if count % SIGNAL_EVERY else reported)

        return post_next_send

    def wait_for_completions(self, most: int) -> list[WC]:
        """Return at least one completion, or an empty list after IDLE_S seconds."""
        if self.channel is not None:
            wcs = self.cq.wait(IDLE_S, most)
        else:
            poll = self.cq.poll
            for _ in range(IDLE_POLLS):
                wcs = poll(most)
                if wcs:
                    break
        for wc in wcs:
            if wc.status:
                wc.check()
        return wcs

    def make_receive_function(self) -> Callable[[], WC]:
        """Return a function that waits for one receive completion, and skips other completions."""
        poll, recv = self.cq.poll, int(WCOpcode.RECV)

        def await_recv_by_polling() -> WC:
            for _ in range(IDLE_POLLS):
                if wcs := poll():
                    wc = wcs[0]
                    if wc.status:
                        wc.check()
                    if wc.opcode == recv:
                        return wc
            exit_because_messages_were_lost("a message did not arrive")

        def await_recv_by_event() -> WC:
            while wcs := self.wait_for_completions(1):
                if wcs[0].opcode == recv:
                    return wcs[0]
            exit_because_messages_were_lost("a message did not arrive")

        return await_recv_by_polling if self.channel is None else await_recv_by_event

    def await_recv_and_repost(self) -> None:
        """Wait for one receive completion, and post the receive again."""
        self.qp.post_recv(self.recvs[self.make_receive_function()().wr_id])

    def await_done_message(self) -> None:
        """Wait for the Send by which the other process reports that its Writes or Reads are done.

        No other request completes meanwhile; only the exit of the other process ends the wait
        earlier.
        """
        while not (wcs := self.wait_for_completions(1)) or wcs[0].opcode != WCOpcode.RECV:
            if not wcs:
                self.ctl.check_peer_alive()
        self.qp.post_recv(self.recvs[wcs[0].wr_id])

    def make_rdma_request(self, opcode: WROpcode) -> SendWR:
        """Return a Write to the peer's first slot, or a Read from the peer's send buffer."""
        read = opcode == WROpcode.RDMA_READ
        return SendWR(
            opcode=opcode,
            sg=[self.mr.sge(self.slot_offset(0) if read else 0, self.o.size)],
            remote=self.peer.part(0 if read else self.stride, self.o.size),
        )


# ---- latency of single messages


def measure_send_latency(end: End, n: int) -> list[int]:
    """Exchange Sends in both directions; measure half of each round trip."""
    # Post receives again after the send, while the message is in transit.
    send, receive, now = (
        end.make_send_function(end.o.size),
        end.make_receive_function(),
        time.perf_counter_ns,
    )
    post, recvs, size = end.qp.post_recv, end.recvs, end.o.size
    times: list[int] = []
    if end.server:
        for _ in range(n):
            wc = receive()
            send()
            post(recvs[wc.wr_id])
            if wc.byte_len != size:
                sys.exit("a message has the wrong length")
        return []
    for _ in range(n):
        start = now()
        send()
        if times:
            post(recvs[wc.wr_id])
        wc = receive()
        times.append(now() - start)
    post(recvs[wc.wr_id])
    return times


def measure_write_latency(end: End, n: int) -> list[int]:
    """Write to the peer's memory and wait for the peer's Write; measure half of each round trip."""
    view, poll, post = end.mr.view, end.cq.poll, end.qp.post_send
    wr, now = end.make_rdma_request(WROpcode.RDMA_WRITE), time.perf_counter_ns
    seen, mine = end.slot_offset(0) + end.o.size - 1, end.o.size - 1
    view[seen] = 0

    def await_octet_of_peer(value: int) -> None:
        for _ in range(IDLE_POLLS):
            if view[seen] == value:
                return
            for wc in poll(4):
                wc.check()
        exit_because_messages_were_lost("a Write did not arrive")

    end.ctl.exchange_number()
    times = []
    for i in range(n):
        value = i % 100 + 1
        start = now()
        if end.server:
            await_octet_of_peer(value)
        view[mine] = value
        post(wr)
        if not end.server:
            await_octet_of_peer(value)
        times.append(now() - start)
    return times


def measure_read_latency(end: End, n: int) -> list[int]:
    """Read from the peer's memory; measure the full round trip."""
    if end.server:
        end.await_done_message()
        return []
    wr, post, now = (
        end.make_rdma_request(WROpcode.RDMA_READ),
        end.qp.post_send,
        time.perf_counter_ns,
    )
    times = []
    for _ in range(n):
        start = now()
        post(wr)
        while not (wcs := end.wait_for_completions(1)) or wcs[0].opcode != WCOpcode.RDMA_READ:
            if not wcs:
                exit_because_messages_were_lost("a Read did not complete")
        times.append(now() - start)
    end.check_pattern(end.slot_offset(0))
    end.qp.post_send(end.make_send_request(0))
    return times


# ---- streams of messages


def _send_stream(end: End, n: int) -> int:
    """Send n messages within the window; return the number of sent messages."""
    depth, batch, credit = end.o.depth, end.o.batch, max(1, end.o.depth // 2)
    size, post = end.o.size, end.qp.post_send
    list_of = [end.make_send_request(size) for _ in range(batch)]
    reported = end.make_send_request(size, SendFlag.SIGNALED)
    sent = credited = 0
    while credited < n:
        room = min(depth - (sent - credited), n - sent)
        if room:
            k = min(room, batch)
            report = sent // SIGNAL_EVERY != (sent + k) // SIGNAL_EVERY
            if k == 1:
                post(reported if report else list_of[0])
            else:
                post([*list_of[: k - 1], reported if report else list_of[k - 1]])
            sent += k
            continue
        wcs = end.wait_for_completions(BATCH)
        if not wcs:
            break
        for wc in wcs:
            if wc.opcode == WCOpcode.RECV:
                end.qp.post_recv(end.recvs[wc.wr_id])
                credited += credit
    return sent


def _receive_stream(end: End, n: int) -> int:
    """Receive n messages and send credits; return the number of received messages."""
    credit, recvs, size = max(1, end.o.depth // 2), end.recvs, end.o.size
    give, post = end.make_send_function(CREDIT_OCTETS), end.qp.post_recv
    seen = credited = 0
    while seen < n:
        wcs = end.wait_for_completions(BATCH)
        if not wcs:
            break
        again = []
        for wc in wcs:
            if wc.opcode != WCOpcode.RECV:
                continue
            if wc.byte_len != size:
                sys.exit(f"a message has {wc.byte_len} octets, the wrong length")
            if not seen:
                end.check_pattern(end.slot_offset(wc.wr_id))
            seen += 1
            again.append(recvs[wc.wr_id])
        post(again)
        while seen - credited >= credit:
            credited += credit
            give()
    return seen


def _make_array_poller(end: End, wcs: NDArray[np.void]) -> Callable[[], int]:
    """Return a function that polls for at least one completion and returns their number, or 0 after
    IDLE_POLLS polls.
    """
    import numpy as np

    poll, status, count_nonzero = end.cq.poll_array, wcs["status"], np.count_nonzero

    def poll_into_array() -> int:
        for _ in range(IDLE_POLLS):
            if got := poll(wcs):
                break
        if count_nonzero(status[:got]):
            sys.exit(f"a request ended with status {status[:got].max()}")
        return got

    return poll_into_array


def _send_messages_from_arrays(end: End, n: int) -> int:
    """Send n messages, like ``_send_stream``, with requests and completions in arrays."""
    from siwarp.verbs import arrays

    depth, batch, credit = end.o.depth, end.o.batch, max(1, end.o.depth // 2)
    recv_opcode = int(WCOpcode.RECV)
    ahs = None if end.ah is None else arrays.AHList([end.ah])
    silent = arrays.send_array(batch)
    silent["addr"], silent["length"], silent["lkey"] = end.mr.iova, end.o.size, end.mr.lkey
    silent["send_flags"] = 0
    reported = silent.copy()
    reported["send_flags"][-1] = SendFlag.SIGNALED
    wcs, post = arrays.wc_array(BATCH), end.qp.post_send_array
    poll, wr_ids, opcodes = _make_array_poller(end, wcs), wcs["wr_id"], wcs["opcode"]
    sent = credited = 0
    while credited < n:
        room = min(depth - (sent - credited), n - sent)
        if room:
            k = min(room, batch)
            report = sent // SIGNAL_EVERY != (sent + k) // SIGNAL_EVERY
            post((reported if report else silent)[batch - k :], ahs)
            sent += k
            continue
        got = poll()
        if not got:
            break
        # A receive completion is a credit. The loop is short, as few of the Sends are signaled.
        for i, opcode in enumerate(opcodes[:got].tolist()):
            if opcode == recv_opcode:
                end.qp.post_recv(end.recvs[wr_ids[i]])
                credited += credit
    return sent


def _receive_messages_into_arrays(end: End, n: int) -> int:
    """Receive n messages, like ``_receive_stream``, with receives and completions in arrays."""
    import numpy as np

    from siwarp.verbs import arrays

    credit, size = max(1, end.o.depth // 2), np.uint32(end.o.size)
    recv_opcode = np.int32(WCOpcode.RECV)
    recvs = arrays.recv_array(len(end.recvs))
    recvs["wr_id"] = np.arange(len(recvs))
    recvs["addr"] = end.mr.iova + end.stride * (1 + recvs["wr_id"])
    recvs["length"], recvs["lkey"] = end.stride, end.mr.lkey
    wcs, post, give = (
        arrays.wc_array(BATCH),
        end.qp.post_recv_array,
        end.make_send_function(CREDIT_OCTETS),
    )
    poll = _make_array_poller(end, wcs)
    seen = credited = 0
    while seen < n:
        done = wcs[: poll()]
        if not len(done):
            break
        of_sends = done["opcode"] != recv_opcode
        if np.count_nonzero(of_sends):
            done = done[~of_sends]
        if np.count_nonzero(done["byte_len"] != size):
            sys.exit("a message has the wrong length")
        if not seen and len(done):
            end.check_pattern(end.slot_offset(int(done["wr_id"][0])))
        seen += len(done)
        post(recvs.take(done["wr_id"]))
        while seen - credited >= credit:
            credited += credit
            give()
    return seen


def measure_send_stream(end: End, n: int) -> int:
    """Send n messages; return the duration in ns."""
    start = time.perf_counter_ns()
    if end.o.arrays:
        done = (
            _receive_messages_into_arrays(end, n)
            if end.server
            else _send_messages_from_arrays(end, n)
        )
    else:
        done = _receive_stream(end, n) if end.server else _send_stream(end, n)
    ns = time.perf_counter_ns() - start
    theirs = end.ctl.exchange_number(done)
    sent, seen = (theirs, done) if end.server else (done, theirs)
    if sent != seen:
        exit_because_messages_were_lost(f"lost {sent - seen} of {sent} messages")
    if sent != n:
        exit_because_messages_were_lost(f"a credit was lost after {sent} of {n} messages")
    return ns


def _keep_requests_outstanding(end: End, opcode: WROpcode, n: int) -> None:
    wanted = WCOpcode.RDMA_READ if opcode == WROpcode.RDMA_READ else WCOpcode.RDMA_WRITE
    wr, post, depth = end.make_rdma_request(opcode), end.qp.post_send, end.o.depth
    posted = done = 0
    while done < n:
        while posted < n and posted - done < depth:
            post(wr)
            posted += 1
        wcs = end.wait_for_completions(BATCH)
        if not wcs:
            exit_because_messages_were_lost(f"{done} of {n} requests completed")
        done += sum(wc.opcode == wanted for wc in wcs)


def measure_write_stream(end: End, n: int) -> int:
    """Post n Writes, then wait for a round trip of Sends; return the duration in ns."""
    start = time.perf_counter_ns()
    if end.server:
        end.await_done_message()
        end.qp.post_send(end.make_send_request(0))
        end.check_pattern(end.slot_offset(0))
        return 1
    _keep_requests_outstanding(end, WROpcode.RDMA_WRITE, n)
    end.qp.post_send(end.make_send_request(0))
    end.await_recv_and_repost()
    return time.perf_counter_ns() - start


def measure_read_stream(end: End, n: int) -> int:
    """Post n Reads; return the duration in ns."""
    if end.server:
        end.await_done_message()
        return 1
    start = time.perf_counter_ns()
    _keep_requests_outstanding(end, WROpcode.RDMA_READ, n)
    ns = time.perf_counter_ns() - start
    end.check_pattern(end.slot_offset(0))
    end.qp.post_send(end.make_send_request(0))
    return ns


# ---- complete runs

_LAT = {"send": measure_send_latency, "write": measure_write_latency, "read": measure_read_latency}
_STREAM = {"send": measure_send_stream, "write": measure_write_stream, "read": measure_read_stream}


def _summarize_latencies(times: list[int], parts: int) -> dict[str, float]:
    times.sort()
    return {
        "value": statistics.median(times) / parts / 1000,
        "p99": times[len(times) * 99 // 100] / parts / 1000,
        "p99.9": times[len(times) * 999 // 1000] / parts / 1000,
        "n": len(times),
    }


def measure_latency(o: argparse.Namespace) -> dict[str, float] | None:
    """Measure latency (kind ``lat``)."""
    end = End(o, RECVS_OF_LAT)
    end.ctl.exchange_number()
    _LAT[o.op](end, o.warmup)
    end.ctl.exchange_number()
    times = _LAT[o.op](end, o.iters)
    end.ctl.exchange_number()
    end.close()
    return None if end.server else _summarize_latencies(times, 1 if o.op == "read" else 2)


def measure_stream(o: argparse.Namespace) -> dict[str, float] | None:
    """Measure bandwidth or message rate (kind ``bw`` or ``rate``)."""
    end = End(o, 2 * o.depth + 2 if o.op == "send" else 4)
    for n in (o.warmup, o.iters):
        end.ctl.exchange_number()
        ns = _STREAM[o.op](end, n)
    end.ctl.exchange_number()
    end.close()
    per_ns = o.iters / ns
    value = per_ns * o.size if o.kind == "bw" else per_ns * 1e9
    return None if end.server else {"value": value, "p99": 0, "p99.9": 0, "n": o.iters}


def main() -> None:
    """Run the measurement that the arguments name; print the result if this process is the
    client.
    """
    parser = argparse.ArgumentParser("siwarp.bench.end")
    for name in ("kind", "run", "side", "qp", "op", "wait"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("size", "iters", "warmup", "depth", "batch", "limit"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--arrays", action="store_true", help="Sends and receives in NumPy arrays")
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--ctl", type=int, required=True)
    o = parser.parse_args()
    signal.alarm(o.limit)  # SIGALRM is not handled, so it ends the process
    result = (measure_latency if o.kind == "lat" else measure_stream)(o)
    if result is not None:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
