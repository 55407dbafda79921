"""Connections of ``siwarp.connect`` with peers that are busy, do not read, or are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.siwarp_process import SiwarpProcess

import siwarp
from siwarp import PeerGone
from siwarp.cm import Connection
from siwarp.verbs import Persona

Connect = Callable[..., tuple[Connection, Connection]]


@pytest.mark.parametrize("persona", [Persona.AUTO, Persona.IWARP])
@pytest.mark.parametrize(
    ("count", "size", "busy"),
    [(40, 10, 0.3), (2000, 1, 0.3), (200, 65536, 0.3), (100, 65536, 3.0), (8, 1 << 20, 0.3)],
)
def test_messages_to_a_busy_peer_of_siwarp_connect_arrive_completely_and_in_order(
    connect_pair: Connect, count: int, size: int, busy: float, persona: int
) -> None:
    a, b = connect_pair(recv_size=max(size, 65536), persona=persona)

    def send_all_messages() -> None:
        for i in range(count):
            a.send(bytes([i & 0xFF]) * size, 30)
        # close() does not wait, but data already sent arrives.
        a.close()

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_all_messages)
        time.sleep(busy)
        for i in range(count):
            assert b.recv(30) == bytes([i & 0xFF]) * size
        with pytest.raises(PeerGone):
            b.recv(30)
        sending.result()


SENDER_PROGRAM = """
import sys, time, siwarp
conn = siwarp.connect(("127.0.0.1", int(sys.argv[1])))
for i in range(int(sys.argv[2])):
    conn.send(i.to_bytes(4, "big") * 10_000)
print(flush=True)
time.sleep(600)
"""


# The numbers of messages are below and above the number of receives.
@pytest.mark.parametrize("count", [3, 30])
def test_messages_that_a_killed_peer_had_sent_are_received_before_the_disconnect(
    count: int,
) -> None:
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        arguments = [sys.executable, "-c", SENDER_PROGRAM, str(listener.address[1]), str(count)]
        with (
            SiwarpProcess(arguments, stdout=subprocess.PIPE) as peer,
            listener.accept(30) as conn,
        ):
            assert peer.stdout is not None
            # The peer prints a line when its sends have completed.
            peer.stdout.readline()
            peer.kill()
            peer.wait()
            for i in range(count):
                assert conn.recv(30) == i.to_bytes(4, "big") * 10_000
            with pytest.raises(PeerGone):
                conn.recv(30)


PEER_PROGRAM = """
import sys, time, siwarp
conn = siwarp.connect(("127.0.0.1", int(sys.argv[1])))
while sys.argv[2] == "sends":
    conn.send(bytes(60_000))
time.sleep(600)
"""


@pytest.mark.parametrize("what", ["takes nothing", "sends"])
def test_a_blocking_send_or_receive_raises_peer_gone_when_the_peer_is_killed(what: str) -> None:
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        arguments = [sys.executable, "-c", PEER_PROGRAM, str(listener.address[1]), what]
        with SiwarpProcess(arguments) as peer, listener.accept(30) as conn:
            killer = threading.Timer(0.5, peer.send_signal, (signal.SIGKILL,))
            killer.start()
            got = 0
            if what == "sends":
                # The peer waits for this process to read until the peer is killed.
                killer.join()
            with pytest.raises(PeerGone):
                while what == "sends":
                    assert conn.recv(30) == bytes(60_000)
                    got += 1
                while True:
                    conn.send(bytes(65536), 30)
            assert got >= 16 or what != "sends"
