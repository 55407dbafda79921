"""The pairs of connected endpoints of siwarp.testing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import get_args

import pytest
from pace import scale_limit

from siwarp import Error, PeerGone, ProtocolError, StateError, Timeout, faults
from siwarp.testing import Kind, aio_pair, pair
from siwarp.verbs import MR, Context, QPState, RecvWR, SendWR, WROpcode

KINDS = get_args(Kind)
pytestmark = pytest.mark.scales


@pytest.fixture
def time_limit() -> float:
    return scale_limit(10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_of_a_pair_arrives_in_either_direction(kind: Kind, time_limit: float) -> None:
    with pair(kind) as (a, b):
        a.send(b"to b", time_limit)
        b.send(bytearray(b"to a"), time_limit)
        a.send(b"", time_limit)
        assert b.recv(time_limit) == b"to b"
        assert a.recv(time_limit) == b"to a"
        assert b.recv(time_limit) == b""


@pytest.mark.parametrize("kind", KINDS)
def test_more_messages_of_a_pair_arrive_than_receives_are_posted(
    kind: Kind, time_limit: float
) -> None:
    with pair(kind, receives=2, recv_size=8) as (a, b):
        for i in range(9):
            a.send(b"%d" % i, time_limit)
            assert b.recv(time_limit) == b"%d" % i


@pytest.mark.parametrize("kind", ["rc", "rd", "uc"])
def test_an_end_of_a_pair_writes_memory_of_its_peer(kind: Kind, time_limit: float) -> None:
    with pair(kind, size=64) as (a, b):
        a.write(b"written", 8, time_limit)
        a.send(b"done", time_limit)
        assert b.recv(time_limit) == b"done"
        assert b.mr.read(7, 8) == b"written"


@pytest.mark.parametrize("kind", ["rc", "rd"])
def test_an_end_of_a_pair_reads_memory_of_its_peer(kind: Kind, time_limit: float) -> None:
    with pair(kind) as (a, b):
        b.mr.write(b"there", offset=100)
        assert a.read(5, 100, time_limit) == b"there"


def test_an_access_beyond_the_memory_of_the_peer_raises_a_value_error() -> None:
    with pair(size=16) as (a, _), pytest.raises(ValueError, match="not inside this MR of 16"):
        a.write(b"x", 16)


@pytest.mark.parametrize("kind", ["ud", "rd"])
def test_a_program_may_post_its_own_requests_to_a_pair(kind: Kind, time_limit: float) -> None:
    with pair(kind, receives=0) as (a, b):
        b.qp.post_recv(RecvWR(7, sg=[b.mr.sge(0, 16)]))
        a.mr.write(b"mine")
        a.qp.post_send(SendWR(8, sg=[a.mr.sge(0, 4)], ah=a.ah))
        assert [wc.check().wr_id for wc in a.wait(1, time_limit)] == [8]
        assert [wc.check().byte_len for wc in b.wait(1, time_limit)] == [4]
        with pytest.raises(StateError, match="receives=0"):
            b.recv()


def test_completions_of_posted_requests_and_of_sends_are_kept_separate(time_limit: float) -> None:
    with pair() as (a, b):
        a.qp.post_send(SendWR(5, sg=[a.mr.sge(0, 3)]))
        b.send(b"for a", time_limit)
        a.send(b"second", time_limit)
        assert [wc.wr_id for wc in a.wait(1, time_limit)] == [5]
        assert a.recv(time_limit) == b"for a"
        assert b.recv(time_limit) == bytes(3)


def test_a_pair_remains_usable_after_a_receive_timed_out(time_limit: float) -> None:
    with pair("ud") as (a, b):
        with pytest.raises(Timeout, match="receiving: timed out after 0"):
            b.recv(0)
        with faults("loss=100%"):
            a.send(b"lost", time_limit)
        a.send(b"after", time_limit)
        assert b.recv(time_limit) == b"after"


def test_a_pair_remains_usable_after_a_send_timed_out(time_limit: float) -> None:
    with pair("rd", receives=0) as (a, b):
        with pytest.raises(Timeout, match="SEND of 4 octets"):
            a.send(b"late", 0)
        b.qp.post_recv(RecvWR(1, sg=[b.mr.sge(0, 16)]))
        assert b.wait(1, time_limit)[0].check().byte_len == 4
        b.qp.post_recv(RecvWR(2, sg=[b.mr.sge(0, 16)]))
        a.send(b"next", time_limit)
        assert b.wait(1, time_limit)[0].check().wr_id == 2


def test_a_closed_end_of_a_pair_is_gone_for_its_peer(time_limit: float) -> None:
    with pair() as (a, b):
        a.close()
        a.close()
        with pytest.raises(PeerGone, match="receiving: the connection has ended"):
            b.recv(time_limit)


def test_a_message_without_a_receive_ends_the_connection_of_an_iwarp_pair(
    time_limit: float,
) -> None:
    with pair(receives=0) as (a, b):
        a.send(b"too early", time_limit)
        with pytest.raises((ProtocolError, PeerGone)):
            for _ in range(10_000):
                b.cq.poll()
                a.send(b"more", time_limit)


def test_a_given_device_stays_open_and_a_device_is_opened_for_an_address(time_limit: float) -> None:
    with Context() as device:
        for _ in range(2):
            with pair("rc", device) as (a, b):
                assert a.device is b.device is device
                assert a.qp.qp_state == QPState.RTS
        assert not device.closed
    with pair("ud", "::1") as (a, b):
        a.send(b"6", time_limit)
        assert b.recv(time_limit) == b"6"
        assert a.qp.addr[0] == "::1"


def test_objects_left_open_are_closed_with_the_pair() -> None:
    with pair() as (a, _):
        mr = MR(a.pd, 16)
    assert mr.closed


def test_an_unknown_kind_of_pair_and_an_invalid_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="'tcp': use one of rc, uc, ud, rd"), pair("tcp"):  # type: ignore[arg-type]
        pass
    with pytest.raises(Error, match="max_cqe"), pair(receives=1 << 30):
        pass


@pytest.mark.parametrize("kind", ["uc", "ud"])
def test_an_rdma_read_on_uc_and_ud_pairs_is_refused_by_name(kind: Kind) -> None:
    with pair(kind) as (a, _), pytest.raises(OSError, match=WROpcode.RDMA_READ.name):
        a.read(4)


def test_an_asyncio_pair_exchanges_a_message(time_limit: float) -> None:
    async def exchange_message() -> bytes:
        async with aio_pair() as (a, b):
            await a.send(b"hello")
            return await asyncio.wait_for(b.recv(), time_limit)

    assert asyncio.run(exchange_message()) == b"hello"


def test_pairs_can_be_used_without_pytest() -> None:
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from siwarp.testing import pair\n"
        "with pair('rd') as (a, b):\n    a.send(b'x'); print(b.recv())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("b'x'\n", "")


def test_a_simulated_pair_is_refused_in_a_real_process_with_advice() -> None:
    advice = r"import siwarp\.sim first, or set SIWARP_SIM=1"
    with pytest.raises(RuntimeError, match=advice), pair("rc", sim=True):
        pass


def test_a_simulated_pair_without_the_simulator_raises_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "siwarp.sim", None)
    advice = r"siwarp\.sim, .*, is not installed: pip install 'siwarp\[sim\]'"
    with pytest.raises(ModuleNotFoundError, match=advice), pair("rc", sim=True):
        pass


def test_one_line_makes_the_process_simulated_and_connects_a_pair() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from siwarp.testing import pair\n"
            "with pair('rc', sim=True) as (a, b):\n"
            "    a.send(b'hello')\n    print(b.recv(), a.world is b.world)\n",
        ],
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("b'hello' True\n", "")
