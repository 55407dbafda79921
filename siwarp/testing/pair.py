# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``pair``: makes two ends and connects them, on real sockets or in a simulated world."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from siwarp.base import system
from siwarp.base.simulator import require_simulator

if TYPE_CHECKING:
    from siwarp.sim import World
    from siwarp.testing.end import End
    from siwarp.verbs import Context

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
    sim: World | bool = False,
    size: int = 64 * 1024,
    receives: int = 16,
    recv_size: int = 64 * 1024,
    persona: int = 0,
) -> Iterator[Pair]:
    """Yield two ends that are connected to each other; close both afterwards.

    Args:
        kind: ``"rc"``, ``"uc"``, ``"ud"`` or ``"rd"``. RC is connected by ``siwarp.cm``, and either
            end may send first.
        device: an open device for both ends, which stays open, or the name or address of a device
            to open; default: the loopback device.
        sim: ``True``: the ends are on two devices of a new world of ``siwarp.sim``, which
            ``a.world`` returns; or a world, to which two devices are added. A process is either
            real or simulated: ``sim`` makes this process simulated if ``siwarp.verbs`` was not
            imported before.
        size: octets of the memory that each end registers for its peer.
        receives: number of receives that each end posts, and posts again after ``End.recv``. With 0
            the test posts its own receives.
        recv_size: octets of a receive.
        persona: RC: a ``Persona``, whether the queue pairs behave like iWARP or like RoCE.

    Raises:
        ValueError: unknown kind, or both ``device`` and ``sim``.
        RuntimeError: ``sim`` in a process that is real, or a pair on real sockets in a process that
            is simulated.
        ModuleNotFoundError: ``sim``, but ``siwarp.sim`` (the extra ``siwarp[sim]``) is not
            installed.
        Error: no such device, or one of its limits is exceeded.

    """
    if kind not in get_args(Kind):
        raise ValueError(f"unknown kind {kind!r}: use one of {', '.join(get_args(Kind))}")
    if sim and device is not None:
        raise ValueError("device excludes sim: omit device, as the pair adds its own")
    with contextlib.ExitStack() as stack:
        world: World | None = None
        if sim:
            world = stack.enter_context(_open_world()) if sim is True else sim
        elif device is None and system.simulated:
            raise RuntimeError(
                "this process is simulated and has no loopback device: create the pair in a world, "
                f"pair({kind!r}, sim=True), or run without siwarp.sim and SIWARP_SIM"
            )
        # Imported late: unless ``sim``, this import loads the library for real sockets.
        from siwarp.testing.connect import open_connected_ends

        yield stack.enter_context(
            open_connected_ends(
                kind,
                device,
                world,
                size=size,
                receives=receives,
                recv_size=recv_size,
                persona=persona,
            )
        )


def _open_world() -> World:
    require_simulator()
    # Loads the simulated library, unless the library for real sockets has been loaded before.
    import siwarp.sim

    if not system.simulated:
        raise RuntimeError(
            "this process uses real sockets, because siwarp.verbs was imported, so it cannot "
            "simulate a pair: import siwarp.sim first, or set SIWARP_SIM=1 in the environment; in "
            "pytest, run the simulated tests as a run of their own"
        )
    from siwarp.verbs import StateError

    try:
        return siwarp.sim.World()
    except StateError as error:
        raise StateError(
            error.errno or 0, "a world is open already: pass it to the pair, pair(kind, sim=world)"
        ) from None
