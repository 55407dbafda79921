"""When the peer's process is killed, its channel ends with an error and releases everything."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest
from harness.descriptors import count_open_descriptors
from unit.aio.aio_harness import run_in_event_loop

from siwarp.ulp.adts import channel_rd
from siwarp.ulp.adts.channel import Cause, Channel, ChannelEnded, Limits
from siwarp.ulp.adts.channel_tcp import listen_tcp
from siwarp.ulp.adts.endpoints import open_acceptors, use_rendezvous_as_channel
from siwarp.ulp.adts.wire import UNIT_HEADER_SIZE
from siwarp.verbs import Context

HOST = "127.0.0.1"
UNIT = 65536
LIMITS = Limits(unit=UNIT, memory=64 * UNIT)

#: A client that opens the channel and sends units until it is killed.
CLIENT = """
import asyncio, json, sys
from siwarp.ulp.adts.channel import Invitation, Limits
from siwarp.ulp.adts.endpoints import connect_rendezvous, open_channel, use_rendezvous_as_channel

async def main(kind, where):
    if kind == "tcp":
        channel = await connect_rendezvous("tcp", ("127.0.0.1", where["port"]))
        use_rendezvous_as_channel(channel, 65536)
    else:
        where["token"] = bytes.fromhex(where["token"])
        channel = await open_channel(kind, "127.0.0.1", Invitation(**where), Limits(unit=65536))
    while True:
        unit = await channel.take_empty_unit()
        await channel.send(unit, 65536)
        while (received := channel.receive_nowait()) is not None:
            received.release()

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""


def start_client(kind: str, where: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CLIENT, kind, json.dumps(where)])


async def exchange_until_channel_ends(channel: Channel) -> ChannelEnded:
    """Send and receive until the channel ends; return how it ended."""

    async def send_units_without_end() -> None:
        while True:
            unit = await channel.take_empty_unit()
            await channel.send(unit, UNIT_HEADER_SIZE + 100)

    sending = asyncio.create_task(send_units_without_end())
    try:
        while True:
            (await channel.receive()).release()
    except ChannelEnded as ended:
        with pytest.raises(ChannelEnded):
            await sending
        return ended


@pytest.mark.parametrize("kind", ["rc", "rd", "tcp"])
def test_a_killed_peer_ends_the_channel_and_leaves_nothing_behind(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An RD queue pair detects only by silence that its peer has ended. (A session also has a
    # rendezvous.)
    monkeypatch.setattr(channel_rd, "SILENCE_S", 1.0)
    Context().close()  # the first device creates the counter page, which stays

    async def kill_peer_and_await_channel_end() -> None:
        before = count_open_descriptors()
        accepted: asyncio.Queue[Channel] = asyncio.Queue()
        listener = acceptors = None
        if kind == "tcp":
            listener = await listen_tcp((HOST, 0), accepted.put_nowait)
            client = start_client(kind, {"port": listener.address[1]})
        else:
            acceptors = await open_acceptors(HOST, LIMITS)
            acceptor = acceptors.rc if kind == "rc" else acceptors.rd
            invitation = acceptor.expect_peer(b"t" * 16, UNIT, 8, accepted.put_nowait)
            client = start_client(kind, asdict(invitation) | {"token": (b"t" * 16).hex()})
        try:
            channel = await accepted.get()
            if kind == "tcp":
                use_rendezvous_as_channel(channel, UNIT)
            for _ in range(20):
                (await channel.receive()).release()
            os.kill(client.pid, signal.SIGKILL)
            ended = await exchange_until_channel_ends(channel)
        finally:
            client.kill()
            client.wait()
        # The kernel closes the connections of a killed process, which may look like an orderly end:
        # only the record BYE says that a session is complete.
        if kind == "rd" or ended.cause is not Cause.PEER_CLOSED:
            assert ended.cause is Cause.LOST
            assert "repeat the transfer" in ended.reason
        await channel.close()
        if listener is not None:
            await listener.close()
        if acceptors is not None:
            pool = acceptors._device.pool
            receives = acceptor._get_or_create_receives(UNIT)[0]  # type: ignore[attr-defined]
            assert (receives.reserved, receives.posted) == (0, receives.total)
            assert pool.free_count + receives.total == pool.size
            await acceptors.close()
        assert count_open_descriptors() == before

    run_in_event_loop(kill_peer_and_await_channel_end)
