"""A device that is closed by force, with whatever children it has (``siw_close_device_forced``)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pace import scaled
from unit.verbs.rc_harness import SEND, Wire
from unit.verbs.verbs_harness import Rig, poll

from siwarp._siwarp import lib
from siwarp.cm import CMEventType


def test_threads_leave_their_waits_and_every_handle_is_stale(build_dir: Path) -> None:
    done = subprocess.run(
        [build_dir / "tests/c/siw-test-forced"],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_what_completed_before_reaches_the_peer(size: int) -> None:
    active, passive = Rig("siw_lo"), Rig("siw_lo")
    a, b = Wire(active, passive).connect(size=size)
    data = os.urandom(size)
    a.mem.write(data)
    b.recv(7)
    a.post(SEND, length=size)
    assert poll(a.scq)[0].ok
    assert lib.siw_close_device_forced(active.ctx._live()) == 0
    wc = poll(b.rcq)[0]
    assert wc.ok and b.mem.read(size) == data
    assert b.event().type == CMEventType.DISCONNECTED
    passive.close()
