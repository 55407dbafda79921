"""Requests of an RC queue pair are flushed when the process of its peer is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from harness.flush_harness import assert_all_flushed
from harness.rc_harness import SEND, End, ListenerAndConnector

from siwarp.cm import CMEventType
from siwarp.verbs import QPAttr, QPState

PEER = """
import signal, sys
from siwarp import cm
conn = cm.connect((sys.argv[1], int(sys.argv[2])))
print("up", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_killing_the_peers_process_flushes_all_posted_sends_and_receives(
    two_device_connector: ListenerAndConnector, how: signal.Signals
) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            PEER,
            two_device_connector.address[0],
            str(two_device_connector.address[1]),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as peer:
        try:
            request = two_device_connector.next_connection_request(
                60 if "SANITIZER" in os.environ else 20
            )
            b = End(
                two_device_connector.passive,
                request.id,
                two_device_connector.p_channel,
                size=1 << 12,
            )
            b.id.accept()
            assert b.next_cm_event().type == CMEventType.ESTABLISHED
            assert peer.stdout is not None and peer.stdout.readline() == "up\n"
            b.qp.modify(QPAttr(qp_state=QPState.SQD))
            for i in range(4):
                b.post_receive(wr_id=10 + i)
                b.post(SEND, 20 + i, length=8, flags=i % 2 * 2)
            peer.send_signal(how)
            assert_all_flushed(b)
            assert b.next_cm_event().type == CMEventType.DISCONNECTED
        finally:
            with contextlib.suppress(ProcessLookupError):
                peer.kill()
