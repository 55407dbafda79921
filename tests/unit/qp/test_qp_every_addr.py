"""UD and UC queue pairs bound to every address of a device: one port, one socket per address."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import Counter

import net
import pytest
from harness.descriptors import count_open_descriptors
from harness.every_harness import (
    HOSTS,
    QKEY,
    UCOnEveryAddress,
    UDOnEveryAddress,
    build_datagram,
    last_error_reason_name,
)
from harness.verbs_harness import (
    LIMIT,
    MCAST_PORT,
    Rig,
    errno_raised_by,
    octet_pattern,
    poll,
)

from siwarp.verbs import (
    AH,
    AHAttr,
    Error,
    QPAttr,
    QPState,
    QPType,
    RecvWR,
    SendWR,
    WCStatus,
    WROpcode,
)

# ---- UD


@pytest.mark.parametrize("host", HOSTS)
def test_a_queue_pair_on_every_address_receives_and_answers_at_each_address(
    rig: Rig, host: str
) -> None:
    a, b = UDOnEveryAddress(rig), UDOnEveryAddress(rig)
    for i in range(20):
        b.post_receives()
        a.post_receives()
        a.send(AH(rig.pd, (host, 0)), b.qp.qp_num, octet_pattern(100, i))
        (wc,) = poll(b.rcq)
        assert (wc.ok, wc.byte_len, wc.src_qp) == (True, 100, a.qp.qp_num)
        assert (wc.source, wc.destination) == ((host, a.port), (host, b.port))
        assert b.mr.read(100) == octet_pattern(100, i)
        b.send(AH(rig.pd, wc=wc), octets=b"answer")
        (wc,) = poll(a.rcq)
        assert (wc.source, wc.destination) == ((host, b.port), (host, a.port))


def test_an_ah_from_a_completion_has_a_source_unless_the_qp_has_the_wildcard_address(
    rig: Rig,
) -> None:
    a, b = UDOnEveryAddress(rig), UDOnEveryAddress(rig)
    anywhere = UDOnEveryAddress(rig, every_addr=False, addr=("0.0.0.0", 0))
    for end, source in ((b, HOSTS[0]), (anywhere, None)):
        end.post_receives()
        a.send(AH(rig.pd, (HOSTS[0], 0)), end.qp.qp_num)
        (wc,) = poll(end.rcq)
        answer = AH(rig.pd, wc=wc)
        assert answer.source == source
        a.post_receives()
        end.send(answer)
        assert poll(a.rcq)[0].source == (HOSTS[0], end.port)


def test_a_queue_pair_on_every_address_has_one_socket_per_address_on_one_port(rig: Rig) -> None:
    before = count_open_descriptors()
    end = UDOnEveryAddress(rig)
    assert count_open_descriptors() - before == len(HOSTS)
    assert end.qp.addr == ("127.0.0.1", end.port)
    for host in HOSTS:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as s, pytest.raises(OSError) as e:
            s.bind((host, end.port))
        assert e.value.errno == errno.EADDRINUSE
    end.qp.close()
    assert count_open_descriptors() == before


def test_a_requested_port_must_be_free_at_every_address(rig: Rig) -> None:
    taken = net.find_unused_port()
    with net.open_udp_socket(net.HERE_V6, taken):
        before = count_open_descriptors()
        assert errno_raised_by(rig.create_qp, every_addr=True, addr=("", taken)) == errno.EADDRINUSE
        assert count_open_descriptors() == before
    end = UDOnEveryAddress(rig, addr=("", taken))
    assert end.qp.qp_num == taken
    _, init = end.qp.query()
    assert (init.every_addr, init.addr) == (True, ("", taken))


def test_a_free_port_is_found_although_many_are_in_use_at_one_address(rig: Rig) -> None:
    """With 200 of 28,000 ports in use, few attempts with random ports fail before one succeeds."""
    taken = []
    try:
        for _ in range(200):
            s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            taken.append(s)
            s.bind(("::1", 0))
        ports = {s.getsockname()[1] for s in taken}
        ends = [rig.create_qp(rig.create_cq(), every_addr=True) for _ in range(50)]
        assert not ports & {qp.qp_num for qp in ends}
    finally:
        for s in taken:
            s.close()


def test_each_socket_of_a_queue_pair_is_serviced_however_busy_the_other_one_is(rig: Rig) -> None:
    """One socket always has up to 64 queued datagrams; 128 receives suffice for both sockets."""
    b = UDOnEveryAddress(rig, max_recv_wr=128)
    over, sent, came = threading.Event(), 0, Counter[str]()

    def flood_from_plain_socket_until_stopped() -> None:
        nonlocal sent
        octets = build_datagram()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            while not over.is_set():
                if sent - came["127.0.0.1"] < 64:
                    s.sendto(octets, ("127.0.0.1", b.port))
                    sent += 1
                else:
                    time.sleep(0)

    b.post_receives(128)
    thread = threading.Thread(target=flood_from_plain_socket_until_stopped)
    thread.start()
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
            for i in range(20):
                s.sendto(build_datagram(), ("::1", b.port))
                end, before = time.monotonic() + LIMIT, came["127.0.0.1"]
                while came["::1"] <= i:
                    assert time.monotonic() < end, came
                    (wc,) = poll(b.rcq)
                    assert wc.ok
                    assert wc.destination
                    came[wc.destination[0]] += 1
                    b.post_receives()
                # The busy socket may be serviced first, but not in every progress round.
                assert came["127.0.0.1"] - before < 2000
    finally:
        over.set()
        thread.join()
    assert came["127.0.0.1"] > 0


@pytest.mark.parametrize("host", HOSTS)
def test_an_icmp_error_on_one_socket_of_a_queue_pair_prevents_no_later_send(
    rig: Rig, host: str
) -> None:
    """A datagram to an unbound port leaves the sending socket with a pending ICMP error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.bind((host, 0))
        nobody = s.getsockname()[1]
    a, b = UDOnEveryAddress(rig), UDOnEveryAddress(rig)
    b.post_receives(8)
    for i in range(4):
        a.send(AH(rig.pd, (host, nobody)))
        for there in HOSTS:
            a.send(AH(rig.pd, (there, b.port)), octets=bytes([i]))
    got = poll(b.rcq, 8)
    assert sorted(wc.destination[0] for wc in got if wc.destination) == sorted(HOSTS * 4)


def test_a_list_of_sends_over_two_sockets_stays_in_order_per_address(rig: Rig) -> None:
    a, b = UDOnEveryAddress(rig, max_send_wr=64), UDOnEveryAddress(rig, max_recv_wr=64)
    for i in range(40):
        b.qp.post_recv(RecvWR(i, sg=[b.mr.sge(64 * i, 64)]))
    ahs = [AH(rig.pd, (host, b.port)) for host in HOSTS]
    out = rig.reg_mr(bytearray(range(40)))
    which = [i // 3 % 2 if i % 7 else (i + 1) % 2 for i in range(40)]
    a.qp.post_send(
        [SendWR(i, sg=[out.sge(i, 1)], ah=ahs[w], remote_qkey=QKEY) for i, w in enumerate(which)]
    )
    assert [wc.wr_id for wc in poll(a.scq, 40)] == list(range(40))
    got = poll(b.rcq, 40)
    for w, host in enumerate(HOSTS):
        mine = [b.mr.read(64 * wc.wr_id + 1)[-1] for wc in got if wc.destination == (host, b.port)]
        assert mine == [i for i in range(40) if which[i] == w]


def test_an_address_handle_with_a_source_that_is_not_the_devices_is_refused(rig: Rig) -> None:
    for dest, source in (("127.0.0.1", "192.0.2.1"), ("::1", "127.0.0.1"), ("127.0.0.1", "::1")):
        with pytest.raises(Error, match="source is not an address of the device"):
            AH(rig.pd, (dest, 9), source=source)
        assert last_error_reason_name() == "HANDLE_SOURCE"
    ah = AH(rig.pd, AHAttr("::1", 9, "::1"))
    assert (ah.dest, ah.source) == (("::1", 9), "::1")
    assert AH(rig.pd, ("::1", 9)).source is None


def test_attribute_every_addr_is_refused_for_rc_or_rd_or_with_an_address_or_own_socket(
    rig: Rig,
) -> None:
    for kwargs, why in (
        ({"qp_type": QPType.RC}, "WRONG_TYPE"),
        ({"qp_type": QPType.RD}, "WRONG_TYPE"),
        ({"addr": ("127.0.0.1", 0)}, "EVERY_ADDRESS"),
    ):
        assert errno_raised_by(rig.create_qp, every_addr=True, **kwargs) == errno.EINVAL
        assert last_error_reason_name() == why
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        for kind in (QPType.UD, QPType.UC):
            qp = rig.create_qp(every_addr=True, qp_type=kind)
            assert errno_raised_by(qp.to_init, QPAttr(qkey=1, fd=s)) == errno.EINVAL
            assert last_error_reason_name() == "QP_FD_EVERY"


def test_queue_pairs_may_share_all_sockets_of_a_queue_pair_on_every_address(rig: Rig) -> None:
    a = UDOnEveryAddress(rig)
    first = UDOnEveryAddress(rig)
    others = [UDOnEveryAddress(rig, shared_socket_qp=first.qp, grh=i == 1) for i in range(3)]
    assert [e.qp.qp_num for e in others] == [i << 16 | first.port for i in (1, 2, 3)]
    assert others[0].qp.query()[1].every_addr

    def exchange_messages_with_each(ends: list[UDOnEveryAddress]) -> None:
        for host in HOSTS:
            for e in ends:
                e.post_receives()
                a.post_receives()
                a.send(AH(rig.pd, (host, 0)), e.qp.qp_num)
                (wc,) = poll(e.rcq)
                assert (wc.qp_num, wc.destination) == (e.qp.qp_num, (host, first.port))
                assert wc.byte_len == (43 if e is others[1] else 3)
                e.send(AH(rig.pd, wc=wc))
                assert poll(a.rcq)[0].source == (host, first.port)

    exchange_messages_with_each([first, *others])
    first.qp.close()  # the other queue pairs share its sockets, and keep them
    exchange_messages_with_each(others)
    others[0].qp.close()
    exchange_messages_with_each(others[1:])


def test_a_queue_pair_on_every_address_may_join_and_send_to_multicast_groups(rig: Rig) -> None:
    a, b = UDOnEveryAddress(rig), UDOnEveryAddress(rig, grh=True)
    group = "239.192.7.93"
    b.qp.attach_mcast(group)
    b.post_receives()
    a.send(AH(rig.pd, (group, 0)))
    (wc,) = poll(b.rcq)
    assert (wc.source, wc.destination) == (("127.0.0.1", a.port), (group, MCAST_PORT))
    b.post_receives()
    a.send(AH(rig.pd, (group, 0), source="127.0.0.1"))
    assert poll(b.rcq)[0].source == ("127.0.0.1", a.port)
    with pytest.raises(Error, match="source is not an address of the device"):
        AH(rig.pd, wc=wc, source=wc.destination)
    assert AH(rig.pd, wc=wc).source is None
    b.qp.detach_mcast(group)


@pytest.mark.parametrize("host", HOSTS)
def test_a_write_record_is_sent_from_the_source_of_its_address_handle(rig: Rig, host: str) -> None:
    a, b = UDOnEveryAddress(rig), UDOnEveryAddress(rig, max_write_records=4)
    target = rig.reg_mr(bytearray(200000), 3)
    out = rig.reg_mr(bytearray(octet_pattern(200000)))
    ah = AH(rig.pd, (host, b.port), source=host)
    a.qp.post_send(
        SendWR(
            1,
            WROpcode.RDMA_WRITE_RECORD,
            sg=[out.sge()],
            ah=ah,
            remote=target.remote(),
            remote_qkey=QKEY,
        )
    )
    (wc,) = poll(b.rcq)
    assert (wc.ok, wc.byte_len, wc.source) == (True, 200000, (host, a.port))


def test_threads_may_send_over_both_sockets_while_sharing_queue_pairs_are_closed(rig: Rig) -> None:
    b = UDOnEveryAddress(rig, max_recv_wr=4096, cqe=300)  # the queues must hold all 300 messages
    first = UDOnEveryAddress(rig)
    sharers = [UDOnEveryAddress(rig, shared_socket_qp=first.qp) for _ in range(2)]
    failed = []

    def send_to_both_hosts(end: UDOnEveryAddress) -> None:
        try:
            for i in range(100):
                end.send(AH(rig.pd, (HOSTS[i % 2], b.port)))
            end.qp.close()
        except BaseException as e:
            failed.append(e)
            raise

    b.post_receives(300)
    threads = [
        threading.Thread(target=send_to_both_hosts, args=(end,)) for end in (first, *sharers)
    ]
    for t in threads:
        t.start()
    got = poll(b.rcq, 300)
    for t in threads:
        t.join()
    assert not failed
    assert all(wc.ok for wc in got)


@pytest.mark.parametrize("source", [None, "same"])
@pytest.mark.parametrize("host", HOSTS)
def test_a_uc_queue_pair_on_every_address_sends_and_receives_at_the_chosen_address(
    rig: Rig, host: str, source: str | None
) -> None:
    a, b = UCOnEveryAddress(rig), UCOnEveryAddress(rig)
    source = source and host
    a.connect(b, host, source)
    b.connect(a, host, source)
    attr = a.qp.query()[0].ah_attr
    assert isinstance(attr, AHAttr)
    assert (attr.host, attr.source) == (host, host)
    for one, other in ((a, b), (b, a)):
        one.mr.write(octet_pattern(30000))
        other.qp.post_recv(RecvWR(5, sg=[other.mr.sge(35000, 30000)]))
        one.qp.post_send(SendWR(6, sg=[one.mr.sge(0, 30000)]))
        assert poll(one.cq)[0].ok
        (wc,) = poll(other.cq)
        assert (wc.ok, wc.byte_len, wc.wr_id) == (True, 30000, 5)
        assert other.mr.read(65000)[35000:] == octet_pattern(30000)


def test_a_uc_queue_pair_refuses_a_foreign_source_address_and_stays_in_init(rig: Rig) -> None:
    a, one = UCOnEveryAddress(rig), UCOnEveryAddress(rig, every_addr=False, addr=("127.0.0.1", 0))
    for qp, host, source in (
        (a.qp, "127.0.0.1", "192.0.2.9"),
        (a.qp, "127.0.0.1", "::1"),
        (one.qp, "127.0.0.1", "127.0.0.2"),
    ):
        to = QPAttr(ah_attr=AHAttr(host, 9, source))
        assert errno_raised_by(qp.to_rtr, to) == errno.EINVAL
        assert last_error_reason_name() == "UC_SOURCE"
        assert qp.query()[0].qp_state == QPState.INIT
    one.qp.to_rtr(QPAttr(ah_attr=AHAttr("127.0.0.1", 9, "127.0.0.1")))


def test_after_a_reset_a_uc_queue_pair_may_use_another_source_address(rig: Rig) -> None:
    a, b = UCOnEveryAddress(rig), UCOnEveryAddress(rig)
    for host in (*HOSTS, *HOSTS):
        for one, other in ((a, b), (b, a)):
            one.connect(other, host, None)
        b.qp.post_recv(RecvWR(5, sg=[b.mr.sge(0, 100)]))
        a.qp.post_send(SendWR(6, sg=[a.mr.sge(0, 100)]))
        assert poll(a.cq)[0].ok
        assert poll(b.cq)[0].status == WCStatus.SUCCESS
        for one in (a, b):
            one.qp.modify(QPAttr(qp_state=QPState.RESET))
            one.qp.to_init(QPAttr(qkey=QKEY))
