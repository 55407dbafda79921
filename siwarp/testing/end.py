# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""One end of a pair of queue pairs, with calls that transfer one message each."""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from siwarp.base import system
from siwarp.base.buffer import Buffer, octets
from siwarp.base.closing import Closing
from siwarp.cm import CMID
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
    Error,
    PeerGone,
    QPCap,
    QPInitAttr,
    QPType,
    RecvWR,
    RemoteBuffer,
    SendWR,
    StateError,
    Timeout,
    WCStatus,
    WROpcode,
)

if TYPE_CHECKING:
    from siwarp.sim import World

__all__ = ["LIMIT_S", "End"]

#: Default time-out in seconds of the calls of an end.
LIMIT_S = 10.0

#: Access rights of the peer to ``End.mr``.
ACCESS = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)

#: Capacity of each queue of an end, not counting the receives that the end itself posts.
_DEPTH = 64
#: Work request ids from 2**61 on are used by this module; smaller ids are for the test's requests.
_SENDS = 1 << 61
_RECEIVES = 1 << 62


class End(Closing):
    """One end of a pair, created by ``pair``; only one thread at a time may use an end.

    ``send``, ``recv``, ``write`` and ``read`` post a request, wait for its completion and check it.
    A test may also post requests to ``qp`` itself, with ``wr_id`` below 2**61, and get their
    completions from ``wait``.

    Attributes:
        device, pd, cq, qp: the open device, which both ends share except in a world, and this end's
            objects. Sends and receives complete in ``cq``, which has a completion channel.
        mr: memory that is registered with all remote access rights; the peer's ``write`` and
            ``read`` access it.
        ah: UD, RD: the address handle of the peer, for requests; ``None`` for RC and UC.
        peer: the other end.
        cm_id: RC: the id of the connection.
        world: the world of simulated ends, for its faults and its clock; ``None`` on real sockets.

    """

    peer: End
    world: World | None
    cm_id: CMID

    def __init__(
        self, device: Context, init: QPInitAttr, *, size: int, receives: int, recv_size: int
    ) -> None:
        self.device = device
        self.ah: AH | None = None
        self._ids = itertools.count(_SENDS)
        # The memory of requests that have not completed, and completions that no call has returned
        # yet.
        self._lent: dict[int, MR] = {}
        self._kept: list[WC] = []
        self._recv_size = recv_size
        self._parts = contextlib.ExitStack()
        part = self._parts.enter_context
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.close)
            self.cq = part(CQ(device, 2 * _DEPTH + receives, channel=part(CompChannel(device))))
            self.pd = part(PD(device))  # the PD closes first, with all objects made from it
            cap = QPCap(max_send_wr=_DEPTH, max_recv_wr=_DEPTH + receives, max_send_sge=4)
            self.qp = QP(self.pd, replace(init, scq=self.cq, cap=cap))
            self.mr = MR(self.pd, size, ACCESS)
            self._inbox = MR(self.pd, recv_size * receives)
            self._recvs = [
                RecvWR(_RECEIVES | i, sg=[self._inbox.sge(i * recv_size, recv_size)])
                for i in range(receives)
            ]
            on_error.pop_all()

    def adopt_cm_id(self, cm_id: CMID) -> None:
        """Take ownership of the CMID of the connection to come, and post the receives."""
        self.cm_id = cm_id
        cm_id.bind_qp(self.qp)
        self.post_receives()

    def post_receives(self) -> None:
        """Post all receives of this end; called by ``pair``."""
        self.qp.post_recv(self._recvs)

    # ---- messages

    def send(self, data: Buffer, timeout: float = LIMIT_S) -> None:
        """Send one message, a buffer, and wait for its completion.

        The Send completes when the peer has received it (RD), or the network has accepted it (RC,
        UC, UD).

        Raises:
            ProtocolError: the peer refused the message.
            PeerGone: RC, RD: the peer is gone.
            Timeout: the message did not complete within ``timeout`` seconds.

        """
        self._post_and_wait(WROpcode.SEND, bytearray(octets(data)), None, timeout)

    def recv(self, timeout: float = LIMIT_S) -> bytes:
        """Wait for the next message from the peer and return it.

        Raises:
            ProtocolError: one end violated the protocol.
            PeerGone: RC: the connection has ended.
            Timeout: no message arrived within ``timeout`` seconds.
            StateError: the pair was made without receives.

        """
        if not self._recvs:
            raise StateError(
                errno.EINVAL,
                "this pair has receives=0: post receives and wait() for them, or create the pair "
                "with receives > 0",
            )
        wc = self._wait_for_matching_completion(
            lambda wc: wc.wr_id >= _RECEIVES, timeout, "receiving"
        )
        slot = self._check_completion(wc, "receiving").wr_id ^ _RECEIVES
        data = self._inbox.read(wc.byte_len, slot * self._recv_size)
        # the connection may have ended after the completed message
        with contextlib.suppress(StateError):
            self.qp.post_recv(self._recvs[slot])
        return data

    # ---- the peer's memory

    def write(self, data: Buffer, offset: int = 0, timeout: float = LIMIT_S) -> None:
        """RDMA Write ``data``, a buffer, into ``peer.mr`` at ``offset``: RC, UC, RD.

        Raises:
            ValueError: the data does not fit into the memory.
            ProtocolError, PeerGone, Timeout: as for ``send``.

        """
        # Copy the data, so that a request that times out does not use the caller's memory.
        source = bytearray(octets(data))
        remote = self.peer.mr.remote(offset, len(source))
        self._post_and_wait(WROpcode.RDMA_WRITE, source, remote, timeout)

    def read(self, length: int, offset: int = 0, timeout: float = LIMIT_S) -> bytes:
        """RDMA Read ``length`` octets of ``peer.mr`` from ``offset`` on: RC, RD.

        Raises:
            ValueError: the memory has fewer octets.
            ProtocolError, PeerGone, Timeout: as for ``send``.

        """
        into = bytearray(length)
        remote = self.peer.mr.remote(offset, length)
        self._post_and_wait(WROpcode.RDMA_READ, into, remote, timeout)
        return bytes(into)

    # ---- requests of the test

    def wait(self, n: int = 1, timeout: float = LIMIT_S) -> list[WC]:
        """Return ``n`` completions of requests that the test itself posted, unchecked.

        Raises:
            Timeout: fewer requests completed within ``timeout`` seconds.

        """
        deadline = system.monotonic() + timeout
        return [
            self._wait_for_matching_completion(
                lambda wc: wc.wr_id < _SENDS, deadline - system.monotonic(), f"completion {i + 1}"
            )
            for i in range(n)
        ]

    # ---- implementation

    def _post_and_wait(
        self, opcode: WROpcode, memory: bytearray, remote: RemoteBuffer | None, timeout: float
    ) -> None:
        wr_id = next(self._ids)
        mr = MR(self.pd, memory)
        what = f"{opcode.name} of {len(memory)} octets"
        try:
            self.qp.post_send(SendWR(wr_id, opcode, sg=[mr.sge()], ah=self.ah, remote=remote))
        except Error:
            mr.close()
            raise
        self._lent[wr_id] = mr
        self._check_completion(
            self._wait_for_matching_completion(lambda wc: wc.wr_id == wr_id, timeout, what), what
        )

    def _wait_for_matching_completion(
        self, wanted: Callable[[WC], bool], timeout: float, what: str
    ) -> WC:
        """Return the next matching completion; keep all others for later calls."""
        deadline = system.monotonic() + timeout
        while True:
            for i, wc in enumerate(self._kept):
                if wanted(wc):
                    return self._kept.pop(i)
            left = deadline - system.monotonic()
            wcs = self.cq.wait(max(left, 0.0))
            if not wcs and left <= 0:
                raise Timeout(
                    errno.ETIMEDOUT,
                    f"{what}: timed out after {timeout:g} s; check that a receive is posted, that "
                    "the peer is open, and that no fault plan drops packets: a capture shows what "
                    "was sent",
                )
            self._kept += [wc for wc in wcs if not self._release_request_memory(wc) or wanted(wc)]

    def _release_request_memory(self, wc: WC) -> bool:
        """Close the memory region of a completed request; return whether this class posted it.

        A request that timed out completes later, when no call waits for it.
        """
        mr = self._lent.pop(wc.wr_id, None)
        if mr is not None:
            mr.close()
        return mr is not None

    def _check_completion(self, wc: WC, what: str) -> WC:
        flushed = wc.status == WCStatus.WR_FLUSH_ERR and not wc.vendor_err
        if flushed and self.qp.qp_type == QPType.RC:
            raise PeerGone(
                errno.ECONNRESET, f"{what}: the connection has ended; create another pair"
            )
        return wc.check()

    def close(self) -> None:
        """Close this end in order, so that the peer is notified; a second call has no effect."""
        cm_id = self.__dict__.pop("cm_id", None)
        if cm_id is not None:
            with contextlib.suppress(Error):
                cm_id.disconnect()
            cm_id.close()
        self._parts.close()
        self._lent.clear()

    def __repr__(self) -> str:
        return f"<End {self.qp!r}>"
