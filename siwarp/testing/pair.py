# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``pair``: makes two ends and connects them."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from siwarp.cm import CMID, RTR, CMEventChannel, CMEventType, ConnParam
from siwarp.testing.end import LIMIT_S, End
from siwarp.verbs import AH, Context, Persona, QPAttr, QPInitAttr, QPType, Timeout

__all__ = ["Kind", "Pair", "pair"]

#: Queue pair type of both ends: RC over TCP; UC, UD or RD over UDP.
Kind = Literal["rc", "uc", "ud", "rd"]


class Pair(NamedTuple):
    """Two ends that are connected to each other."""

    a: End
    b: End


@contextlib.contextmanager
def pair(
    kind: Kind = "rc",
    device: Context | str | None = None,
    *,
    size: int = 64 * 1024,
    receives: int = 16,
    recv_size: int = 64 * 1024,
    persona: int = Persona.AUTO,
) -> Iterator[Pair]:
    """Yield two ends on one device that are connected to each other; close both afterwards.

    Args:
        kind: ``"rc"``, ``"uc"``, ``"ud"`` or ``"rd"``. RC is connected by ``siwarp.cm``, and either
            end may send first.
        device: an open device, which stays open, or the name or address of a device to open;
            default: the loopback device.
        size: octets of the memory that each end registers for its peer.
        receives: number of receives that each end posts, and posts again after ``End.recv``. With 0
            the test posts its own receives.
        recv_size: octets of a receive.
        persona: RC: whether the queue pairs behave like iWARP or like RoCE.

    Raises:
        ValueError: unknown kind.
        Error: no such device, or one of its limits is exceeded.

    """
    if kind not in get_args(Kind):
        raise ValueError(f"unknown kind {kind!r}: use one of {', '.join(get_args(Kind))}")
    qp_type = QPType[kind.upper()]
    with contextlib.ExitStack() as stack:
        opened = device if isinstance(device, Context) else stack.enter_context(Context(device))
        host = device if isinstance(device, str) else ""
        if host not in opened.device.addresses:
            host = opened.device.addresses[0]
        init = QPInitAttr(qp_type, persona=persona, addr=None if kind == "rc" else (host, 0))
        memory = {"size": size, "receives": receives, "recv_size": recv_size}
        ends = Pair(*(stack.enter_context(End(opened, init, **memory)) for _ in "ab"))
        ends.a.peer, ends.b.peer = ends.b, ends.a
        if kind == "rc":
            _connect_rc(ends, host, stack)
        elif kind == "uc":
            _connect_uc(ends)
        else:
            _create_address_handles(ends, stack)
        yield ends


def _create_address_handles(ends: Pair, stack: contextlib.ExitStack) -> None:
    """Create the address handles of UD or RD peers, which each request contains."""
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
    channel = stack.enter_context(CMEventChannel(ends.a.device))
    with CMID(channel) as listener:
        listener.listen((host, 0))
        ends.a.adopt_cm_id(CMID(channel))
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
