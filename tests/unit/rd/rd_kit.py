"""Endpoints of reliable datagrams as Python objects, for the tests of rd/."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import net
from _siwarp_layers import ffi, lib
from pace import limit_exceeded
from unit.llp.llp_harness import addr_port, address_text, iovec, siw_addr

from siwarp.inspect.rd import (
    COOKIE_LEN,
    HELLO_LEAST,
    RDDatagram,
    RDOption,
    RDType,
    cookie_in_handshake_body,
    make_ack_body,
    make_handshake_offer,
)

SEGMENT, ACKED, NEW_PEER, RESTARTED, GONE, REPLACED = (
    lib.SIW_RD_SEGMENT,
    lib.SIW_RD_ACKED,
    lib.SIW_RD_NEW_PEER,
    lib.SIW_RD_RESTARTED,
    lib.SIW_RD_GONE,
    lib.SIW_RD_REPLACED,
)
REQUESTS, RESPONSES = lib.SIW_RD_REQUESTS, lib.SIW_RD_RESPONSES
NAMES = {
    SEGMENT: "segment",
    ACKED: "acked",
    NEW_PEER: "new",
    RESTARTED: "restarted",
    GONE: "gone",
    REPLACED: "replaced",
}
QKEY = 0x11223344
#: The handshake options of a test's peer: long segments and a large window.
OFFER = make_handshake_offer({RDOption.LONGEST: 65_000, RDOption.WINDOW: 1 << 20})
HELLO = OFFER.ljust(HELLO_LEAST, b"\0")


class Endpoint:
    """An RD endpoint (siw_rd) on its own poller; received segments are stored per peer."""

    def __init__(self, where: str = net.HERE, port: int = 0, **attrs: Any) -> None:
        out = ffi.new("struct siw_llp_poller **")
        assert lib.siw_llp_poller_open(ffi.NULL, out) == 0
        self.poller = out[0]
        attr = ffi.new("struct siw_rd_attr *")
        attr.local = siw_addr(where, port)[0]
        attr.fd = -1
        attr.ird = 7
        attr.rnr_retry = 7  # RNR retries without limit
        attr.qkey = QKEY
        attr.handler = ffi.cast("void *", 1)
        for name, value in attrs.items():
            setattr(attr, name, value)
        rd = ffi.new("struct siw_rd **")
        rv = lib.siw_rd_open(self.poller, attr, rd)
        if rv:
            lib.siw_llp_poller_close(self.poller)
            raise OSError(-rv, "siw_rd_open")
        self.c = rd[0]
        self.got: dict[str, list[bytes]] = {}
        self.news: list[tuple[str, str]] = []
        self.had = 0  # number of segments that the last lost peer had acknowledged
        self.judge: Callable[[str, bytes], str] = lambda _who, _data: "take"
        self.event = ffi.new("struct siw_rd_event *")
        self.waits = ffi.new("struct siw_llp_waitset *")
        self.handlers = ffi.new("struct siw_io_handler *[]", 4)

    @property
    def local_addr(self) -> Any:
        a = ffi.new("struct siw_addr *")
        assert lib.siw_llp_local_addr(lib.siw_rd_sock(self.c), a) == 0
        return a

    def close(self) -> None:
        lib.siw_rd_close(self.c)
        lib.siw_llp_poller_close(self.poller)

    def get_or_create_peer(self, other: Any) -> Any:
        out = ffi.new("struct siw_rd_peer **")
        rv = lib.siw_rd_get_or_create_peer(self.c, other, out)
        if rv:
            raise OSError(-rv, "siw_rd_peer")
        return out[0]

    def send(self, peer: Any, *parts: bytes, space: int = REQUESTS, more: bool = False) -> int:
        head, *rest = parts
        iov, keep = iovec(*rest)
        rv = lib.siw_rd_tx(peer, space, head, len(head), iov, len(rest), more)
        del keep
        return min(rv, 1)

    def handle_event(self) -> bool:
        """Receive and handle one event; return whether there was an event."""
        if not lib.siw_rd_recv(self.c, self.event):
            return False
        peer, kind = self.event.peer, self.event.kind
        who = address_text(lib.siw_rd_peer_addr(peer))
        if kind in (RESTARTED, GONE, REPLACED):
            self.had = lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS)
        if kind != SEGMENT:
            self.news.append((NAMES[kind], who))
            return True
        data = bytes(ffi.buffer(self.event.data, self.event.len))
        if self.judge(who, data) == "hold":
            lib.siw_rd_pause_delivery(peer, self.event.space, True)
        else:
            self.got.setdefault(who, []).append(data)
            lib.siw_rd_mark_segment_accepted(peer)
        return True

    def poll_once(self) -> int:
        """Poll the endpoint's poller once and handle all resulting events; return their number."""
        n = 0
        if net.SIMULATED:  # deliver the datagrams that are due at the current virtual time
            lib.siw_sim_step_world(lib.siw_sim_now())
        if lib.siw_llp_poller_poll(self.poller, self.handlers, 4):
            while n < 10000 and self.handle_event():
                n += 1
        return n

    def event_count(self, kind: str) -> int:
        return sum(1 for k, _ in self.news if k == kind)

    def received_data(self) -> list[bytes]:
        """Return the segments received from the endpoint's only peer."""
        assert len(self.got) <= 1
        return next(iter(self.got.values()), [])


def pause_briefly(*ends: Endpoint) -> None:
    """Pause for 50 us; in a simulated world, until the next event or deadline, at most 1 ms."""
    if not net.SIMULATED:
        net.sleep(0.00005)
        return
    now = int(lib.siw_sim_now())
    until = now + 1_000_000
    for end in ends:
        lib.siw_llp_waitset_fill(end.poller, end.waits)
        if end.waits.due_ns:
            until = min(until, max(end.waits.due_ns - lib.SIW_SIM_MONOTONIC, now))
    lib.siw_sim_step_world(until)


def poll_until(
    what: Callable[[], Any], *ends: Endpoint, seconds: float = 20.0, also: Any = lambda: None
) -> Any:
    """Poll the endpoints until what() returns a true value; return the value."""
    began = net.now()
    while not limit_exceeded(began, seconds):
        moved = sum(e.poll_once() for e in ends)
        also()
        if got := what():
            return got
        if not moved:
            pause_briefly(*ends)
    raise AssertionError("the condition was not met within the time limit")


def send_all_segments(
    a: Endpoint, peer: Any, segments: list[bytes], *ends: Endpoint, seconds: float = 60.0
) -> None:
    """Send all segments as buffer space permits; wait until the peer has acknowledged them."""
    todo = deque(segments)
    goal = lib.siw_rd_segments_ever_queued(peer, lib.SIW_RD_REQUESTS) + len(segments)

    def send_while_space_is_left() -> None:
        while todo and (rv := a.send(peer, todo[0])):
            assert rv == 1, rv
            todo.popleft()

    send_while_space_is_left()
    poll_until(
        lambda: not todo and lib.siw_rd_total_accepted_segments(peer, lib.SIW_RD_REQUESTS) == goal,
        *ends,
        seconds=seconds,
        also=send_while_space_is_left,
    )


class ScapyRdPeer:
    """An RD peer made of a plain UDP socket and scapy, which can send any datagram."""

    def __init__(self, end: Endpoint, epoch: int = 0xABCD0001, host: str = net.HERE) -> None:
        self.end = end
        self.sock = net.open_udp_socket(host)
        self.sock.setblocking(False)
        self.dest = (net.HERE, addr_port(end.local_addr))
        self.epoch, self.other = epoch, 0
        self.address = siw_addr(*self.sock.getsockname())
        self.ahead: list[RDDatagram] = []

    def close(self) -> None:
        self.sock.close()

    def build_datagram(self, kind: RDType, **fields: Any) -> RDDatagram:
        fields = {
            "q_key": QKEY,
            "psn": self.epoch,
            "source_epoch": self.epoch,
            "dest_epoch": self.other,
            "acknowledged": self.other,
            "response_acknowledged": self.other,
            "credit": 1024,
            "response_credit": fields.get("credit", 1024),
            "ird": 3,
            "body": make_ack_body() if kind == RDType.ACK else b"",
        } | fields
        return RDDatagram(type=int(kind), **fields)

    def send_datagram(self, kind: RDType, **fields: Any) -> bytes:
        octets = bytes(self.build_datagram(kind, **fields))
        self.sock.sendto(octets, self.dest)
        return octets

    def _read_next_datagram(self) -> bytes | None:
        """Return the endpoint's next datagram or None; skip datagrams of other senders."""
        with contextlib.suppress(BlockingIOError):
            while True:
                octets, source = self.sock.recvfrom(65536)
                if source == self.dest:
                    return octets
        return None

    def receive_datagram(self, kind: RDType | None = None, seconds: float = 10.0) -> RDDatagram:
        """Return the endpoint's next datagram of this type; discard datagrams of other types."""
        found: list[RDDatagram] = []

        def collect_matching_datagram() -> None:
            while not found and (octets := self._read_next_datagram()):
                d = RDDatagram(octets)
                assert d.crc == d.crc_expected() and d.q_key == QKEY
                if kind is None or d.type == kind:
                    found.append(d)

        poll_until(lambda: found, self.end, seconds=seconds, also=collect_matching_datagram)
        return found[0]

    def receives_nothing(self) -> bool:
        """Return whether the endpoint sends nothing in 50 polls, enough polls for an answer."""
        for _ in range(50):
            self.end.poll_once()
        return self._read_next_datagram() is None

    def discard_datagrams_until_silent(self) -> None:
        while not self.receives_nothing():
            pass

    def request_challenge(self) -> RDDatagram:
        unknown = {"dest_epoch": 0, "acknowledged": 0, "response_acknowledged": 0}
        self.send_datagram(RDType.HELLO, **unknown, body=HELLO)
        return self.receive_datagram(RDType.CHALLENGE)

    def build_echo_body(self, challenge: RDDatagram) -> bytes:
        """Return the body of the ECHO that answers a CHALLENGE."""
        return OFFER + cookie_in_handshake_body(challenge.body)

    def connect(self) -> RDDatagram:
        """Perform the handshake as the active side; return the acknowledgement of the ECHO."""
        c = self.request_challenge()
        self.other = c.source_epoch
        self.send_datagram(RDType.ECHO, body=self.build_echo_body(c))
        return self.receive_datagram(RDType.ACK)

    def accept_connection(self, peer: Any, **fields: Any) -> None:
        """Perform the handshake as the passive side; the endpoint must have framed a segment."""
        hello = self.receive_datagram(RDType.HELLO)
        self.other = hello.source_epoch
        self.send_datagram(RDType.CHALLENGE, body=OFFER + b"c" * COOKIE_LEN)
        assert (
            cookie_in_handshake_body(self.receive_datagram(RDType.ECHO).body) == b"c" * COOKIE_LEN
        )
        self.send_datagram(RDType.ACK, **fields)
