"""Completed Sends reach the peer however the sender closes, and closing always ends.

How long closing takes is tested in tests/sim/test_sim_rc_ends.py.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.peer_harness import PlainPeer, connected_plain_peer
from harness.rc_harness import SEND, WRITE, End, ListenerAndConnector
from harness.siwarp_process import SiwarpProcess
from harness.verbs_harness import Rig, octet_pattern, poll, wait_until

from siwarp._siwarp import ffi, lib
from siwarp.inspect import MPAReply, Opcode
from siwarp.verbs import Persona, QPAttr, QPState, RemoteBuffer, SendWR, WCStatus

MIB = 1 << 20
PATIENT = 60_000  # linger time in ms where lingering is not tested, enough for a busy machine
FLUSHED = WCStatus.WR_FLUSH_ERR
WRITE_HEAD = 14  # octets of the DDP header of an RDMA Write

# A program that sends 1 MiB, polls the completion and exits immediately, while its socket has
# unread data because the peer keeps writing. argv: host, port, persona, way of exit.
SENDER = """
import ctypes, sys
from siwarp import cm
from siwarp._siwarp import ffi, lib
from siwarp.verbs import *

host, port, persona, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
assert lib.siw_setting_set(b"persona", persona) == 0
ctx = Context(host)
pd = PD(ctx)
cq, rcq = CQ(ctx, 64), CQ(ctx, 64)
qp = QP(pd, QPInitAttr(QPType.RC, scq=cq, rcq=rcq))
target = MR(pd, bytearray(1 << 16), AccessFlag.LOCAL_WRITE | AccessFlag.REMOTE_WRITE)
pattern = bytes((i * 7 + (i >> 8) * 13 + 31) & 0xFF for i in range(1 << 16))
mr = MR(pd, bytearray(16 * pattern))
channel = cm.CMEventChannel(ctx)
cm_id = cm.CMID(channel)
cm_id.bind_qp(qp)
cm_id.connect((host, port), cm.ConnParam(private_data=target.remote().pack()))
assert channel.get_event(10).type == cm.CMEventType.ESTABLISHED
if how == "idle":
    print("connected", flush=True)
else:
    qp.post_send(SendWR(1, sg=[mr.sge()]))
    while not (found := cq.poll(1)):
        pass
    assert found[0].ok, found
if how == "destroy":
    cm_id.close()
    qp.close()
elif how == "error":
    qp.modify(QPAttr(qp_state=QPState.ERR))
elif how in ("exit of C", "idle"):  # exits without Python's cleanup
    ctypes.CDLL(None).exit(0)
"""


@contextmanager
def sender_process(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    # With "close", the normal end of an interpreter closes the connection.
    start = subprocess.Popen if "close" in arguments else SiwarpProcess
    child = start(
        [sys.executable, "-c", SENDER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@contextmanager
def listener_on_device_with_settings(**settings: int) -> Iterator[ListenerAndConnector]:
    """Provide a listener on a new device, the only device that has the given settings."""
    names = [ffi.string(lib.siw_setting_name(i)).decode() for i in range(lib.siw_settings_count())]
    before = {name: lib.siw_setting_value(names.index(name)) for name in settings}
    for name, value in settings.items():
        assert lib.siw_setting_set(name.encode(), value) == 0
    own = Rig()
    try:
        yield ListenerAndConnector(own)
    finally:
        own.close()
        for name, value in before.items():
            assert lib.siw_setting_set(name.encode(), value) == 0


class ContinuousWriter(threading.Thread):
    """A thread that writes to the peer's memory without a pause until the connection ends."""

    def __init__(self, end: End, remote: RemoteBuffer) -> None:
        super().__init__(daemon=True)
        self.end, self.remote = end, remote

    def run(self) -> None:
        wr = SendWR(7, WRITE, sg=[self.end.mem.sge(MIB, 1 << 16)], remote=self.remote)
        while all(w.ok for w in self.end.scq.poll(16)):
            try:
                self.end.qp.post_send(wr)
            except OSError:
                time.sleep(0.0001)


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE], ids=lambda p: p.name.lower())
@pytest.mark.parametrize("how", ["destroy", "error", "close", "exit of C"])
def test_a_completed_send_arrives_although_its_sender_exits_with_unread_input(
    rig: Rig, how: str, persona: Persona
) -> None:
    connector = ListenerAndConnector(rig)
    host, port = connector.address
    arguments = (host, str(port), str(int(persona)), how)
    with sender_process(*arguments, SIWARP_LINGER_MS=str(PATIENT)) as child:
        request = connector.next_connection_request(30)
        b = End(rig, request.id, connector.p_channel, size=2 * MIB)
        b.post_receive(1, 0, MIB)
        b.id.accept()
        talker = ContinuousWriter(b, RemoteBuffer.unpack(request.private_data[:20]))
        talker.start()
        (wc,) = poll(b.rcq, 1, 30)
        assert (wc.wr_id, wc.status, wc.byte_len) == (1, WCStatus.SUCCESS, MIB)
        assert bytes(b.mem.view[:MIB]) == octet_pattern(MIB)
        assert child.wait(20) == 0, child.stderr and child.stderr.read()
        talker.join(20)
        assert not talker.is_alive()


def test_a_process_can_exit_although_its_peer_sends_nothing(rig: Rig) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        s.settimeout(30)
        where = "127.0.0.1", str(s.getsockname()[1])
        with sender_process(*where, "1", "idle", SIWARP_LINGER_MS="400") as child:
            sock, _ = s.accept()
            with sock:
                sock.settimeout(30)
                sock.recv(1000)
                sock.sendall(bytes(MPAReply(rev=2, s=1, ird=4, ord=4)))
                assert child.stdout and child.stdout.readline() == "connected\n"
                assert sock.recv(1) == b"", (
                    "the peer received data instead of the end of the stream"
                )
                assert child.wait(20) == 0


# ---- destroyed queue pairs


def read_to_orderly_end_of_stream(peer: PlainPeer) -> bytes:
    """Return all octets up to the end of the peer's stream; raise an error on a reset."""
    octets = bytearray()
    while part := peer.sock.recv(1 << 20):
        octets += part
    return bytes(octets)


def test_after_destroying_a_queue_pair_only_data_accepted_by_tcp_reaches_the_peer() -> None:
    size, iwarp = 32 * MIB, Persona.IWARP
    with (
        listener_on_device_with_settings(linger_ms=PATIENT) as connector,
        connected_plain_peer(connector, gone=True, size=size, persona=iwarp) as (a, peer),
    ):
        a.mem.view[:] = b"\x11" * size
        a.post(SEND, 1, length=1000)
        a.post(WRITE, 2, length=size, remote=RemoteBuffer(0, size, 5))
        assert poll(a.scq)[0].ok
        unread = peer.build_write(bytes(1000), a.mem.rkey, a.mem.addr)
        peer.send_segments(unread)
        a.id.close()
        a.qp.close()
        a.mem.view[:] = b"\x22" * size  # after the close, the program may change the memory
        peer.send_segments(
            unread
        )  # closing a socket that has unread data would reset the connection
        head, rest = peer.receive_segment()
        assert (head.opcode, rest) == (Opcode.SEND, b"\x11" * 1000)
        octets = read_to_orderly_end_of_stream(peer)
        assert 0 < len(octets) < size
        assert b"\x22" * 100 not in octets


def test_a_write_in_progress_when_the_peer_shuts_down_sending_arrives_completely() -> None:
    size = 32 * MIB
    with (
        listener_on_device_with_settings(linger_ms=PATIENT) as connector,
        connected_plain_peer(connector, gone=True, size=size) as (a, peer),
    ):
        a.post(WRITE, 1, length=size, remote=RemoteBuffer(0, size, 5))
        peer.sock.shutdown(socket.SHUT_WR)
        wait_until(lambda: a.qp.qp_state == QPState.ERR)
        octets: list[bytes] = []
        thread = threading.Thread(
            target=lambda: octets.append(read_to_orderly_end_of_stream(peer)), daemon=True
        )
        thread.start()
        assert [w.status for w in poll(a.scq)] == [WCStatus.SUCCESS]
        thread.join(30)
        at = payload = 0
        while at < len(octets[0]):  # each FPDU has a length, the ULPDU, a pad and the CRC
            ulpdu = int.from_bytes(octets[0][at : at + 2], "big")
            payload += ulpdu - WRITE_HEAD
            at += (2 + ulpdu + 3) // 4 * 4 + 4
        assert (at, payload) == (len(octets[0]), size)


def test_a_terminate_arrives_although_much_data_after_the_error_is_unread() -> None:
    with (
        listener_on_device_with_settings(linger_ms=PATIENT) as connector,
        connected_plain_peer(connector, gone=True) as (a, peer),
    ):
        bad = peer.build_write(b"octets", 0x123456, 0)
        rest = [peer.build_write(bytes(60000), 0x123456, 0) for _ in range(20)]
        peer.send_segments(bad, *rest)
        wait_until(lambda: a.qp.qp_state == QPState.ERR)
        a.close()
        t = peer.receive_terminate()
        assert (t.layer, t.etype, t.code) == (1, 1, 0)
        assert read_to_orderly_end_of_stream(peer) == b""


def start_flooding(peer: PlainPeer, octets: list[int], size: int) -> threading.Thread:
    """Send ``size`` octets at a time in a thread until a reset; count them in ``octets[0]``."""

    def send_until_reset() -> None:
        block = bytes(size)
        try:
            while True:
                octets[0] += peer.sock.send(block)
        except OSError:
            return

    thread = threading.Thread(target=send_until_reset, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("limit", ["linger_ms", "octets"])
def test_a_closed_connection_whose_peer_keeps_sending_is_reset_at_a_limit(limit: str) -> None:
    with (
        listener_on_device_with_settings(
            linger_ms=300 if limit == "linger_ms" else 600_000
        ) as connector,
        connected_plain_peer(connector, gone=True) as (a, peer),
    ):
        a.close()
        sent = [0]
        thread = start_flooding(peer, sent, 64 if limit == "linger_ms" else 1 << 16)
        thread.join(30)
        assert not thread.is_alive()
        if limit == "octets":  # at most 256 MiB of linger, and socket buffers
            assert 256 * MIB <= sent[0] < 292 * MIB
        else:
            assert sent[0] < 256 * MIB


def test_data_not_read_within_the_linger_time_is_discarded() -> None:
    size = 32 * MIB
    with (
        listener_on_device_with_settings(linger_ms=300) as connector,
        connected_plain_peer(connector, size=size) as (a, peer),
    ):
        a.mem.view[:] = b"\x11" * size
        for i in range(3):
            a.post(WRITE, i, length=size, remote=RemoteBuffer(0, size, 5))
        a.qp.modify(QPAttr(qp_state=QPState.ERR))
        assert [w.status for w in poll(a.scq, 3)] == [FLUSHED] * 3
        a.mem.view[:] = b"\x22" * size
        octets = read_to_orderly_end_of_stream(peer)
        assert 0 < len(octets) < size and b"\x22" * 100 not in octets
