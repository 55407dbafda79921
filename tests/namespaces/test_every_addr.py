"""Queue pairs at every address of their device, over a veth pair: IPv4, IPv6, link-local IPv6."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from namespaces.ns_harness import Namespace, wait_for_json_output

#: Program: answers each message from the address at which the message arrived; the answer contains
#: the addresses of the message's GRH and of its completion.
ECHO = """
import ipaddress, json, sys
from siwarp._siwarp import ffi, lib
from siwarp.verbs import *
names = [ffi.string(lib.siw_counter_name(i)) for i in range(lib.siw_counters_count())]
which = names.index(b"addrs_unbound")
with Context(sys.argv[1]) as ctx, PD(ctx) as pd, CQ(ctx) as cq, CQ(ctx) as scq, MR(pd, 4096) as mr:
    with QP(pd, QPInitAttr(scq=scq, rcq=cq, grh=True, every_addr=True)) as qp:
        qp.to_rts(QPAttr(qkey=7))
        for group in sys.argv[2:]:
            qp.attach_mcast(group)
        qp.post_recv([RecvWR(i, sg=[mr.sge(256 * i, 256)]) for i in range(8)])
        print(json.dumps([qp.qp_num, ctx.query_info().addresses]), flush=True)
        while True:
            for wc in cq.poll(8):
                assert wc.ok, wc
                octets = mr.read(wc.byte_len, 256 * wc.wr_id)
                grh, word = octets[:40], octets[40:].decode()
                qp.post_recv(RecvWR(wc.wr_id, sg=[mr.sge(256 * wc.wr_id, 256)]))
                at = (12, 16, 20) if wc.sl == 10 else (8, 24, 40)
                ip = grh[20:] if wc.sl == 10 else grh
                there, here = (str(ipaddress.ip_address(ip[x:y])) for x, y in (at[:2], at[1:]))
                unbound = lib.siw_counter_get(which)
                text = json.dumps([word, there, here, wc.destination[0], unbound]).encode()
                mr.write(text, offset=2048)
                with AH(pd, wc=wc) as ah:
                    qp.post_send(SendWR(sg=[mr.sge(2048, len(text))], ah=ah))
                    while not (done := scq.poll()):
                        pass
                    assert done[0].ok, done
                if word == "bye":
                    sys.exit()
"""

#: Program: sends a word to each destination from a given source ("" for none) until an answer
#: arrives. Prints the answering address, the local address that received the answer, and the
#: content of the answer.
ASK = """
import json, sys, time
from siwarp.verbs import *
device, qpn, what = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
with Context(device) as ctx, PD(ctx) as pd, CQ(ctx) as cq, CQ(ctx) as scq, MR(pd, 1024) as mr:
    with QP(pd, QPInitAttr(scq=scq, rcq=cq, every_addr=True)) as qp:
        qp.to_rts(QPAttr(qkey=7))
        found = []
        for word, dest, source in what:
            end = time.monotonic() + 20
            with AH(pd, (dest, 0), source=source or None) as ah:
                wcs = []
                while not wcs:
                    assert time.monotonic() < end, (dest, source, found)
                    qp.post_recv(RecvWR(1, sg=[mr.sge(0, 512)]))
                    mr.write(word.encode(), offset=512)
                    qp.post_send(SendWR(sg=[mr.sge(512, len(word))], ah=ah, remote_qpn=qpn))
                    again = time.monotonic() + 1
                    while not wcs and time.monotonic() < again:
                        scq.poll(4)
                        wcs = cq.poll(1)
            (wc,) = wcs
            found.append([wc.source[0], wc.destination[0], json.loads(mr.read(wc.byte_len))])
        print(json.dumps(found))
"""


@contextlib.contextmanager
def run_echo_program(at: Namespace, *groups: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = at.start_python(ECHO, at.v4, *groups)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)[0]
    finally:
        process.kill()
        process.communicate()


def ask_echo_program(at: Namespace, qpn: int, *what: tuple[str, str, str]) -> Any:
    return wait_for_json_output(at.start_python(ASK, at.v4, str(qpn), json.dumps(what)), 60)


def link_local_without_scope(at: Namespace) -> str:
    found = at.link_local_address()
    assert found
    return found.split("%")[0]


def test_a_queue_pair_number_is_reachable_at_each_address_and_answers_from_that_address(
    cabled_namespaces: tuple[Namespace, Namespace],
) -> None:
    a, b = cabled_namespaces
    ends = [(a.v4, b.v4), (a.v6, b.v6), (link_local_without_scope(a), link_local_without_scope(b))]
    with run_echo_program(b) as (_, qpn):
        what = [("word", there, source) for here, there in ends for source in ("", here)]
        # A link-local source address may have a scope, which names the link to the destination.
        scoped = [(f"{here}%{a.link}" if "fe80" in here else here, t) for here, t in ends]
        what += [("word", there, here) for here, there in scoped]
        found = ask_echo_program(a, qpn, *what)
    expected = [(here, there) for here, there in ends for _ in range(2)] + ends
    for (here, there), (source, destination, told) in zip(expected, found, strict=True):
        assert (source.split("%")[0], destination.split("%")[0]) == (there, here)
        word, from_there, to_here, came, unbound = told
        assert (word, from_there, to_here, came.split("%")[0]) == ("word", here, there, there)
        assert unbound == 0


def test_a_second_address_of_a_family_can_be_used_as_source_and_destination(
    cabled_namespaces: tuple[Namespace, Namespace],
) -> None:
    a, b = cabled_namespaces
    for end, host in ((a, "192.0.2.101"), (b, "192.0.2.102")):
        end.run_ip("addr", "add", f"{host}/24", "dev", end.link)
    try:
        with run_echo_program(b) as (_, qpn):
            pairs = [(x, y) for x in (a.v4, "192.0.2.101") for y in (b.v4, "192.0.2.102")]
            found = ask_echo_program(a, qpn, *(("word", there, here) for here, there in pairs))
    finally:
        for end, host in ((a, "192.0.2.101"), (b, "192.0.2.102")):
            end.run_ip("addr", "del", f"{host}/24", "dev", end.link)
    assert [(d, s) for s, d, _ in found] == pairs


#: Program: posts a list of sends to one destination, alternating between several source addresses.
LIST_SENDER = """
import json, sys, time
from siwarp.verbs import *
device, dest, port, sources = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
with Context(device) as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, bytearray(range(64))) as mr:
    with QP(pd, QPInitAttr(scq=cq, every_addr=True)) as qp:
        qp.to_rts(QPAttr(qkey=7))
        ahs = [AH(pd, (dest, port), source=s) for s in sources]
        qp.post_send([SendWR(i, sg=[mr.sge(i, 1)], ah=ahs[i // 3 % 2]) for i in range(60)])
        done, end = [], time.monotonic() + 20
        while len(done) < 60:
            assert time.monotonic() < end
            done += cq.poll(64)
        assert all(wc.ok for wc in done)
        print(json.dumps([wc.wr_id for wc in done]))
"""


def test_each_send_of_a_list_uses_the_source_address_of_its_own_address_handle(
    cabled_namespaces: tuple[Namespace, Namespace],
) -> None:
    """Sends to one destination form one batch only if they have the same source address."""
    a, b = cabled_namespaces
    a.run_ip("addr", "add", "192.0.2.105/24", "dev", a.link)
    listener = b.start_python(
        "import json, socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.bind((sys.argv[1], 0)); s.settimeout(20); print(s.getsockname()[1], flush=True)\n"
        "got = [s.recvfrom(100) for _ in range(60)]\n"
        "print(json.dumps([[octets[18], where[0]] for octets, where in got]))",
        b.v4,
    )
    try:
        assert listener.stdout is not None
        port = listener.stdout.readline().strip()
        sources = [a.v4, "192.0.2.105"]
        assert wait_for_json_output(
            a.start_python(LIST_SENDER, a.v4, b.v4, port, *sources)
        ) == list(range(60))
        assert wait_for_json_output(listener) == [[i, sources[i // 3 % 2]] for i in range(60)]
    finally:
        listener.kill()
        listener.wait()
        a.run_ip("addr", "del", "192.0.2.105/24", "dev", a.link)


@pytest.mark.parametrize("host", ["192.0.2.103", "2001:db8::103"])
def test_an_added_address_is_bound_and_a_removed_address_does_not_affect_others(
    cabled_namespaces: tuple[Namespace, Namespace], host: str
) -> None:
    a, b = cabled_namespaces
    length = "/64" if ":" in host else "/24"
    nodad = ["nodad"] if ":" in host else []
    with run_echo_program(b) as (process, qpn):
        for _ in range(2):  # the address is added, removed and added again
            b.run_ip("addr", "add", f"{host}{length}", "dev", b.link, *nodad)
            ((source, _, _),) = ask_echo_program(a, qpn, ("word", host, ""))
            assert source == host
            b.run_ip("addr", "del", f"{host}{length}", "dev", b.link)
            ((source, _, _),) = ask_echo_program(a, qpn, ("word", b.v4, ""))
            assert source == b.v4
        assert process.poll() is None
        ask_echo_program(a, qpn, ("bye", b.v6, ""))
        assert process.wait(20) == 0


#: Program: for each input line, sends a word from each source address and prints the statuses.
SENDER_FROM_LOST_ADDRESS = """
import sys, time
from siwarp.verbs import *
device, dest, sources = sys.argv[1], sys.argv[2], sys.argv[3:]
with Context(device) as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, bytearray(64)) as mr:
    with QP(pd, QPInitAttr(scq=cq, every_addr=True)) as qp:
        qp.to_rts(QPAttr(qkey=7))
        ahs = [AH(pd, (dest, 9), source=s) for s in sources]
        print("ready", flush=True)
        for _ in sys.stdin:
            found, end = [], time.monotonic() + 20
            for i, ah in enumerate(ahs):
                qp.post_send(SendWR(i, sg=[mr.sge()], ah=ah))
                while len(found) == i:
                    assert time.monotonic() < end
                    found += cq.poll(1)
            print(*(wc.status_name for wc in found), flush=True)
"""


@pytest.mark.parametrize("host", ["192.0.2.106", "2001:db8::106"])
def test_sends_from_a_removed_address_do_not_affect_sends_from_other_addresses(
    cabled_namespaces: tuple[Namespace, Namespace], host: str
) -> None:
    a, b = cabled_namespaces
    six = ":" in host
    where = [f"{host}/64" if six else f"{host}/24", "dev", a.link]
    nodad = ["nodad"] if six else []
    a.run_ip("addr", "add", *where, *nodad)
    loser = a.start_python(
        SENDER_FROM_LOST_ADDRESS, a.v4, *((b.v6, host, a.v6) if six else (b.v4, host, a.v4))
    )
    try:
        assert loser.stdin is not None
        assert loser.stdout is not None

        def send_and_read_statuses() -> str:
            loser.stdin.write("\n")
            loser.stdin.flush()
            return loser.stdout.readline()

        assert loser.stdout.readline() == "ready\n"
        assert send_and_read_statuses() == "SUCCESS SUCCESS\n"
        a.run_ip("addr", "del", *where)
        # From a deleted address, Linux still transmits over an IPv6 socket that is bound to the
        # address; IPv4 sends fail.
        assert send_and_read_statuses() == ("SUCCESS SUCCESS\n" if six else "GENERAL_ERR SUCCESS\n")
        a.run_ip("addr", "add", *where, *nodad)
        assert send_and_read_statuses() == "SUCCESS SUCCESS\n"
    finally:
        loser.kill()
        loser.communicate()
        a.run("sh", "-c", f"ip addr del {where[0]} dev {a.link} || true")


#: Program: for each input line, sends a word without a source address to each destination. A line
#: is empty or names an address that the device must have lost before the send.
SENDER = """
import sys, time
from siwarp.verbs import *
device, port, dests = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
with Context(device) as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, bytearray(4)) as mr:
    with QP(pd, QPInitAttr(scq=cq, every_addr=True)) as qp:
        qp.to_rts(QPAttr(qkey=7))
        ahs = [AH(pd, (dest, port)) for dest in dests]
        print("ready", flush=True)
        for line in sys.stdin:
            end = time.monotonic() + 20
            while line.strip() in ctx.query_info().addresses:
                assert time.monotonic() < end
                cq.poll(1)
            for ah in ahs:
                qp.post_send(SendWR(sg=[mr.sge()], ah=ah))
                while not (done := cq.poll(1)):
                    assert time.monotonic() < end
                assert done[0].ok, done
"""

#: Program: prints its port, then the source address of each received datagram.
RECEIVER = """
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(("::", 0))
s.settimeout(30)
print(s.getsockname()[1], flush=True)
while True:
    print(s.recvfrom(100)[1][0].removeprefix("::ffff:"), flush=True)
"""


def test_a_send_without_a_source_uses_the_first_remaining_address_of_the_family(
    cabled_namespaces: tuple[Namespace, Namespace],
) -> None:
    a, b = cabled_namespaces
    second = ["192.0.2.107/24", "dev", a.link]
    a.run_ip("addr", "add", *second)
    hearer = b.start_python(RECEIVER)
    assert hearer.stdout is not None
    sender = a.start_python(SENDER, a.v4, hearer.stdout.readline().strip(), b.v4, b.v6)
    assert sender.stdin is not None
    assert sender.stdout is not None
    try:
        assert sender.stdout.readline() == "ready\n"
        for lost in ("", "192.0.2.107"):
            if lost:
                a.run_ip("addr", "del", *second)
            sender.stdin.write(f"{lost}\n")
            sender.stdin.flush()
            assert [hearer.stdout.readline().strip() for _ in range(2)] == [a.v4, a.v6]
        sender.stdin.close()
        assert sender.wait(20) == 0
    finally:
        for process in (hearer, sender):
            process.kill()
            process.wait()
        a.run("sh", "-c", f"ip addr del {second[0]} dev {a.link} 2>/dev/null || true")


def test_an_added_address_whose_port_is_used_by_another_program_is_not_bound(
    cabled_namespaces: tuple[Namespace, Namespace],
) -> None:
    a, b = cabled_namespaces
    held = b.start_python(
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "s.setsockopt(socket.IPPROTO_IP, 15, 1)\n"
        "print(flush=True)\nport = int(sys.stdin.readline())\n"
        "s.bind(('192.0.2.104', port)); print('bound', flush=True); sys.stdin.read()"
    )
    assert held.stdin is not None
    assert held.stdout is not None
    try:
        held.stdout.readline()
        with run_echo_program(b) as (process, qpn):
            held.stdin.write(f"{qpn}\n")
            held.stdin.flush()
            assert held.stdout.readline() == "bound\n"
            b.run_ip("addr", "add", "192.0.2.104/24", "dev", b.link)
            ((source, _, told),) = ask_echo_program(a, qpn, ("word", b.v4, ""))
            assert (source, told[4]) == (b.v4, 1)
            assert process.poll() is None
    finally:
        held.kill()
        held.communicate()
        b.run_ip("addr", "del", "192.0.2.104/24", "dev", b.link)


@pytest.mark.parametrize("group", ["239.192.7.94", "ff15::7:94", "ff02::7:94"])
def test_multicast_groups_of_both_families_reach_one_queue_pair(
    cabled_namespaces: tuple[Namespace, Namespace], group: str
) -> None:
    a, b = cabled_namespaces
    with run_echo_program(b, group) as (_, qpn):
        ((source, destination, told),) = ask_echo_program(a, qpn, ("group", group, ""))
    v4 = "." in group
    here = a.v4 if v4 else link_local_without_scope(a) if group.startswith("ff02") else a.v6
    assert told[1:3] == [here, group]
    assert told[3].split("%")[0] == group
    assert destination.split("%")[0] == here
    assert source.split("%")[0] in (b.v4, b.v6, link_local_without_scope(b))


#: Program: a UC queue pair at one address of the device. Prints its number and reads the number of
#: its peer.
UC_PROGRAM = """
import json, sys, time
from siwarp.verbs import *
device, there, here, first = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "1"
with Context(device) as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, 100000) as mr:
    with QP(pd, QPInitAttr(QPType.UC, scq=cq, every_addr=True)) as qp:
        qp.to_init(QPAttr(qkey=7))
        qp.post_recv([RecvWR(i, sg=[mr.sge(0, 50000)]) for i in range(8)])
        print(qp.qp_num, flush=True)
        qp.to_rtr(QPAttr(ah_attr=AHAttr(there, 0, here), dest_qp_num=int(sys.stdin.readline())))
        qp.to_rts(QPAttr())
        mr.write(bytes(range(200)) * 200, offset=50000)
        end, sent, got = time.monotonic() + 20, time.monotonic(), 0
        say = SendWR(9, sg=[mr.sge(50000, 40000)])
        # Who is first may speak before the other listens: it says it again.
        while not got:
            assert time.monotonic() < end
            if first and time.monotonic() > sent:
                qp.post_send(say)
                sent = time.monotonic() + 0.5
            for wc in cq.poll(8):
                assert wc.ok, wc
                got += wc.opcode == WCOpcode.RECV
        assert mr.read(40000) == bytes(range(200)) * 200
        if not first:
            qp.post_send(say)
            while not cq.poll(8):
                pass
        print(json.dumps([qp.addr[0], here]))
"""


@pytest.mark.parametrize("kind", ["v4", "v6", "link"])
def test_uc_queue_pairs_exchange_messages_at_the_addresses_that_both_name(
    cabled_namespaces: tuple[Namespace, Namespace], kind: str
) -> None:
    addrs = [
        {"v4": n.v4, "v6": n.v6, "link": link_local_without_scope(n)}[kind]
        for n in cabled_namespaces
    ]
    ends = [
        n.start_python(UC_PROGRAM, n.v4, addrs[1 - i], addrs[i], str(1 - i))
        for i, n in enumerate(cabled_namespaces)
    ]
    try:
        numbers = []
        for p in ends:
            assert p.stdout is not None
            numbers.append(p.stdout.readline())
        for p, number in zip(ends, reversed(numbers), strict=True):
            assert p.stdin is not None
            p.stdin.write(number)
            p.stdin.flush()
        for i in (0, 1):
            assert wait_for_json_output(ends[i])[1] == addrs[i]
    finally:
        for p in ends:
            p.kill()
            p.wait()
