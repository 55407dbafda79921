"""The source share: the part of the pending connections that one source address may hold."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from unittest import mock

import pytest
from pace import scale_limit

from siwarp.cm import RTR, CMEvent, CMEventType
from siwarp.verbs import PeerGone

#: A program that opens nine connections from one address to its listener and accepts none, with a
#: limit of eight pending connections. The program ends when siwarp has refused three connections,
#: or when the listener has paused and the ninth connection stays in the queue of the kernel.
PROGRAM = """
import os, socket, sys, time
from siwarp.base import counters
from siwarp.cm import CMID, CMEventChannel
from siwarp.verbs import Context

with Context(sys.argv[1]) as context:
    listener = CMID(CMEventChannel(context))
    listener.listen((sys.argv[1], 0))
    peers = [socket.create_connection(listener.local_addr) for _ in range(9)]
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        now = counters.read_own_counters()
        if now["startups_refused"] == 3 or now["startups_paused"]:
            break
        time.sleep(0.01)
    print(now["startups_refused"], now["startups_paused"])
"""


def count_refused_and_paused_startups(host: str, **settings: str) -> str:
    """Run PROGRAM in a network namespace with an additional address and return its output.

    The library of a sanitizer is preloaded into the program only, because a shell with the library
    crashes when it forks.
    """
    net = 'ip link set lo up; ip addr add 192.0.2.9 dev lo; LD_PRELOAD="$PRELOAD" exec "$@"'
    limit = scale_limit(30)
    program = [sys.executable, "-c", PROGRAM, host, str(limit)]
    done = subprocess.run(
        ["unshare", "-rn", "bash", "-ec", net, "bash", *program],
        capture_output=True,
        text=True,
        timeout=limit + scale_limit(60),
        env={
            **{name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            "PRELOAD": os.environ.get("LD_PRELOAD", ""),
            "SIWARP_MAX_REQUESTS": "8",
            "SIWARP_MPA_TIMEOUT_MS": "600000",
            **settings,
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.scales
def test_by_default_loopback_may_hold_all_pending_connections() -> None:
    assert count_refused_and_paused_startups("127.0.0.1") == "0 1"


@pytest.mark.scales
def test_by_default_a_non_loopback_address_may_hold_three_quarters_of_the_connections() -> None:
    assert count_refused_and_paused_startups("192.0.2.9") == "3 0"


@pytest.mark.scales
def test_a_source_share_that_is_set_also_applies_to_loopback() -> None:
    assert count_refused_and_paused_startups("127.0.0.1", SIWARP_SOURCE_SHARE="75") == "3 0"


def test_the_error_of_a_reset_connect_mentions_the_source_share() -> None:
    which = mock.Mock(_dest=("192.0.2.9", 7))
    event = CMEvent(
        type=CMEventType.CONNECT_ERROR, id=which, listen_id=None, status=errno.ECONNRESET, rev=2,
        crc=True, markers=False, peer_to_peer=RTR.NONE, initiator_depth=0, responder_resources=0,
        peer_ird=None, peer_ord=None, wire_error=0, private_data=b"", qpn=0, qkey=0,
    )  # fmt: skip
    with pytest.raises(PeerGone, match=r"to 192\.0\.2\.9 port 7.*SIWARP_SOURCE_SHARE") as raised:
        event.check()
    assert raised.value.errno == errno.ECONNRESET
