"""Listeners and RC queue pairs whose device gets an address or a link after they were created."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from harness.verbs_harness import wait_until
from namespaces.ns_harness import Namespace, create_cabled_namespaces, wait_for_json_output

#: Program: listens at every address for RC and for UD connections, and adds an address to its
#: interface. At that address it connects to both listeners, and connects two RC queue pairs by GID
#: and QPN. Prints the events of the listeners and the statuses of the completions.
LATE_ADDRESS = """
import json, subprocess, sys
from siwarp.cm import *
from siwarp.verbs import *
device, link, host, *options = sys.argv[1:]
with Context(device) as ctx, PD(ctx) as pd, CQ(ctx) as cq, CMEventChannel(ctx) as channel:
    listeners = [CMID(channel, ud=ud) for ud in (False, True)]
    for listener in listeners:
        listener.listen(("", 0), every_addr=True)
    qps = [QP(pd, QPInitAttr(QPType.RC, scq=cq, by_qpn=True)) for _ in range(2)]
    subprocess.run(["ip", "addr", "add", host, "dev", link, *options], check=True)
    address = host.split("/")[0]
    while address not in ctx.query_info().addresses:
        ctx.get_async_event().ack()
    clients = [CMID(channel, ud=ud) for ud in (False, True)]
    clients[0].bind_qp(QP(pd, QPInitAttr(QPType.RC, scq=cq)))
    requests = []
    for client, listener in zip(clients, listeners):
        client.connect((address, listener.local_addr[1]))
        event = channel.get_event()
        requests.append([event.type.name, event.id.local_addr[0]])
        event.id.reject()
        assert channel.get_event().type == CMEventType.REJECTED
    mr = MR(pd, 8)
    for qp, peer in (qps, qps[::-1]):
        there = AHAttr(address, 0, address)
        qp.to_rts(QPAttr(ah_attr=there, dest_qp_num=peer.qp_num, timeout=18))
    qps[1].post_recv(RecvWR(1, sg=[mr.sge()]))
    qps[0].post_send(SendWR(2, sg=[mr.sge()]))
    done = []
    while len(done) < 2:
        done += cq.poll(2)
    print(json.dumps([requests, sorted(wc.status_name for wc in done)]))
"""


@pytest.fixture
def cabled_namespace_pair() -> Iterator[tuple[Namespace, Namespace]]:
    """Yield two connected namespaces for one test, which may break their link."""
    with create_cabled_namespaces() as ends:
        yield ends


@pytest.mark.parametrize("address", ["192.0.2.109", "2001:db8::109"])
def test_listeners_and_rc_queue_pairs_are_reachable_at_an_address_that_is_added_later(
    cabled_namespace_pair: tuple[Namespace, Namespace], address: str
) -> None:
    end, _ = cabled_namespace_pair
    options = [f"{address}/64", "nodad"] if ":" in address else [f"{address}/24"]
    process = end.start_python(LATE_ADDRESS, end.v4, end.link, *options)
    requests, statuses = wait_for_json_output(process)
    assert requests == [["CONNECT_REQUEST", address]] * 2
    assert statuses == ["SUCCESS", "SUCCESS"]


#: Program: an RC queue pair that connects by GID and QPN. Prints its QPN, reads its peer's, and
#: prints the status of a message in one direction.
PAIR = """
import sys
from siwarp.verbs import *
here, there, sends = sys.argv[1], sys.argv[2], sys.argv[3] == "sends"
with Context(here) as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, 8) as mr:
    qp = QP(pd, QPInitAttr(QPType.RC, scq=cq, by_qpn=True))
    print(qp.qp_num, flush=True)
    number = int(sys.stdin.readline())
    qp.to_init()
    if not sends:
        qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    qp.to_rts(QPAttr(ah_attr=AHAttr(there), dest_qp_num=number, timeout=0))
    if sends:
        qp.post_send(SendWR(2, sg=[mr.sge()]))
    while not (done := cq.poll()):
        pass
    print(done[0].status_name, flush=True)
    sys.stdin.readline()
"""


def syn_sent_ports(at: Namespace) -> set[str]:
    """Return the local ports of the TCP connections in state SYN-SENT."""
    sockets = at.run("ss", "-Htn", "state", "syn-sent")
    return set(re.findall(rf"{re.escape(at.v4)}:(\d+)", sockets))


def test_an_rc_queue_pair_connects_again_when_its_link_changes_and_its_syn_was_lost(
    cabled_namespace_pair: tuple[Namespace, Namespace],
) -> None:
    """The kernel retransmits a SYN from the same port: a different port is a new attempt."""
    a, b = cabled_namespace_pair
    a.run_ip("neigh", "replace", b.v4, "lladdr", "02:00:00:00:00:01", "dev", a.link)
    roles = (a, b.v4, "sends"), (b, a.v4, "receives")
    # The connection attempt must not end by the time-out of the MPA start-up.
    env = {"SIWARP_MPA_TIMEOUT_MS": "600000"}
    ends = [at.start_python(PAIR, at.v4, there, role, **env) for at, there, role in roles]

    def read_line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def write_line(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()

    try:
        numbers = [read_line(process) for process in ends]
        for process, number in zip(ends, reversed(numbers), strict=True):
            write_line(process, number)
        # The end with the lower address connects.
        first = wait_until(lambda: syn_sent_ports(a))
        a.run_ip("link", "set", a.link, "mtu", "1400")
        wait_until(lambda: syn_sent_ports(a) - first)
        a.run_ip("neigh", "del", b.v4, "dev", a.link)
        a.run_ip("link", "set", a.link, "mtu", "1500")
        assert [read_line(process) for process in ends] == ["SUCCESS", "SUCCESS"]
    finally:
        for process in ends:
            process.kill()
            process.communicate()


#: Program: on a device with four lanes, sends from each added address as soon as the device has it,
#: with a queue pair in each lane. An address that a lane has not bound yet would be refused.
SENDER_IN_ALL_LANES = """
import json, subprocess, sys
from siwarp.verbs import *
device, link, *hosts = sys.argv[1:]
with Context(device) as ctx, PD(ctx) as pd, MR(pd, bytearray(8)) as mr:
    cqs = [CQ(ctx, comp_vector=lane) for lane in (3, 2, 1, 0)]
    qps = [QP(pd, QPInitAttr(scq=cq, rcq=cq, every_addr=True)) for cq in cqs]
    for qp in qps:
        qp.to_rts(QPAttr(qkey=7))
    done = []
    for host in hosts:
        subprocess.run(["ip", "addr", "add", host + "/24", "dev", link], check=True)
        while host not in ctx.query_info().addresses:
            pass
        for qp, cq in zip(qps, cqs):
            with AH(pd, (host, 9), source=host) as ah:
                qp.post_send(SendWR(sg=[mr.sge()], ah=ah))
                while not (wcs := cq.poll(1)):
                    pass
            done += [wc.status_name for wc in wcs]
    print(json.dumps(done))
"""


def test_the_program_sees_a_new_address_when_queue_pairs_in_all_lanes_can_use_it(
    cabled_namespace_pair: tuple[Namespace, Namespace],
) -> None:
    end, _ = cabled_namespace_pair
    hosts = [f"192.0.2.{number}" for number in range(110, 120)]
    sender = end.start_python(SENDER_IN_ALL_LANES, end.v4, end.link, *hosts, SIWARP_LANES="4")
    assert wait_for_json_output(sender, 60) == ["SUCCESS"] * 4 * len(hosts)
