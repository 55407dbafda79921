"""UD queue pairs resolved by address and port (spec/cm-udp.md) over a veth pair: link-local
addresses, killed processes, forged ICMP.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from namespaces.ns_harness import Namespace
from pace import scale_limit

from siwarp.inspect import SIDR

#: Program: executes the commands on its input and answers each with one line.
END = """
import json, sys
from siwarp._siwarp import ffi, lib
from siwarp.cm import *
from siwarp.verbs import *
names = [ffi.string(lib.siw_counter_name(i)).decode() for i in range(lib.siw_counters_count())]
with Context(sys.argv[1]) as ctx, PD(ctx) as pd, CQ(ctx) as cq, CMEventChannel(ctx) as channel:
    qp = QP(pd, QPInitAttr(QPType.UD, scq=cq, every_addr=True))
    ids, mr = [], MR(pd, 1024)
    def listen(host, port):
        ids.append(CMID(channel, ud=True))
        ids[-1].listen((host, port), every_addr=not host)
        return ids[-1].local_addr
    def ask(host, port, timeout=None):
        ids.append(CMID(channel, ud=True))
        ids[-1].connect((host, port), ConnParam(private_data=b"from afar", timeout=timeout))
        return ids[-1].local_addr
    def take(seconds):
        global event
        event = channel.get_event(seconds)
        if event is None:
            return None
        told = event.qpn, event.id.peer_addr[0], event.private_data.decode()
        return [event.type.name, event.status, event.wire_error, *told]
    def accept():
        event.id.bind_qp(qp)
        ids.append(event.id)
        qp.post_recv(RecvWR(1, sg=[mr.sge(0, 512)]))
        event.id.accept(ConnParam(private_data=b"here"))
        return qp.qp_num
    def completed():
        while not (done := cq.poll()):
            pass
        assert done[0].ok, done
        return done[0]
    def send(text):
        ids.append(CMID(channel, ud=True))
        ids[-1].bind_qp(qp)
        mr.write(text.encode(), offset=512)
        with AH(pd, (event.id.peer_addr[0], 0)) as ah:
            sge = mr.sge(512, len(text))
            qp.post_send(SendWR(2, sg=[sge], ah=ah, remote_qpn=event.qpn, remote_qkey=event.qkey))
            return completed().wr_id
    def recv():
        return mr.read(completed().byte_len).decode()
    def counter(name):
        return lib.siw_counter_get(names.index(name))
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(globals()[verb](*arguments)), flush=True)
"""


class End:
    """A process in a namespace that runs the program END."""

    def __init__(self, at: Namespace, **env: str) -> None:
        self.process = at.python(END, at.v4, **env)

    def do(self, *what: Any) -> Any:
        pipes = self.process.stdin, self.process.stdout
        assert pipes[0] is not None and pipes[1] is not None
        pipes[0].write(json.dumps(what) + "\n")
        pipes[0].flush()
        line = pipes[1].readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


Make = Callable[..., End]


@pytest.fixture
def end() -> Iterator[Make]:
    made: list[End] = []

    def begin(at: Namespace, **env: str) -> End:
        made.append(End(at, **env))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def on_link(at: Namespace, link: str) -> str:
    """Return the link-local address of a namespace with the scope of the given link."""
    found = at.link_local()
    assert found
    return f"{found.split('%')[0]}%{link}"


Cable = tuple[Namespace, Namespace]


@pytest.mark.parametrize("kind", ["IPv4", "IPv6", "fe80"])
@pytest.mark.parametrize("wildcard", [False, True])
def test_each_kind_of_address_finds_its_queue_pair_which_can_be_sent_to(
    cable: Cable, end: Make, kind: str, wildcard: bool
) -> None:
    a, b = cable
    here, there = {
        "IPv4": (b.v4, b.v4),
        "IPv6": (b.v6, b.v6),
        "fe80": (on_link(b, b.link), on_link(b, a.link)),
    }[kind]
    asker, door = end(a), end(b)
    port = door.do("listen", "" if wildcard else here, 0)[1]
    asker.do("ask", there, port)
    assert door.do("take", scale_limit(20))[0] == "CONNECT_REQUEST"
    qpn = door.do("accept")
    told = asker.do("take", scale_limit(20))
    assert told == ["ESTABLISHED", 0, 0, qpn, there, "here"]
    assert asker.do("send", "as it was told") == 2
    assert door.do("recv") == "as it was told"


@pytest.mark.parametrize("kind", ["IPv4", "IPv6", "fe80"])
def test_a_port_that_nobody_has_is_known_at_each_kind_of_address(
    cable: Cable, end: Make, kind: str
) -> None:
    a, b = cable
    there = {"IPv4": b.v4, "IPv6": b.v6, "fe80": on_link(b, a.link)}[kind]
    asker = end(a)
    asker.do("ask", there, 7174)
    assert asker.do("take", scale_limit(5))[:3] == ["REJECTED", 111, 1]


def test_a_peer_that_is_killed_while_it_thinks_is_known_soon(cable: Cable, end: Make) -> None:
    a, b = cable
    asker, door = end(a), end(b)
    port = door.do("listen", b.v4, 0)[1]
    asker.do("ask", b.v4, port)
    assert door.do("take", scale_limit(20))[0] == "CONNECT_REQUEST"
    time.sleep(1)  # the peer has received the request and has not answered
    door.process.send_signal(signal.SIGKILL)
    door.process.wait(timeout=20)
    began = time.monotonic()
    assert asker.do("take", 9)[:3] == ["REJECTED", 111, 1]
    assert time.monotonic() - began < scale_limit(3)


def test_a_peer_that_is_killed_later_is_no_event_and_the_next_question_ends(
    cable: Cable, end: Make
) -> None:
    a, b = cable
    asker, door = end(a), end(b)
    port = door.do("listen", b.v4, 0)[1]
    asker.do("ask", b.v4, port)
    door.do("take", scale_limit(20))
    door.do("accept")
    assert asker.do("take", scale_limit(20))[0] == "ESTABLISHED"
    door.close()
    asker.do("ask", b.v4, port)
    assert asker.do("take", scale_limit(5))[:3] == ["REJECTED", 111, 1]


def test_who_asks_may_be_killed_and_another_one_is_answered(cable: Cable, end: Make) -> None:
    a, b = cable
    asker, door = end(a), end(b)
    port = door.do("listen", b.v4, 0)[1]
    asker.do("ask", b.v4, port)
    door.do("take", scale_limit(20))
    asker.close()
    door.do("accept")
    other = end(a)
    other.do("ask", b.v4, port)
    assert door.do("take", scale_limit(20))[0] == "CONNECT_REQUEST", (
        "of the dead one nothing else comes"
    )
    qpn = door.do("accept")
    assert other.do("take", scale_limit(20))[:4] == ["ESTABLISHED", 0, 0, qpn]


# ---- forged ICMP

#: Program: a UDP socket that prints each datagram and its source, and sends ICMP as its input says.
LIAR = """
import json, socket, sys
host, to = sys.argv[1:]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((host, 0))
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
print(json.dumps(udp.getsockname()), flush=True)
octets, source = udp.recvfrom(2048)
print(json.dumps([octets.hex(), source[1]]), flush=True)
for line in sys.stdin:
    for message in json.loads(line):
        raw.sendto(bytes.fromhex(message), (to, 0))
    print("0", flush=True)
"""


def checksum(octets: bytes) -> int:
    octets += b"\0" * (len(octets) % 2)
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def unreachable(
    source: tuple[str, int], dest: tuple[str, int], quoted: bytes, code: int = 3
) -> str:
    """Return, in hex, an ICMP error: a datagram from source to dest with these first octets was
    lost.
    """
    udp = struct.pack("!HHHH", source[1], dest[1], 8 + 232, 0) + quoted
    ends = socket.inet_aton(source[0]) + socket.inet_aton(dest[0])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + 8 + 232, 1, 0, 64, 17, 0) + ends
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    message = struct.pack("!BBHI", 3, code, 0, 0) + ip + udp
    return (message[:2] + struct.pack("!H", checksum(message)) + message[4:]).hex()


def start_forger(at: Namespace, to: str) -> tuple[subprocess.Popen[str], tuple[str, int]]:
    liar = at.python(LIAR, at.v4, to)
    assert liar.stdout is not None
    host, port = json.loads(liar.stdout.readline())
    return liar, (host, port)


@pytest.mark.parametrize("what", ["id", "short", "magic", "elsewhere", "host", "filter", "long"])
def test_icmp_that_does_not_quote_the_question_ends_nothing(
    cable: Cable, end: Make, what: str
) -> None:
    a, b = cable
    asker = end(a)
    liar, where = start_forger(b, a.v4)
    assert liar.stdout is not None and liar.stdin is not None
    try:
        asker.do("ask", *where, 2)
        asked, port = json.loads(liar.stdout.readline())
        question = bytes.fromhex(asked)
        other = bytes(SIDR(id=SIDR(question).id ^ 1))
        source, quoted, dest, code = (a.v4, port), question, where, 3
        if what == "id":
            quoted = other
        elif what == "short":
            quoted = question[:15]
        elif what == "magic":
            quoted = b"X" + question[1:]
        elif what == "elsewhere":
            dest = (b.v4, where[1] ^ 1)
        else:
            code = {"host": 1, "filter": 13, "long": 4}[what]
        lies = [unreachable(source, dest, quoted, code)] * 20
        began = time.monotonic()
        while time.monotonic() - began < 1.2:
            liar.stdin.write(json.dumps(lies) + "\n")
            liar.stdin.flush()
            assert liar.stdout.readline()
            assert asker.do("take", 0) is None
        # The last forged error concerns a datagram's length, as an error for one of the host's own
        # sends may.
        assert asker.do("counter", "icmp_errors") > 0 or what == "long", "they came"
        assert (asker.do("counter", "drop_sidr_id") > 0) == (code == 3)
        assert asker.do("take", scale_limit(10))[:2] == ["UNREACHABLE", 110]
    finally:
        liar.kill()
        liar.communicate()


def test_icmp_that_quotes_the_question_counts_once_for_each(cable: Cable, end: Make) -> None:
    a, b = cable
    asker = end(a)
    liar, where = start_forger(b, a.v4)
    assert liar.stdout is not None and liar.stdin is not None
    try:
        asker.do("ask", *where, 0.09)  # the query times out after 90 ms, so it is sent only once
        asked, port = json.loads(liar.stdout.readline())
        told = unreachable((a.v4, port), where, bytes.fromhex(asked)[:16])
        liar.stdin.write(json.dumps([told] * 20) + "\n")
        liar.stdin.flush()
        assert asker.do("take", scale_limit(10))[:2] == ["UNREACHABLE", 110]
    finally:
        liar.kill()
        liar.communicate()
