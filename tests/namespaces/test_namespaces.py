"""UD and RC between two network namespaces: real interfaces, an MTU, scoped IPv6 addresses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from namespaces.ns_harness import Namespace, wait_for_json_output

UD_SERVER = """
import json, sys, time
from siwarp.verbs import *
host = sys.argv[1]
with Context(host) as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, 4 * 70000) as mr:
    with QP(pd, QPInitAttr(QPType.UD, scq=cq, addr=(host, 0))) as qp:
        qp.to_rts(QPAttr(qkey=7))
        # The next message may be here before this one's receive is posted again.
        recvs = [RecvWR(i, sg=[mr.sge(70000 * i, 70000)]) for i in range(4)]
        qp.post_recv(recvs)
        print(json.dumps([ctx.device.netdev, qp.qp_num]))
        served, sources, end = 0, set(), time.monotonic() + 25
        while served < int(sys.argv[2]):
            assert time.monotonic() < end, served
            for wc in cq.poll(8):
                if wc.opcode != WCOpcode.RECV:
                    continue
                sources.add(wc.source)
                with AH(pd, wc=wc) as ah:
                    sg = [mr.sge(70000 * wc.wr_id, wc.byte_len)]
                    qp.post_send(SendWR(sg=sg, ah=ah, send_flags=0))
                qp.post_recv(recvs[wc.wr_id])
                served += 1
        print(json.dumps(sorted(sources)))
"""

UD_CLIENT = """
import json, sys, time
from siwarp.verbs import *
host, port, sizes = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
own = sys.argv[4]
with Context(own) as ctx, PD(ctx) as pd, CQ(ctx) as cq, MR(pd, bytearray(140000)) as mr:
    with QP(pd, QPInitAttr(QPType.UD, scq=cq, addr=(own, 0))) as qp:
        qp.to_rts(QPAttr(qkey=7))
        ah = AH(pd, (host, port))
        for i, size in enumerate(sizes):
            mr.view[:size] = bytes([i + 1]) * size
            qp.post_recv(RecvWR(1, sg=[mr.sge(70000, 70000)]))
            qp.post_send(SendWR(2, sg=[mr.sge(0, size)], ah=ah))
            got, end = [], time.monotonic() + 10
            while len(got) < 2:
                assert time.monotonic() < end, (size, got)
                got += cq.poll(4)
            assert all(w.ok for w in got), got
            assert mr.read(size, 70000) == bytes([i + 1]) * size
        print(json.dumps([ctx.device.netdev, list(qp.addr)]))
"""

RC_SERVER = """
import json, sys
from siwarp import cm
with cm.listen((sys.argv[1], 0)) as listener:
    print(json.dumps(listener.address[1]))
    with listener.accept(20) as conn:
        memory = conn.register(1 << 22)
        first = conn.recv(20)
        conn.send(memory.remote().pack())
        assert conn.recv(20) == b"written"
        print(json.dumps([first.decode(), list(conn.peer), memory.read(8).hex()]))
        conn.send(b"seen")
        try:
            conn.recv(20)
        except OSError:
            pass
"""

RC_CLIENT = """
import json, os, sys
from siwarp import cm
from siwarp.verbs import RemoteBuffer
with cm.connect((sys.argv[1], int(sys.argv[2]))) as conn:
    conn.send(b"hello", 10)
    remote = RemoteBuffer.unpack(conn.recv(10))
    data = os.urandom(1 << 22)
    conn.write(remote, data, timeout=20)
    conn.send(b"written", 10)
    assert conn.recv(20) == b"seen"
    assert conn.read(remote, timeout=20) == data
    print(json.dumps([list(conn.local), data[:8].hex()]))
"""

ADDRESS_KINDS = ["v4", "v6", "link-local"]


def addresses_of_kind(
    cabled_namespaces: tuple[Namespace, Namespace], kind: str
) -> tuple[str, str, str]:
    """Return the server's own address, the server's address as the client writes it, and the
    client's address.
    """
    a, b = cabled_namespaces
    if kind == "link-local":
        server, client = b.link_local_address(), a.link_local_address()
        assert server and client
        # The scope of a link-local address is the local interface.
        return server, f"{server.partition('%')[0]}%{a.link}", client
    return (b.v4, b.v4, a.v4) if kind == "v4" else (b.v6, b.v6, a.v6)


def read_first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        _, err = process.communicate(timeout=20)
        raise AssertionError(err)
    return line


@pytest.mark.parametrize("kind", ADDRESS_KINDS)
def test_ud_messages_of_every_size_arrive_over_a_veth_pair(
    cabled_namespaces: tuple[Namespace, Namespace], kind: str
) -> None:
    a, b = cabled_namespaces
    at_server, at_client, own = addresses_of_kind(cabled_namespaces, kind)
    # The sizes are near one packet of the veth pair's MTU, or so large that IP fragments the
    # datagram.
    sizes = [0, 1, 1449, 1450, 1451, 4096, 30000, 65485]
    server = b.start_python(UD_SERVER, at_server, str(len(sizes)))
    try:
        netdev, port = json.loads(read_first_line(server))
        assert netdev == b.link
        client = a.start_python(UD_CLIENT, at_client, str(port), json.dumps(sizes), own)
        netdev, addr = wait_for_json_output(client)
        assert netdev == a.link
        # The receiver writes the scope of the sender's address with its own interface.
        host = addr[0].replace(f"%{a.link}", f"%{b.link}")
        assert wait_for_json_output(server) == [[host, addr[1]]]
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("kind", ADDRESS_KINDS)
def test_rc_sends_writes_and_reads_complete_over_a_veth_pair(
    cabled_namespaces: tuple[Namespace, Namespace], kind: str
) -> None:
    a, b = cabled_namespaces
    at_server, at_client, own = addresses_of_kind(cabled_namespaces, kind)
    server = b.start_python(RC_SERVER, at_server)
    try:
        port = int(read_first_line(server))
        local, begins = wait_for_json_output(a.start_python(RC_CLIENT, at_client, str(port)))
        hello, peer, written = wait_for_json_output(server)
        assert hello == "hello"
        assert written == begins
        assert local[0] == own and peer[1] == local[1]
        assert peer[0].partition("%")[0] == own.partition("%")[0]
    finally:
        server.kill()
        server.wait()


BY_QPN = """
import json, sys
sys.path.insert(0, sys.argv[2])
from harness.pair_harness import End
from harness.verbs_harness import Rig
rig = Rig(sys.argv[1])
end = End(rig, sys.argv[1])
end.to_init_with_receives()
print(json.dumps(end.host_and_qpn), flush=True)
peer = json.loads(input())
end.to_rts((peer[0], peer[1]), timeout=20)
end.send(b"across")
done = end.wait_for_sends(2, 20)
assert all(wc.ok for wc in done)
print(json.dumps([end.mr.read(6).decode(), end.qp.addr[0], rig.ctx.device.netdev]), flush=True)
sys.stdin.read()  # the other one still asks for its address
"""


@pytest.mark.parametrize("kind", ADDRESS_KINDS)
def test_rc_queue_pairs_by_gid_and_qpn_connect_over_a_veth_pair(
    cabled_namespaces: tuple[Namespace, Namespace], kind: str
) -> None:
    """A link-local peer address needs no scope: the default is the interface of the local
    device.
    """
    tests = str(Path(__file__).parents[1])
    server, _, client = addresses_of_kind(cabled_namespaces, kind)
    ends = [
        end.start_python(BY_QPN, own, tests)
        for end, own in zip(cabled_namespaces, (client, server), strict=True)
    ]
    try:
        ids = [json.loads(read_first_line(end)) for end in ends]
        for end, (host, qpn) in zip(ends, reversed(ids), strict=True):
            assert end.stdin is not None
            end.stdin.write(json.dumps([host.partition("%")[0], qpn]) + "\n")
            end.stdin.flush()
        for end, there, own in zip(ends, cabled_namespaces, (client, server), strict=True):
            said, host, netdev = json.loads(read_first_line(end))
            assert (said, netdev) == ("across", there.link)
            assert host.partition("%")[0] == own.partition("%")[0]
    finally:
        for end in ends:
            end.kill()
            end.wait()


CONNECT_WITH_TIMEOUT = """
import json, sys, time
from siwarp.cm import *
from siwarp.verbs import *
with Context(sys.argv[3]) as ctx:
    channel = CMEventChannel(ctx)
    pd, cq = PD(ctx), CQ(ctx)
    qp = QP(pd, QPInitAttr(QPType.RC, scq=cq))
    cm_id = CMID(channel)
    cm_id.bind_qp(qp)
    start = time.monotonic()
    cm_id.connect((sys.argv[1], int(sys.argv[2])), ConnParam(timeout=0.5))
    event = channel.get_event(10)
    print(json.dumps([event.type.name, event.status, time.monotonic() - start]))
"""


@pytest.mark.parametrize("cut", ["cable", "route"])
def test_connecting_to_an_unreachable_address_fails_within_the_timeout(
    cabled_namespaces: tuple[Namespace, Namespace], cut: str
) -> None:
    a, b = cabled_namespaces
    if cut == "cable":
        b.run_ip("link", "set", b.link, "down")
    target = b.v4 if cut == "cable" else "192.0.2.99"
    try:
        name, status, took = wait_for_json_output(
            a.start_python(CONNECT_WITH_TIMEOUT, target, "4791", a.v4)
        )
    finally:
        if cut == "cable":
            b.run_ip("link", "set", b.link, "up")
            b.run_ip("addr", "replace", f"{b.v6}/64", "dev", b.link, "nodad")
    assert name == "UNREACHABLE"
    assert status in (110, 113)  # errno ETIMEDOUT or EHOSTUNREACH
    assert took < 5


def test_each_network_namespace_has_its_own_devices(
    cabled_namespaces: tuple[Namespace, Namespace],
) -> None:
    code = "import json; from siwarp.verbs import *; " + (
        "print(json.dumps([[d.netdev, list(d.addresses)] for d in get_device_list()]))"
    )
    for end in cabled_namespaces:
        found = dict(wait_for_json_output(end.start_python(code)))
        assert set(found) == {"lo", end.link}
        assert found[end.link][:2] == [end.v4, end.v6] or set(found[end.link]) == {
            end.v4,
            end.v6,
            end.link_local_address(),
        }
