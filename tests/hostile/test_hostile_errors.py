"""Error handling of UD queue pairs: senders without the Q_Key have no effect, and senders with the
Q_Key have a limited effect.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterator

import pytest
from harness.errq_harness import (
    OPCODE,
    QKEY,
    WRONG,
    PlainUDPSocket,
    build_datagram,
    build_wire_error_message,
)
from harness.verbs_harness import Rig, counter_value, poll, temporary_settings, wait_until

from siwarp.inspect import crc32c
from siwarp.verbs import QP, ErrorOrigin, ErrorPolicy, QPState, RecvWR, SendWR, WCStatus

#: All operations are 5 to 20 times slower with a sanitizer.
SANITIZED = "SANITIZER" in os.environ
SEED = int(os.environ.get("HOSTILE_SEED", "5042"))
MANY = 300 if SANITIZED else 500
#: The number of octets by which an error message may exceed the datagram that it answers.
MAX_ADDED_OCTETS = 24


@pytest.fixture
def verbs_device() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def poll_qp_and_sum_counters(qp: QP, *names: str) -> int:
    """Poll the queue pair, and return the number of datagrams handled, the sum of these
    counters.
    """
    qp.rcq.poll(1)
    return sum(counter_value(name) for name in names)


def check_good_peer_served(qp: QP, rig: Rig) -> None:
    """Assert that a good peer's message still arrives and causes no error."""
    good = rig.create_ud_qp(qkey=QKEY)
    mr = rig.reg_mr(bytearray(b"good"))
    qp.post_recv(RecvWR(1, sg=[mr.sge()]))
    good.post_send(SendWR(2, sg=[mr.sge()], ah=rig.create_ah(qp), remote_qkey=QKEY))
    assert poll(good.scq)[0].ok
    assert poll(qp.rcq)[0].status == WCStatus.SUCCESS
    assert good.errors() == []
    good.close()


def read_received_datagrams(who: PlainUDPSocket) -> list[bytes]:
    """Return all datagrams that have arrived at a socket."""
    found = []
    who.setblocking(False)
    try:
        while True:
            found.append(who.recv(1 << 16))
    except BlockingIOError:
        return found


# ---- senders without the Q_Key


@pytest.mark.clause("DGRAM-ERR-2")
def test_a_sender_without_the_q_key_cannot_end_a_queue_pair_and_is_not_answered(
    verbs_device: Rig,
) -> None:
    rng = random.Random(SEED)
    qp = verbs_device.create_ud_qp(qkey=QKEY, error_policy=ErrorPolicy.ERROR)
    with PlainUDPSocket() as who:
        names = ("drop_qkey", "drop_qn", "drop_version", "drop_header")
        before = poll_qp_and_sum_counters(qp, *names)
        for i in range(MANY):
            fields = {
                "opcode": rng.randrange(16),
                "q_key": (QKEY + rng.randrange(1, 2**32)) % 2**32,
                "l": rng.randrange(2),
                "mo": rng.choice([0, 0, 1, 2**32 - 1]),
                "qn": rng.choice([0, 0, 0, 1, 3, 0x100, 0x50000]),
            }
            who.sendto(build_datagram(bytes(rng.randrange(100)), **fields), qp.addr)
            if i % 100 == 99:
                wait_until(lambda i=i: poll_qp_and_sum_counters(qp, *names) == before + i + 1)  # type: ignore[misc]
        assert read_received_datagrams(who) == []
    assert (qp.qp_state, qp.errors()) == (QPState.RTS, [])
    check_good_peer_served(qp, verbs_device)


@pytest.mark.clause("DGRAM-ERR-11")
def test_forged_error_messages_have_no_effect(verbs_device: Rig) -> None:
    rng = random.Random(SEED)
    qp = verbs_device.create_ud_qp(qkey=1)
    names = ("err_stale", "err_malformed", "drop_version", "drop_header", "drop_qn", "drop_opcode",
             "drop_qkey", "drop_short", "drop_crc")  # fmt: skip
    with PlainUDPSocket() as peer, PlainUDPSocket() as who:
        ah = verbs_device.create_ah(peer.getsockname())
        for i in range(32):
            qp.post_send(SendWR(i, ah=ah, remote_qkey=QKEY))
            poll(qp.scq)
        before = poll_qp_and_sum_counters(qp, *names)
        for i in range(MANY):
            # Alternately a random Q_Key from the peer's address, and the correct Q_Key from a wrong
            # address.
            key = QKEY if i % 2 else rng.randrange(2**32)
            says = who if i % 2 else peer
            octets = bytearray(
                build_wire_error_message(rng.randrange(40), quoted={"inv_stag": key}, q_key=key)[
                    :-4
                ]
            )
            if rng.randrange(2):
                octets[rng.randrange(18, len(octets))] ^= 1 << rng.randrange(8)
            says.sendto(octets + crc32c(bytes(octets)).to_bytes(4, "little"), qp.addr)
            if i % 100 == 99:
                wait_until(lambda i=i: poll_qp_and_sum_counters(qp, *names) == before + i + 1)  # type: ignore[misc]
        assert (qp.errors(), qp.qp_state) == ([], QPState.RTS)
        assert read_received_datagrams(who) == []
        peer.sendto(build_wire_error_message(5), qp.addr)
        (real,) = wait_until(qp.errors)
        assert (real.origin, real.msn, real.wr_id) == (ErrorOrigin.REPORTED, 5, 4)


# ---- senders with the Q_Key


@pytest.mark.clause("DGRAM-ERR-4")
@pytest.mark.parametrize("size", [0, 1, 100, 1400, 60_000])
@pytest.mark.parametrize("what", ["opcode 0x4", "opcode 0xf", "L=0", "MO=1", "too long"])
def test_an_error_message_is_at_most_24_octets_longer_than_its_cause(
    verbs_device: Rig, what: str, size: int
) -> None:
    qp = verbs_device.create_ud_qp(qkey=QKEY, error_policy=ErrorPolicy.MESSAGE)
    if what == "too long":
        size += 1
        qp.post_recv(RecvWR(1))
    cause = build_datagram(bytes(size), **WRONG.get(what, ({}, OPCODE))[0])
    with PlainUDPSocket() as who:
        who.sendto(cause, qp.addr)
        wait_until(lambda: qp.rcq.poll(1) or qp.errors())
        assert len(who.recv(1 << 16)) <= len(cause) + MAX_ADDED_OCTETS


@pytest.mark.clause("DGRAM-ERR-6")
@pytest.mark.parametrize("policy", [ErrorPolicy.MESSAGE, ErrorPolicy.ERROR])
def test_a_flood_of_invalid_messages_is_answered_at_a_limited_rate(policy: ErrorPolicy) -> None:
    with temporary_settings(err_source_rate=5):
        rig = Rig()
        qp = rig.create_ud_qp(qkey=QKEY, error_policy=policy)
        cause = build_datagram(opcode=4)
        with PlainUDPSocket() as who:
            found = ("err_found", "drop_no_buffer")
            before, began = poll_qp_and_sum_counters(qp, *found), time.monotonic()
            for i in range(MANY):
                who.sendto(cause, qp.addr)
                if i % 100 == 99:
                    wait_until(lambda i=i: poll_qp_and_sum_counters(qp, *found) == before + i + 1)  # type: ignore[misc]
            seconds = time.monotonic() - began
            answers = read_received_datagrams(who)
        # With policy ERROR the first error ends the queue pair, and later datagrams are dropped.
        most = 1 if policy == ErrorPolicy.ERROR else 5 * (1 + seconds) + 1
        assert 1 <= len(answers) <= most
        # An error message to a spoofed source address is at most MAX_ADDED_OCTETS longer than the
        # datagram that caused it.
        assert sum(map(len, answers)) <= len(answers) * (len(cause) + MAX_ADDED_OCTETS)
        if seconds < 10:
            assert sum(map(len, answers)) < MANY * len(cause)
        if policy == ErrorPolicy.MESSAGE:
            assert len(qp.errors()) == 16 and qp.qp_state == QPState.RTS
            check_good_peer_served(qp, rig)
        rig.close()


@pytest.mark.clause("DGRAM-ERR-6")
def test_error_messages_to_many_sources_share_the_rate_limit_of_the_device(
    verbs_device: Rig,
) -> None:
    with temporary_settings(err_rate=10):
        qp = verbs_device.create_ud_qp(
            qkey=QKEY, error_policy=ErrorPolicy.MESSAGE, addr=("127.0.0.1", 0)
        )
        socks = []
        for i in range(60):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((f"127.0.2.{i + 1}", 0))
            socks.append(sock)
        began = time.monotonic()
        sent, limited = counter_value("err_sent"), counter_value("err_limited")
        for sock in socks:
            sock.sendto(build_datagram(l=0), qp.addr)
        wait_until(
            lambda: (
                qp.errors() is not None
                and counter_value("err_sent") - sent + counter_value("err_limited") - limited
                == len(socks)
            )
        )
        most = 10 * (1 + time.monotonic() - began) + 1
        assert 10 <= counter_value("err_sent") - sent <= most
        for sock in socks:
            sock.close()


@pytest.mark.clause("DGRAM-ERR-6")
def test_a_flood_from_one_source_leaves_error_messages_for_other_sources(verbs_device: Rig) -> None:
    with temporary_settings(err_source_rate=3):
        qp = verbs_device.create_ud_qp(
            qkey=QKEY, error_policy=ErrorPolicy.MESSAGE, addr=("127.0.0.1", 0)
        )
        with PlainUDPSocket() as who:
            before, limited = counter_value("err_found"), counter_value("err_limited")
            for _ in range(50):
                who.sendto(build_datagram(mo=1), qp.addr)
            wait_until(
                lambda: qp.errors() is not None and counter_value("err_found") == before + 50
            )
            assert counter_value("err_limited") > limited
            # One of these three sources may share one of the 1000 entries of the rate table with
            # the flood, but not all three.
            answered = 0
            for i in range(3):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                    other.bind((f"127.0.3.{i + 1}", 0))
                    sent, limited = counter_value("err_sent"), counter_value("err_limited")
                    other.sendto(build_datagram(mo=1), qp.addr)
                    wait_until(
                        lambda sent=sent, limited=limited: (  # type: ignore[misc]
                            qp.errors() is not None
                            and counter_value("err_sent") + counter_value("err_limited")
                            == sent + limited + 1
                        )
                    )
                    answered += counter_value("err_sent") - sent
            assert answered >= 1
