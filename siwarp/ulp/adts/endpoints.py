# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Opens channels to a server, and accepts channels of clients.

The *rendezvous* is the channel on which a session begins: TCP, or RC in a simulated world. Its
units have at most ``HANDSHAKE_UNIT_SIZE`` octets (wire.py) until the session continues on it with
larger ones (TCP: ``use_rendezvous_as_channel``), or on a channel that was opened with a token.

A server's channels share the pool of one device. The first sessions have large units; when sessions
would outnumber these, further ones have small units, which are parts of units of the same pool. All
but the very first begin with a window of one unit, which grows when it is used. A part of the pool
is set aside for the first receives of sessions to come, ``LEAST_UNIT`` for each, so that
``SESSIONS`` can be open at a time, over whatever transports.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from siwarp.cm import CMEvent
from siwarp.ulp.adts.channel import (
    Acceptor,
    Cause,
    Channel,
    ChannelEnded,
    Invitation,
    Limits,
)
from siwarp.ulp.adts.channel_rc import RCListener, RCReceives, accept_rc, connect_rc
from siwarp.ulp.adts.channel_rd import RDChannel, RDPort, connect_rd_channel
from siwarp.ulp.adts.channel_tcp import TCPChannel, TCPListener, connect_tcp_channel, listen_tcp
from siwarp.ulp.adts.channel_ud import UD_UNIT_SIZE, WINDOW, UDChannel, UDPort, open_ud_channel
from siwarp.ulp.adts.credit import Credits, Role
from siwarp.ulp.adts.device import Device
from siwarp.ulp.adts.receives import IDLE_S, Receives
from siwarp.ulp.adts.wire import HANDSHAKE_UNIT_SIZE, MIN_UNIT_SIZE
from siwarp.verbs import WC, Address, Error, LimitError, source_toward

__all__ = [
    "SESSIONS",
    "Acceptors",
    "Listener",
    "connect_rendezvous",
    "listen_for_rendezvous",
    "open_acceptors",
    "open_channel",
    "use_rendezvous_as_channel",
]

Kind = Literal["rd", "rc", "ud"]

#: Number of sessions for which a server's memory suffices.
SESSIONS = 1000
#: Size of a unit in octets for sessions that get no unit of the largest size, and for those that
#: get no unit of SMALL_UNIT octets either.
SMALL_UNIT = 64 << 10
LEAST_UNIT = 16 << 10
#: The largest part of a pool that is set aside for sessions: 1 / SET_ASIDE.
SET_ASIDE = 4
#: Minimum number of units that an end of a UD channel stores in each direction.
LEAST_UD_WINDOW = 16
#: The window of each end of a rendezvous on RC, and the octets of memory of the rendezvous.
RENDEZVOUS_WINDOW = 4
RENDEZVOUS_MEMORY = 16 << 20


R = TypeVar("R")


@dataclass(frozen=True)
class _Expected(Generic[R]):
    """A peer that was invited, with what is reserved for it."""

    accepted: Callable[[Channel], None]
    reserved: R
    timer: asyncio.TimerHandle


class _Memory:
    """The memory of a server's device, which provides units of several sizes."""

    def __init__(self, device: Device, limits: Limits) -> None:
        self.device = device
        self.limits = limits
        #: Number of sessions over RC and RD, and number of those with units of the largest size.
        self.sessions = self.large = 0
        self._update_reserve_for_sessions()

    def unit_sizes(self, peer_unit: int) -> list[int]:
        """Return the unit sizes in octets that a new session may use, preferred sizes first."""
        sizes: dict[int, None] = {}
        for most in (self.limits.unit, SMALL_UNIT, LEAST_UNIT):
            size = min(most, self.limits.unit)
            while size > peer_unit and size > MIN_UNIT_SIZE:
                size //= 2
            sizes[size] = None
        if self.large >= max(1, self.device.pool.size // 8) and len(sizes) > 1:
            sizes.pop(self.limits.unit, None)
        return list(sizes)

    def count_session(self, size: int, by: int) -> None:
        """Count a session with units of ``size`` octets as begun (1) or ended (-1)."""
        self.sessions += by
        if size == self.limits.unit:
            self.large += by
        self._update_reserve_for_sessions()

    def _update_reserve_for_sessions(self) -> None:
        pool = self.device.pool
        octets = max(0, SESSIONS - self.sessions) * LEAST_UNIT
        pool.set_aside = min(pool.size // SET_ASIDE, -(-octets // pool.unit))

    @property
    def window(self) -> int:
        """The window with which a new session begins, at most."""
        is_first = self.sessions < max(1, self.device.pool.size // 32)
        return self.limits.window if is_first else 1

    def receive_limit(self, size: int) -> int:
        """Return the largest number of receives of one size that a transport may post."""
        whole = self.device.pool.size
        return whole // 2 if size == self.limits.unit else whole * (self.limits.unit // size)


class _Acceptor(Acceptor, Generic[R]):
    """What all acceptors have in common: the tokens of expected peers."""

    def __init__(self, memory: _Memory) -> None:
        self._memory = memory
        self._expected: dict[bytes, _Expected[R]] = {}

    def expect_peer(
        self,
        token: bytes,
        peer_unit: int,
        peer_window: int,
        accepted: Callable[[Channel], None],
        lifetime: float = 30.0,
    ) -> Invitation:
        """See ``Acceptor``."""
        reserved, invitation = self._reserve_for_expected_channel(token, peer_unit, peer_window)
        timer = asyncio.get_running_loop().call_later(lifetime, self.forget_token, token)
        self._expected[token] = _Expected(accepted, reserved, timer)
        return invitation

    @abstractmethod
    def _reserve_for_expected_channel(
        self, token: bytes, peer_unit: int, peer_window: int
    ) -> tuple[R, Invitation]:
        """Reserve what a channel needs; return that and the invitation for the peer."""

    @abstractmethod
    def _release_reservation(self, reserved: R) -> None:
        """Release what was reserved for a channel that has not opened."""

    def _take_expected_peer(self, token: bytes) -> _Expected[R] | None:
        expected = self._expected.pop(token, None)
        if expected is not None:
            expected.timer.cancel()
        return expected

    def forget_token(self, token: bytes) -> None:
        """See ``Acceptor``."""
        expected = self._take_expected_peer(token)
        if expected is not None:
            self._release_reservation(expected.reserved)

    def close(self) -> None:
        """See ``Acceptor``."""
        for token in list(self._expected):
            self.forget_token(token)


class _Reserved(NamedTuple):
    """The receives for a peer, and its credits."""

    receives: Receives
    credits: Credits


class _RDMAAcceptor(_Acceptor[_Reserved]):
    """What the acceptors of RC and RD have in common: shared receives."""

    def _reserve_for_expected_channel(
        self, token: bytes, peer_unit: int, peer_window: int
    ) -> tuple[_Reserved, Invitation]:
        *larger, least = self._memory.unit_sizes(peer_unit)
        for size in larger:
            receives, port, qkey = self._get_or_create_receives(size)
            with contextlib.suppress(LimitError):
                window = receives.reserve_for_channel(self._memory.window)
                break
        else:
            size = least
            receives, port, qkey = self._get_or_create_receives(size)
            window = receives.reserve_for_channel(self._memory.window, set_aside=True)
        try:
            credits = Credits(Role.ACCEPTOR, window, peer_window)
        except BaseException:
            receives.reserved -= window
            raise
        self._memory.count_session(size, 1)
        return _Reserved(receives, credits), Invitation(token, port, size, window, qkey)

    @abstractmethod
    def _get_or_create_receives(self, size: int) -> tuple[Receives, int, int]:
        """Return the receives for units of a size, the port, and the Q_Key."""

    @abstractmethod
    def _find_receives(self, size: int) -> Receives | None:
        """Return the receives for units of a size, if they exist."""

    @abstractmethod
    def _free_receives(self, size: int) -> None:
        """Free the receives for units of a size."""

    def _release_reservation(self, reserved: _Reserved) -> None:
        reserved.receives.reserved -= reserved.credits.reserved
        self._count_ended_session(reserved.receives)

    def _count_ended_session(self, receives: Receives) -> None:
        self._memory.count_session(receives.unit_size, -1)
        self._schedule_freeing_of_receives(receives.unit_size)

    def _schedule_freeing_of_receives(self, size: int) -> None:
        # Sessions often follow each other, so the receives are kept for a while.
        asyncio.get_running_loop().call_later(IDLE_S, self._free_receives_if_unused, size)

    def _free_receives_if_unused(self, size: int) -> None:
        receives = self._find_receives(size)
        if self._memory.device.closed or receives is None or receives.in_use:
            return
        self._memory.device.handle_completions()
        if receives.posted == receives.total:
            self._free_receives(size)
        else:
            self._schedule_freeing_of_receives(size)  # a disk thread still uses the unit of one


class _RCAcceptor(_RDMAAcceptor):
    name = "rc"

    def __init__(self, memory: _Memory, host: str, scarce: Callable[[bool], None] | None) -> None:
        super().__init__(memory)
        self._scarce = scarce
        self._receives: dict[int, RCReceives] = {}
        self._listener = RCListener(memory.device, (host, 0), self._on_connect_request)

    def _get_or_create_receives(self, size: int) -> tuple[Receives, int, int]:
        if size not in self._receives:
            self._receives[size] = RCReceives(
                self._memory.device,
                self._memory.device.unit_pool_of_size(size),
                self._memory.receive_limit(size),
                self._scarce,
            )
        return self._receives[size], self._listener.address[1], 0

    def close(self) -> None:
        """See ``Acceptor``."""
        super().close()
        self._listener.close()
        for receives in self._receives.values():
            receives.stop_timer_and_events()

    def _on_connect_request(self, event: CMEvent) -> None:
        expected = self._take_expected_peer(event.private_data)
        if expected is None:
            _reject_connect_request(event)
            return
        receives, credits = expected.reserved
        if not isinstance(receives, RCReceives):
            raise AssertionError("the receives of an RC acceptor")
        with contextlib.suppress(Error):
            accept_rc(
                event,
                self._memory.device,
                receives,
                self._memory.device.unit_pool_of_size(receives.unit_size),
                credits,
                self._memory.limits.window,
                expected.accepted,
                lambda: self._count_ended_session(receives),
            )

    def _find_receives(self, size: int) -> Receives | None:
        return self._receives.get(size)

    def _free_receives(self, size: int) -> None:
        self._receives.pop(size).close_srq_and_free_memory()


class _RDAcceptor(_RDMAAcceptor):
    name = "rd"

    def __init__(
        self,
        memory: _Memory,
        host: str,
        scarce: Callable[[bool], None] | None,
        qkey: int | None,
    ) -> None:
        super().__init__(memory)
        self._host = host
        self._scarce = scarce
        self._qkey = qkey
        self._ports: dict[int, RDPort] = {}

    def _get_or_create_receives(self, size: int) -> tuple[Receives, int, int]:
        port = self._ports.get(size)
        if port is None:
            receives = Receives(
                self._memory.device,
                self._memory.device.unit_pool_of_size(size),
                self._memory.receive_limit(size),
                self._scarce,
            )
            port = RDPort(
                self._memory.device, receives, (self._host, 0), self._qkey, self._admit_peer
            )
            self._ports[size] = port
        return port.receives, port.address[1], port.qkey

    def close(self) -> None:
        """See ``Acceptor``."""
        super().close()
        for port in self._ports.values():
            port.receives.stop_timer_and_events()

    def _find_receives(self, size: int) -> Receives | None:
        port = self._ports.get(size)
        return None if port is None else port.receives

    def _free_receives(self, size: int) -> None:
        self._ports.pop(size).close()

    def _admit_peer(self, token: bytes, port: RDPort, wc: WC) -> RDChannel | None:
        expected = self._expected.get(token)
        if expected is None or wc.source is None:
            return None
        receives, credits = reserved = expected.reserved
        if receives is not port.receives:
            return None
        self._take_expected_peer(token)
        try:
            channel = RDChannel(
                port,
                self._memory.device.unit_pool_of_size(receives.unit_size),
                credits,
                Role.ACCEPTOR,
                self._memory.limits.window,
                wc.source,
            )
        except Error:
            self._release_reservation(reserved)
            return None
        channel.on_released = lambda: self._count_ended_session(receives)
        channel.on_joined = lambda: expected.accepted(channel)
        channel.register_for_source_units((wc.source_octets, wc.source_instance))
        return channel


class _UDAcceptor(_Acceptor[int]):
    """The acceptor of UD channels, which reserves only a window for each expected channel."""

    name = "ud"

    def __init__(self, memory: _Memory, host: str, qkey: int | None) -> None:
        super().__init__(memory)
        self._host = host
        self._qkey = qkey
        self._port: UDPort | None = None
        self._sessions = 0

    def _reserve_for_expected_channel(
        self, token: bytes, peer_unit: int, peer_window: int
    ) -> tuple[int, Invitation]:
        if self._port is None:
            device = self._memory.device
            self._port = UDPort(device, (self._host, 0), self._qkey, self._admit_peer)
        self._sessions += 1
        # All sessions together must not store more units than fit into the memory limit.
        share = self._memory.limits.memory // (8 * UD_UNIT_SIZE * self._sessions)
        window = max(LEAST_UD_WINDOW, min(WINDOW, share))
        port = self._port
        return window, Invitation(token, port.address[1], UD_UNIT_SIZE, window, port.qkey)

    def _release_reservation(self, reserved: int) -> None:
        self._sessions -= 1

    def _admit_peer(self, token: bytes, port: UDPort, source: Address) -> UDChannel | None:
        expected = self._take_expected_peer(token)
        if expected is None:
            return None
        window = expected.reserved
        try:
            channel = UDChannel(port, token, window, source)
        except Error:
            self._release_reservation(window)
            return None
        channel.on_released = lambda: self._release_reservation(window)
        expected.accepted(channel)
        return channel


class Acceptors:
    """The acceptors of a server at one local address, which share one device and one pool."""

    def __init__(
        self,
        host: str,
        limits: Limits,
        scarce: Callable[[bool], None] | None = None,
        qkey: int | None = None,
    ) -> None:
        """See ``open_acceptors``."""
        self._device = Device(host, limits.memory, limits.unit)
        memory = _Memory(self._device, limits)
        try:
            self.rc: Acceptor = _RCAcceptor(memory, host, scarce)
            self.rd: Acceptor = _RDAcceptor(memory, host, scarce, qkey)
            self.ud: Acceptor = _UDAcceptor(memory, host, qkey)
        except BaseException:
            self._device.close_nowait()
            raise

    def for_transport(self, kind: Kind) -> Acceptor:
        """Return the acceptor of a transport."""
        return {"rd": self.rd, "rc": self.rc, "ud": self.ud}[kind]

    async def close(self) -> None:
        """Close the acceptors and all their channels; wait until the device is closed."""
        for acceptor in (self.rc, self.rd, self.ud):
            acceptor.close()
        await self._device.close()


async def open_acceptors(
    host: str,
    limits: Limits,
    scarce: Callable[[bool], None] | None = None,
    qkey: int | None = None,
) -> Acceptors:
    """Open a server's device at the numeric address ``host``, with free ports for RD, RC and UD.

    ``scarce(True)`` is called when receives run out (the limit event of a shared receive queue):
    the server should pause its fastest senders. ``scarce(False)`` is called when half of the
    receives are posted again. ``qkey`` is the Q_Key of RD and UD queue pairs, if not a random one.

    Raises:
        Error: ``host`` is not an address of this machine, or a resource is exhausted.

    """
    return Acceptors(host, limits, scarce, qkey)


def _open_client_device(
    address: Address, source: str | None, memory: int, unit: int
) -> tuple[Device, str]:
    """Open the device that reaches an address; return it and its address toward the peer."""
    try:
        source = source or source_toward(address)
        return Device(source, memory, unit), source
    except Error as error:
        raise ChannelEnded(
            f"cannot open a device toward {address[0]}: {error.strerror}", Cause.REFUSED
        ) from None


async def open_channel(kind: Kind, host: str, invitation: Invitation, limits: Limits) -> Channel:
    """Open a channel to a server's acceptor at the address ``host``.

    ``limits.window`` is the number of credits that this end has announced in HELLO. The channel has
    a device and a pool of its own. Cancellation ends the attempt.

    Raises:
        ChannelEnded: the channel did not open within ``limits.timeout`` seconds, or the peer has
            refused the token.

    """
    address = host, invitation.port
    window, unit = limits.window, invitation.unit
    # One half of the pool is posted as receives, and the other is for sends; UD does not use it.
    memory = 2 * window * unit
    device, source = _open_client_device(address, limits.source, memory, unit)
    try:
        if kind == "rc":
            receives = RCReceives(device, device.pool, window)
            receives.post_until_available(window)
            opening = connect_rc(
                device,
                receives,
                address,
                invitation.token,
                window,
                invitation.window,
                limits.timeout,
            )
        elif kind == "ud":
            ud = UDPort(device, (source, 0), qkey=invitation.qkey)
            opening = open_ud_channel(
                ud, address, invitation.token, min(WINDOW, invitation.window), limits.timeout
            )
        else:
            shared = Receives(device, device.pool, window)
            shared.post_until_available(window)
            port = RDPort(device, shared, (source, 0), qkey=invitation.qkey)
            opening = connect_rd_channel(
                port, address, invitation.token, window, invitation.window, limits.timeout
            )
        return await opening
    except BaseException:
        await device.close()
        raise


class Listener:
    """A listening rendezvous."""

    def __init__(self, door: TCPListener | _RCRendezvous) -> None:
        self._door = door
        #: The listening address, with the port that was selected if port 0 was requested.
        self.address: Address = door.address

    async def close(self) -> None:
        """Stop listening; accepted channels stay open."""
        await self._door.close()


class _RCRendezvous:
    """A listener for rendezvous channels on RC; its device is closed after the last channel."""

    def __init__(self, address: Address, accepted: Callable[[Channel], None]) -> None:
        self._accepted = accepted
        self._channels = 0
        self._closed = False
        self._device = Device(address[0], RENDEZVOUS_MEMORY, HANDSHAKE_UNIT_SIZE)
        try:
            pool = self._device.pool
            self._receives = RCReceives(self._device, pool, pool.size // 2)
            self._listener = RCListener(self._device, address, self._on_connect_request)
        except BaseException:
            self._device.close_nowait()
            raise
        self.address = self._listener.address

    def _on_connect_request(self, event: CMEvent) -> None:
        window = 0
        with contextlib.suppress(LimitError):
            window = self._receives.reserve_for_channel(RENDEZVOUS_WINDOW)
        if window < RENDEZVOUS_WINDOW:  # the peer assumes that it may send RENDEZVOUS_WINDOW units
            self._receives.reserved -= window
            _reject_connect_request(event)
            return
        self._channels += 1
        with contextlib.suppress(Error):
            accept_rc(
                event,
                self._device,
                self._receives,
                self._device.pool,
                Credits(Role.ACCEPTOR, window, RENDEZVOUS_WINDOW),
                RENDEZVOUS_WINDOW,
                self._accepted,
                self._on_channel_released,
            )

    def _on_channel_released(self) -> None:
        self._channels -= 1
        if self._closed and not self._channels:
            self._device.close_nowait()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._listener.close()
            self._receives.stop_timer_and_events()
            if not self._channels:
                await self._device.close()


def _reject_connect_request(event: CMEvent) -> None:
    with contextlib.suppress(Error):  # the peer has closed the connection already
        event.id.reject()
    event.id.close()


async def listen_for_rendezvous(
    transport: Literal["tcp", "rc"], address: Address, accepted: Callable[[Channel], None]
) -> Listener:
    """Listen for rendezvous channels at (host, port); ``accepted`` is called with each of them.

    Raises:
        OSError: the address is in use or does not belong to this machine.

    """
    if transport == "rc":
        return Listener(_RCRendezvous(address, accepted))
    return Listener(await listen_tcp(address, accepted))


async def connect_rendezvous(
    transport: Literal["tcp", "rc"], address: Address, timeout: float = 10.0
) -> Channel:
    """Open a rendezvous channel to (host, port).

    Raises:
        ChannelEnded: there is no listener at the address, or it did not answer in time.

    """
    if transport == "tcp":
        return await connect_tcp_channel(address, timeout)
    memory = 2 * RENDEZVOUS_WINDOW * HANDSHAKE_UNIT_SIZE
    device, _ = _open_client_device(address, None, memory, HANDSHAKE_UNIT_SIZE)
    try:
        receives = RCReceives(device, device.pool, RENDEZVOUS_WINDOW)
        receives.post_until_available(RENDEZVOUS_WINDOW)
        return await connect_rc(
            device, receives, address, b"", RENDEZVOUS_WINDOW, RENDEZVOUS_WINDOW, timeout
        )
    except BaseException:
        await device.close()
        raise


def use_rendezvous_as_channel(channel: Channel, unit: int) -> None:
    """Let a session go on over its TCP rendezvous, with units of up to ``unit`` octets.

    Each end calls it when it has sent or received the CHANNEL that names TCP.
    """
    if not isinstance(channel, TCPChannel):
        raise ValueError(f"a session does not continue on a rendezvous of kind {channel.name}")
    channel.set_unit_size(unit)
