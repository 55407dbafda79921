"""`siwarp ping` with the independent peer as its client and as its server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.siwarp_process import SiwarpProcess
from peer.link import BAD, Address, EmulatedLink, Faults, open_udp_socket, run_until
from peer.ours import SEED, closing_emulated_link, seeded_octets
from peer.rd import RdPeer
from peer.ud import UdPeer

QKEY = 77
SIWARP = "from siwarp.cli.main import main; main()"
PING = [sys.executable, "-c", SIWARP, "ping", f"--qkey={QKEY}"]


@contextmanager
def run_ping_server(kind: str) -> Iterator[Address]:
    """Run a `siwarp ping` server, and yield its address."""
    command = [*PING, "--server", f"--qp={kind}", "--addr=127.0.0.1", "--port=0"]
    with SiwarpProcess(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"port (\d+)", process.stdout.readline())
            assert found
            yield "127.0.0.1", int(found[1])
        finally:
            process.terminate()


def test_a_ud_ping_server_answers_only_questions() -> None:
    with run_ping_server("ud") as address, open_udp_socket() as sock:
        peer = UdPeer(sock, QKEY)
        peer.send(address, b"hello")
        peer.send(address, b"")
        for i in range(20):
            peer.send(address, b"Q" + seeded_octets(i, i))
        run_until(lambda: len(peer.messages) == 20, [peer.process_datagrams], [sock])
        assert [m.payload for m in peer.messages] == [b"A" + seeded_octets(i, i) for i in range(20)]


def test_an_rd_ping_server_answers_questions() -> None:
    with (
        run_ping_server("rd") as address,
        open_udp_socket() as sock,
        closing_emulated_link(EmulatedLink(SEED, BAD)) as link,
    ):
        link.siwarp = address
        peer = RdPeer(sock, QKEY, SEED)
        steps = [peer.process_datagrams_and_run_timers, link.forward_datagrams]
        talk = peer.conversation_with(link.near)
        for i in range(20):
            talk.send(b"Q" + seeded_octets(i, 100 * i))
        run_until(lambda: len(peer.arrivals) == 20, steps, [sock, *link.sockets()], 20)
        assert [a.payload for a in peer.arrivals] == [
            b"A" + seeded_octets(i, 100 * i) for i in range(20)
        ]
        assert peer.wrong == []


@pytest.mark.parametrize("faults", [Faults(), BAD], ids=["clean", "bad"])
def test_an_rd_ping_client_receives_answers_of_the_independent_peer(faults: Faults) -> None:
    with open_udp_socket() as sock, closing_emulated_link(EmulatedLink(SEED, faults)) as link:
        link.peer = sock.getsockname()
        peer = RdPeer(sock, QKEY, SEED)
        answered = 0

        def answer_pings() -> None:
            nonlocal answered
            peer.process_datagrams_and_run_timers()
            for arrival in peer.arrivals:
                if arrival.payload[:1] == b"Q":
                    peer.conversation_with(link.near).send(b"A" + arrival.payload[1:])
                    answered += 1
            peer.arrivals.clear()

        command = [*PING, "--qp=rd", "-n", "30", "-s", "3000", "-p", str(link.far[1]), "127.0.0.1"]
        with SiwarpProcess(command, stdout=subprocess.PIPE, text=True) as process:
            steps = [answer_pings, link.forward_datagrams]
            run_until(lambda: process.poll() is not None, steps, [sock, *link.sockets()], 30)
            assert process.stdout is not None
            assert process.returncode == 0, process.stdout.read()
        assert answered >= 30
        assert peer.wrong == []
