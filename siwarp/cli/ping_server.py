# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The server of ``siwarp ping`` for all types of queue pairs.

The server answers any number of clients, with fair shares of its memory, and tolerates clients that
violate the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from siwarp import aio
from siwarp.cli.ping_client import ANSWER, REQUEST, pack_hello, unpack_hello
from siwarp.verbs import (
    CQ,
    MR,
    PD,
    QP,
    Address,
    CompChannel,
    Context,
    Error,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    SendWR,
)

__all__ = ["serve_pings"]

#: Octets of each receive.
_RECV_SIZE = 64 * 1024
#: Number of receives: of a UD or RD queue pair, and of the queue pair of each UC or RC client.
_RECVS, _CLIENT_RECVS = 64, 4
#: UD, RD: maximum number of unsent answers, and the number from which on each client may have only
#: one of them.
_ANSWERS, _SHARED_FROM = 512, 128
#: UC, RC: limit of clients, and seconds without a message after which a client is disconnected.
_CLIENTS, _SILENT = 64, 30.0
#: The bit of a UC request's id that marks a send.
_SEND = 1 << 32


def _start_task(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _send_if_client_is_reachable(
    end: aio.UDEndpoint | aio.RDEndpoint, data: bytes, to: aio.Datagram
) -> None:
    """Send ``data`` to the sender of a message; if that fails, only this client has no answer."""
    with contextlib.suppress(Error):
        if isinstance(end, aio.UDEndpoint):  # several queue pairs may share the client's socket
            await end.send(data, to.source, qpn=to.qpn)
        else:
            await end.send(data, to.source)


async def _answer_datagrams(end: aio.UDEndpoint | aio.RDEndpoint) -> None:
    """Answer the pings of all UD or RD clients.

    RD clients that do not acknowledge their answers cause unsent answers. ``aio`` shares its sends
    fairly among the clients with unsent answers, and drops those that acknowledge nothing.
    """
    tasks: set[asyncio.Task[None]] = set()
    unsent: Counter[Address] = Counter()

    async def send_answer(asked: aio.Datagram) -> None:
        await _send_if_client_is_reachable(end, ANSWER + asked.data[1:], asked)
        unsent[asked.source] -= 1
        if not unsent[asked.source]:
            del unsent[asked.source]

    async for asked in end:
        shared = len(tasks) >= _SHARED_FROM
        if asked.data[:1] == REQUEST and not (shared and asked.source in unsent):
            unsent[asked.source] += 1
            _start_task(tasks, send_answer(asked))
        if len(tasks) >= _ANSWERS:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def _answer_uc_clients(ud: aio.UDEndpoint, context: Context) -> None:
    """Connect to UC clients, whose start-up messages arrive on ``ud``, and answer their pings."""
    tasks: set[asyncio.Task[None]] = set()
    #: For each connected client, the port of its queue pair on this host.
    ports: dict[Address, int] = {}

    async def answer_client(asked: aio.Datagram, client: Address) -> None:
        cap = QPCap(max_send_wr=_CLIENT_RECVS, max_recv_wr=_CLIENT_RECVS)
        with (
            contextlib.suppress(Error, asyncio.TimeoutError),
            PD(context) as pd,
            CompChannel(context) as channel,
            CQ(context, 2 * _CLIENT_RECVS, channel=channel) as cq,
            QP(pd, QPInitAttr(QPType.UC, scq=cq, cap=cap, addr=(ud.address[0], 0))) as qp,
            MR(pd, _CLIENT_RECVS * _RECV_SIZE) as mr,
        ):
            slots = range(0, mr.length, _RECV_SIZE)
            qp.to_rts(QPAttr(ah_attr=client))
            qp.post_recv([RecvWR(at, sg=[mr.sge(at, _RECV_SIZE)]) for at in slots])
            ports[client] = qp.addr[1]
            await _send_if_client_is_reachable(ud, pack_hello(ports[client]), asked)
            while True:
                for wc in await asyncio.wait_for(aio.wait(cq), _SILENT):
                    at = wc.wr_id & ~_SEND
                    if wc.ok and at == wc.wr_id and mr.read(1, at) == REQUEST:
                        mr.write(ANSWER, offset=at)
                        qp.post_send(SendWR(at | _SEND, sg=[mr.sge(at, wc.byte_len)]))
                    else:
                        qp.post_recv(RecvWR(at, sg=[mr.sge(at, _RECV_SIZE)]))
        ports.pop(client, None)

    async for asked in ud:
        port = unpack_hello(asked.data)
        client = asked.source[0], port or 0
        if port and client not in ports and len(tasks) < _CLIENTS:
            _start_task(tasks, answer_client(asked, client))
        elif port:  # a repeated start-up message of a connected client, or the server is full
            await _send_if_client_is_reachable(ud, pack_hello(ports.get(client, 0)), asked)


async def _answer_rc_clients(listener: aio.Listener) -> None:
    """Accept the connections of RC clients, and answer their pings."""
    tasks: set[asyncio.Task[None]] = set()

    async def answer_client(request: aio.Request) -> None:
        with contextlib.suppress(Error, asyncio.TimeoutError):
            async with await asyncio.wait_for(request.accept(pack_hello()), _SILENT) as conn:
                while True:
                    asked = await asyncio.wait_for(conn.recv(), _SILENT)
                    if asked[:1] == REQUEST:
                        await asyncio.wait_for(conn.send(ANSWER + asked[1:]), _SILENT)

    async for request in listener.requests():
        if unpack_hello(request.private_data) is not None and len(tasks) < _CLIENTS:
            _start_task(tasks, answer_client(request))
            continue
        why = b"this is a siwarp ping server: use siwarp ping of the same release"
        if len(tasks) == _CLIENTS:
            why = b"the server is full: try again later"
        with contextlib.suppress(Error):  # the client has closed the connection
            request.reject(why)


async def serve_pings(
    kind: str, address: Address, on_ready: Callable[[Address, int], object]
) -> None:
    """Answer the pings of clients until cancelled.

    ``kind``: "ud", "uc", "rd" or "rc". ``on_ready`` is called with the bound address and the Q_Key
    (RC: 0) once clients may begin.

    Raises:
        Error: the address is in use or not an address of this machine.

    """
    depth = _CLIENT_RECVS if kind == "rc" else _RECVS
    receives = {"recv_size": _RECV_SIZE, "recv_depth": depth}
    if kind == "rc":
        async with aio.listen(address, **receives) as listener:
            on_ready(listener.address, 0)
            await _answer_rc_clients(listener)
    elif kind == "rd":
        async with aio.open_rd(address, **receives) as rd:
            on_ready(rd.address, rd.qkey)
            await _answer_datagrams(rd)
    else:
        async with aio.open_ud(address, **receives) as ud:
            on_ready(ud.address, ud.qkey)
            if kind == "ud":
                await _answer_datagrams(ud)
            else:
                with Context(address[0]) as context:
                    await _answer_uc_clients(ud, context)
