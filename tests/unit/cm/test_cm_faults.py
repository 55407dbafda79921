"""Connections under fault plans: the data is correct, or both ends get an error."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pace
import pytest
from harness.verbs_harness import Pair, Rig, counter_value, octet_pattern, poll
from pace import scale_limit

import siwarp
from siwarp.verbs import Error, RecvWR, SendWR

SIZE = 300_000
#: Seconds after which an operation counts as hanging, scaled by the fixture
#: scale_connection_time_limits.
PATIENCE = 30.0

pytestmark = pytest.mark.scales


@pytest.fixture(autouse=True)
def scale_connection_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scale the time limits of connections, which only serve to detect hangs."""
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE", scale_limit(PATIENCE))


class EchoServer(threading.Thread):
    """A peer that offers memory and echoes messages until an empty message or an error."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = siwarp.listen(("127.0.0.1", 0), recv_size=SIZE)
        self.port = self.listener.address[1]
        self.error: OSError | None = None
        self.start()

    def run(self) -> None:
        try:
            with self.listener, self.listener.accept(PATIENCE) as conn:
                memory = conn.register(SIZE)
                conn.send(memory.remote().pack(), PATIENCE)
                while got := conn.recv(PATIENCE):
                    conn.send(got, PATIENCE)
        except OSError as e:
            self.error = e


@contextlib.contextmanager
def echo_server(plan: str) -> Iterator[EchoServer]:
    before = threading.active_count()
    with siwarp.faults(plan):
        echo = EchoServer()
        try:
            yield echo
        finally:
            echo.join(PATIENCE)
            assert not echo.is_alive()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "plan",
    [
        "delay=3ms,jitter=2ms",
        "short=40%",
        "rate=200Mbit",
        "blackout=200ms@0s",
        "tx:delay=2ms,limit=30KB; rx:short=30%",
        "rx:rate=300Mbit,delay=1ms,short=20%",
    ],
)
def test_data_is_correct_under_every_fault_of_a_tcp_stream(plan: str) -> None:
    data = octet_pattern(SIZE, 3)
    with (
        echo_server(plan) as echo,
        siwarp.connect(("127.0.0.1", echo.port), recv_size=SIZE, timeout=PATIENCE) as conn,
    ):
        there = siwarp.RemoteBuffer.unpack(conn.recv(PATIENCE))
        conn.send(data, PATIENCE)
        assert conn.recv(PATIENCE) == data
        conn.write(there, data, timeout=PATIENCE)
        assert conn.read(there, SIZE, timeout=PATIENCE) == data
        conn.send(b"", PATIENCE)
    assert echo.error is None


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_corruption_is_detected_by_crc_and_ends_the_connection_with_a_terminate(way: str) -> None:
    errors, terminates = counter_value("crc_errors"), counter_value("terminate_tx")
    data = octet_pattern(SIZE, 3)
    # Start-up frames have no CRC, so the fault plan is set only after start-up.
    with (
        echo_server("seed=1") as echo,
        siwarp.connect(("127.0.0.1", echo.port), recv_size=SIZE, timeout=PATIENCE) as conn,
    ):
        conn.recv(PATIENCE)
        plan = f"{way}:corrupt=5%,peer=127.0.0.1:{echo.port}"
        with siwarp.faults(plan), pytest.raises(Error) as told:
            for _ in range(50):
                conn.send(data, PATIENCE)
                assert conn.recv(PATIENCE) == data
    assert counter_value("fault_corrupt") > 0
    assert counter_value("crc_errors") > errors
    assert counter_value("terminate_tx") > terminates
    assert "CRC" in str(told.value) or "connection" in str(told.value)


@pytest.mark.parametrize("plan", ["tx:reset=250KB", "rx:reset=250KB", "reset=30ms"])
def test_a_tcp_reset_ends_the_connection_with_peer_gone_at_both_ends(plan: str) -> None:
    before = counter_value("fault_reset")
    data = octet_pattern(SIZE, 3)
    with (
        echo_server("seed=1") as echo,
        siwarp.connect(("127.0.0.1", echo.port), recv_size=SIZE, timeout=PATIENCE) as conn,
    ):
        conn.recv(PATIENCE)
        with siwarp.faults(f"{plan},peer=127.0.0.1:{echo.port}"):
            with pytest.raises(Error) as told:
                for _ in range(1000):
                    conn.send(data, PATIENCE)
                    assert conn.recv(PATIENCE) == data
            echo.join(PATIENCE)
    assert counter_value("fault_reset") == before + 1
    assert isinstance(told.value, siwarp.PeerGone), told.value
    assert isinstance(echo.error, siwarp.PeerGone), echo.error


@pytest.mark.parametrize("sleeping", [False, True])
def test_a_ud_message_delayed_by_a_fault_plan_arrives_after_its_delay(
    rig: Rig, sleeping: bool
) -> None:
    pair = Pair(rig)
    channel = rig.create_channel()
    cq = rig.create_cq(channel=channel)
    b = rig.create_ud_qp(scq=pair.idle, rcq=cq, addr=("127.0.0.1", 0))
    b.post_recv(RecvWR(1, sg=[pair.into.sge(0, 64)]))
    with rig.create_ah(b) as ah, siwarp.faults("tx:delay=40ms"):
        began = time.monotonic()
        pair.a.post_send(SendWR(2, sg=[pair.out.sge(0, 8)], ah=ah, send_flags=0))
        assert len(cq.wait(PATIENCE, 1) if sleeping else poll(cq)) == 1
        assert time.monotonic() - began >= 0.04


CHILD_PROGRAM = """
import sys
from siwarp.verbs import Context
try:
    Context("127.0.0.1").close()
except OSError as e:
    print(e.errno, e)
else:
    import siwarp.verbs.fault_plan as f
    print("plan", f._current_fault_plan())
"""


def run_child_with_faults(plan: str) -> subprocess.CompletedProcess[str]:
    return pace.run_command(
        [sys.executable, "-c", CHILD_PROGRAM],
        capture_output=True,
        text=True,
        seconds=60,
        env={**os.environ, "SIWARP_FAULTS": plan},
        check=True,
    )


def test_siwarp_faults_sets_a_plan_and_with_an_invalid_plan_no_device_opens() -> None:
    assert run_child_with_faults("loss=1%; rx:dup=2%").stdout == "plan loss=1%;rx:dup=2%\n"
    done = run_child_with_faults("loss=1%;delay=x")
    assert done.stdout.startswith("22 ")
    assert 'SIWARP_FAULTS is not a valid fault plan: clause 2, character 15: "x"' in done.stderr


def test_the_error_of_an_invalid_fault_plan_has_the_position_and_plans_can_nest() -> None:
    with siwarp.faults("loss=1%") as outer:
        assert outer == "loss=1%"
        with pytest.raises(Error, match="clause 1, character 7"), siwarp.faults("delay=1"):
            pass
        with siwarp.faults("delay=0.1ms") as inner:
            assert inner == "delay=100us"
