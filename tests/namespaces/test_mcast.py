"""Multicast over a veth pair, IPv4 and IPv6: outgoing interface, hop limit, and receivers."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from namespaces.ns_harness import Namespace, wait_for_json_output

GROUPS = {"v4": "239.192.7.91", "v6": "ff15::7:91", "link": "ff02::7:91"}

#: Program: a group member. Prints a line when it has joined, then each message; an empty message
#: ends the program.
MEMBER = """
import json, sys, time
from siwarp.verbs import *
own, group = sys.argv[1], sys.argv[2]
with Context(own) as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, 16 * 64) as mr:
    with QP(pd, QPInitAttr(scq=cq, addr=(own, 0))) as qp:
        qp.to_rts(QPAttr(qkey=7))
        recvs = [RecvWR(i, sg=[mr.sge(64 * i, 64)]) for i in range(16)]
        qp.post_recv(recvs)
        qp.attach_mcast(group)
        print(json.dumps(ctx.device.netdev), flush=True)
        # The others are still to start; whoever waits for this program sets it a shorter limit.
        got, end = [], time.monotonic() + 100
        while not got or got[-1][0]:
            assert time.monotonic() < end, got
            for wc in cq.poll(8):
                assert wc.ok, wc
                text = mr.read(wc.byte_len, 64 * wc.wr_id).decode()
                got.append([text, wc.source[0], wc.source[1], wc.src_qp])
                qp.post_recv(recvs[wc.wr_id])
        print(json.dumps(got))
"""

#: Program: sends words to a group, optionally bound to an address and a device.
SENDER = """
import json, sys, time
from siwarp.verbs import *
device, own, group, words = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
with Context(device) as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, bytearray(64)) as mr:
    with QP(pd, QPInitAttr(scq=cq, addr=(own, 0))) as qp, AH(pd, (group, 0)) as ah:
        qp.to_rts(QPAttr(qkey=7))
        for word in words:
            mr.write(word.encode())
            qp.post_send(SendWR(sg=[mr.sge(0, len(word))], ah=ah))
            end = time.monotonic() + 10
            while not (done := cq.poll(1)):
                assert time.monotonic() < end
            assert done[0].ok, done
        print(json.dumps([own, qp.addr[1], qp.qp_num]))
"""


@contextlib.contextmanager
def run_multicast_member(
    at: Namespace, own: str, group: str, netdev: str
) -> Iterator[subprocess.Popen[str]]:
    process = at.start_python(MEMBER, own, group)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        assert json.loads(line) == netdev
        yield process
    finally:
        process.kill()
        process.wait()


def send_to_multicast_group(
    at: Namespace, device: str, own: str, group: str, *words: str, **env: str
) -> Any:
    return wait_for_json_output(
        at.start_python(SENDER, device, own, group, json.dumps(words), **env)
    )


def address_of_kind(at: Namespace, kind: str) -> str:
    found = {"v4": at.v4, "v6": at.v6, "link": at.link_local_address()}[kind]
    assert found
    return found


@pytest.mark.clause("DGRAM-MCAST-1", "DGRAM-MCAST-5", "DGRAM-MCAST-7")
@pytest.mark.parametrize("kind", ["v4", "link"])
def test_group_members_on_both_ends_and_in_several_processes_each_receive_a_copy(
    cabled_namespaces: tuple[Namespace, Namespace], kind: str
) -> None:
    a, b = cabled_namespaces
    at_a, at_b, group = address_of_kind(a, kind), address_of_kind(b, kind), GROUPS[kind]
    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(run_multicast_member(b, at_b, group, b.link)),
            stack.enter_context(run_multicast_member(b, at_b, group, b.link)),
            # The machine of the sender has a group member, too.
            stack.enter_context(run_multicast_member(a, at_a, group, a.link)),
        ]
        own, port, qpn = send_to_multicast_group(a, at_a, at_a, group, "one", "two", "")
        for process in members:
            got = wait_for_json_output(process)
            assert [g[0] for g in got] == ["one", "two", ""]
            for _, host, source_port, src_qp in got:
                assert (host.partition("%")[0], source_port) == (own.partition("%")[0], port)
                assert src_qp == qpn


@pytest.mark.clause("DGRAM-MCAST-4")
@pytest.mark.parametrize("kind", ["v4", "v6"])
def test_group_messages_on_one_interface_do_not_reach_members_on_another(
    cabled_namespaces: tuple[Namespace, Namespace], kind: str
) -> None:
    b = cabled_namespaces[1]
    loop, everywhere = ("127.0.0.1", "0.0.0.0") if kind == "v4" else ("::1", "::")
    group = GROUPS[kind]
    with contextlib.ExitStack() as stack:
        if kind == "v6":
            # Without this route, no IPv6 group is reachable over lo.
            stack.enter_context(add_loopback_multicast_route(b, group))
        inside = stack.enter_context(run_multicast_member(b, loop, group, "lo"))
        outside = stack.enter_context(
            run_multicast_member(b, address_of_kind(b, kind), group, b.link)
        )
        send_to_multicast_group(b, loop, loop, group, "inside", "")
        # The device selects the outgoing interface, even if the queue pair is not bound to an
        # address.
        send_to_multicast_group(b, b.v4, everywhere, group, "outside", "")
        assert [g[0] for g in wait_for_json_output(inside)] == ["inside", ""]
        assert [g[0] for g in wait_for_json_output(outside)] == ["outside", ""]


@contextlib.contextmanager
def add_loopback_multicast_route(at: Namespace, group: str) -> Iterator[None]:
    route = ["local", f"{group}/128", "dev", "lo", "table", "local"]
    at.run_ip("-6", "route", "add", *route)
    try:
        yield
    finally:
        at.run_ip("-6", "route", "del", *route)


@pytest.mark.clause("DGRAM-MCAST-6")
@pytest.mark.parametrize("kind", ["v4", "v6"])
@pytest.mark.parametrize("ttl", [None, 5])
def test_a_group_message_has_the_configured_hop_limit_which_is_one_by_default(
    cabled_namespaces: tuple[Namespace, Namespace], kind: str, ttl: int | None
) -> None:
    a, b = cabled_namespaces
    at_a, group = address_of_kind(a, kind), GROUPS[kind]
    look = b.start_python(SNIFFER, b.link, group)
    assert look.stdout is not None
    assert look.stdout.readline() == "ready\n"
    env = {} if ttl is None else {"SIWARP_MCAST_TTL": str(ttl)}
    send_to_multicast_group(a, at_a, at_a, group, "how far", **env)
    hops, mac = wait_for_json_output(look)
    assert hops == (1 if ttl is None else ttl)
    assert mac == ("01:00:5e:40:07:5b" if kind == "v4" else "33:33:00:07:00:91")


#: Program: prints the hop limit and the destination Ethernet address of the first datagram that is
#: sent to a group.
SNIFFER = """
import ipaddress, json, socket, sys
group = ipaddress.ip_address(sys.argv[2])
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind((sys.argv[1], 3))
s.settimeout(20)
print("ready", flush=True)
for _ in range(1000):
    frame = s.recv(2048)
    kind = frame[12:14]
    at, hops, udp = (30, 22, frame[23]) if group.version == 4 else (38, 21, frame[20])
    if frame[at:at + len(group.packed)] == group.packed and udp == 17:
        print(json.dumps([frame[hops], frame[:6].hex(":")]))
        break
"""


@pytest.mark.clause("DGRAM-MCAST-1")
def test_ipv6_groups_work_on_loopback_after_a_route_is_added() -> None:
    alone = Namespace("lo", "127.0.0.1", "::1")
    try:
        alone.run_ip("link", "set", "lo", "up")
        refused = alone.start_python(SENDER, "::1", "::1", GROUPS["v6"], '["x"]')
        assert "GENERAL_ERR" in refused.communicate(timeout=30)[1], (
            "a send without a route must fail"
        )
        # TROUBLESHOOTING.md recommends this command.
        alone.run_ip("-6", "route", "add", "local", "ff00::/8", "dev", "lo", "table", "local")
        for group in (GROUPS["v6"], GROUPS["link"]):
            with run_multicast_member(alone, "::1", group, "lo") as got:
                send_to_multicast_group(alone, "::1", "::1", group, "here", "")
                assert [g[:2] for g in wait_for_json_output(got)] == [["here", "::1"], ["", "::1"]]
    finally:
        alone.close()
