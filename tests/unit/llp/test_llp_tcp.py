"""TCP sockets: connecting, segmentation, and all kinds of stream ends."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading

import pytest

BOTH = pytest.mark.parametrize("family", ["v4", "v6"])


# ---- connecting


@BOTH
def test_a_connection_is_made_and_carries_octets_both_ways(port, helpers, family):
    listener = port.listen(helpers.loopback[family])
    a = port.connect(listener.local_addr())
    port.poll_until_ready(listener)
    b = port.accept(listener)
    port.poll_until_ready(a)
    assert a.connect_result() == 0
    assert helpers.address_text(a.peer_addr()) == helpers.address_text(listener.local_addr())
    assert helpers.address_text(b.peer_addr()) == helpers.address_text(a.local_addr())
    for x, y in [(a, b), (b, a)]:
        assert x.send(b"hello") == 5
        port.poll_until_ready(y)
        assert y.recv() == (5, b"hello")
        assert y.recv() == (-errno.EAGAIN, b"")


def test_a_failed_connect_returns_the_same_error_each_time(port, helpers):
    with socket.create_server(("127.0.0.1", 0)) as s:
        dest = helpers.siw_addr(*s.getsockname())
    a = port.connect(dest)
    port.poll_until_ready(a)
    assert [a.connect_result() for _ in range(3)] == [-errno.ECONNREFUSED] * 3
    for _ in range(5):
        port.poll()
    assert port.wait(1000) == 0, "it is told once"


def test_a_connection_comes_from_the_source_that_is_asked_for(port, helpers):
    listener = port.listen("127.0.0.1")
    a = port.connect(listener.local_addr(), helpers.siw_addr("127.0.0.2"))
    b = helpers.wait_until(lambda: port.accept_once(listener))
    assert helpers.address_text(b.peer_addr()).startswith("127.0.0.2:")
    assert helpers.address_text(a.local_addr()) == helpers.address_text(b.peer_addr())


def test_a_source_that_is_not_ours_is_refused(port, helpers):
    with pytest.raises(OSError) as e:
        port.connect(helpers.siw_addr("127.0.0.1", 9), helpers.siw_addr("192.0.2.1"))
    assert e.value.errno == errno.EADDRNOTAVAIL


@pytest.fixture
def full_listener_address():
    """Yield the address of a listener with a full queue: a further connect stays pending."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen(0)
    full = socket.create_connection(s.getsockname())
    yield s.getsockname()
    full.close()
    s.close()


def test_a_pending_connect_stays_cold_and_is_not_handed_out(port, helpers, full_listener_address):
    a = port.connect(helpers.siw_addr(*full_listener_address))
    c = helpers.Counters()
    assert all(port.poll() == [] for _ in range(300))
    assert c["epoll_waits"] == 300, "something was hot"
    assert a.connect_result() == -errno.EAGAIN
    assert port.wait(1000) == 0


def test_a_socket_can_be_closed_while_its_connect_is_pending(port, helpers, full_listener_address):
    for _ in range(50):
        port.connect(helpers.siw_addr(*full_listener_address)).close()
        assert port.poll() == []


def test_octets_that_came_before_the_connect_was_noticed_are_handed_out(port, helpers):
    with socket.create_server(("127.0.0.1", 0)) as server:
        a = port.connect(helpers.siw_addr(*server.getsockname()))
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"first words")
            port.poll_until_ready(a)  # one event reports both
            assert a.connect_result() == 0
            port.poll_until_ready(a, 2)
            assert a.recv() == (11, b"first words")


def test_accept_without_a_connection_says_eagain(port):
    listener = port.listen()
    with pytest.raises(BlockingIOError):
        port.accept(listener)


def test_a_listener_is_handed_out_until_its_last_connection_was_accepted(port):
    listener = port.listen()
    clients = [port.connect(listener.local_addr()) for _ in range(5)]
    got = []
    for _ in range(20):
        if listener in port.poll():
            got.append(port.accept_once(listener))
        if got and got[-1] is None:
            break
    assert len(got) == len(clients) + 1
    for _ in range(100):
        assert listener not in port.poll()


def test_a_listener_is_never_hot(port, helpers):
    listener = port.listen()
    for _ in range(3):
        a = port.connect(listener.local_addr())
        port.poll_until_ready(listener)
        b = port.accept(listener)
        a.close()
        b.close()
        assert port.hot_fds() == []


def test_a_second_listener_on_the_port_is_refused(port, helpers):
    listener = port.listen()
    with pytest.raises(OSError) as e:
        port.listen(port=helpers.port_of(listener.local_addr()))
    assert e.value.errno == errno.EADDRINUSE


def test_a_listener_comes_back_while_old_connections_linger(port, helpers):
    listener = port.listen()
    number = helpers.port_of(listener.local_addr())
    a = port.connect(listener.local_addr())
    b = helpers.wait_until(lambda: port.accept_once(listener))
    b.close()  # the side that closes first keeps the port in TIME-WAIT
    a.close()
    listener.close()
    assert helpers.port_of(port.listen(port=number).local_addr()) == number


#: A connection is pending, and no descriptor is left to accept it.
WITHOUT_DESCRIPTORS = """
p = Port()
listener = p.listen()
client = socket.create_connection(("127.0.0.1", port_of(listener.local_addr())))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(open_fds()), hard))
p.poll_until_ready(listener)
try:
    p.accept(listener)
    raise SystemExit("accepted without a descriptor")
except OSError as e:
    assert e.errno == 24, e
"""


def test_a_connection_outlasts_the_want_of_descriptors(run_in_child):
    run_in_child(
        WITHOUT_DESCRIPTORS
        + """
# It neither spins meanwhile nor forgets: the sleep ends when it is time to try again.
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


def test_a_listener_without_descriptors_can_be_closed(run_in_child):
    run_in_child(
        WITHOUT_DESCRIPTORS
        + """
listener.close()
assert p.wait(200_000) == 0, "nothing is left to try again"
assert p.poll() == []
p.close()
"""
    )


def test_all_descriptors_are_non_blocking_closed_on_exec_and_without_delay(port):
    a, b = port.connected_pair()
    for s in (a, b):
        flags = fcntl.fcntl(s.fd, fcntl.F_GETFL), fcntl.fcntl(s.fd, fcntl.F_GETFD)
        assert flags[0] & os.O_NONBLOCK
        assert flags[1] & fcntl.FD_CLOEXEC
        with socket.socket(fileno=os.dup(s.fd)) as raw:
            assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    fd = port.listen().fd
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


# ---- the stream


def test_a_stream_arrives_in_order_however_it_is_cut(port, helpers):
    a, b = port.connected_pair()
    data = os.urandom(1_000_003) * 20
    c = helpers.Counters()
    sent, got = 0, bytearray()
    while len(got) < len(data):
        while sent < len(data):
            # Each call sends three pieces, whose lengths are not aligned to anything.
            part = data[sent : sent + 700_001]
            rv = a.send(part[:13], part[13:99_991], part[99_991:])
            if rv < 0:
                assert rv == -errno.EAGAIN
                break
            sent += rv
        for s in port.poll():
            if s is b:
                while (one := b.recv(7, 100_003, 1))[0] > 0:
                    got += one[1]
                assert one[0] == -errno.EAGAIN
    assert bytes(got) == data
    assert c["tx_eagain"] > 0


def fill_send_buffer(a):
    total = 0
    while (rv := a.send(b"x" * 1_000_000)) > 0:
        total += rv
    assert rv == -errno.EAGAIN
    return total


@pytest.mark.parametrize("state", ["cold", "hot", "armed"])
def test_a_full_stream_wakes_the_sleeper_when_it_has_room(port, helpers, state):
    # The reader has its own port, so only room in the writer's socket may end the sleep.
    other = helpers.Port()
    listener = other.listen()
    a = port.connect(listener.local_addr())
    b = helpers.wait_until(lambda: other.accept_once(listener))
    helpers.wait_until(lambda: a in port.poll() and a.connect_result() == 0)
    if state != "cold":
        b.send(b"x")
        helpers.wait_until(lambda: a in port.poll() and a.drain())
        assert len(port.hot_fds()) == 1
    port.drain_ready_sockets()
    total = fill_send_buffer(a)
    if state == "armed":
        port.arm()
    assert port.wait(20_000) == 0, "there is no room yet"
    reader = threading.Timer(0.05, b.drain)
    reader.start()
    assert port.wait(5_000_000) == 1
    reader.join()
    helpers.wait_until(lambda: a in port.poll())
    a.want_write(False)
    assert helpers.wait_until(lambda: (rv := a.send(b"y")) > 0 and rv) == 1
    assert total > 100_000
    helpers.wait_until(lambda: not b.drain())
    other.close()


def test_a_paused_stream_that_waits_for_room_is_not_handed_out_for_what_comes(port, helpers):
    other = helpers.Port()
    listener = other.listen()
    a = port.connect(listener.local_addr())
    b = helpers.wait_until(lambda: other.accept_once(listener))
    helpers.wait_until(lambda: a in port.poll() and a.connect_result() == 0)
    port.drain_ready_sockets()
    fill_send_buffer(a)
    helpers.lib.siw_llp_pause(a.c)
    for _ in range(5):
        assert b.send(b"x") == 1
        assert not any(port.poll() for _ in range(100))
        assert port.wait(2000) == 0 or not port.poll()
    # the reader has drained the stream, so the writer's socket has room
    helpers.wait_until(lambda: b.drain() is not None and a in port.poll())
    a.want_write(False)
    other.close()


@pytest.mark.parametrize("armed", [False, True])
@pytest.mark.parametrize("hot", [False, True])
def test_a_wish_to_write_that_comes_after_the_room_is_served(port, helpers, hot, armed):
    a, b = port.connected_pair()
    if hot:
        b.send(b"x")
        port.poll_until_ready(a)
    port.drain_ready_sockets()
    if armed:
        port.arm()
        port.drain_ready_sockets()
    assert port.wait(1000) == 0
    asleep = port.fill_waitset()
    a.want_write(True)  # the socket has had room all the time, so there will be no new event
    assert helpers.lib.siw_llp_wait(asleep, -1, 5_000_000) == 1, "who sleeps already hears of it"
    assert port.wait(5_000_000) == 1
    port.poll_until_ready(a)
    a.want_write(False)


def test_room_that_nobody_asked_for_is_not_handed_out(port, helpers):
    a, b = port.connected_pair()
    b.send(b"x")
    port.drain_ready_sockets()
    fill_send_buffer(a)
    a.want_write(False)
    b.drain()
    helpers.wait_until(lambda: b.drain() == 0)
    port.drain_ready_sockets()
    assert a.fd in port.hot_fds() or all(a not in port.poll() for _ in range(50))


def test_more_iovecs_than_the_system_takes_are_a_partial_write(port):
    a, b = port.connected_pair()
    assert a.send(*[b"x"] * 1500) == 1024
    assert b.recv(*[1] * 1500)[0] == 1024


def test_the_segment_size_is_what_the_kernel_says(port):
    a, _ = port.connected_pair()
    with socket.socket(fileno=os.dup(a.fd)) as raw:
        want = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    assert port.lib.siw_llp_tcp_emss(a.c) == want > 536


def test_the_segment_size_of_a_non_stream_socket_is_an_error(port):
    assert port.lib.siw_llp_tcp_emss(port.open_udp().c) == -errno.EOPNOTSUPP


# ---- ends


@pytest.mark.parametrize("hot", [False, True])
def test_the_end_of_a_stream_is_read_as_0_each_time_and_does_not_keep_anyone_awake(
    port, helpers, hot
):
    a, b = port.connected_pair()
    a.send(b"last words")
    if hot:
        port.poll_until_ready(b)
    assert port.lib.siw_llp_tcp_shutdown(a.c) == 0
    port.poll_until_ready(b)
    assert b.recv() == (10, b"last words")
    port.poll_until_ready(b)
    assert [b.recv() for _ in range(3)] == [(0, b"")] * 3
    for _ in range(40):
        for s in port.poll():
            assert s.drain() == 0
    # On a busy machine the acknowledgement of its FIN comes late, and is an event. If the end of
    # the stream woke the reader again and again, there would never be three waits in a row without
    # an event.
    helpers.wait_until(
        lambda: (
            all(s.drain() == 0 for s in port.poll())
            and [port.wait(1000) for _ in range(3)] == [0, 0, 0]
        )
    )
    # The other direction still works.
    assert b.send(b"answer") == 6
    port.poll_until_ready(a)
    assert a.recv() == (6, b"answer")


def test_an_aborted_stream_ends_with_a_reset(port, helpers):
    a, b = port.connected_pair()
    port.lib.siw_llp_tcp_abort(a.c)
    a.close()
    port.poll_until_ready(b)
    assert b.recv()[0] == -errno.ECONNRESET
    for _ in range(40):
        for s in port.poll():
            assert s.recv()[0] == 0
    helpers.wait_until(lambda: all(s.recv()[0] == 0 for s in port.poll()) and port.wait(1000) == 0)
    assert port.wait(1000) == 0


def test_a_stream_that_is_closed_in_order_delivers_what_was_sent(port):
    a, b = port.connected_pair()
    a.send(b"x" * 50_000)
    a.close()
    got = 0
    port.poll_until_ready(b)
    while (rv := b.recv()[0]) > 0:
        got += rv
    assert (rv, got) == (0, 50_000)


def test_writing_to_a_closed_stream_is_an_error_and_no_signal(run_in_child):
    run_in_child("""
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
p, c = Port(), Counters()
a, b = p.connected_pair()
lib.siw_llp_tcp_abort(b.c)
b.close()
assert a.send(b"x") == -104, "ECONNRESET"
assert a.send(b"x", b"y") == -32, "EPIPE"
assert a.send(b"x") == -32
assert c["send_errors"] == 3
p.close()
""")


def test_the_peer_of_a_socket_without_one_is_an_error(port):
    with pytest.raises(OSError) as e:
        port.listen().peer_addr()
    assert e.value.errno == errno.ENOTCONN


@BOTH
def test_no_descriptor_is_left_after_a_thousand_connections(port, helpers, family):
    listener = port.listen(helpers.loopback[family])
    before = helpers.open_fds()
    for _ in range(1000):
        a = port.connect(listener.local_addr())
        b = helpers.wait_until(lambda: port.accept_once(listener))
        port.lib.siw_llp_tcp_abort(a.c)
        a.close()
        b.close()
    assert helpers.open_fds() == before
