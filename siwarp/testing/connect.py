# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The connected ends of ``pair``, on one device or on two devices of a simulated world."""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from siwarp.cm import CMID, RTR, CMEventChannel, CMEventType, ConnParam
from siwarp.testing.end import LIMIT_S, End
from siwarp.testing.pair import Kind, Pair
from siwarp.verbs import AH, Context, Error, QPAttr, QPInitAttr, QPType, Timeout

if TYPE_CHECKING:
    from siwarp.sim import World

__all__ = ["open_connected_ends"]

#: Q_Key of both ends in a world, whose hosts have different default Q_Keys.
_QKEY = 0x5EED


@contextlib.contextmanager
def open_connected_ends(
    kind: Kind,
    device: Context | str | None,
    world: World | None,
    *,
    size: int,
    receives: int,
    recv_size: int,
    persona: int,
) -> Iterator[Pair]:
    """Yield two connected ends, with the arguments of ``pair``; ``world``: for simulated ends."""
    qp_type = QPType[kind.upper()]
    with contextlib.ExitStack() as stack:
        if world is None:
            one = device if isinstance(device, Context) else stack.enter_context(Context(device))
            devices = [one, one]
        else:
            devices = [stack.enter_context(_add_device(world)) for _ in "ab"]
        qkey = _QKEY if world is not None and kind in ("ud", "rd") else None

        def open_end(opened: Context) -> End:
            addr = None if kind == "rc" else (_host_address_of_device(opened, device), 0)
            init = QPInitAttr(qp_type, persona=persona, addr=addr, qkey=qkey)
            end = End(opened, init, size=size, receives=receives, recv_size=recv_size)
            return stack.enter_context(end)

        ends = Pair(*map(open_end, devices))
        ends.a.peer, ends.b.peer = ends.b, ends.a
        ends.a.world = ends.b.world = world
        if kind == "rc":
            _connect_rc(ends, _host_address_of_device(ends.b.device, device), stack)
        elif kind == "uc":
            _connect_uc(ends)
        else:
            _start_ud_or_rd_pair(ends, stack)
        yield ends


def _add_device(world: World) -> Context:
    """Add a device to a world, at the first address of 10.0.0.0/16 that no host has."""
    for number in itertools.count(1):
        try:
            return world.device(f"10.0.{number >> 8}.{number & 0xFF}")
        except Error as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError("unreachable")


def _host_address_of_device(opened: Context, wanted: Context | str | None) -> str:
    """Return the address of the device that the caller has named, or of the first device."""
    if isinstance(wanted, str) and wanted in opened.device.addresses:
        return wanted
    return opened.device.addresses[0]


def _start_ud_or_rd_pair(ends: Pair, stack: contextlib.ExitStack) -> None:
    """Move UD or RD queue pairs to RTS, and create an address handle of each one's peer."""
    for end in ends:
        end.qp.to_rts()
        end.post_receives()
    for end in ends:
        end.ah = stack.enter_context(AH(end.pd, end.peer.qp.addr))


def _connect_uc(ends: Pair) -> None:
    """Connect UC queue pairs: each queue pair gets the address of its peer."""
    for end in ends:
        end.qp.to_rts(QPAttr(ah_attr=end.peer.qp.addr))
        end.post_receives()


def _connect_rc(ends: Pair, host: str, stack: contextlib.ExitStack) -> None:
    """Connect RC queue pairs: ``a`` is the initiator, ``b`` the responder."""
    one_device = ends.a.device is ends.b.device
    channel = stack.enter_context(CMEventChannel(ends.a.device if one_device else None))
    with CMID(channel) as listener:
        initiator = CMID(channel)
        if not one_device:
            listener.set_device(ends.b.device)
            initiator.set_device(ends.a.device)
        listener.listen((host, 0))
        ends.a.adopt_cm_id(initiator)
        stack.callback(ends.a.close)  # close the connection before its channel
        # Either end may send first (RFC 6581).
        rtr = RTR.FPDU | RTR.WRITE | RTR.READ
        param = ConnParam(peer_to_peer=rtr, timeout=LIMIT_S)
        ends.a.cm_id.connect(listener.local_addr, param)
        established = 0
        while established < 2:
            event = channel.get_event(LIMIT_S)
            if event is None:
                raise Timeout(
                    errno.ETIMEDOUT,
                    f"connecting a pair took more than {LIMIT_S:g} s; check whether a fault "
                    "plan delays it",
                )
            if event.check().type == CMEventType.CONNECT_REQUEST:
                ends.b.adopt_cm_id(event.id)
                stack.callback(ends.b.close)
                event.id.accept()
            elif event.type == CMEventType.ESTABLISHED:
                established += 1
