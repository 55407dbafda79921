# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The calls of rping.Stack, implemented on siwarp's verbs and connection manager."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass
from typing import Literal

from interop.rping import ConnectionEnded, MpaParameters, Region, Rtr, Terminate

from siwarp._siwarp import ffi, lib
from siwarp.cm import CMID, RTR, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.verbs import (
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
    SendWR,
    WROpcode,
)

HOST = "127.0.0.1"
#: The time limit in seconds of each call: a guest without KVM is slow on a busy machine.
PATIENCE_S = 10.0
#: The time limit in seconds from a flushed request to the event that reports the reason.
REASON_S = 5.0
RECV_SIZE, RECV_DEPTH = 128 * 1024, 4

_RTR: dict[Rtr, RTR] = {"": RTR.NONE, "write": RTR.WRITE, "read": RTR.READ}
_RTR_NAMES: dict[RTR, Rtr] = {kind: name for name, kind in _RTR.items()}
_ACCESS = {
    "": AccessFlag.LOCAL_WRITE,
    "read": AccessFlag.REMOTE_READ,
    "write": AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE,
}


@functools.cache
def _shared_device() -> Context:
    """Return the loopback device, which stays open until the process ends; all connections share
    the device.
    """
    return Context(HOST)


def _terminate_from_numbers(numbers: int) -> Terminate | None:
    """Convert a completion's vendor_err or an event's wire_error; return None if there was no
    Terminate.
    """
    if not numbers:
        return None
    return Terminate(numbers >> 16 & 0xFF, numbers >> 8 & 0xFF, numbers & 0xFF)


@dataclass
class _RegisteredRegion:
    memory: bytearray
    mr: MR

    @property
    def address(self) -> int:
        return self.mr.addr

    @property
    def key(self) -> int:
        return self.mr.rkey


class SiwarpConnection:
    """An RC queue pair and its CM id, which is new or comes from a connection request.

    The caller connects the id, or accepts the request.
    """

    agreed: MpaParameters

    def __init__(self, request: CMEvent | None = None) -> None:
        self._parts = contextlib.ExitStack()
        if request is None:
            self._channel = self._parts.enter_context(CMEventChannel(_shared_device()))
            self.id = CMID(self._channel)
        else:
            self._channel, self.id = request.id.channel, request.id
        try:
            self._create_queue_pair(_shared_device())
        except BaseException:
            self.close()
            raise

    def _create_queue_pair(self, device: Context) -> None:
        part = self._parts.enter_context
        self._pd = part(PD(device))
        self._scq = part(CQ(device, 16, channel=part(CompChannel(device))))
        self._rcq = part(CQ(device, RECV_DEPTH + 1, channel=part(CompChannel(device))))
        cap = QPCap(max_send_wr=8, max_recv_wr=RECV_DEPTH)
        init = QPInitAttr(QPType.RC, scq=self._scq, rcq=self._rcq, cap=cap)
        self._qp = part(QP(self._pd, init))
        self.id.bind_qp(self._qp)
        part(self.id)
        self._inbox = part(MR(self._pd, RECV_SIZE * RECV_DEPTH))
        self._recvs = [
            RecvWR(i, sg=[self._inbox.sge(i * RECV_SIZE, RECV_SIZE)]) for i in range(RECV_DEPTH)
        ]
        self._qp.post_recv(self._recvs)

    def wait_until_established(self) -> None:
        """Wait for the end of the start-up, and store the negotiated terms."""
        event = self._next_event(PATIENCE_S)
        if event is None:
            raise TimeoutError("no end of the start-up")
        event.check()
        assert event.type == CMEventType.ESTABLISHED
        self.agreed = MpaParameters(event.crc, event.rev, _RTR_NAMES[event.peer_to_peer])
        # siw copies the reserved bits of siwarp's Request into its Reply; siwarp must not take siw
        # for siwarp.
        assert not self._qp.query()[1].private_messages

    def _next_event(self, timeout: float) -> CMEvent | None:
        """Return the next event of this connection, or None after the timeout.

        A listener shares its event channel with its connections.
        """
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            event = self._channel.get_event(left)
            if event is None or event.id is self.id:
                return event
            event.id.close()
        return None

    def _wait_for_completion(self, cq: CQ, what: str) -> WC:
        wcs = cq.wait(PATIENCE_S, 1)
        if not wcs:
            raise TimeoutError(f"{what}: nothing completed in {PATIENCE_S} s")
        if wcs[0].ok:
            return wcs[0]
        numbers = wcs[0].vendor_err
        if not numbers:  # for a flushed request, an event reports the reason
            event = self._next_event(REASON_S)
            if event is None or event.type != CMEventType.DISCONNECTED:
                raise AssertionError(f"{what}: {wcs[0]}, but then {event}")
            numbers = event.wire_error
        raise ConnectionEnded(_terminate_from_numbers(numbers))

    def _post_and_wait(self, wr: SendWR) -> None:
        self._qp.post_send(wr)
        self._wait_for_completion(self._scq, wr.opcode.name)

    def register(self, size: int, access: Literal["", "read", "write"] = "") -> Region:
        memory = bytearray(size)
        return _RegisteredRegion(
            memory, self._parts.enter_context(MR(self._pd, memory, _ACCESS[access]))
        )

    def send(self, message: bytes) -> None:
        with MR(self._pd, message, AccessFlag(0)) as mr:
            self._post_and_wait(SendWR(sg=[mr.sge()]))

    def recv(self) -> bytes:
        wc = self._wait_for_completion(self._rcq, "RECV")
        message = self._inbox.read(wc.byte_len, wc.wr_id * RECV_SIZE)
        self._qp.post_recv(self._recvs[wc.wr_id])
        return message

    def write(self, source: Region, length: int, address: int, key: int) -> None:
        self._post_and_wait(
            self._build_tagged_request(WROpcode.RDMA_WRITE, source, length, address, key)
        )

    def read(self, sink: Region, length: int, address: int, key: int) -> None:
        self._post_and_wait(
            self._build_tagged_request(WROpcode.RDMA_READ, sink, length, address, key)
        )

    def _build_tagged_request(
        self, opcode: WROpcode, region: Region, length: int, address: int, key: int
    ) -> SendWR:
        assert isinstance(region, _RegisteredRegion)
        remote = RemoteBuffer(address, length, key)
        return SendWR(opcode=opcode, sg=[region.mr.sge(0, length)], remote=remote)

    def close(self) -> None:
        # The connection may have ended, or may never have been established.
        with contextlib.suppress(OSError):
            self.id.disconnect()
        self._parts.close()


class SiwarpListener:
    """A listening CM id with a separate event channel."""

    def __init__(self) -> None:
        self._parts = contextlib.ExitStack()
        self._channel = self._parts.enter_context(CMEventChannel(_shared_device()))
        self._id = self._parts.enter_context(CMID(self._channel))
        self._id.listen((HOST, 0))
        self.port = self._id.local_addr[1]

    def accept(self) -> SiwarpConnection:
        """Return the next connection, with CRC only if the peer requests CRC."""
        event = self._channel.get_event(PATIENCE_S)
        if event is None:
            raise TimeoutError("nobody connects")
        assert event.type == CMEventType.CONNECT_REQUEST
        connection = SiwarpConnection(event)
        try:
            event.id.accept(ConnParam(crc=False))
            connection.wait_until_established()
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        self._parts.close()


class SiwarpStack:
    """The Stack of siwarp, implemented with the Python API of siwarp."""

    def set_persona(self, name: str) -> None:
        assert lib.siw_setting_set_text(b"persona", name.encode()) == 0

    def read_counter(self, name: str) -> int:
        names = (lib.siw_counter_name(i) for i in range(lib.siw_counters_count()))
        return int(lib.siw_counter_get([ffi.string(n).decode() for n in names].index(name)))

    def connect(self, port: int, terms: MpaParameters) -> SiwarpConnection:
        connection = SiwarpConnection()
        rtr = _RTR[terms.rtr]
        try:
            param = ConnParam(rev=terms.revision, crc=terms.crc, peer_to_peer=rtr)
            connection.id.connect((HOST, port), param)
            connection.wait_until_established()
        except BaseException:
            connection.close()
            raise
        return connection

    def listen(self) -> SiwarpListener:
        return SiwarpListener()


STACK = SiwarpStack()
