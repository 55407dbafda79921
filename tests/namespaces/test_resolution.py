"""UD queue pairs resolved by address and port (spec/cm-udp.md) over a veth pair: link-local
addresses, killed processes, and forged ICMP.
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

#: Program: executes the commands on its input and answers each command with one line.
CM_PROGRAM = """
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


class CmProcess:
    """A process in a namespace that runs the program CM_PROGRAM."""

    def __init__(self, at: Namespace, **env: str) -> None:
        self.process = at.start_python(CM_PROGRAM, at.v4, **env)

    def run_command(self, *what: Any) -> Any:
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


StartCmProcess = Callable[..., CmProcess]


@pytest.fixture
def start_cm_process() -> Iterator[StartCmProcess]:
    made: list[CmProcess] = []

    def start_process_in(at: Namespace, **env: str) -> CmProcess:
        made.append(CmProcess(at, **env))
        return made[-1]

    yield start_process_in
    for one in made:
        one.close()


def link_local_with_scope(at: Namespace, link: str) -> str:
    """Return the link-local address of a namespace with the scope of the given link."""
    found = at.link_local_address()
    assert found
    return f"{found.split('%')[0]}%{link}"


NamespacePair = tuple[Namespace, Namespace]


@pytest.mark.parametrize("kind", ["IPv4", "IPv6", "fe80"])
@pytest.mark.parametrize("wildcard", [False, True])
def test_each_kind_of_address_resolves_to_a_queue_pair_that_receives_messages(
    cabled_namespaces: NamespacePair, start_cm_process: StartCmProcess, kind: str, wildcard: bool
) -> None:
    a, b = cabled_namespaces
    here, there = {
        "IPv4": (b.v4, b.v4),
        "IPv6": (b.v6, b.v6),
        "fe80": (link_local_with_scope(b, b.link), link_local_with_scope(b, a.link)),
    }[kind]
    asker, door = start_cm_process(a), start_cm_process(b)
    port = door.run_command("listen", "" if wildcard else here, 0)[1]
    asker.run_command("ask", there, port)
    assert door.run_command("take", scale_limit(20))[0] == "CONNECT_REQUEST"
    qpn = door.run_command("accept")
    told = asker.run_command("take", scale_limit(20))
    assert told == ["ESTABLISHED", 0, 0, qpn, there, "here"]
    assert asker.run_command("send", "as it was told") == 2
    assert door.run_command("recv") == "as it was told"


@pytest.mark.parametrize("kind", ["IPv4", "IPv6", "fe80"])
def test_a_query_to_an_unused_port_is_rejected_at_each_kind_of_address(
    cabled_namespaces: NamespacePair, start_cm_process: StartCmProcess, kind: str
) -> None:
    a, b = cabled_namespaces
    there = {"IPv4": b.v4, "IPv6": b.v6, "fe80": link_local_with_scope(b, a.link)}[kind]
    asker = start_cm_process(a)
    asker.run_command("ask", there, 7174)
    assert asker.run_command("take", scale_limit(5))[:3] == ["REJECTED", 111, 1]


def test_a_query_is_rejected_soon_after_the_answering_process_is_killed(
    cabled_namespaces: NamespacePair, start_cm_process: StartCmProcess
) -> None:
    a, b = cabled_namespaces
    asker, door = start_cm_process(a), start_cm_process(b)
    port = door.run_command("listen", b.v4, 0)[1]
    asker.run_command("ask", b.v4, port)
    assert door.run_command("take", scale_limit(20))[0] == "CONNECT_REQUEST"
    time.sleep(1)  # the peer has received the request and has not answered
    door.process.send_signal(signal.SIGKILL)
    door.process.wait(timeout=20)
    began = time.monotonic()
    assert asker.run_command("take", 9)[:3] == ["REJECTED", 111, 1]
    assert time.monotonic() - began < scale_limit(3)


def test_a_peer_killed_after_its_answer_raises_no_event_and_the_next_query_is_rejected(
    cabled_namespaces: NamespacePair, start_cm_process: StartCmProcess
) -> None:
    a, b = cabled_namespaces
    asker, door = start_cm_process(a), start_cm_process(b)
    port = door.run_command("listen", b.v4, 0)[1]
    asker.run_command("ask", b.v4, port)
    door.run_command("take", scale_limit(20))
    door.run_command("accept")
    assert asker.run_command("take", scale_limit(20))[0] == "ESTABLISHED"
    door.close()
    asker.run_command("ask", b.v4, port)
    assert asker.run_command("take", scale_limit(5))[:3] == ["REJECTED", 111, 1]


def test_after_an_asking_process_is_killed_the_listener_answers_another_process(
    cabled_namespaces: NamespacePair, start_cm_process: StartCmProcess
) -> None:
    a, b = cabled_namespaces
    asker, door = start_cm_process(a), start_cm_process(b)
    port = door.run_command("listen", b.v4, 0)[1]
    asker.run_command("ask", b.v4, port)
    door.run_command("take", scale_limit(20))
    asker.close()
    door.run_command("accept")
    other = start_cm_process(a)
    other.run_command("ask", b.v4, port)
    assert door.run_command("take", scale_limit(20))[0] == "CONNECT_REQUEST", (
        "the killed process must cause no further event"
    )
    qpn = door.run_command("accept")
    assert other.run_command("take", scale_limit(20))[:4] == ["ESTABLISHED", 0, 0, qpn]


# ---- forged ICMP

#: Program: a UDP socket that prints a datagram and its source, and sends the ICMP messages of its
#: input; an input without messages asks for the next datagram.
ICMP_FORGER = """
import json, socket, sys
host, to = sys.argv[1:]
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((host, 0))
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
print(json.dumps(udp.getsockname()), flush=True)
def print_datagram():
    octets, source = udp.recvfrom(2048)
    print(json.dumps([octets.hex(), source[1]]), flush=True)
print_datagram()
for line in sys.stdin:
    for message in (messages := json.loads(line)):
        raw.sendto(bytes.fromhex(message), (to, 0))
    print("0", flush=True) if messages else print_datagram()
"""


#: Number of retransmissions of a query for which the test waits; the query has more of them.
REPEATED = 2


def internet_checksum(octets: bytes) -> int:
    octets += b"\0" * (len(octets) % 2)
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def build_icmp_unreachable(
    source: tuple[str, int], dest: tuple[str, int], quoted: bytes, code: int = 3
) -> str:
    """Return, in hex, an ICMP error: a datagram from source to dest with these first octets was
    lost.
    """
    udp = struct.pack("!HHHH", source[1], dest[1], 8 + 232, 0) + quoted
    ends = socket.inet_aton(source[0]) + socket.inet_aton(dest[0])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + 8 + 232, 1, 0, 64, 17, 0) + ends
    ip = ip[:10] + struct.pack("!H", internet_checksum(ip)) + ip[12:]
    message = struct.pack("!BBHI", 3, code, 0, 0) + ip + udp
    return (message[:2] + struct.pack("!H", internet_checksum(message)) + message[4:]).hex()


def start_icmp_forger(at: Namespace, to: str) -> tuple[subprocess.Popen[str], tuple[str, int]]:
    liar = at.start_python(ICMP_FORGER, at.v4, to)
    assert liar.stdout is not None
    host, port = json.loads(liar.stdout.readline())
    return liar, (host, port)


@pytest.mark.parametrize("what", ["id", "short", "magic", "elsewhere", "host", "filter", "long"])
def test_an_icmp_error_that_does_not_quote_the_query_does_not_end_the_query(
    cabled_namespaces: NamespacePair, start_cm_process: StartCmProcess, what: str
) -> None:
    a, b = cabled_namespaces
    asker = start_cm_process(a)
    liar, where = start_icmp_forger(b, a.v4)
    limit = scale_limit(2)
    assert liar.stdout is not None and liar.stdin is not None
    try:
        asker.run_command("ask", *where, limit)
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
        lies = [build_icmp_unreachable(source, dest, quoted, code)] * 20
        for _ in range(REPEATED):
            for _ in range(10):
                liar.stdin.write(json.dumps(lies) + "\n")
                liar.stdin.flush()
                assert liar.stdout.readline()
                assert asker.run_command("take", 0) is None
            # The query has not ended: it is retransmitted.
            liar.stdin.write("[]\n")
            liar.stdin.flush()
            assert json.loads(liar.stdout.readline()) == [asked, port]
        # siwarp does not count the forged error "long" (fragmentation needed), because a send of
        # this host may cause such an error, too.
        assert asker.run_command("counter", "icmp_errors") > 0 or what == "long", (
            "the forged errors must arrive"
        )
        assert (asker.run_command("counter", "drop_sidr_id") > 0) == (code == 3)
        assert asker.run_command("take", limit + scale_limit(10))[:2] == ["UNREACHABLE", 110]
    finally:
        liar.kill()
        liar.communicate()


def test_repeated_icmp_errors_that_quote_a_query_count_only_once(
    cabled_namespaces: NamespacePair, start_cm_process: StartCmProcess
) -> None:
    a, b = cabled_namespaces
    asker = start_cm_process(a)
    liar, where = start_icmp_forger(b, a.v4)
    assert liar.stdout is not None and liar.stdin is not None
    try:
        # The query times out after 90 ms, so it is sent only once.
        asker.run_command("ask", *where, 0.09)
        asked, port = json.loads(liar.stdout.readline())
        told = build_icmp_unreachable((a.v4, port), where, bytes.fromhex(asked)[:16])
        liar.stdin.write(json.dumps([told] * 20) + "\n")
        liar.stdin.flush()
        assert asker.run_command("take", scale_limit(10))[:2] == ["UNREACHABLE", 110]
    finally:
        liar.kill()
        liar.communicate()
