# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Plans of measurements: their runs, and the floor, which is the raw-socket run for comparison."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from siwarp.bench.sizes import ALL, parse_sizes
from siwarp.bench.trust import LEAST_FLOOR_ROUNDS

__all__ = [
    "KINDS",
    "RD_FLOOR",
    "Floors",
    "Plan",
    "PlanOptions",
    "UsageError",
    "comparison_runs_of_plan",
    "count_datagrams_fitting_receive_buffer",
    "make_bench_plan",
    "make_plans",
    "make_raw_socket_floor_plan",
    "remove_losses_from_fault_plan",
]

#: Maximum payload of a UD datagram over IPv4, after DDP's header (18 octets) and the CRC (4).
UD_MOST = 65507 - 18 - 4
#: Maximum payload of a UC segment, which also has the LLP header; a raw datagram carries as much.
UC_MOST = UD_MOST - 12
#: Maximum octets of an RC message, and of an RD message.
RC_MOST = 1 << 30
#: Octets of the raw datagrams with which RD's bandwidth is compared.
RD_FLOOR = 60000
#: Octets of the receive buffer that the library requests (setting rcvbuf).
RECEIVE_BUFFER = 8 << 20

#: For each kind of measurement: the unit, and whether smaller values are better.
KINDS = {
    "lat": ("us", True),
    "bw": ("GB/s", False),
    "rate": ("msg/s", False),
}

#: The faults in a fault plan that make RD retransmit.
_LOSSES = ("loss", "burst", "corrupt")


class UsageError(ValueError):
    """The requested measurement is not possible; the message lists the possible measurements."""


@dataclass(frozen=True)
class Plan:
    """The parameters of one measurement.

    Attributes:
        kind: lat, bw or rate.
        qp: ud, uc, rd or rc; the floors of uc are those of ud; for rd see
            make_raw_socket_floor_plan.
        op: send, write or read.
        size: octets of a message.
        iters: messages in the measured part of a run; 0: chosen so that a run is short.
        depth: messages outstanding; for sends, the window that the receiver's credits keep open.
        wait: poll or event: how completions are awaited.
        api: c or python: the language that calls siwarp's verbs; numpy: Python, with requests and
            completions in arrays.
        post_list: requests posted as one list.
        rounds: how often floor and siwarp are measured alternately.
        markers: measure siwarp additionally with MPA's Markers in both directions.
    """

    kind: str
    qp: str
    op: str
    size: int
    iters: int
    depth: int
    wait: str
    api: str
    post_list: int
    rounds: int
    markers: bool = False

    @property
    def unit(self) -> str:
        """The unit: us, GB/s (10^9 octets per second) or msg/s."""
        return KINDS[self.kind][0]

    @property
    def less_is_better(self) -> bool:
        """Whether a ratio below 1 means that siwarp is faster, as with latency."""
        return KINDS[self.kind][1]

    @property
    def messages_per_credit(self) -> int:
        """Number of messages per credit of the receiver; the iterations are a multiple of that
        number.
        """
        return max(1, self.depth // 2)


class PlanOptions(TypedDict, total=False):
    """The options of a measurement in addition to kind, type of queue pair and operation.

    Attributes:
        size: octets of a message.
        iters: messages of a run; without it a run takes about a sixth of a second.
        depth: messages outstanding.
        wait: ``poll`` or ``event``.
        api: ``c``, ``python`` or ``numpy``; the floor of Python is the same run in C.
        post_list: requests posted as one list.
        rounds: how often each is measured, alternately.
        markers: measure siwarp additionally with Markers in both directions (RC).
    """

    size: int | None
    iters: int | None
    depth: int | None
    wait: str
    api: str
    post_list: int
    rounds: int
    markers: bool


@dataclass(frozen=True)
class Floors:
    """The raw-socket runs for comparison: the run for the ratio, and the other runs."""

    floor: str
    others: tuple[str, ...] = ()


#: (kind, qp, wait): the raw-socket runs of siwarp-bench for comparison.
_FLOORS = {
    ("lat", "ud", "poll"): Floors("unconnected", ("connected", "blocking")),
    ("lat", "ud", "event"): Floors("blocking", ("unconnected", "connected")),
    ("lat", "rc", "poll"): Floors("polling", ("blocking",)),
    ("lat", "rc", "event"): Floors("blocking", ("polling",)),
    ("bw", "ud", "poll"): Floors("unconnected", ("connected", "blocking", "gso")),
    ("bw", "ud", "event"): Floors("blocking", ("unconnected", "blocking-gso")),
    ("bw", "rc", "poll"): Floors("polling", ("blocking",)),
    ("bw", "rc", "event"): Floors("blocking", ("polling",)),
    ("rate", "ud", "poll"): Floors("mmsg", ("single", "connected", "blocking-mmsg", "gso")),
    ("rate", "ud", "event"): Floors("blocking-mmsg", ("mmsg", "blocking-gso")),
    ("rate", "rc", "poll"): Floors("single", ("blocking", "coalesced")),
    ("rate", "rc", "event"): Floors("blocking", ("single", "blocking-coalesced")),
}


def comparison_runs_of_plan(plan: Plan) -> Floors:
    """Return the runs with which the result of a plan is compared.

    These are runs of raw sockets, with two exceptions: the floor of ``api`` python and numpy is the
    same run of siwarp in C, and the floor of latency and rate on RD is siwarp's UD.
    """
    raw = _FLOORS[plan.kind, "rc" if plan.qp == "rc" else "ud", plan.wait]
    if plan.qp == "rd":
        return Floors(raw.floor) if plan.kind == "bw" else Floors("ud", (raw.floor,))
    # A GSO batch has at least two segments, so messages that are too long for two have no such
    # floor.
    others = tuple(
        name for name in raw.others if not name.endswith("gso") or plan.size * 2 <= 65507
    )
    if plan.api != "c":
        return Floors("c", (raw.floor,))
    return Floors(raw.floor, others)


def make_raw_socket_floor_plan(plan: Plan) -> Plan:
    """Return the plan for raw sockets (the floors): the same plan, but datagrams for a UC Write.

    For RD it is a plan of UD; for bandwidth with large datagrams, and the same octets per run.
    """
    if plan.qp != "rd":
        return replace(plan, op="send") if plan.qp == "uc" else plan
    if plan.kind != "bw":
        return replace(plan, qp="ud")
    depth = _default_depth("bw", "ud", "send", RD_FLOOR)
    beside = replace(plan, qp="ud", op="send", size=RD_FLOOR, depth=depth)
    iters = max(1, plan.iters * plan.size // RD_FLOOR)
    return replace(beside, iters=iters + -iters % beside.messages_per_credit)


def remove_losses_from_fault_plan(faults: str) -> str | None:
    """Return a fault plan without the faults that make RD retransmit; None if it has none."""
    clauses = []
    lossy = False
    for clause in map(str.strip, faults.split(";")):
        way = clause[: clause.find("x:") + 2] if clause.startswith(("tx:", "rx:")) else ""
        words = clause[len(way) :].split(",")
        kept = [word for word in words if _fault_name(word) not in _LOSSES]
        lossy |= len(kept) < len(words)
        if any(_fault_name(word) not in ("peer", "seed") for word in kept):
            clauses.append(way + ",".join(kept))
    return ";".join(clauses) if lossy else None


def _fault_name(word: str) -> str:
    return word.partition("=")[0].strip()


def _receive_buffer_octets() -> int:
    """Return the size in octets that a UDP socket's receive buffer can have without privilege.

    The kernel reports twice the requested size, and counts its own bookkeeping too. The limit is
    read from a socket, because containers with older kernels do not have it in /proc.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        return s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def count_datagrams_fitting_receive_buffer(size: int) -> int:
    """Return the number of datagrams of a size that surely fit in a receive buffer.

    The kernel rounds a small datagram up to a power of two; above 16 KiB it uses page fragments.
    """
    cost = 2 * size + 1024 if size < 16384 else size + 8192
    return _receive_buffer_octets() // cost


def _default_depth(kind: str, qp: str, op: str, size: int, beside: bool = True) -> int:
    if kind == "lat":
        return 1
    if op != "send" and qp != "uc":
        return 16
    depth = 16 if size >= 16384 else 128
    return (
        depth
        if _has_flow_control(kind, qp, beside)
        else max(1, min(depth, count_datagrams_fitting_receive_buffer(size)))
    )


def _has_flow_control(kind: str, qp: str, beside: bool) -> bool:
    """Return whether the receiver limits the sender, so that the window needs no limit.

    The rate on RD has the same window as UD if it is compared with UD's rate.
    """
    return qp == "rc" or (qp == "rd" and (kind == "bw" or not beside))


def _check_measurement_plan(plan: Plan, beside: bool) -> None:
    choices = {
        "kind": tuple(KINDS),
        "qp": ("ud", "uc", "rd", "rc"),
        "op": ("send", "write", "read"),
        "wait": ("poll", "event"),
        "api": ("c", "python", "numpy"),
    }
    for name, known in choices.items():
        if getattr(plan, name) not in known:
            raise UsageError(f"{name} is one of {', '.join(known)}, not {getattr(plan, name)!r}")
    if plan.markers and plan.qp != "rc":
        raise UsageError("Markers exist only on RC (MPA over TCP): add --qp rc")
    if plan.rounds < 1 or plan.iters < 0 or plan.size < 1:
        raise UsageError("rounds and size must be at least 1")
    if plan.qp in ("uc", "rd") and plan.api != "c":
        raise UsageError(f"{plan.qp.upper()} is measured only in C: leave out --api")
    if plan.api == "numpy" and (plan.kind == "lat" or plan.op != "send" or plan.wait != "poll"):
        raise UsageError("arrays are measured only with streams of Sends and polling: --api python")
    if plan.qp == "uc" and plan.op == "read":
        raise UsageError("UC has no RDMA Read: --op send, --op write, or --qp rc")
    if plan.qp == "ud" and plan.op != "send":
        raise UsageError(f"UD supports only send: use --qp rc for --op {plan.op}")
    if plan.qp == "rd" and plan.op not in (("send", "write") if plan.kind == "bw" else ("send",)):
        raise UsageError(
            "RD is measured with Sends, and bw also with RDMA Writes: use --op send, "
            "or bw with --op write"
        )
    most = RC_MOST if _has_flow_control(plan.kind, plan.qp, beside) else UD_MOST
    if plan.qp == "rd" and plan.size > most:
        raise UsageError(
            f"RD is compared with UD, whose messages have at most {most} octets: reduce --size"
        )
    most = UC_MOST if plan.qp == "uc" else most
    if plan.size > most:
        raise UsageError(f"a message over {plan.qp} has at most {most} octets: reduce --size")
    if plan.kind == "lat" and plan.op == "write" and plan.wait == "event":
        raise UsageError("a Write causes no event at the target: use --wait poll with --op write")
    if not 1 <= plan.depth <= 4096:
        raise UsageError("depth must be from 1 to 4096")
    if not 1 <= plan.post_list <= 32:
        raise UsageError("post_list must be from 1 to 32")
    if (
        not _has_flow_control(plan.kind, plan.qp, beside)
        and plan.kind != "lat"
        and plan.depth > (room := count_datagrams_fitting_receive_buffer(plan.size))
    ):
        raise UsageError(
            f"{plan.depth} datagrams of {plan.size} octets do not fit a socket's receive buffer: "
            f"--depth {max(1, room)} at most, or raise net.core.rmem_max"
        )


def make_bench_plan(
    kind: str,
    qp: str = "ud",
    op: str = "send",
    *,
    size: int | None = None,
    iters: int | None = None,
    depth: int | None = None,
    wait: str = "poll",
    api: str = "c",
    post_list: int = 1,
    rounds: int = LEAST_FLOOR_ROUNDS,
    markers: bool = False,
    beside: bool = True,
) -> Plan:
    """Return a plan with defaults for omitted options. beside: raw sockets are measured too.

    Raises:
        UsageError: there is no such measurement.

    """
    if size is None:
        size = 64 if kind != "bw" else 1 << 20 if qp in ("rc", "rd") else 60000
    if depth is None:
        depth = _default_depth(kind, qp, op, size, beside)
    plan = Plan(kind, qp, op, size, iters or 0, depth, wait, api, post_list, rounds, markers)
    _check_measurement_plan(plan, beside)
    return plan


def make_plans(
    kind: str, qps: Sequence[str], op: str, sizes: str | None, **options: Any
) -> tuple[list[Plan], list[str]]:
    """Return a plan for each type of queue pair and each size.

    Args:
        kind, qps, op: see make_bench_plan.
        sizes: a list for ``siwarp.bench.sizes``; None: the kind's usual size.
        options: further options of make_bench_plan.

    Returns:
        The plans, and why sizes of ``all`` are left out, a line for each type of queue pair.

    Raises:
        UsageError: there is no such measurement.

    """
    plans, left_out = [], []
    every: list[int | None] = [None]
    if sizes is not None:
        try:
            every = [*parse_sizes(sizes)]
        except ValueError as e:
            raise UsageError(str(e)) from None
    for qp in qps:
        for size in every:
            try:
                plans.append(make_bench_plan(kind, qp, op, size=size, **options))
            except UsageError as e:
                if size is None or size not in ALL or size == ALL[0] or "octets" not in str(e):
                    raise
                left_out.append(f"{qp}: {e}")
                break
    return plans, left_out
