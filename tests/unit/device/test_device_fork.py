"""Tests that fork does not disturb the parent, and that inherited objects fail with ESTALE."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.rc_harness import SEND, ListenerAndConnector
from harness.verbs_harness import Pair, Rig, poll
from scapy.utils import rdpcap

from siwarp import cm
from siwarp._siwarp import ffi, lib
from siwarp.verbs import SRQ, StateError

SANITIZED = "SANITIZER" in os.environ


def disable_progress_thread_under_tsan() -> None:
    """Disable progress threads under ThreadSanitizer, where a forked child cannot start threads."""
    if os.environ.get("SANITIZER") == "tsan":
        lib.siw_setting_set(b"progress_thread", 0)


def wait_for_sleeping_threads_under_asan() -> None:
    """Under AddressSanitizer, wait until no other thread runs.

    The allocator of AddressSanitizer is not safe across fork: a lock that another thread holds at
    the fork stays locked in the child.
    """
    if os.environ.get("SANITIZER") != "asan":
        return
    deadline = time.monotonic() + 10
    asleep = 0
    while asleep < 3:
        assert time.monotonic() < deadline
        others = [t for t in Path("/proc/self/task").iterdir() if t.name != str(os.getpid())]
        states = [(t / "stat").read_text().rpartition(")")[2].split()[0] for t in others]
        asleep = asleep + 1 if set(states) <= {"S"} else 0
        time.sleep(0.01)


def run_in_forked_child(
    work: Callable[[], Any], meanwhile: Callable[[], None] = lambda: None
) -> Any:
    """Return the result of ``work``, run in a forked child for at most 60 seconds."""
    r, w = os.pipe()
    wait_for_sleeping_threads_under_asan()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            disable_progress_thread_under_tsan()
            with os.fdopen(w, "w") as out:
                json.dump(work(), out)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(w)
    try:
        meanwhile()
    finally:
        with os.fdopen(r) as answer:
            said = answer.read()
        _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {status:#x}"
    return json.loads(said)


def make_argument(kind: Any, inherited: dict[str, Any]) -> Any:
    """Return an argument of the C type ``kind``: an object that the child inherited, or zeros."""
    if kind.kind != "pointer":
        return 0 if kind.kind == "primitive" else ffi.new(f"{kind.cname} *")[0]
    if kind.item.cname in inherited:
        return inherited[kind.item.cname]
    if kind.item.kind == "void" or kind.item.kind == "pointer" or kind.item.cname == "char":
        return ffi.NULL
    return ffi.new(f"{kind.item.cname}[1]")


#: Functions that cannot report an error and only read memory.
CANNOT_FAIL = {
    "siw_qp_num",
    "siw_ah_room",
    "siw_srq_num",
    "siw_context_info",
    "siw_ack_cq_events",
    "siw_cm_set_context",
    "siw_cm_device",
}


def test_every_call_on_an_inherited_object_in_a_forked_child_returns_estale(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, _ = two_device_connector.connect(size=64)
    ud = Pair(two_device_connector.active)
    inherited = {
        "struct siw_context": two_device_connector.active.ctx._c_object(),
        "struct siw_pd": two_device_connector.active.pd._c_object(),
        "struct siw_comp_channel": a.events._c_object(),
        "struct siw_cq": a.scq._c_object(),
        "struct siw_qp": a.qp._c_object(),
        "struct siw_mr": a.mem._c_object(),
        "struct siw_ah": ud.to_b._c_object(),
        "struct siw_srq": SRQ(two_device_connector.active.pd)._c_object(),
        "struct siw_cm_channel": a.channel._c_object(),
        "struct siw_cm_id": a.id._c_object(),
    }

    def list_calls_lacking_estale() -> list[str]:
        found, tried = [], 0
        for name in dir(lib):
            call = getattr(lib, name)
            kind = ffi.typeof(call) if callable(call) else None
            if kind is None or not any(
                arg.kind == "pointer" and arg.item.cname in inherited for arg in kind.args
            ):
                continue
            tried += 1
            ffi.errno = 0
            said = call(*[make_argument(arg, inherited) for arg in kind.args])
            # siw_rereg_mr returns -1 and sets errno, as ibv_rereg_mr does.
            number = ffi.errno if said in (ffi.NULL, -1) else said
            if name not in CANNOT_FAIL and abs(number) != errno.ESTALE:
                found.append(f"{name}: {said}, errno {ffi.errno}")
        return found if tried > 35 else [f"tried only {tried} calls"]

    assert run_in_forked_child(list_calls_lacking_estale) == []
    a.post(SEND, length=0)
    assert poll(a.scq)[0].ok


def test_in_a_forked_child_python_errors_give_advice_and_close_succeeds(rig: Rig) -> None:
    pair = Pair(rig)

    def messages_of_failing_calls() -> list[str]:
        said = []
        for call in (lambda: pair.scq.poll(), lambda: pair.send(b"x"), lambda: rig.reg_mr(8)):
            try:
                call()
            except StateError as e:
                assert e.errno == errno.ESTALE
                said.append(str(e))
        rig.close()
        assert rig.ctx.closed and pair.a.closed
        return said

    said = run_in_forked_child(messages_of_failing_calls)
    assert len(said) == 3
    assert all("before fork" in text and "open the device in this process" in text for text in said)
    pair.post_receive()
    pair.send(b"still here")
    assert poll(pair.rcq)[0].byte_len == 10


def test_a_forked_child_does_not_inherit_the_descriptors_of_siwarp(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    ud = Rig()
    # No other program uses the port at this loopback address.
    host = "127.3.3.3"
    qp = ud.create_ud_qp(addr=(host, 0))
    port = qp.qp_num

    def list_open_sockets_and_anon_inodes() -> list[str]:
        names = []
        for fd in Path("/proc/self/fd").iterdir():
            # The descriptor of the directory listing is closed before it can be read.
            with contextlib.suppress(FileNotFoundError):
                names.append(str(fd.readlink()))
        return [name for name in names if name.startswith(("socket:", "anon_inode:"))]

    pipes = [*os.pipe(), *os.pipe()]
    go_r, go_w, here_r, here_w = pipes
    before = len(list_open_sockets_and_anon_inodes())

    def count_inherited_descriptors() -> int:
        left = len(list_open_sockets_and_anon_inodes())
        os.write(here_w, b"x")
        os.read(go_r, 1)
        return left

    def rebind_closed_port_in_parent() -> None:
        try:
            os.read(here_r, 1)
            qp.close()
            ud.create_ud_qp(addr=(host, port)).close()
            # The peer receives the end of the TCP stream although the child still runs.
            a.close()
            b.wait_for_error_state()
        finally:
            os.write(go_w, b"x")

    left = run_in_forked_child(count_inherited_descriptors, rebind_closed_port_in_parent)
    # The epoll and wake-up descriptors of three devices alone are six.
    assert before - left >= 8
    for fd in pipes:
        os.close(fd)
    b.close()
    ud.close()


def test_a_forked_child_can_open_a_device_and_exchange_messages_with_its_parent(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    listener = cm.listen(("127.0.0.1", 0))
    address = listener.address

    def connect_to_parent() -> str:
        with cm.connect(address) as conn:
            conn.send(b"from the child")
            return conn.recv(20).decode()

    def accept_connection_of_child() -> None:
        with listener.accept(20) as conn:
            assert conn.recv(20) == b"from the child"
            b.post_receive()
            a.post(SEND, length=8)
            assert poll(b.rcq)[0].ok
            conn.send(b"from the parent", 20)
            with contextlib.suppress(OSError):
                # The receive fails when the child exits.
                conn.recv(20)

    assert run_in_forked_child(connect_to_parent, accept_connection_of_child) == "from the parent"
    listener.close()


def test_children_that_fork_again_or_exec_do_not_disturb_the_parents_connections(
    build_dir: Path,
) -> None:
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-fork", "9" if SANITIZED else "24"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


MULTIPROCESSING = """
import multiprocessing as mp, os, sys, threading
import siwarp, siwarp._siwarp

def request_square(address, n):
    if sys.argv[1] == "fork" and os.environ.get("SANITIZER") == "tsan":
        # ThreadSanitizer cannot start a thread in a forked child of a process with threads.
        siwarp._siwarp.lib.siw_setting_set(b"progress_thread", 0)
    with siwarp.connect(address) as conn:
        conn.send(str(n).encode(), 30)
        return int(conn.recv(30))

def serve_squares(listener, n):
    for _ in range(n):
        with listener.accept(60) as conn:
            conn.send(str(int(conn.recv(30)) ** 2).encode(), 30)
            try:
                conn.recv(30)
            except OSError:
                pass  # the peer has closed the connection

def echo_messages(conn):
    try:
        while True:
            conn.send(conn.recv(60), 60)
    except OSError:
        pass

if __name__ == "__main__":
    with siwarp.listen(("127.0.0.1", 0)) as listener, siwarp.listen(("127.0.0.1", 0)) as for_live:
        accepted = []
        waiter = threading.Thread(target=lambda: accepted.append(for_live.accept(30)))
        waiter.start()
        live = siwarp.connect(for_live.address)
        waiter.join()
        other = threading.Thread(target=echo_messages, args=accepted)
        other.start()
        server = threading.Thread(target=serve_squares, args=(listener, 4))
        server.start()
        over, rounds = threading.Event(), 0

        def exchange_messages():
            global rounds
            while not over.is_set():
                text = b"%d" % rounds
                live.send(text, 60)
                assert live.recv(60) == text
                rounds += 1

        talker = threading.Thread(target=exchange_messages)
        talker.start()
        with mp.get_context(sys.argv[1]).Pool(2) as pool:
            calls = [(listener.address, n) for n in range(4)]
            print(pool.starmap(request_square, calls, chunksize=1))
        over.set()
        talker.join(60)
        assert rounds > 0 and not talker.is_alive()
        live.send(b"after all", 30)
        assert live.recv(30) == b"after all"
        live.close()
        other.join(30)
        accepted[0].close()
        server.join(30)
        print("undisturbed")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_connection_survives_a_multiprocessing_pool(method: str, tmp_path: Path) -> None:
    if method == "fork" and os.environ.get("SANITIZER") == "asan":
        pytest.skip("the allocator of AddressSanitizer is not safe across fork beside busy threads")
    script = tmp_path / "pool.py"
    script.write_text(MULTIPROCESSING)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, method],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd="/",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[0, 1, 4, 9]\nundisturbed\n"


def test_parent_and_forked_child_have_separate_captures_and_counters(tmp_path: Path) -> None:
    script = f"""
import os
from unit.device.test_device_fork import disable_progress_thread_under_tsan
from unit.device.test_device_fork import wait_for_sleeping_threads_under_asan
from harness.verbs_harness import Pair, Rig, counter_value, poll, wait_until
from siwarp.verbs import capture

def send_and_count(pair, n, seen):
    for i in range(n):
        pair.post_receive()
        pair.send(b"x" * 100)
        poll(pair.rcq), poll(pair.scq)
    # A message is counted when the next receive from the socket finds none.
    wait_until(lambda: pair.rcq.poll(1) or counter_value("rx_msgs") >= seen)
    assert counter_value("rx_msgs") == seen, counter_value("rx_msgs")

rig = Rig()
pair = Pair(rig)
with capture("{tmp_path}/it.pcapng"):
    send_and_count(pair, 3, 3)
    wait_for_sleeping_threads_under_asan()
    pid = os.fork()
    if pid == 0:
        disable_progress_thread_under_tsan()
        assert counter_value("rx_msgs") == 0
        own = Rig()
        send_and_count(Pair(own), 2, 2)
        own.close()
        os._exit(0)
    send_and_count(pair, 5, 8)
    assert os.waitpid(pid, 0)[1] == 0
    send_and_count(pair, 1, 9)
print(pid)
rig.close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (done.returncode, done.stderr) == (0, "")
    # A datagram that one process both sends and receives is captured twice.
    assert len(rdpcap(str(tmp_path / "it.pcapng"))) == 2 * 9
    assert len(rdpcap(str(tmp_path / f"it-{done.stdout.strip()}.pcapng"))) == 2 * 2


def test_a_child_forked_while_the_device_lock_is_held_gets_estale_without_delay(rig: Rig) -> None:
    pair = Pair(rig)
    # The first word of a context is its lock. The child sets the lock as if a thread that does not
    # exist in the child held the lock.
    progress = ffi.cast("uint32_t *", rig.ctx._c_object())

    def calls_return_estale_soon() -> bool:
        progress[0] = 1
        start = time.monotonic()
        assert lib.siw_poll_cq(pair.rcq._c_object(), 1, ffi.new("struct siw_wc *")) == -errno.ESTALE
        assert lib.siw_destroy_qp(pair.a._c_object()) == -errno.ESTALE
        assert lib.siw_close_device(rig.ctx._c_object()) == -errno.ESTALE
        return time.monotonic() - start < 5

    assert run_in_forked_child(calls_return_estale_soon)


def test_a_send_posted_by_a_forked_child_is_refused_and_not_transmitted(
    two_device_connector: ListenerAndConnector,
) -> None:
    a, b = two_device_connector.connect()
    b.post_receive()

    def errno_of_post() -> int:
        try:
            a.post(SEND, length=8)
        except StateError as e:
            return e.errno or 0
        return 0

    assert run_in_forked_child(errno_of_post) == errno.ESTALE
    assert b.rcq.poll(1) == []
    a.post(SEND, length=16)
    assert poll(b.rcq)[0].byte_len == 16
