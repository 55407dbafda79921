"""UD and UC at every address of the device: one port, and one socket for each address."""

from __future__ import annotations

import errno

import net
from harness.every_harness import (
    HOSTS,
    QKEY,
    UCOnEveryAddress,
    UDOnEveryAddress,
    build_datagram,
    last_error_reason_name,
)
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    assert_no_completion,
    errno_raised_by,
    poll,
)

from siwarp.inspect import DDPDatagram, UDDatagram
from siwarp.verbs import (
    AH,
    SendWR,
)


def test_sending_from_an_address_of_another_queue_pair_is_refused(rig: Rig) -> None:
    cq, mr = rig.create_cq(), rig.reg_mr(bytearray(8))
    four = rig.create_ud_qp(cq, addr=(net.HERE, 0))
    other = rig.create_ud_qp(cq, addr=(net.HERE_TOO, 0))
    ah = AH(rig.pd, (net.HERE, four.addr[1]), source=net.HERE)
    four.post_send(SendWR(sg=[mr.sge()], ah=ah))
    assert poll(cq)[0].ok
    for qp, handle in ((other, ah), (rig.create_ud_qp(cq, addr=(net.HERE_V6, 0)), ah)):
        assert errno_raised_by(qp.post_send, SendWR(sg=[mr.sge()], ah=handle)) == errno.EINVAL
        assert last_error_reason_name() == "HANDLE_END"
    assert_no_completion(cq)


def test_error_messages_are_sent_from_the_address_that_received_the_message(rig: Rig) -> None:
    b = UDOnEveryAddress(rig, error_policy="message")
    for host in HOSTS:
        with net.open_udp_socket(host) as s:
            s.settimeout(10)
            b.post_receives()
            bad = DDPDatagram(q_key=QKEY, qn=0, opcode=1) / b"abc"
            s.sendto(bytes(UDDatagram(segment=bad)), (host, b.port))
            assert_no_completion(b.rcq)
            assert s.recvfrom(1000)[1][:2] == (host, b.port)


def test_invalid_datagrams_are_dropped_at_every_address_of_a_ud_queue_pair(rig: Rig) -> None:
    b = UDOnEveryAddress(rig)
    b.post_receives()
    good = build_datagram()
    for host in HOSTS:
        with net.open_udp_socket(host) as s:
            for octets, name in (
                (b"", "drop_short"),
                (good[:-1] + bytes([good[-1] ^ 1]), "drop_crc"),
                (bytes(UDDatagram(segment=DDPDatagram(q_key=1, qn=0) / b"x")), "drop_qkey"),
            ):
                with assert_counter_grows(name, 1):
                    s.sendto(octets, (host, b.port))
                    assert_no_completion(b.rcq)
            with assert_counter_grows("drop_qn", 1):
                s.sendto(
                    bytes(UDDatagram(segment=DDPDatagram(q_key=QKEY, qn=5 << 8) / b"x")),
                    (host, b.port),
                )
                assert_no_completion(b.rcq)


def test_datagrams_of_strangers_are_dropped_at_every_address_of_a_uc_queue_pair(rig: Rig) -> None:
    a, b = UCOnEveryAddress(rig), UCOnEveryAddress(rig)
    a.connect(b, net.HERE, None)
    for host in HOSTS:
        with net.open_udp_socket(host) as s, assert_counter_grows("drop_short", 300):
            for _ in range(300):
                s.sendto(b"xyz", (host, a.qp.qp_num))
            assert_no_completion(a.cq, 0.2)
