# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A simulated network with devices, links, tasks and a clock, determined by a seed."""

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
from siwarp.sim.loop import Loop, run_coroutine_and_close_loop
from siwarp.sim.sockets import TCPListener, TCPSocket, UDPSocket
from siwarp.sim.tasks import Task
from siwarp.sim.units import NEVER, Duration, nanoseconds
from siwarp.verbs import Context, Error, StateError, Timeout, capture
from siwarp.verbs._ffi import (
    Handle,
    addr_to_c,
    destroy_objects_of_dropped_handles,
    list_open_root_handles,
)

__all__ = ["Deadlock", "Stats", "World"]

T = TypeVar("T")
_S = TypeVar("_S", UDPSocket, TCPSocket, TCPListener)

#: A host of a world, given as an open device on the host, or as one of the host's addresses.
Where = Context | str

#: Maximum number of instants for which World.close() waits for the tasks to end.
_CLOSE_INSTANTS = 10_000


class Deadlock(Error):
    """Error EDEADLK: no event will ever occur in a world, and the awaited condition is false."""


@dataclass(frozen=True)
class Stats:
    """Counters since the world began (``struct siw_sim_stats``)."""

    #: Datagrams sent.
    sent: int
    delivered: int
    lost: int
    duplicated: int
    #: Packets refused because no socket was bound to the destination port.
    refused: int
    #: Datagrams dropped because the receive buffer was full, and connections dropped because the
    #: listener's backlog was full.
    overflowed: int
    #: TCP connections established.
    connections: int
    #: TCP segments sent, including retransmissions.
    segments: int
    #: Progress rounds of devices made by the scheduler.
    rounds: int
    #: Switches from one task to another.
    switches: int
    #: Number of times that the clock advanced.
    instants: int
    #: Allocations that failed because of ``fail_memory``.
    allocations_failed: int


def _normalize_address(address: str) -> str:
    """Return an IP address in normal form, without a scope, so that addresses can be compared.

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
        seed: determines all random decisions: the choice of the next task, the faults of links, and
        the engine's random numbers. faults: the fault plan of all links that have no plan of their
        own (``link``), for example
            ``"loss=1%,delay=2ms"``. Without a plan packets arrive immediately and in order.
        near_wrap: whether message sequence numbers, and RD's packet sequence numbers and epochs,
        begin just below 2^32, so that a short test crosses their wrap. A peer that a test
        implements
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
        self._before = set(map(id, list_open_root_handles()))
        rc = lib.siw_sim_open(seed & NEVER, faults.encode())
        if rc == -errno.EBUSY:
            raise StateError(
                errno.EBUSY, "a process can have only one open world: close the other one first"
            )
        self._check_fault_plan_result(rc, f"creating a world with faults {faults!r}")
        lib.siw_sim_set_sequence_near_wrap(near_wrap)
        #: Argument of the last ``fail_memory`` call.
        self.memory_failing = 0
        self._hosts: dict[str, int] = {}  # host numbers, by address
        self._first: list[str] = []  # first address of each host, by host number
        self._with_device: set[int] = set()
        self._cuts: set[tuple[int, int]] = set()
        self._sockets: list[UDPSocket | TCPSocket | TCPListener] = []
        self._tasks: dict[
            Task, None
        ] = {}  # the tasks that have not ended, in the order in which they were started
        self._failed: list[Task] = []
        self._crashes: Counter[int] = Counter()  # number of crashes, by host number
        self._loop: Loop | None = (
            None  # event loop of World.run in the thread that opened the world
        )
        self._closed = False
        doors.set_task_starter(
            lambda call, name: self._start_task(Task(name, tasks.current_host_address()), call)
        )
        doors.set_address_functions(self._source_address_toward, self._current_host_address)
        doors.set_qkey_function(self._default_qkey)

    # ---- devices and links

    def device(self, *addresses: str, mtu: int = 1500, faults: str | None = None) -> Context:
        """Add a host with the given IPv4 or IPv6 addresses, and open its device.

        ``siwarp.verbs.Context(address)`` opens the device again.

        Args:
            addresses: 1 to 16 addresses that no other host of the world uses.
            mtu: MTU of the host's interface, in octets.
            faults: fault plan of the host's interface (see ``interface``).

        Raises:
            ValueError: an address is malformed.
            Error: another host has one of the addresses (EADDRINUSE), an address is not a unicast
            address (EINVAL), or ``faults`` is not a valid plan (EINVAL).

        """
        first = self._add_host(addresses, mtu)
        self._with_device.add(self._hosts[first])
        if faults is not None:
            self.interface(first, faults)
        return Context(first)

    def _add_host(self, addresses: tuple[str, ...], mtu: int = 1500) -> str:
        known = [_normalize_address(address) for address in addresses]
        c = ffi.new("struct siw_addr[]", max(1, len(known)))
        for i, address in enumerate(known):
            c[i] = addr_to_c((address, 0))[0]
        host = self._raise_on_error(
            lib.siw_sim_host_add(c, len(known), mtu), f"adding host {addresses}"
        )
        self._hosts.update(dict.fromkeys(known, host))
        self._first.append(known[0])
        return known[0]

    def _host_number(self, where: Where) -> int:
        address = where if isinstance(where, str) else where.device.addresses[0]
        host = self._hosts.get(_normalize_address(address))
        if host is None:
            raise Error(
                errno.ENODEV, f"this world has no device {address}: add it with world.device"
            )
        return host

    def link(self, a: Where, b: Where, faults: str | None = None) -> None:
        """Set the fault plan of the link between two hosts; ``None``: use the world's plan.

        ``tx:`` clauses apply to packets from ``a`` to ``b``, ``rx:`` clauses to packets from ``b``
        to ``a``.

        Raises:
            Error: the plan is not valid (EINVAL).

        """
        plan = ffi.NULL if faults is None else faults.encode()
        self._check_fault_plan_result(
            lib.siw_sim_set_link_fault_plan(self._host_number(a), self._host_number(b), plan),
            f"the plan {faults!r}",
        )

    def interface(self, device: Where, faults: str | None = None) -> None:
        """Set the fault plan for all packets of a host's interface; ``None``: no plan.

        ``tx:`` clauses apply to packets that the host sends, ``rx:`` clauses to packets that it
        receives from any host: ``"rx:rate=1Gbit,limit=256KiB"`` is a bottleneck that all senders
        share. The clauses ``dup``, ``reorder``, ``reset`` and ``short`` are refused, because they
        apply only to links.

        Raises:
            Error: the plan is not valid (EINVAL).

        """
        plan = ffi.NULL if faults is None else faults.encode()
        self._check_fault_plan_result(
            lib.siw_sim_set_host_fault_plan(self._host_number(device), plan), f"the plan {faults!r}"
        )

    def faults(self, plan: str) -> None:
        """Change the fault plan of all links that have no plan of their own.

        Raises:
            Error: the plan is not valid (EINVAL).

        """
        self._check_fault_plan_result(
            lib.siw_sim_set_fault_plan(plan.encode()), f"the plan {plan!r}"
        )

    def path_mtu(self, a: Where, b: Where, mtu: int, *, told: bool = True) -> None:
        """Set the path MTU between two hosts, in octets; 0: the MTU of their interfaces.

        Packets larger than the path MTU are lost. With ``told``, an ICMP message reports each loss
        to the sender.
        """
        rc = lib.siw_sim_set_path_mtu(self._host_number(a), self._host_number(b), mtu, told)
        self._raise_on_error(rc, f"a path MTU of {mtu}")

    def link_up(self, device: Where, up: bool) -> None:
        """Set the interface of a host up or down."""
        self._raise_on_error(
            lib.siw_sim_set_host_link_state(self._host_number(device), up), "changing an interface"
        )

    def mutate(self, device: Where, of_1000: int) -> None:
        """Mutate ``of_1000`` of 1,000 datagrams that a host sends, and recompute their CRC.

        The host acts as a malicious peer: a mutated datagram has a few changed octets, or is
        truncated.
        """
        self._raise_on_error(
            lib.siw_sim_set_datagram_mutation_rate(self._host_number(device), of_1000),
            f"{of_1000} of 1,000 mutated",
        )

    def fail_memory(self, of_million: int) -> None:
        """Make ``of_million`` of 1,000,000 later allocations of siwarp fail; 0: none.

        The seed decides which allocations fail. A call whose allocation fails raises an error
        (ENOMEM). Operations without a caller, such as the arrival of a message, fail as documented
        for the queue pair type. Allocations of Python and of the simulated network do not fail.
        """
        self._raise_on_error(
            lib.siw_sim_set_allocation_failure_rate(of_million),
            f"{of_million} failures in a million",
        )
        self.memory_failing = of_million

    def partition(self, *groups: Where | Iterable[Where], one_way: bool = False) -> None:
        """Drop all packets between hosts of different groups until ``heal`` is called.

        Each group consists of one or more hosts. A host in no group reaches all other hosts.
        Packets in flight between the groups are lost.

        Args:
            groups: two or more groups.
            one_way: drop only packets from a group to a group later in the list.

        """
        hosts = [
            [self._host_number(group)]
            if isinstance(group, Context | str)
            else [self._host_number(where) for where in group]
            for group in groups
        ]
        for i, some in enumerate(hosts):
            for others in hosts[i + 1 :]:
                for a in some:
                    for b in others:
                        self._cut_path(a, b)
                        if not one_way:
                            self._cut_path(b, a)

    def _cut_path(self, a: int, b: int) -> None:
        self._raise_on_error(lib.siw_sim_set_path_cut(a, b, 1), "partitioning hosts")
        self._cuts.add((a, b))

    def heal(self) -> None:
        """End all partitions."""
        for a, b in sorted(self._cuts):
            self._raise_on_error(lib.siw_sim_set_path_cut(a, b, 0), "ending a partition")
        self._cuts.clear()

    def crash(self, device: Where) -> None:
        """Crash the host of a device, as if its processes were killed by SIGKILL.

        The host's ports are closed, so that peers are refused or reset. Calls on handles of the
        host's devices raise StateError (ESTALE), including calls that are already waiting. A task
        of that host (``spawn(on=device)``) that ends with this error counts as killed:
        ``task.result()`` raises the error, but ``run_for`` and similar calls do not.
        """
        host = self._host_number(device)
        self._crashes[host] += 1
        self._raise_on_error(lib.siw_sim_host_crash(host), "crashing a host")

    def restart(self, device: Where) -> Context:
        """Restart a host after ``crash``, and open a new device on it."""
        host = self._host_number(device)
        self._raise_on_error(lib.siw_sim_host_restart(host), "restarting a host")
        return Context(self._first[host])

    def _source_address_toward(self, peer: str) -> str:
        """Return the source address for the running task's connections to a peer."""
        family = ipaddress.ip_address(peer).version
        task = tasks.current_task()
        homes = [a for a in self._hosts if ipaddress.ip_address(a).version == family]
        if task is not None and task.home is not None:
            host = self._hosts[task.home]
            homes = [a for a in homes if self._hosts[a] == host]
        elif peer in self._hosts and len(set(self._hosts.values())) > 1:
            # A task without a host uses the first host that is not the peer.
            homes = [a for a in homes if self._hosts[a] != self._hosts[peer]] or homes
        if not homes:
            raise OSError(
                errno.ENETUNREACH,
                f"no device has an IPv{family} address: add one with world.device",
            )
        return homes[0]

    def _current_host_address(self, wildcard: str) -> str:
        """Return an address of the running task's host in the family of a wildcard address."""
        home = tasks.current_host_address()
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

    def _default_qkey(self, address: str) -> int:
        """Return the default Q_Key of a host, which changes when the host restarts."""
        host = self._host_number(address)
        drawn = hashlib.shake_128(f"{self.seed} {host} {self._crashes[host]}".encode()).digest(4)
        return int.from_bytes(drawn, "big") & 0x7FFFFFFF or 1

    # ---- plain sockets, for a peer whose protocol a test implements

    def _make_local_c_address(self, address: str, port: int) -> Any:
        if _normalize_address(address) not in self._hosts:
            self._add_host((address,))
        return addr_to_c((address, port))

    def _track_socket(self, made: _S) -> _S:
        self._sockets = [kept for kept in self._sockets if kept._c is not None]
        self._sockets.append(made)
        return made

    def udp(self, address: str, port: int = 0) -> UDPSocket:
        """Open a UDP socket at an address, for which a host without a device is added if needed.

        Args:
            address: IPv4 or IPv6.
            port: 0 for a free port.

        Raises:
            OSError: the port is in use (EADDRINUSE).

        """
        out = ffi.new("struct siw_sim_socket **")
        sockets.check_result(lib.siw_sim_udp_open(self._make_local_c_address(address, port), out))
        return self._track_socket(UDPSocket(out[0]))

    def tcp_listen(self, address: str, port: int = 0, backlog: int = 128) -> TCPListener:
        """Listen for TCP connections at an address; add a host if needed, as ``udp`` does.

        Args:
            address: IPv4 or IPv6.
            port: 0 for a free port.
            backlog: maximum number of connections that wait for ``accept``.

        """
        out = ffi.new("struct siw_sim_socket **")
        sockets.check_result(
            lib.siw_sim_tcp_listen(self._make_local_c_address(address, port), backlog, out)
        )
        return self._track_socket(TCPListener(out[0], self._track_socket))

    def tcp_connect(
        self, address: str, to: tuple[Any, ...], within: Duration = "127s"
    ) -> TCPSocket:
        """Connect by TCP from an address and wait for the result; add a host if needed.

        Args:
            address: local address, IPv4 or IPv6.
            to: address and port of the other end.
            within: time-out, on the world's clock.

        Raises:
            TimeoutError: the peer did not answer within the time ``within``.
            OSError: the connection was refused (ECONNREFUSED), or the peer is not reachable.

        """
        out = ffi.new("struct siw_sim_socket **")
        local, dest = self._make_local_c_address(address, 0), addr_to_c((to[0], to[1]))
        until = self.now_ns + nanoseconds(within)
        rc = lib.siw_sim_tcp_connect(local, dest, until, out)
        tasks.raise_if_world_is_closing()
        if rc == -errno.EAGAIN:
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"{to[0]}:{to[1]} did not answer within {within}: find the cause, or "
                "increase the time",
            )
        sockets.check_result(rc)
        return self._track_socket(TCPSocket(out[0]))

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
        """Suspend the calling task; 0 lets other tasks run first at the same instant."""
        ns = nanoseconds(duration)
        if ns:
            lib.siw_sim_sleep_until(self.now_ns + ns)
        else:
            lib.siw_sim_yield()
        tasks.raise_if_world_is_closing()

    def run_for(self, duration: Duration) -> None:
        """Run the world for a duration of its own clock.

        Raises:
            ValueError: the duration is malformed.
            BaseException: an exception that a task raised in the meantime.

        """
        self._advance_until(self.now_ns + nanoseconds(duration), None)

    def run_until(self, condition: Callable[[], bool], within: Duration = "1h") -> None:
        """Run the world until ``condition()``, which is called at each instant, returns true.

        The method ``done`` of a task is a cheaper condition, because ``done`` is called only when a
        task ends.

        Raises:
            Timeout: the condition did not become true within the time ``within``.
            Deadlock: no event will ever occur.
            BaseException: an exception that a task raised in the meantime.

        """
        of_task = isinstance(getattr(condition, "__self__", None), Task)
        self._advance_until_or_time_out(condition, within, each_instant=not of_task)

    def run_tasks(self, within: Duration = "1h") -> None:
        """Run the world until all tasks have ended, and raise exceptions like ``run_until``."""
        self._advance_until_or_time_out(lambda: not self._tasks, within, each_instant=False)

    def _advance_until_or_time_out(
        self, condition: Callable[[], bool], within: Duration, each_instant: bool
    ) -> None:
        end = self.now_ns + nanoseconds(within)
        if not self._advance_until(end, condition, each_instant):
            raise Timeout(
                errno.ETIMEDOUT,
                f"the condition did not become true within {within}"
                f"{self._waiting_tasks_text()}, seed {self.seed}: find the cause, or "
                "increase the time",
            )

    def _advance_until(
        self, until: int, condition: Callable[[], bool] | None, each_instant: bool = False
    ) -> bool:
        """Run the world until a condition is true, or at most until the time ``until``.

        Return whether the condition is true.

        Exceptions of tasks are raised between two instants. With ``each_instant`` the condition is
        checked at each instant, otherwise only when a task has ended.
        """
        if tasks.current_task() is not None:
            raise RuntimeError("a task cannot run the world: let other tasks run with world.sleep")
        go_on = lib.siw_sim_step_world if each_instant else lib.siw_sim_run_world
        while True:
            # Run all tasks and events of the current instant without advancing the clock.
            lib.siw_sim_step_world(lib.siw_sim_now())
            if self._failed:
                self._raise_task_error()
            if condition is not None and condition():
                return True
            if self.now_ns >= until:
                return False
            rc = go_on(until)
            if rc == -errno.EDEADLK:
                raise Deadlock(
                    errno.EDEADLK, f"deadlock: no event will occur{self._waiting_tasks_text()}"
                )
            self._raise_on_error(rc, "running the world")

    def _waiting_tasks_text(self) -> str:
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
        """Start a task: a function that runs in its own thread and uses the world's clock.

        Exactly one task runs at a time. Each blocking call of siwarp, and each poll without a
        completion, lets another task run, which the seed selects. Programs therefore run in tasks
        unchanged, but tasks must not wait for each other by other means (``threading``,
        ``time.sleep``).

        Args:
            function: called with ``args`` and ``kwargs``.
            args: arguments of ``function``.
            on: a device on whose host the task and the tasks started by it run. ``siwarp.connect``
            and similar calls use the host's address. name: name of the task in messages; default:
            the function's name. kwargs: keyword arguments of ``function``.

        """
        home = tasks.current_host_address() if on is None else self._first[self._host_number(on)]
        task = Task(name or str(getattr(function, "__name__", "task")), home)
        self._start_task(task, lambda: function(*args, **kwargs))
        return task

    def _start_task(self, task: Task, call: Callable[[], Any]) -> None:
        task._crashes = self._home_crash_count(task)
        self._tasks[task] = None
        try:
            tasks.start_task(task, call, self._handle_task_end)
        except BaseException:
            del self._tasks[task]
            raise

    def _home_crash_count(self, task: Task) -> int:
        return 0 if task.home is None else self._crashes[self._hosts[task.home]]

    def _handle_task_end(self, task: Task) -> None:
        del self._tasks[task]
        lib.siw_sim_stop_world_run()
        error = task._error
        stale = isinstance(error, Error) and error.errno == errno.ESTALE
        killed = stale and self._home_crash_count(task) > task._crashes
        if error is not None and not killed and not tasks.ending:
            self._failed.append(task)
            if self._loop is not None:
                self._loop.wake()

    def _raise_task_error(self) -> None:
        while self._failed:
            task = self._failed.pop(0)
            if task._error is not None and not task._error_raised:
                task._error_raised = True
                raise task._error

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on an event loop of the world's clock, and return the coroutine's result.

        The method works like ``asyncio.run``. Tasks started by ``spawn`` run concurrently.
        ``asyncio.to_thread`` starts a task. A task may have its own event loop:
        ``world.spawn(world.run, main(), on=device)``.

        Raises:
            BaseException: an exception of the coroutine, or of a task.

        """

        def start_executor_task(call: Callable[[], Any]) -> None:
            self._start_task(Task("executor", tasks.current_host_address()), call)

        if tasks.current_task() is not None:
            return run_coroutine_and_close_loop(
                Loop(start_executor_task, tasks.raise_if_world_is_closing), main
            )
        self._loop = Loop(start_executor_task, self._raise_task_error)
        try:
            return run_coroutine_and_close_loop(self._loop, main)
        finally:
            self._loop = None

    # ---- observation

    @property
    def trace_hash(self) -> int:
        """Hash of all network events so far, equal in all runs of a program with the same seed."""
        return int(lib.siw_sim_trace_hash())

    @property
    def stats(self) -> Stats:
        """Counters of the world since its beginning."""
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
        """Close the world and all objects still open in it; a second call has no effect.

        Each host crashes, so that waiting tasks get StateError and open devices are closed.

        Raises:
            StateError: a task does not end (EBUSY).

        """
        if self._closed:
            return
        tasks.ending = True
        for host in range(len(self._first)):
            lib.siw_sim_host_crash(host)
        for _ in range(_CLOSE_INSTANTS):
            waiting = list(self._tasks)
            if not waiting:
                break
            for task in waiting:
                lib.siw_sim_unpark(task.number)
            if lib.siw_sim_step_world(NEVER) < 0:
                break
        for handle in self._handles_still_open():
            handle.__exit__(None, None, None)
        for made in self._sockets:
            made.close()
        gc.collect()
        destroy_objects_of_dropped_handles()
        doors.set_task_starter(None)
        doors.set_address_functions(None, None)
        doors.set_qkey_function(None)
        rc = lib.siw_sim_close_world()
        if rc < 0:
            raise StateError(
                -rc,
                f"the world cannot be closed{self._waiting_tasks_text()}: end its tasks and close "
                "its devices",
            )
        self._closed = True
        tasks.ending = False

    def _handles_still_open(self) -> list[Handle]:
        return [handle for handle in list_open_root_handles() if id(handle) not in self._before]

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._raise_task_error()
            finally:
                self.close()
            return
        # The exception of the with block is raised instead of an error of close().
        with contextlib.suppress(Error):
            self.close()

    def __repr__(self) -> str:
        state = "ended" if self._closed else f"at {self.now:.6f} s"
        return f"<World of seed {self.seed}, {len(self._first)} devices, {state}>"

    def _raise_on_error(self, rc: int, what: str) -> int:
        if rc < 0:
            raise Error(-rc, f"{what}: {os.strerror(-rc)}")
        return int(rc)

    def _check_fault_plan_result(self, rc: int, what: str) -> None:
        if rc == -errno.EINVAL:
            raise Error(errno.EINVAL, f"{what}: {ffi.string(lib.siw_sim_error_text()).decode()}")
        self._raise_on_error(rc, what)
