"""Pollers and sockets of the llp layer as Python objects, and Python code run in a child process.

A child process imports this module but not pytest, because importing pytest takes five times as
long as importing this module.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _siwarp_layers
import net
import pace
from _siwarp_layers import ffi, lib
from harness.descriptors import list_open_descriptors
from pace import limit_exceeded

LOOPBACK = {"v4": "127.0.0.1", "v6": "::1"}


def siw_addr(text: str, port: int = 0) -> Any:
    """Return a struct siw_addr with the address ``text`` and the port ``port``."""
    a = ffi.new("struct siw_addr *")
    assert lib.siw_addr_parse(text.encode(), port, a) == 0
    return a


def addr_port(a: Any) -> int:
    return socket.ntohs(a.port_be)


def address_text(a: Any) -> str:
    out = ffi.new("char[64]")
    return ffi.string(lib.siw_addr_format(a, out, 64)).decode()


class LlpSocket:
    """A socket of the llp layer, with its number in the poller as its handler pointer."""

    def __init__(self, poller: Poller, make: Callable[[Any, Any], int]) -> None:
        self.poller = poller
        self.number = poller.next_socket_number()
        out = ffi.new("struct siw_llp_sock **")
        rv = make(ffi.cast("void *", self.number), out)
        if rv < 0:
            raise OSError(-rv, os.strerror(-rv))
        self.c = out[0]
        poller.socks[self.number] = self

    def close(self) -> None:
        self.poller.socks.pop(self.number, None)
        lib.siw_llp_close(self.c)

    def leave_poller(self) -> None:
        del self.poller.socks[self.number]
        lib.siw_llp_leave_poller(self.c)

    def join_poller(self, poller: Poller) -> int:
        """Add the socket, which is in no poller, to a poller; return the C function's result."""
        number = poller.next_socket_number()
        lib.siw_llp_set_handler(self.c, ffi.cast("void *", number))
        rv = lib.siw_llp_add_to_poller(self.c, poller.c)
        if rv == 0:
            self.poller, self.number = poller, number
            poller.socks[number] = self
        return rv

    def move_to(self, poller: Poller) -> None:
        self.leave_poller()
        assert self.join_poller(poller) == 0

    def local_addr(self) -> Any:
        a = ffi.new("struct siw_addr *")
        assert lib.siw_llp_local_addr(self.c, a) == 0
        return a

    def peer_addr(self) -> Any:
        a = ffi.new("struct siw_addr *")
        rv = lib.siw_llp_peer_addr(self.c, a)
        if rv < 0:
            raise OSError(-rv, os.strerror(-rv))
        return a

    def want_write(self, on: bool) -> None:
        lib.siw_llp_update_want_write(self.c, on)

    def pause(self) -> None:
        lib.siw_llp_sock_pause(self.c)

    def resume(self) -> None:
        lib.siw_llp_sock_resume(self.c)

    def note_all_handled(self) -> None:
        lib.siw_llp_sock_note_all_handled(self.c)

    def set_timer(self, at: int) -> None:
        """Set a timer at `at` ns of the monotonic clock."""
        lib.siw_llp_sock_enable_timer(self.c)
        lib.siw_llp_sock_set_timer(self.c, at)

    # UDP calls.

    def sendto(self, dest: Any, *parts: bytes) -> int:
        iov, keep = iovec(*parts)
        rv = lib.siw_llp_udp_send(self.c, dest, iov, len(parts))
        del keep
        return rv

    def recvfrom(self, size: int = 65536) -> tuple[int, bytes, Any]:
        """Return the result of siw_llp_udp_recv, the octets, and the source address."""
        source = ffi.new("struct siw_addr *")
        ffi.memmove(source, b"\xa5" * ffi.sizeof("struct siw_addr"), ffi.sizeof("struct siw_addr"))
        buf = ffi.new("char[]", max(size, 1))
        rv = lib.siw_llp_udp_recv(self.c, source, buf, size)
        return rv, bytes(ffi.buffer(buf, size)[: max(rv, 0)]), source

    # TCP calls.

    def send(self, *parts: bytes) -> int:
        iov, keep = iovec(*parts)
        rv = lib.siw_llp_tcp_sendv(self.c, iov, len(parts))
        del keep
        return rv

    def recv(self, *sizes: int) -> tuple[int, bytes]:
        sizes = sizes or (65536,)
        bufs = [ffi.new("char[]", n) for n in sizes]
        iov = ffi.new("struct iovec[]", len(sizes))
        for i, buf in enumerate(bufs):
            iov[i].iov_base, iov[i].iov_len = buf, sizes[i]
        rv = lib.siw_llp_tcp_recvv(self.c, iov, len(sizes))
        got = b"".join(bytes(ffi.buffer(buf)) for buf in bufs)
        return rv, got[: max(rv, 0)]

    def connect_result(self) -> int:
        return lib.siw_llp_tcp_connect_result(self.c)

    def receive_all(self) -> int:
        """Receive until EAGAIN or the end of the stream, and return the number of octets."""
        total = 0
        for _ in range(10000):
            rv = self.recv()[0] if lib.siw_llp_tcp_emss(self.c) > 0 else self.recvfrom()[0]
            if rv <= 0:
                assert rv in (0, -11), os.strerror(-rv)
                return total
            total += rv
        raise AssertionError("the socket still has data after 10000 receives")

    @property
    def fd(self) -> int:
        """The descriptor of the socket, found by the local address of the socket."""
        name, ours = address_text(self.local_addr()), []
        for fd in list_open_descriptors():
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as s:
                if s.family in (socket.AF_INET, socket.AF_INET6):
                    a = s.getsockname()
                    if address_text(siw_addr(a[0], a[1])) == name:
                        ours.append(fd)
        assert len(ours) == 1, ours
        return ours[0]


def iovec(*parts: bytes) -> tuple[Any, list[Any]]:
    bufs = [ffi.from_buffer(p) for p in parts]
    iov = ffi.new("struct iovec[]", len(parts))
    for i, part in enumerate(parts):
        iov[i].iov_base, iov[i].iov_len = bufs[i], len(part)
    return iov, bufs


class Poller:
    """A poller with its sockets."""

    lib = lib

    def __init__(self) -> None:
        out = ffi.new("struct siw_llp_poller **")
        rv = lib.siw_llp_poller_open(ffi.NULL, out)
        if rv < 0:
            raise OSError(-rv, os.strerror(-rv))
        self.c = out[0]
        self.socks: dict[int, LlpSocket] = {}
        self.numbers = 0

    def next_socket_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def close(self) -> None:
        for s in list(self.socks.values()):
            s.close()
        lib.siw_llp_poller_close(self.c)

    def open_udp(self, where: str = "127.0.0.1", port: int = 0) -> LlpSocket:
        return LlpSocket(
            self, lambda t, out: lib.siw_llp_udp_open(self.c, siw_addr(where, port), t, out)
        )

    def adopt_udp(self, fd: int) -> LlpSocket:
        return LlpSocket(
            self, lambda t, out: lib.siw_llp_udp_adopt_program_socket(self.c, fd, t, out)
        )

    def listen(self, where: str = "127.0.0.1", port: int = 0, backlog: int = 128) -> LlpSocket:
        return LlpSocket(
            self,
            lambda t, out: lib.siw_llp_tcp_listen(self.c, siw_addr(where, port), backlog, t, out),
        )

    def accept(self, listener: LlpSocket) -> LlpSocket:
        return LlpSocket(self, lambda t, out: lib.siw_llp_tcp_accept(listener.c, t, out))

    def connect(self, dest: Any, source: Any = ffi.NULL) -> LlpSocket:
        return LlpSocket(self, lambda t, out: lib.siw_llp_tcp_connect(self.c, dest, source, t, out))

    def poll(self, n: int = 64) -> list[LlpSocket]:
        handlers = ffi.new("struct siw_io_handler *[]", n)
        rv = lib.siw_llp_poller_poll(self.c, handlers, n)
        assert 0 <= rv <= n
        # The lookup raises KeyError for the handler of a closed socket.
        return [self.socks[int(ffi.cast("intptr_t", handlers[i]))] for i in range(rv)]

    def wait_until_socket_ready(self, sock: LlpSocket) -> None:
        """Poll and wait until the socket is reported as ready."""
        while sock not in self.poll():
            assert self.wait(10_000_000) == 1, "the wait lasted 10 s"

    def poll_until_ready(self, sock: LlpSocket, limit: int = 100, n: int = 64) -> int:
        """Poll until the socket is reported as ready; return the number of polls."""
        for i in range(1, limit + 1):
            if sock in self.poll(n):
                return i
        raise AssertionError(f"the socket was not reported in {limit} polls")

    def arm(self) -> None:
        assert lib.siw_llp_poller_arm_for_sleep(self.c) == 0

    def disarm(self) -> None:
        lib.siw_llp_poller_disarm(self.c)

    def fill_waitset(self) -> Any:
        s = ffi.new("struct siw_llp_waitset *")
        lib.siw_llp_waitset_fill(self.c, s)
        return s

    def wait(self, timeout_us: int, extra_fd: int = -1) -> int:
        return lib.siw_llp_wait(self.fill_waitset(), extra_fd, timeout_us)

    def wake(self) -> None:
        lib.siw_llp_poller_wake(self.c)

    def wake_threads_for_remaining_work(self, more: bool = False) -> None:
        lib.siw_llp_poller_wake_if_work_left(self.c, more)

    def hot_fds(self) -> list[int]:
        """Return the descriptors of the hot sockets, which precede epoll in an unarmed wait set."""
        assert not lib.siw_llp_poller_is_armed(self.c)
        s = self.fill_waitset()
        return [s.fds[i] for i in range(s.n - 1)]

    def connected_pair(self, where: str = "127.0.0.1") -> tuple[LlpSocket, LlpSocket]:
        """Return both ends of a new TCP connection within the poller."""
        listener = self.listen(where)
        a = self.connect(listener.local_addr())
        b = wait_until(lambda: self.try_to_accept(listener))
        wait_until(lambda: a.connect_result() == 0)
        listener.close()
        return a, b

    def try_to_accept(self, listener: LlpSocket) -> LlpSocket | None:
        try:
            return self.accept(listener)
        except BlockingIOError:
            return None

    def drain_ready_sockets(self) -> None:
        """Poll, and drain the ready sockets, until only hot sockets are reported."""
        for _ in range(200):
            for s in self.poll():
                s.receive_all()


#: Milliseconds after which a test fails; a descriptor that has become readable ends the wait.
LIMIT_MS = 60_000


class LoopDescriptor:
    """A descriptor of a poller for an event loop."""

    def __init__(self, poller: Poller) -> None:
        out = ffi.new("struct siw_llp_event_loop_fd **")
        before = set(list_open_descriptors())
        assert lib.siw_llp_event_loop_fd_open(poller.c, out) == 0
        self.c = out[0]
        self.fd = lib.siw_llp_event_loop_fd_number(self.c)
        #: All descriptors that opening this object has created.
        self.made = set(list_open_descriptors()) - before

    def wait_until_readable(self) -> bool:
        return self.readable(LIMIT_MS)

    def readable(self, limit_ms: int = 0) -> bool:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(limit_ms))

    def set_timer(self, due_ns: int) -> None:
        lib.siw_llp_event_loop_fd_set_timer(self.c, due_ns)

    def close(self) -> None:
        lib.siw_llp_event_loop_fd_close(self.c)


def wait_any(pollers: list[Poller], timeout_us: int, extra_fd: int = -1) -> int:
    """Wait until a socket of one of the pollers is ready; return the result of the C function."""
    sets = ffi.new("struct siw_llp_waitset[]", len(pollers))
    for i, poller in enumerate(pollers):
        lib.siw_llp_waitset_fill(poller.c, sets + i)
    return lib.siw_llp_wait_any(sets, len(pollers), extra_fd, timeout_us)


def wait_until(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Return the result of ``what()`` once it is true; fail if it is false for `seconds`."""
    began = net.now()
    while not limit_exceeded(began, seconds):
        if got := what():
            return got
        net.sleep(0.0005)
    raise AssertionError("the condition did not become true in time")


class Counters:
    """The changes of the counters since the creation of the object."""

    def __init__(self) -> None:
        n = lib.siw_counters_count()
        self.index = {ffi.string(lib.siw_counter_name(i)).decode(): i for i in range(n)}
        self.before = {k: lib.siw_counter_get(i) for k, i in self.index.items()}

    def __getitem__(self, name: str) -> int:
        return lib.siw_counter_get(self.index[name]) - self.before[name]


@contextmanager
def temporary_setting(name: str, value: int) -> Iterator[None]:
    i = next(
        i
        for i in range(lib.siw_settings_count())
        if ffi.string(lib.siw_setting_name(i)).decode() == name
    )
    before = lib.siw_setting_value(i)
    assert lib.siw_setting_set(name.encode(), value) == 0
    try:
        yield
    finally:
        lib.siw_setting_set(name.encode(), before)


CHILD_PRELUDE = """
import os, sys, time, socket, signal, resource
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import *
"""


def run_code_in_child(code: str, *before: str) -> subprocess.CompletedProcess[str]:
    folder = str(Path(_siwarp_layers.__file__).parent)
    tests = str(Path(__file__).resolve().parents[2])
    paths = [folder, tests, os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if before:
        # A sanitizer's run-time library must be preloaded into the Python process only, not into
        # the shell that starts it.
        env["KEPT_PRELOAD"] = env.pop("LD_PRELOAD", "")
    return pace.run_command(
        [*before, sys.executable, "-c", CHILD_PRELUDE + code],
        env=env,
        capture_output=True,
        text=True,
        seconds=60,
        check=False,
    )
