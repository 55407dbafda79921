from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from harness.verbs_harness import wait_until

import siwarp
from siwarp.cm import Connection
from siwarp.cm import conn as conn_module
from siwarp.inspect import MPARequest
from siwarp.verbs import AccessFlag, Persona, ProtocolError, RemoteBuffer

Connect = Callable[..., tuple[Connection, Connection]]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_messages_pass_in_both_directions_and_either_end_may_send_first(
    connect_pair: Connect, host: str
) -> None:
    a, b = connect_pair(host)
    b.send(b"the responder first")
    assert a.recv(10) == b"the responder first"
    for size in (0, 1, 1000, 65536):
        message = os.urandom(size)
        a.send(message)
        assert b.recv(10) == message
    assert a.peer == b.local
    assert b.peer == a.local


def test_private_data_of_connect_and_accept_reaches_the_other_end() -> None:
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        got: list[bytes] = []

        def accept_with_private_data() -> None:
            with listener.accept(10, private_data=b"welcome") as conn:
                got.append(conn.private_data)

        thread = threading.Thread(target=accept_with_private_data)
        thread.start()
        with siwarp.connect(listener.address, private_data=b"hello") as conn:
            assert conn.private_data == b"welcome"
        thread.join(10)
    assert got == [b"hello"]


def test_memory_of_the_peer_is_written_and_read_without_a_copy(connect_pair: Connect) -> None:
    a, b = connect_pair()
    memory = bytearray(200_000)
    there = b.register(memory).remote()
    data = os.urandom(150_000)
    a.write(there, data, offset=1000)
    assert a.read(there, 150_000, offset=1000) == data
    a.send(b"look")
    assert b.recv(10) == b"look"
    assert memory[1000:151_000] == data
    assert memory[:1000] == bytes(1000)
    assert memory[151_000:] == bytes(49_000)


def test_connections_accept_numpy_arrays_and_memory_regions(connect_pair: Connect) -> None:
    a, b = connect_pair()
    matrix = np.arange(12.0).reshape(3, 4)
    there = b.register(matrix).remote()
    row = np.empty(4)
    a.read_into(there, row, offset=32)
    assert row.tolist() == [4, 5, 6, 7]
    mr = a.register(np.full(4, 9.0))
    a.write(there, mr)
    a.send(mr)
    assert np.frombuffer(b.recv(10)).tolist() == [9.0] * 4
    assert matrix[0].tolist() == [9.0] * 4


def test_a_read_with_an_invalid_key_is_a_protocol_error_at_both_ends(
    connect_pair: Connect,
) -> None:
    a, b = connect_pair()
    there = b.register(100).remote()
    with pytest.raises(siwarp.ProtocolError, match="invalid STag") as caught:
        a.read(there._replace(rkey=there.rkey ^ 0x100), timeout=10)
    assert (caught.value.layer, caught.value.type, caught.value.code) == (0, 1, 0)
    with pytest.raises(siwarp.ProtocolError):
        b.recv(10)


def test_a_write_beyond_the_region_of_the_peer_is_refused_and_writes_nothing(
    connect_pair: Connect,
) -> None:
    a, b = connect_pair()
    mr = b.register(100)
    # The remote buffer is longer than the registered memory.
    a.write(mr.remote()._replace(length=200), b"x" * 50, offset=60)
    with pytest.raises(siwarp.ProtocolError, match="bounds") as caught:
        a.recv(10)
    assert (caught.value.layer, caught.value.type, caught.value.code) == (1, 1, 1)
    assert mr.read() == bytes(100)


@pytest.mark.parametrize(("offset", "length"), [(60, 50), (0, 101), (-1, 4), (101, 0), (200, 1)])
def test_access_beyond_a_remote_buffer_is_refused_locally_without_a_disconnect(
    connect_pair: Connect, offset: int, length: int
) -> None:
    a, b = connect_pair()
    mr = b.register(100)
    there = mr.remote()
    for attempt in (
        lambda: a.write(there, bytes(length), offset),
        lambda: a.read(there, length, offset),
        lambda: a.read_into(there, bytearray(length), offset),
        lambda: a.write(there, a.register(max(length, 1)), max(offset, 100)),
    ):
        with pytest.raises(siwarp.LimitError, match="stay within them") as caught:
            attempt()
        assert caught.value.errno == errno.EINVAL
    a.write(there, b"x" * 50, 50)
    assert a.read(there, 1, 99) == b"x"
    assert a.read(there, 0, 100) == b""


def test_a_write_to_a_region_without_remote_write_access_is_refused(connect_pair: Connect) -> None:
    a, b = connect_pair()
    mr = b.register(100, AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_READ)
    assert a.read(mr.remote(), 10) == bytes(10)
    a.write(mr.remote(), b"x")
    with pytest.raises(siwarp.ProtocolError):
        a.recv(10)
    assert mr.read() == bytes(100)


def test_messages_sent_before_closing_a_connection_are_received(connect_pair: Connect) -> None:
    a, b = connect_pair()
    a.send(b"one")
    a.send(b"two")
    a.close()
    assert [b.recv(10), b.recv(10)] == [b"one", b"two"]
    with pytest.raises(siwarp.PeerGone, match="has ended"):
        b.recv(10)


def test_waiting_for_a_message_ends_at_its_time_out(connect_pair: Connect) -> None:
    a, b = connect_pair()
    with pytest.raises(siwarp.Timeout):
        a.recv(0.1)
    b.send(b"later")
    assert a.recv(10) == b"later"


def test_calls_on_a_closed_connection_raise_state_error(connect_pair: Connect) -> None:
    a, _ = connect_pair()
    a.close()
    a.close()
    for use in (lambda: a.send(b"x"), lambda: a.recv(1)):
        with pytest.raises(siwarp.StateError, match="closed"):
            use()
    assert "closed" in repr(a)


def test_connecting_to_a_port_without_a_listener_raises_peer_gone() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        where = f"connecting to 127.0.0.1 port {s.getsockname()[1]}: .*start the peer"
        with pytest.raises(siwarp.PeerGone, match=where):
            siwarp.connect(s.getsockname())


def test_accept_ends_at_its_time_out_and_raises_state_error_on_a_closed_listener() -> None:
    with siwarp.listen(("127.0.0.1", 0)) as listener, pytest.raises(siwarp.Timeout):
        listener.accept(0.1)
    with pytest.raises(siwarp.StateError, match="closed"):
        listener.accept(0.1)


def test_several_connections_of_a_listener_outlive_the_listener() -> None:
    accepted: list[Connection] = []
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(
            target=lambda: accepted.extend(listener.accept(10) for _ in range(5))
        )
        thread.start()
        ours = [siwarp.connect(listener.address) for _ in range(5)]
        thread.join(20)
    assert len(accepted) == 5
    for i, conn in enumerate(ours):
        conn.send(b"%d" % i)
    assert sorted(conn.recv(10) for conn in accepted) == [b"%d" % i for i in range(5)]
    for conn in [*ours, *accepted]:
        conn.close()


def test_a_client_that_sends_no_mpa_request_does_not_disturb_a_listener() -> None:
    with (
        siwarp.listen(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.address) as s,
    ):
        s.sendall(b"GET / HTTP/1.0\r\n\r\n" * 10)
        thread = threading.Thread(target=lambda: listener.accept(10).close())
        thread.start()
        siwarp.connect(listener.address).close()
        thread.join(10)
        assert not thread.is_alive()


def test_clients_that_stop_during_start_up_do_not_delay_other_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stopped clients never send the first message of their peer-to-peer connections."""
    monkeypatch.setattr(conn_module, "MOST_STARTING", 4)
    with (
        siwarp.listen(("127.0.0.1", 0)) as listener,
        contextlib.ExitStack() as silent,
        ThreadPoolExecutor(1) as pool,
    ):
        request = bytes(MPARequest(rev=2, s=1, a=1, b=1, ird=1, ord=1))
        for _ in range(6):
            s = silent.enter_context(socket.create_connection(listener.address))
            s.sendall(request)
        accepting = pool.submit(listener.accept, 20)
        with siwarp.connect(listener.address, timeout=20) as a, accepting.result(20) as b:
            a.send(b"served")
            assert b.recv(10) == b"served"
            assert len(listener._starting) <= 4


def connect_roce_pair(recv_size: int = 1 << 16) -> tuple[Connection, Connection]:
    with siwarp.listen(
        ("127.0.0.1", 0), recv_size=recv_size, recv_depth=4, persona=Persona.ROCE
    ) as listener:
        ends: list[Connection] = []
        thread = threading.Thread(target=lambda: ends.append(listener.accept(10)))
        thread.start()
        a = siwarp.connect(listener.address, persona=Persona.ROCE)
        thread.join(10)
    return a, ends[0]


def test_with_persona_roce_a_send_blocks_until_the_peer_receives() -> None:
    a, b = connect_roce_pair()
    sent: list[int] = []

    def send_messages() -> None:
        for i in range(20):
            a.send(bytes([i]) * 1000)
            sent.append(i)

    with a, b:
        thread = threading.Thread(target=send_messages)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and len(sent) <= 4
        for i in range(20):
            assert b.recv(10) == bytes([i]) * 1000
        thread.join(10)
        assert sent == list(range(20))


def test_with_persona_roce_a_refused_write_raises_protocol_error() -> None:
    a, b = connect_roce_pair()
    with a, b:
        there = b.register(bytearray(100)).remote()
        a.write(there, b"fits")
        wrong = RemoteBuffer(there.addr, 100, there.rkey ^ 0x100)
        with pytest.raises(ProtocolError):
            a.write(wrong, b"does not")


# ---- closing objects on which other threads wait


def assert_thread_ended_by_close(thread: threading.Thread, found: list[BaseException]) -> None:
    thread.join(20)
    assert not thread.is_alive(), "the thread still waits"
    (error,) = found
    assert isinstance(error, siwarp.StateError) and "closed" in str(error)


def start_blocking_call(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Start a thread that makes a blocking call; return the thread and a list for its exception."""
    found: list[BaseException] = []

    def call_and_record_exception() -> None:
        try:
            call()
        except BaseException as e:
            found.append(e)

    thread = threading.Thread(target=call_and_record_exception)
    thread.start()
    return thread, found


def test_closing_a_connection_ends_the_wait_of_a_thread_that_receives(
    connect_pair: Connect,
) -> None:
    a, b = connect_pair()
    thread, found = start_blocking_call(a.recv)
    wait_until(lambda: a.rcq.channel is not None and a.rcq.channel._waiters)
    a.close()
    assert_thread_ended_by_close(thread, found)
    assert a.qp.closed and a.pd.closed and a.rcq.channel is not None and a.rcq.channel.closed
    with pytest.raises(siwarp.PeerGone):
        b.recv(10)


@pytest.mark.parametrize("size", [1000, 100_000], ids=["copied", "lent"])
def test_closing_a_connection_ends_the_wait_of_a_thread_that_sends(size: int) -> None:
    a, b = connect_roce_pair(100_000)
    data = bytearray(size)
    with b:

        def send_until_blocked() -> None:
            # The peer receives no message, so a send blocks eventually.
            for _ in range(100):
                a.send(data)

        thread, found = start_blocking_call(send_until_blocked)
        wait_until(lambda: a.scq.channel is not None and a.scq.channel._waiters)
        a.close()
        assert_thread_ended_by_close(thread, found)
        assert a.qp.closed and a.pd.closed
    found.clear()
    # Resizing succeeds only if the memory is no longer registered.
    data.append(0)


def test_closing_a_listener_ends_the_wait_of_a_thread_that_accepts() -> None:
    listener = siwarp.listen(("127.0.0.1", 0))
    address = listener.address
    thread, found = start_blocking_call(listener.accept)
    wait_until(lambda: listener._home.channel._waiters)
    listener.close()
    assert_thread_ended_by_close(thread, found)
    assert listener._home.context.closed
    with pytest.raises(siwarp.PeerGone):
        siwarp.connect(address)


def test_closing_a_listener_ends_the_loop_over_its_connections() -> None:
    listener = siwarp.listen(("127.0.0.1", 0))
    met: list[str] = []

    def serve_connections() -> None:
        for conn in listener:
            with conn:
                met.append(conn.peer[0])

    thread, found = start_blocking_call(serve_connections)
    with siwarp.connect(listener.address):
        wait_until(lambda: met)
    wait_until(lambda: listener._home.channel._waiters)
    listener.close()
    thread.join(20)
    assert not thread.is_alive() and (found, met) == ([], ["127.0.0.1"])
