# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Programs: a list of operations that depends only on a workload and a seed.

An operation has a kind and a few random numbers. When an operation runs, its numbers select from
the objects that exist at that time, so that each prefix of a program is a valid program.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from siwarp.base.library import ffi, lib

__all__ = [
    "WORKLOADS",
    "Operation",
    "Program",
    "Workload",
    "generate_program",
    "settings_of_environment",
    "temporarily_change_settings",
]

#: Number of random numbers of an operation.
_NUMBERS = 6


@dataclass(frozen=True)
class Operation:
    """One operation of a random program.

    Attributes:
        kind: name of the operation; ``do_`` + kind is its method in ``Execution``, ``Connections``
        or ``Objects``. numbers: random numbers of 32 bits. pause_ns: how long the world runs after
        the operation, in ns.

    """

    kind: str
    numbers: tuple[int, ...]
    pause_ns: int

    def draw_below(self, which: int, n: int) -> int:
        """Return the operation's random number ``which`` modulo ``n``."""
        return self.numbers[which] % n

    def draw_boolean(self, which: int, percent: int) -> bool:
        """Return True with a probability of ``percent``/100, decided by random number ``which``."""
        return self.numbers[which] % 100 < percent


@dataclass(frozen=True)
class Workload:
    """The distribution from which a family of programs is drawn.

    Attributes:
        help: a description of one line.
        kinds: names of the queue pair types that the programs use.
        weights: relative frequency of each operation.
        devices: minimum and maximum number of devices.
        liars: number of hosts that send mutated datagrams.

    """

    help: str
    kinds: tuple[str, ...]
    weights: dict[str, int]
    devices: tuple[int, int] = (2, 8)
    liars: int = 0


#: Relative frequencies of the operations that begin and end faults, which all workloads have.
_FAULTS = {
    "change_fault_plan": 6,
    "change_link_fault_plan": 6,
    "partition": 3,
    "end_partitions": 5,
    "set_link_down": 1,
    "set_links_up": 3,
    "change_path_mtu": 2,
    "crash": 2,
    "restart": 6,
    "stop_polling": 6,
    "resume_polling": 10,
    "create_with_failing_allocations": 6,
}
_QUEUES = {
    "post_receives": 160,
    "poll": 200,
    "poll_all": 20,
    "wait_for_cq": 20,
    "advance_time": 10,
    "overfill_queue": 4,
}
_QUEUES |= {"resize_cq": 3, "arm_srq_limit": 16, "join_group": 10, "leave_group": 4, "arm_cq": 20}
_MESSAGES = {"send": 240, "send_list": 20, "send_with_invalid_lkey": 4, "post_short_receive": 6}
_ONE_SIDED = {
    "write": 80,
    "write_imm": 40,
    "read": 60,
    "fetch_add": 40,
    "compare_swap": 20,
    "write_record": 30,
    "invalid_remote_access": 10,
    "deregister_memory": 6,
    "reregister_target": 4,
    "register_targets": 12,
    "bind_memory_window": 40,
    "write_through_memory_window": 30,
    "invalidate_memory_window": 6,
    "send_with_invalidate": 24,
}
_CHURN = {
    "move_to_err": 8,
    "reset_qp": 8,
    "destroy_qp": 8,
    "create_qp": 30,
    "recover_qp": 30,
    "move_to_sqd": 4,
    "overflow_cq": 3,
}

WORKLOADS: dict[str, Workload] = {
    "mixed": Workload(
        "all operations",
        ("UD", "UC", "RD", "RC"),
        {**_FAULTS, **_QUEUES, **_MESSAGES, **_ONE_SIDED, **_CHURN},
    ),
    "messages": Workload(
        "sends and receives", ("UD", "UC", "RD", "RC"), {**_FAULTS, **_QUEUES, **_MESSAGES}
    ),
    "one-sided": Workload(
        "Writes, Reads, atomics and Write-Records",
        ("UC", "RD", "UD", "RC"),
        {**_FAULTS, **_QUEUES, "send": 40, **_ONE_SIDED},
    ),
    "churn": Workload(
        "creation and destruction of queue pairs and devices",
        ("UD", "UC", "RD", "RC"),
        {
            **_FAULTS,
            **_QUEUES,
            **_MESSAGES,
            **{kind: 4 * weight for kind, weight in _CHURN.items()},
            "crash": 8,
            "restart": 24,
            "deregister_memory": 6,
            "register_targets": 12,
        },
    ),
    "rc": Workload(
        "RC by addresses and QPNs and by the connection manager, both personas",
        ("RC",),
        {
            **_FAULTS,
            **_QUEUES,
            **_MESSAGES,
            **_ONE_SIDED,
            **_CHURN,
            "disconnect": 10,
            "recover_qp": 60,
        },
    ),
    "rd-many": Workload(
        "RD, each queue pair to many peers",
        ("RD",),
        {**_FAULTS, **_QUEUES, **_MESSAGES, **_ONE_SIDED},
        devices=(6, 8),
    ),
    "liars": Workload(
        "a peer whose datagrams are mutated, with a valid CRC",
        ("UD", "UC", "RD"),
        {**_FAULTS, **_QUEUES, **_MESSAGES, **_ONE_SIDED, "recover_qp": 30, "create_qp": 20},
        devices=(3, 6),
        liars=1,
    ),
}


@dataclass(frozen=True)
class Program:
    """A random program and the properties of the world in which the program runs.

    Attributes:
        workload: the name of its workload.
        seed: seed of the program and of its world.
        kinds: queue pair types of each host.
        devices: number of hosts, with one device each.
        liars: how many of the hosts, counted from the last, send mutated datagrams.
        ipv6: whether the hosts have IPv6 addresses.
        plan: the initial fault plan of the world.
        settings: values of settings, by name.
        near_wrap: whether message and packet numbers start just below their wrap.
        memory: how many of 1,000,000 allocations fail while the operations run.
        mtu: MTU of the interfaces, in octets. Only long TCP segments are sent without a copy.
        ops: the operations.

    """

    workload: str
    seed: int
    kinds: tuple[str, ...]
    devices: int
    liars: int
    ipv6: bool
    plan: str
    settings: dict[str, int]
    near_wrap: bool
    mtu: int
    memory: int
    ops: tuple[Operation, ...] = field(repr=False)


def draw_fault_plan(rng: random.Random) -> str:
    """Draw a fault plan for a link."""
    if rng.random() < 0.15:
        return ""
    clauses = []
    if rng.random() < 0.6:
        clauses.append(f"loss={rng.choice((0.5, 1, 3, 10))}%")
        if rng.random() < 0.3:
            clauses.append(f"burst={rng.randint(2, 5)}")
    if rng.random() < 0.3:
        clauses.append(f"dup={rng.choice((1, 5, 20))}%")
    if rng.random() < 0.3:
        clauses.append(f"reorder={rng.choice((1, 5))}%")
    if rng.random() < 0.2:
        clauses.append(f"corrupt={rng.choice((0.5, 2))}%")
    if rng.random() < 0.2:
        clauses.append("mark=5%")
    if rng.random() < 0.7:
        clauses.append(f"delay={rng.choice((10, 100, 1000, 20000, 200000))}us")
        if rng.random() < 0.5:
            clauses.append(f"jitter={rng.choice((5, 500, 5000))}us")
    if rng.random() < 0.25:
        clauses.append(
            f"rate={rng.choice((1, 10, 100, 1000))}Mbit,limit={rng.choice((4, 30, 200))}"
        )
    clauses.append(f"seed={rng.randint(1, 1 << 30)}")
    return ",".join(clauses)


def is_harsh_fault_plan(plan: str) -> bool:
    """Return whether a fault plan has a loss or delay at which RD with short time-outs may fail."""
    clauses = dict(clause.partition("=")[::2] for clause in plan.split(","))
    loss, delay = clauses.get("loss", "0%"), clauses.get("delay", "0us")
    return float(loss[:-1]) > 1 or int(delay[:-2]) > 1000 or "rate" in clauses


def _draw_settings(rng: random.Random) -> dict[str, int]:
    """Draw random values for some settings; most of the values are the defaults."""
    choices: dict[str, tuple[int, ...]] = {
        "budget": (1, 64, 64),
        "hot_sockets": (1, 4, 4),
        "rcvbuf": (4096, 65536, 8 << 20, 8 << 20),
        "sndbuf": (4096, 8 << 20, 8 << 20),
        "crc_first": (0, 0, 1),
        "rd_window": (65536, 65536, 4 << 20),
        "rd_total_window": (1 << 20, 64 << 20),
        "rnr_octets": (131072, 1 << 20, 64 << 20),
        "rd_follow_restart": (0, 0, 1),
        "rd_cc": (0, 1, 2),
        "peer_timeout_ms": (1000, 10000, 10000, 10000),
        "rd_handshake_timeout_ms": (2000, 60000, 60000, 60000),
        "batching": (0, 0, 1, 2),
        "uc_breaker": (0, 1, 2),
        "linger_ms": (0, 2000, 2000),
        "err_queue": (2, 32),
    }
    return {name: rng.choice(values) for name, values in choices.items()}


def settings_of_environment() -> dict[str, int]:
    """Return the settings that the environment gives a value, by name, with their values."""
    return {
        ffi.string(lib.siw_setting_name(i)).decode(): lib.siw_setting_value(i)
        for i in range(lib.siw_settings_count())
        if os.environ.get(ffi.string(lib.siw_setting_env(i)).decode())
    }


@contextlib.contextmanager
def temporarily_change_settings(values: dict[str, int]) -> Iterator[None]:
    """Change settings while a ``with`` block runs."""
    names = [ffi.string(lib.siw_setting_name(i)) for i in range(lib.siw_settings_count())]
    before = {name: lib.siw_setting_value(names.index(name.encode())) for name in values}
    for name, value in values.items():
        if lib.siw_setting_set(name.encode(), value):
            raise ValueError(f"no setting {name}={value}: see siwarp.base.settings")
    try:
        yield
    finally:
        for name, value in before.items():
            lib.siw_setting_set(name.encode(), value)


def _draw_pause_ns(rng: random.Random) -> int:
    """Draw a pause in ns: mostly 0 or short, rarely longer than all timers of a connection."""
    at = rng.random()
    if at < 0.5:
        return 0
    if at < 0.75:
        return rng.randint(1, 50) * 1_000
    if at < 0.95:
        return rng.randint(1, 50) * 100_000
    if at < 0.997:
        return rng.randint(1, 20) * 10_000_000
    return rng.randint(1, 12) * 1_000_000_000


def generate_program(workload: str, seed: int, operations: int = 600) -> Program:
    """Return the random program that a workload and a seed determine.

    Raises:
        ValueError: there is no such workload.

    """
    if workload not in WORKLOADS:
        raise ValueError(f"no workload {workload!r}: use one of {', '.join(WORKLOADS)}")
    family = WORKLOADS[workload]
    # A seed of type str produces the same random numbers in all processes and Python versions.
    rng = random.Random(f"siwarp {workload} {seed}")
    kinds, weights = list(family.weights), list(family.weights.values())

    def draw_operation(kind: str) -> Operation:
        return Operation(
            kind, tuple(rng.getrandbits(32) for _ in range(_NUMBERS)), _draw_pause_ns(rng)
        )

    devices = rng.randint(*family.devices)
    ipv6, near_wrap = rng.random() < 0.2, rng.random() < 0.3
    plan, settings = draw_fault_plan(rng), _draw_settings(rng)
    ops = [draw_operation(kind) for kind in rng.choices(kinds, weights, k=operations)]
    # Each program has these operations, so that each program causes a crash and a refusal.
    for kind, at in (("overfill_queue", 0.4), ("crash", 0.6), ("restart", 0.7)):
        ops.insert(int(len(ops) * at) + rng.randint(0, len(ops) // 20), draw_operation(kind))
    return Program(
        workload,
        seed,
        family.kinds,
        devices,
        family.liars,
        ipv6,
        plan or "loss=1%",
        settings,
        near_wrap,
        rng.choice((1500, 1500, 9000)),
        rng.choice((0, 0, 0, 1000, 20000)),
        tuple(ops),
    )
