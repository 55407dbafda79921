"""TCP sockets: connection setup, segmentation, and all ways in which a stream ends."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading

import pytest

BOTH_FAMILIES = pytest.mark.parametrize("family", ["v4", "v6"])


# ---- connecting


@BOTH_FAMILIES
def test_a_tcp_connection_carries_octets_in_both_directions(poller, llp_helpers, family):
    listener = poller.listen(llp_helpers.loopback[family])
    a = poller.connect(listener.local_addr())
    poller.poll_until_ready(listener)
    b = poller.accept(listener)
    poller.poll_until_ready(a)
    assert a.connect_result() == 0
    assert llp_helpers.address_text(a.peer_addr()) == llp_helpers.address_text(
        listener.local_addr()
    )
    assert llp_helpers.address_text(b.peer_addr()) == llp_helpers.address_text(a.local_addr())
    for x, y in [(a, b), (b, a)]:
        assert x.send(b"hello") == 5
        poller.poll_until_ready(y)
        assert y.recv() == (5, b"hello")
        assert y.recv() == (-errno.EAGAIN, b"")


def test_a_failed_tcp_connect_returns_the_same_error_each_time(poller, llp_helpers):
    with socket.create_server(("127.0.0.1", 0)) as s:
        dest = llp_helpers.siw_addr(*s.getsockname())
    a = poller.connect(dest)
    poller.poll_until_ready(a)
    assert [a.connect_result() for _ in range(3)] == [-errno.ECONNREFUSED] * 3
    for _ in range(5):
        poller.poll()
    assert poller.wait(1000) == 0, "the failed connect was reported twice"


def test_a_tcp_connection_has_the_requested_source_address(poller, llp_helpers):
    listener = poller.listen("127.0.0.1")
    a = poller.connect(listener.local_addr(), llp_helpers.siw_addr("127.0.0.2"))
    b = llp_helpers.wait_until(lambda: poller.try_to_accept(listener))
    assert llp_helpers.address_text(b.peer_addr()).startswith("127.0.0.2:")
    assert llp_helpers.address_text(a.local_addr()) == llp_helpers.address_text(b.peer_addr())


def test_connecting_from_an_address_of_another_host_is_refused(poller, llp_helpers):
    with pytest.raises(OSError) as e:
        poller.connect(llp_helpers.siw_addr("127.0.0.1", 9), llp_helpers.siw_addr("192.0.2.1"))
    assert e.value.errno == errno.EADDRNOTAVAIL


@pytest.fixture
def full_listener_address():
    """The address of a listener with a full queue, to which a further connect stays pending."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen(0)
    full = socket.create_connection(s.getsockname())
    yield s.getsockname()
    full.close()
    s.close()


def test_a_socket_with_a_pending_connect_stays_cold_and_is_not_reported(
    poller, llp_helpers, full_listener_address
):
    a = poller.connect(llp_helpers.siw_addr(*full_listener_address))
    c = llp_helpers.Counters()
    assert all(poller.poll() == [] for _ in range(300))
    assert c["epoll_waits"] == 300, "a socket was hot"
    assert a.connect_result() == -errno.EAGAIN
    assert poller.wait(1000) == 0


def test_a_socket_can_be_closed_while_its_connect_is_pending(
    poller, llp_helpers, full_listener_address
):
    for _ in range(50):
        poller.connect(llp_helpers.siw_addr(*full_listener_address)).close()
        assert poller.poll() == []


def test_octets_received_before_the_end_of_the_connect_was_noticed_are_reported(
    poller, llp_helpers
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        a = poller.connect(llp_helpers.siw_addr(*server.getsockname()))
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"first words")
            # One event reports both the end of the connect and the octets.
            poller.poll_until_ready(a)
            assert a.connect_result() == 0
            poller.poll_until_ready(a, 2)
            assert a.recv() == (11, b"first words")


def test_accept_without_a_pending_connection_returns_eagain(poller):
    listener = poller.listen()
    with pytest.raises(BlockingIOError):
        poller.accept(listener)


def test_a_listener_is_reported_until_its_last_connection_is_accepted(poller):
    listener = poller.listen()
    clients = [poller.connect(listener.local_addr()) for _ in range(5)]
    got = []
    for _ in range(20):
        if listener in poller.poll():
            got.append(poller.try_to_accept(listener))
        if got and got[-1] is None:
            break
    assert len(got) == len(clients) + 1
    for _ in range(100):
        assert listener not in poller.poll()


def test_a_tcp_listener_never_becomes_hot(poller, llp_helpers):
    listener = poller.listen()
    for _ in range(3):
        a = poller.connect(listener.local_addr())
        poller.poll_until_ready(listener)
        b = poller.accept(listener)
        a.close()
        b.close()
        assert poller.hot_fds() == []


def test_a_second_tcp_listener_on_the_same_port_is_refused(poller, llp_helpers):
    listener = poller.listen()
    with pytest.raises(OSError) as e:
        poller.listen(port=llp_helpers.addr_port(listener.local_addr()))
    assert e.value.errno == errno.EADDRINUSE


def test_a_tcp_port_can_be_listened_on_again_while_an_old_connection_is_in_time_wait(
    poller, llp_helpers
):
    listener = poller.listen()
    number = llp_helpers.addr_port(listener.local_addr())
    a = poller.connect(listener.local_addr())
    b = llp_helpers.wait_until(lambda: poller.try_to_accept(listener))
    # The end of a TCP connection that closes first keeps the port in TIME-WAIT.
    b.close()
    a.close()
    listener.close()
    assert llp_helpers.addr_port(poller.listen(port=number).local_addr()) == number


#: Code after which a connection is pending at a listener and no descriptor is free to accept it.
WITHOUT_DESCRIPTORS = """
p = Poller()
listener = p.listen()
client = socket.create_connection(("127.0.0.1", addr_port(listener.local_addr())))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(list_open_descriptors()), hard))
p.poll_until_ready(listener)
try:
    p.accept(listener)
    raise SystemExit("accepted without a descriptor")
except OSError as e:
    assert e.errno == 24, e
"""


def test_a_pending_connection_is_accepted_once_descriptors_are_free_again(run_in_child):
    run_in_child(
        WITHOUT_DESCRIPTORS
        + """
# The polls do not report the listener until the wait ends at the time of the next attempt.
assert all(listener not in p.poll() for _ in range(100))
start = time.monotonic()
assert p.wait(5_000_000) == 1
assert 0.05 < time.monotonic() - start < 1.0
assert p.poll_until_ready(listener, 1)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
b = p.accept(listener)
client.sendall(b"still here")
wait_until(lambda: b in p.poll())
assert b.recv() == (10, b"still here")
p.close()
"""
    )


def test_a_listener_whose_accept_failed_for_lack_of_descriptors_can_be_closed(run_in_child):
    run_in_child(
        WITHOUT_DESCRIPTORS
        + """
listener.close()
assert p.wait(200_000) == 0, "the wait ended although the listener was closed"
assert p.poll() == []
p.close()
"""
    )


def test_tcp_sockets_are_nonblocking_close_on_exec_and_have_tcp_nodelay(poller):
    a, b = poller.connected_pair()
    for s in (a, b):
        flags = fcntl.fcntl(s.fd, fcntl.F_GETFL), fcntl.fcntl(s.fd, fcntl.F_GETFD)
        assert flags[0] & os.O_NONBLOCK
        assert flags[1] & fcntl.FD_CLOEXEC
        with socket.socket(fileno=os.dup(s.fd)) as raw:
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    fd = poller.listen().fd
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


# ---- the TCP stream


def test_a_tcp_stream_arrives_in_order_with_any_lengths_of_sends_and_receives(poller, llp_helpers):
    a, b = poller.connected_pair()
    data = os.urandom(1_000_003) * 20
    c = llp_helpers.Counters()
    sent, got = 0, bytearray()
    while len(got) < len(data):
        while sent < len(data):
            # Each call sends three pieces of unaligned lengths.
            part = data[sent : sent + 700_001]
            rv = a.send(part[:13], part[13:99_991], part[99_991:])
            if rv < 0:
                assert rv == -errno.EAGAIN
                break
            sent += rv
        for s in poller.poll():
            if s is b:
                while (one := b.recv(7, 100_003, 1))[0] > 0:
                    got += one[1]
                assert one[0] == -errno.EAGAIN
    assert bytes(got) == data
    assert c["tx_eagain"] > 0


def fill_socket_send_buffer(a):
    total = 0
    while (rv := a.send(b"x" * 1_000_000)) > 0:
        total += rv
    assert rv == -errno.EAGAIN
    return total


@pytest.mark.parametrize("state", ["cold", "hot", "armed"])
def test_buffer_space_in_a_full_tcp_socket_wakes_a_waiting_thread(poller, llp_helpers, state):
    # The reader has its own poller, so only buffer space in the writer's socket can end the wait.
    other = llp_helpers.Poller()
    listener = other.listen()
    a = poller.connect(listener.local_addr())
    b = llp_helpers.wait_until(lambda: other.try_to_accept(listener))
    llp_helpers.wait_until(lambda: a in poller.poll() and a.connect_result() == 0)
    if state != "cold":
        b.send(b"x")
        llp_helpers.wait_until(lambda: a in poller.poll() and a.receive_all())
        assert len(poller.hot_fds()) == 1
    poller.drain_ready_sockets()
    total = fill_socket_send_buffer(a)
    if state == "armed":
        poller.arm()
    assert poller.wait(20_000) == 0, "the wait ended without buffer space"
    reader = threading.Timer(0.05, b.receive_all)
    reader.start()
    assert poller.wait(5_000_000) == 1
    reader.join()
    llp_helpers.wait_until(lambda: a in poller.poll())
    a.want_write(False)
    assert llp_helpers.wait_until(lambda: (rv := a.send(b"y")) > 0 and rv) == 1
    assert total > 100_000
    llp_helpers.wait_until(lambda: not b.receive_all())
    other.close()


def test_a_paused_tcp_socket_that_waits_for_buffer_space_ignores_received_octets(
    poller, llp_helpers
):
    other = llp_helpers.Poller()
    listener = other.listen()
    a = poller.connect(listener.local_addr())
    b = llp_helpers.wait_until(lambda: other.try_to_accept(listener))
    llp_helpers.wait_until(lambda: a in poller.poll() and a.connect_result() == 0)
    poller.drain_ready_sockets()
    fill_socket_send_buffer(a)
    llp_helpers.lib.siw_llp_sock_pause(a.c)
    for _ in range(5):
        assert b.send(b"x") == 1
        assert not any(poller.poll() for _ in range(100))
        assert poller.wait(2000) == 0 or not poller.poll()
    # After the reader has received everything, the writer's socket has buffer space.
    llp_helpers.wait_until(lambda: b.receive_all() is not None and a in poller.poll())
    a.want_write(False)
    other.close()


@pytest.mark.parametrize("armed", [False, True])
@pytest.mark.parametrize("hot", [False, True])
def test_want_write_on_a_tcp_socket_with_buffer_space_reports_the_socket(
    poller, llp_helpers, hot, armed
):
    a, b = poller.connected_pair()
    if hot:
        b.send(b"x")
        poller.poll_until_ready(a)
    poller.drain_ready_sockets()
    if armed:
        poller.arm()
        poller.drain_ready_sockets()
    assert poller.wait(1000) == 0
    asleep = poller.fill_waitset()
    # The socket always had buffer space, so epoll reports no new event.
    a.want_write(True)
    assert llp_helpers.lib.siw_llp_wait(asleep, -1, 5_000_000) == 1, (
        "a thread that waits already was not woken"
    )
    assert poller.wait(5_000_000) == 1
    poller.poll_until_ready(a)
    a.want_write(False)


def test_buffer_space_without_want_write_is_not_reported(poller, llp_helpers):
    a, b = poller.connected_pair()
    b.send(b"x")
    poller.drain_ready_sockets()
    fill_socket_send_buffer(a)
    a.want_write(False)
    b.receive_all()
    llp_helpers.wait_until(lambda: b.receive_all() == 0)
    poller.drain_ready_sockets()
    assert a.fd in poller.hot_fds() or all(a not in poller.poll() for _ in range(50))


def test_more_iovecs_than_iov_max_result_in_a_partial_send_and_receive(poller):
    a, b = poller.connected_pair()
    assert a.send(*[b"x"] * 1500) == 1024
    assert b.recv(*[1] * 1500)[0] == 1024


def test_the_segment_size_of_a_tcp_socket_is_that_of_the_kernel(poller):
    a, _ = poller.connected_pair()
    with socket.socket(fileno=os.dup(a.fd)) as raw:
        want = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    assert poller.lib.siw_llp_tcp_emss(a.c) == want > 536


def test_the_segment_size_of_a_udp_socket_is_an_error(poller):
    assert poller.lib.siw_llp_tcp_emss(poller.open_udp().c) == -errno.EOPNOTSUPP


# ---- ends of streams


@pytest.mark.parametrize("hot", [False, True])
def test_receives_at_the_end_of_a_tcp_stream_return_0_and_waits_do_not_return(
    poller, llp_helpers, hot
):
    a, b = poller.connected_pair()
    a.send(b"last words")
    if hot:
        poller.poll_until_ready(b)
    assert poller.lib.siw_llp_tcp_shutdown(a.c) == 0
    poller.poll_until_ready(b)
    assert b.recv() == (10, b"last words")
    poller.poll_until_ready(b)
    assert [b.recv() for _ in range(3)] == [(0, b"")] * 3
    for _ in range(40):
        for s in poller.poll():
            assert s.receive_all() == 0
    # On a busy machine the acknowledgement of the FIN may arrive late and raise an event. If the
    # end of the stream woke the reader repeatedly, three consecutive waits would never time out.
    llp_helpers.wait_until(
        lambda: (
            all(s.receive_all() == 0 for s in poller.poll())
            and [poller.wait(1000) for _ in range(3)] == [0, 0, 0]
        )
    )
    # The other direction of the stream still works.
    assert b.send(b"answer") == 6
    poller.poll_until_ready(a)
    assert a.recv() == (6, b"answer")


def test_an_aborted_tcp_stream_resets_the_peer(poller, llp_helpers):
    a, b = poller.connected_pair()
    poller.lib.siw_llp_tcp_set_abortive_close(a.c)
    a.close()
    poller.poll_until_ready(b)
    assert b.recv()[0] == -errno.ECONNRESET
    for _ in range(40):
        for s in poller.poll():
            assert s.recv()[0] == 0
    llp_helpers.wait_until(
        lambda: all(s.recv()[0] == 0 for s in poller.poll()) and poller.wait(1000) == 0
    )
    assert poller.wait(1000) == 0


def test_a_closed_tcp_socket_delivers_the_octets_sent_before(poller):
    a, b = poller.connected_pair()
    a.send(b"x" * 50_000)
    a.close()
    got = 0
    poller.poll_until_ready(b)
    while (rv := b.recv()[0]) > 0:
        got += rv
    assert (rv, got) == (0, 50_000)


def test_sending_on_a_reset_tcp_stream_returns_an_error_and_raises_no_signal(run_in_child):
    run_in_child("""
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
p, c = Poller(), Counters()
a, b = p.connected_pair()
lib.siw_llp_tcp_set_abortive_close(b.c)
b.close()
assert a.send(b"x") == -104, "ECONNRESET"
assert a.send(b"x", b"y") == -32, "EPIPE"
assert a.send(b"x") == -32
assert c["send_errors"] == 3
p.close()
""")


def test_the_peer_address_of_a_listener_is_an_error(poller):
    with pytest.raises(OSError) as e:
        poller.listen().peer_addr()
    assert e.value.errno == errno.ENOTCONN


@BOTH_FAMILIES
def test_a_thousand_tcp_connections_leak_no_descriptor(poller, llp_helpers, family):
    listener = poller.listen(llp_helpers.loopback[family])
    before = llp_helpers.list_open_descriptors()
    for _ in range(1000):
        a = poller.connect(listener.local_addr())
        b = llp_helpers.wait_until(lambda: poller.try_to_accept(listener))
        poller.lib.siw_llp_tcp_set_abortive_close(a.c)
        a.close()
        b.close()
    assert set(llp_helpers.list_open_descriptors()) <= set(before)
