# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The world: devices, links, a clock, tasks, and the seed that determines everything."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import ipaddress
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from siwarp.base import system
from siwarp.base.library import ffi, lib
from siwarp.sim import doors, sockets, tasks
from siwarp.sim.loop import Loop, run
from siwarp.sim.sockets import TCPListener, TCPSocket, UDPSocket
from siwarp.sim.tasks import Task
from siwarp.sim.units import NEVER, Duration, nanoseconds
from siwarp.verbs import Context, Error, StateError, Timeout, capture
from siwarp.verbs._ffi import Handle, addr_to_c, open_root_handles, reap_dropped_handles

__all__ = ["Deadlock", "Stats", "World"]

T = TypeVar("T")
_S = TypeVar("_S", UDPSocket, TCPSocket, TCPListener)

#: A host of a world: an open device on it, or one of its addresses.
Where = Context | str

#: Number of instants for which close() waits for the tasks to end.
_LAST_INSTANTS = 10_000


class Deadlock(Error):
    """No event will ever occur in this world, and the awaited condition is false (EDEADLK)."""


@dataclass(frozen=True)
class Stats:
    """Counters since the world began (``struct siw_sim_stats``)."""

    #: Datagrams sent.
    sent: int
    delivered: int
    lost: int
    duplicated: int
    #: Packets to a port without a socket.
    refused: int
    #: Datagrams dropped because the receive buffer was full; connections beyond a backlog.
    overflowed: int
    #: TCP connections established.
    connections: int
    #: TCP segments sent, including retransmissions.
    segments: int
    #: Progress rounds of devices that the scheduler made.
    rounds: int
    #: Switches from one task to another.
    switches: int
    #: How often the clock advanced.
    instants: int
    #: Allocations that failed because of ``fail_memory``.
    allocations_failed: int


def _normal_address(address: str) -> str:
    """Return an IP address in normal form, without a scope, for comparisons.

    Raises:
        ValueError: the text is not an IP address.

    """
    return str(ipaddress.ip_address(address.partition("%")[0]))


class World:
    """A simulated network with its own clock; a process has at most one open world.

    The same seed produces the same run in any process, regardless of the load of the machine. Time
    stands still while code runs, and advances when all tasks wait.

    The thread that opens the world decides how long the world runs: ``run_for``, ``run_until``,
    ``run``. Like any task, it may also make blocking calls.

    Args:
        seed: determines everything random: the choice of the next task, the links' faults, and the
            engine's random numbers.
        faults: the fault plan of all links that have no plan of their own (``link``), for example
            ``"loss=1%,delay=2ms"``. Without a plan packets arrive at once and in order.
        near_wrap: message sequence numbers, and RD's packet sequence numbers and epochs, begin just
            below 2^32, so that a short test crosses their wrap. A peer that a test implements
            itself must then begin with MSN 0xfffffff0 instead of 1.

    Raises:
        RuntimeError: the process is not a simulated one.
        Error: ``faults`` is not a valid plan (EINVAL), or SIWARP_FAULTS is set (EOPNOTSUPP).
        StateError: a world is already open (EBUSY).

    """

    def __init__(self, seed: int = 1, faults: str = "", *, near_wrap: bool = False) -> None:
        if not system.simulated:
            raise RuntimeError(
                "this process is not simulated, because siwarp.verbs was imported before "
                "siwarp.sim: import siwarp.sim first, or set SIWARP_SIM=1 in the environment"
            )
        if os.environ.get("SIWARP_FAULTS"):
            raise Error(
                errno.EOPNOTSUPP,
                "SIWARP_FAULTS applies to the machine's network: unset it, and set the plan of a "
                "world by World(faults=...) or world.faults",
            )
        self.seed = seed
        self._before = set(map(id, open_root_handles()))
        rc = lib.siw_sim_open(seed & NEVER, faults.encode())
        if rc == -errno.EBUSY:
            raise StateError(
                errno.EBUSY, "a process can have only one open world: close the other one first"
            )
        self._plan(rc, f"creating a world with faults {faults!r}")
        lib.siw_sim_near_wrap(near_wrap)
        #: Argument of the last ``fail_memory`` call.
        self.memory_failing = 0
        self._hosts: dict[str, int] = {}  # host numbers, by address
        self._first: list[str] = []  # the first address of each host
        self._with_device: set[int] = set()
        self._cuts: set[tuple[int, int]] = set()
        self._sockets: list[UDPSocket | TCPSocket | TCPListener] = []
        self._tasks: dict[Task, None] = {}  # tasks that have not ended, in order of their start
        self._failed: list[Task] = []
        self._crashes: Counter[int] = Counter()  # number of crashes of each host
        self._loop: Loop | None = None  # event loop of the thread that opened the world
        self._closed = False
        doors.set_starter(lambda call, name: self._start(Task(name, tasks.home()), call))
        doors.set_router(self._source_toward, self._address_of_home)
        doors.set_qkeys(self._qkey_of)

    # ---- devices and links

    def device(self, *addresses: str, mtu: int = 1500, faults: str | None = None) -> Context:
        """Add a host with these addresses, IPv4 or IPv6, and open its device.

        ``siwarp.verbs.Context(address)`` opens the device again.

        Args:
            addresses: 1 to 16 addresses that no other host of the world has.
            mtu: MTU of the host's interface, in octets.
            faults: fault plan of the host's interface (see ``interface``).

        Raises:
            ValueError: one of the addresses is malformed.
            Error: another host has one of the addresses (EADDRINUSE), one is not a unicast address
                (EINVAL), or ``faults`` is not a valid plan (EINVAL).

        """
        first = self._add_host(addresses, mtu)
        self._with_device.add(self._hosts[first])
        if faults is not None:
            self.interface(first, faults)
        return Context(first)

    def _add_host(self, addresses: tuple[str, ...], mtu: int = 1500) -> str:
        known = [_normal_address(address) for address in addresses]
        c = ffi.new("struct siw_addr[]", max(1, len(known)))
        for i, address in enumerate(known):
            c[i] = addr_to_c((address, 0))[0]
        host = self._check(lib.siw_sim_host_add(c, len(known), mtu), f"adding host {addresses}")
        self._hosts.update(dict.fromkeys(known, host))
        self._first.append(known[0])
        return known[0]

    def _host(self, where: Where) -> int:
        address = where if isinstance(where, str) else where.device.addresses[0]
        host = self._hosts.get(_normal_address(address))
        if host is None:
            raise Error(
                errno.ENODEV, f"this world has no device {address}: add it with world.device"
            )
        return host

    def link(self, a: Where, b: Where, faults: str | None = None) -> None:
        """Set the fault plan of the link between two hosts; ``None``: the world's plan applies.

        ``tx:`` clauses apply to packets from ``a`` to ``b``, ``rx:`` clauses to packets from ``b``
        to ``a``.

        Raises:
            Error: the plan is not valid (EINVAL).

        """
        plan = ffi.NULL if faults is None else faults.encode()
        self._plan(lib.siw_sim_link(self._host(a), self._host(b), plan), f"the plan {faults!r}")

    def interface(self, device: Where, faults: str | None = None) -> None:
        """Set the fault plan of a host's interface, for all its packets; ``None``: no plan.

        ``tx:`` clauses apply to packets that the host sends, ``rx:`` clauses to packets that it
        receives from any host: ``"rx:rate=1Gbit,limit=256KiB"`` is a bottleneck that all senders
        share. ``dup``, ``reorder``, ``reset`` and ``short`` are refused: they are for links.

        Raises:
            Error: the plan is not valid (EINVAL).

        """
        plan = ffi.NULL if faults is None else faults.encode()
        self._plan(lib.siw_sim_host_plan(self._host(device), plan), f"the plan {faults!r}")

    def faults(self, plan: str) -> None:
        """Change the fault plan of all links that have no plan of their own.

        Raises:
            Error: the plan is not valid (EINVAL).

        """
        self._plan(lib.siw_sim_faults(plan.encode()), f"the plan {plan!r}")

    def path_mtu(self, a: Where, b: Where, mtu: int, *, told: bool = True) -> None:
        """Set the path MTU between two hosts, in octets; 0: the MTU of their interfaces applies.

        Larger packets are lost. With ``told``, ICMP reports the loss to the sender.
        """
        rc = lib.siw_sim_path_mtu(self._host(a), self._host(b), mtu, told)
        self._check(rc, f"a path MTU of {mtu}")

    def link_up(self, device: Where, up: bool) -> None:
        """Set the interface of a host up or down."""
        self._check(lib.siw_sim_host_link_up(self._host(device), up), "changing an interface")

    def mutate(self, device: Where, of_1000: int) -> None:
        """Mutate ``of_1000`` of 1,000 datagrams that a host sends, and recompute their CRC.

        The host acts as a malicious peer: in a mutated datagram a few octets have changed, or the
        datagram is shorter.
        """
        self._check(lib.siw_sim_mutate(self._host(device), of_1000), f"{of_1000} of 1,000 mutated")

    def fail_memory(self, of_million: int) -> None:
        """Make ``of_million`` of 1,000,000 allocations of siwarp fail from now on; 0: none.

        The seed decides which ones fail. A call that needs memory then raises an error (ENOMEM).
        Operations without a caller, such as the arrival of a message, fail as documented for the
        queue pair type. Allocations of Python and of the simulated network do not fail.
        """
        self._check(lib.siw_sim_fail_memory(of_million), f"{of_million} failures in a million")
        self.memory_failing = of_million

    def partition(self, *groups: Where | Iterable[Where], one_way: bool = False) -> None:
        """Drop all packets between hosts of different groups, until ``heal``.

        Each group is one host or several. A host in no group reaches all others. Packets in flight
        between the groups are lost.

        Args:
            groups: two or more groups.
            one_way: drop only packets from a group to a group later in the list.

        """
        hosts = [
            [self._host(group)]
            if isinstance(group, Context | str)
            else [self._host(where) for where in group]
            for group in groups
        ]
        for i, some in enumerate(hosts):
            for others in hosts[i + 1 :]:
                for a in some:
                    for b in others:
                        self._cut(a, b)
                        if not one_way:
                            self._cut(b, a)

    def _cut(self, a: int, b: int) -> None:
        self._check(lib.siw_sim_cut(a, b, 1), "partitioning hosts")
        self._cuts.add((a, b))

    def heal(self) -> None:
        """End all partitions."""
        for a, b in sorted(self._cuts):
            self._check(lib.siw_sim_cut(a, b, 0), "ending a partition")
        self._cuts.clear()

    def crash(self, device: Where) -> None:
        """Kill everything that runs on the device's host at this instant, as kill -9 does.

        The host's ports are closed, so that peers are refused or reset. Calls on handles of its
        devices raise StateError (ESTALE), including calls that already wait. A task of that host
        (``spawn(on=device)``) that ends with this error counts as killed: ``task.result()`` raises
        the error, but ``run_for`` and similar calls do not.
        """
        host = self._host(device)
        self._crashes[host] += 1
        self._check(lib.siw_sim_host_crash(host), "crashing a host")

    def restart(self, device: Where) -> Context:
        """Restart a host after ``crash``, and open a new device on it."""
        host = self._host(device)
        self._check(lib.siw_sim_host_restart(host), "restarting a host")
        return Context(self._first[host])

    def _source_toward(self, peer: str) -> str:
        """Return the source address for the running task's connections to a peer."""
        family = ipaddress.ip_address(peer).version
        task = tasks.current()
        homes = [a for a in self._hosts if ipaddress.ip_address(a).version == family]
        if task is not None and task.home is not None:
            host = self._hosts[task.home]
            homes = [a for a in homes if self._hosts[a] == host]
        elif peer in self._hosts and len(set(self._hosts.values())) > 1:
            # Without a host of its own, the task uses the first host that is not the peer.
            homes = [a for a in homes if self._hosts[a] != self._hosts[peer]] or homes
        if not homes:
            raise OSError(
                errno.ENETUNREACH,
                f"no device has an IPv{family} address: add one with world.device",
            )
        return homes[0]

    def _address_of_home(self, wildcard: str) -> str:
        """Return an address of the running task's host, in the wildcard address's family."""
        home = tasks.home()
        hosts = {self._hosts[home]} if home is not None else self._with_device
        if len(hosts) != 1:
            raise Error(
                errno.ENODEV,
                f"the world has {len(hosts)} devices: pass an address, or set the task's host by "
                "world.spawn(..., on=device)",
            )
        family = ipaddress.ip_address(wildcard).version if wildcard else None
        for address, host in self._hosts.items():
            if host in hosts and family in {None, ipaddress.ip_address(address).version}:
                return address
        raise Error(errno.ENODEV, f"this host has no IPv{family} address: add one")

    def _qkey_of(self, address: str) -> int:
        """Return the default Q_Key of a host; the Q_Key changes when the host restarts."""
        host = self._host(address)
        drawn = hashlib.shake_128(f"{self.seed} {host} {self._crashes[host]}".encode()).digest(4)
        return int.from_bytes(drawn, "big") & 0x7FFFFFFF or 1

    # ---- plain sockets, for a peer whose protocol a test implements

    def _local(self, address: str, port: int) -> Any:
        if _normal_address(address) not in self._hosts:
            self._add_host((address,))
        return addr_to_c((address, port))

    def _keep(self, made: _S) -> _S:
        self._sockets = [kept for kept in self._sockets if kept._c is not None]
        self._sockets.append(made)
        return made

    def udp(self, address: str, port: int = 0) -> UDPSocket:
        """Open a UDP socket at the address of a host, which is added without a device if needed.

        Args:
            address: IPv4 or IPv6.
            port: 0 for a free port.

        Raises:
            OSError: the port is in use (EADDRINUSE).

        """
        out = ffi.new("struct siw_sim_socket **")
        sockets.check(lib.siw_sim_udp_open(self._local(address, port), out))
        return self._keep(UDPSocket(out[0]))

    def tcp_listen(self, address: str, port: int = 0, backlog: int = 128) -> TCPListener:
        """Listen for TCP connections at an address; a host is added if needed, as for ``udp``.

        Args:
            address: IPv4 or IPv6.
            port: 0 for a free port.
            backlog: maximum number of connections that wait for ``accept``.

        """
        out = ffi.new("struct siw_sim_socket **")
        sockets.check(lib.siw_sim_tcp_listen(self._local(address, port), backlog, out))
        return self._keep(TCPListener(out[0], self._keep))

    def tcp_connect(
        self, address: str, to: tuple[Any, ...], within: Duration = "127s"
    ) -> TCPSocket:
        """Connect by TCP from an address; a host is added if needed, as for ``udp``. Blocks.

        Args:
            address: local address, IPv4 or IPv6.
            to: address and port of the other end.
            within: time-out, on the world's clock.

        Raises:
            TimeoutError: the peer did not answer ``within`` this time.
            OSError: the connection was refused (ECONNREFUSED), or the peer is not reachable.

        """
        out = ffi.new("struct siw_sim_socket **")
        local, dest = self._local(address, 0), addr_to_c((to[0], to[1]))
        until = self.now_ns + nanoseconds(within)
        rc = lib.siw_sim_tcp_connect(local, dest, until, out)
        tasks.leave_if_over()
        if rc == -errno.EAGAIN:
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"{to[0]}:{to[1]} did not answer within {within}: find the cause, or "
                "increase the time",
            )
        sockets.check(rc)
        return self._keep(TCPSocket(out[0]))

    # ---- time

    @property
    def now(self) -> float:
        """Seconds since the world began."""
        return self.now_ns / 1e9

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the world began."""
        return int(lib.siw_sim_now())

    def sleep(self, duration: Duration) -> None:
        """Suspend the calling task; 0 lets other tasks run first, at the same instant."""
        ns = nanoseconds(duration)
        if ns:
            lib.siw_sim_sleep_until(self.now_ns + ns)
        else:
            lib.siw_sim_yield()
        tasks.leave_if_over()

    def run_for(self, duration: Duration) -> None:
        """Run the world for this time on its own clock.

        Raises:
            ValueError: the duration is malformed.
            BaseException: an exception that a task raised in the meantime.

        """
        self._run(self.now_ns + nanoseconds(duration), None)

    def run_until(self, condition: Callable[[], bool], within: Duration = "1h") -> None:
        """Run the world until ``condition()`` returns true; it is called at each instant.

        The method ``done`` of a task is cheaper as a condition: it is called only when a task ends.

        Raises:
            Timeout: the condition did not become true ``within`` this time.
            Deadlock: no event will ever occur.
            BaseException: an exception that a task raised in the meantime.

        """
        of_task = isinstance(getattr(condition, "__self__", None), Task)
        self._run_until(condition, within, each_instant=not of_task)

    def run_tasks(self, within: Duration = "1h") -> None:
        """Run the world until all tasks have ended; raises exceptions like ``run_until``."""
        self._run_until(lambda: not self._tasks, within, each_instant=False)

    def _run_until(
        self, condition: Callable[[], bool], within: Duration, each_instant: bool
    ) -> None:
        end = self.now_ns + nanoseconds(within)
        if not self._run(end, condition, each_instant):
            raise Timeout(
                errno.ETIMEDOUT,
                f"the condition did not become true within {within}{self._waiting()}, seed "
                f"{self.seed}: find the cause, or increase the time",
            )

    def _run(
        self, until: int, condition: Callable[[], bool] | None, each_instant: bool = False
    ) -> bool:
        """Run until this time or until the condition is true; return whether it is true.

        Exceptions of tasks are raised between instants. With ``each_instant`` the condition is
        checked at each instant, otherwise only when a task has ended.
        """
        if tasks.current() is not None:
            raise RuntimeError("a task cannot run the world: let other tasks run with world.sleep")
        go_on = lib.siw_sim_step if each_instant else lib.siw_sim_run
        while True:
            # Run everything that can run at this instant; the clock does not advance.
            lib.siw_sim_step(self.now_ns)
            self._raise_failed()
            if condition is not None and condition():
                return True
            if self.now_ns >= until:
                return False
            rc = go_on(until)
            if rc == -errno.EDEADLK:
                raise Deadlock(errno.EDEADLK, f"deadlock: no event will occur{self._waiting()}")
            self._check(rc, "running the world")

    def _waiting(self) -> str:
        names = [task.name for task in self._tasks]
        return f", and these tasks wait: {', '.join(names)}" if names else ""

    # ---- tasks

    def spawn(
        self,
        function: Callable[..., Any],
        *args: Any,
        on: Where | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Task:
        """Start a task: a function that runs in its own thread, on the world's clock.

        Exactly one task runs at a time. Each blocking call of siwarp, and each poll that finds
        nothing, lets other tasks run; the seed decides which. So programs run in tasks unchanged,
        but tasks must not wait for each other by other means (``threading``, ``time.sleep``).

        Args:
            function: called with ``args`` and ``kwargs``.
            args: arguments of ``function``.
            on: the device on whose host the task runs: ``siwarp.connect`` and similar calls use
                that host's address. Tasks that this task starts run on the same host.
            name: name of the task in messages; default: the function's name.
            kwargs: keyword arguments of ``function``.

        """
        home = tasks.home() if on is None else self._first[self._host(on)]
        task = Task(name or str(getattr(function, "__name__", "task")), home)
        self._start(task, lambda: function(*args, **kwargs))
        return task

    def _start(self, task: Task, call: Callable[[], Any]) -> None:
        task._crashes = self._crashes_of(task)
        self._tasks[task] = None
        try:
            tasks.start(task, call, self._ended)
        except BaseException:
            del self._tasks[task]
            raise

    def _crashes_of(self, task: Task) -> int:
        return 0 if task.home is None else self._crashes[self._hosts[task.home]]

    def _ended(self, task: Task) -> None:
        del self._tasks[task]
        lib.siw_sim_stop()
        error = task._error
        stale = isinstance(error, Error) and error.errno == errno.ESTALE
        killed = stale and self._crashes_of(task) > task._crashes
        if error is not None and not killed and not tasks.ending:
            self._failed.append(task)
            if self._loop is not None:
                self._loop.wake()

    def _raise_failed(self) -> None:
        while self._failed:
            task = self._failed.pop(0)
            if task._error is not None and not task._told:
                task._told = True
                raise task._error

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on an event loop that uses the world's clock, and return its result.

        Works like ``asyncio.run``. Tasks started by ``spawn`` run at the same time.
        ``asyncio.to_thread`` starts a task. A task may have its own event loop:
        ``world.spawn(world.run, main(), on=device)``.

        Raises:
            BaseException: an exception of the coroutine, or of a task.

        """

        def start(call: Callable[[], Any]) -> None:
            self._start(Task("executor", tasks.home()), call)

        if tasks.current() is not None:
            return run(Loop(start, tasks.leave_if_over), main)
        self._loop = Loop(start, self._raise_failed)
        try:
            return run(self._loop, main)
        finally:
            self._loop = None

    # ---- observation

    @property
    def trace_hash(self) -> int:
        """Hash of all network events so far: equal in all runs of a program with one seed."""
        return int(lib.siw_sim_trace_hash())

    @property
    def stats(self) -> Stats:
        """Counters of the world so far."""
        c = ffi.new("struct siw_sim_stats *")
        lib.siw_sim_stats(c)
        return Stats(**{name: int(getattr(c, name)) for name in Stats.__annotations__})

    def capture(self, path: str | os.PathLike[str]) -> contextlib.AbstractContextManager[None]:
        """Write all packets to a pcapng file while a ``with`` block runs.

        Time stamps are those of the world's clock, which starts at 2020-01-01 00:00:00 UTC.

        Raises:
            Error: the file cannot be written.

        """
        return capture(path)

    # ---- closing

    def close(self) -> None:
        """Close the world and everything left in it; a second call has no effect.

        Every host crashes, so that waiting tasks get StateError and open devices are closed.

        Raises:
            StateError: a task does not end (EBUSY).

        """
        if self._closed:
            return
        tasks.ending = True
        for host in range(len(self._first)):
            lib.siw_sim_host_crash(host)
        for _ in range(_LAST_INSTANTS):
            waiting = list(self._tasks)
            if not waiting:
                break
            for task in waiting:
                lib.siw_sim_unpark(task.number)
            if lib.siw_sim_step(NEVER) < 0:
                break
        for handle in self._open_handles():
            handle.__exit__(None, None, None)
        for made in self._sockets:
            made.close()
        gc.collect()
        reap_dropped_handles()
        doors.set_starter(None)
        doors.set_router(None, None)
        doors.set_qkeys(None)
        rc = lib.siw_sim_close()
        if rc < 0:
            raise StateError(
                -rc,
                f"the world cannot be closed{self._waiting()}: end its tasks and close its devices",
            )
        self._closed = True
        tasks.ending = False

    def _open_handles(self) -> list[Handle]:
        return [handle for handle in open_root_handles() if id(handle) not in self._before]

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._raise_failed()
            finally:
                self.close()
            return
        # Raise the block's own error, not an error of close().
        with contextlib.suppress(Error):
            self.close()

    def __repr__(self) -> str:
        state = "ended" if self._closed else f"at {self.now:.6f} s"
        return f"<World of seed {self.seed}, {len(self._first)} devices, {state}>"

    def _check(self, rc: int, what: str) -> int:
        if rc < 0:
            raise Error(-rc, f"{what}: {os.strerror(-rc)}")
        return int(rc)

    def _plan(self, rc: int, what: str) -> None:
        if rc == -errno.EINVAL:
            raise Error(errno.EINVAL, f"{what}: {ffi.string(lib.siw_sim_why()).decode()}")
        self._check(rc, what)
