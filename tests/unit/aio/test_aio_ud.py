"""UD in asyncio: messages arrive with their source."""

from __future__ import annotations

import asyncio
import socket

import pytest
from scapy.packet import Raw
from unit.aio.aio_harness import cancel_and_wait, run_in_event_loop, wait_until_async

from siwarp import Error, LimitError, StateError, aio
from siwarp.inspect import DDPDatagram, UDDatagram
from siwarp.verbs import AH, CQ, MR, QP, WC, QPInitAttr, QPType, RecvWR, SendWR


def test_messages_received_by_a_ud_endpoint_have_their_source() -> None:
    async def exchange_messages_and_check_sources() -> None:
        async with aio.open_ud() as server, aio.open_ud() as a, aio.open_ud() as b:

            async def echo_reversed() -> None:
                async for data, source in server:
                    await server.send(data[::-1], source)

            serving = asyncio.create_task(echo_reversed())
            for end, text in ((a, b"abc"), (b, b"xyz"), (a, b""), (b, bytes(range(200)) * 10)):
                await end.send(text, server.address)
                assert await end.recv() == (text[::-1], server.address)
            await cancel_and_wait(serving)

    run_in_event_loop(exchange_messages_and_check_sources)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_each_ud_message_of_many_tasks_arrives_once(host: str) -> None:
    async def send_messages_from_many_tasks() -> None:
        async with aio.open_ud((host, 0), recv_depth=256) as a, aio.open_ud((host, 0)) as b:
            await asyncio.gather(*(b.send(b"%d" % i, a.address) for i in range(200)))
            got = [await a.recv() for _ in range(200)]
            assert sorted(int(d.data) for d in got) == list(range(200))
            assert {d.source for d in got} == {b.address}

    run_in_event_loop(send_messages_from_many_tasks)


def test_a_cancelled_ud_receive_loses_no_message_and_a_message_too_long_is_dropped() -> None:
    async def cancel_receives_and_send_long_messages() -> None:
        async with aio.open_ud(recv_size=100, recv_depth=4) as a, aio.open_ud() as b:
            for i in range(20):
                receiving = asyncio.create_task(a.recv())
                await asyncio.sleep(0)
                await b.send(bytes(101), a.address)
                await b.send(b"%d" % i, a.address)
                await cancel_and_wait(receiving)
                got = await a.recv() if receiving.cancelled() else receiving.result()
                assert got.data == b"%d" % i

    run_in_event_loop(cancel_receives_and_send_long_messages)


def test_a_ud_answer_reaches_the_queue_pair_that_sent_the_query_on_a_shared_socket() -> None:
    async def reply_to_qps_sharing_a_socket() -> None:
        async with aio.open_ud() as server, aio.open_ud() as first:
            cq = CQ(first.pd.context, 16)
            init = QPInitAttr(QPType.UD, scq=cq, shared_socket_qp=first.qp)
            second = QP(first.pd, init)
            second.to_rts()
            memory = MR(first.pd, 64)
            second.post_recv(RecvWR(7, sg=[memory.sge()]))
            second.post_send(SendWR(1, ah=AH(first.pd, server.address)))
            asked = await server.recv()
            assert (asked.source, asked.qpn) == (first.address, second.qp_num)
            assert asked.qpn >> 16 == 1
            await server.send(b"for whom it is", asked.source, qpn=asked.qpn)
            got: list[WC] = []
            await wait_until_async(lambda: got.extend(cq.poll(2)) or len(got) == 2)
            (wc,) = (wc for wc in got if wc.wr_id == 7)
            assert memory.read(wc.byte_len) == b"for whom it is"
            # Without a queue pair number, the first queue pair of the socket gets the message.
            await server.send(b"for the first", asked.source)
            assert (await first.recv()).data == b"for the first"
            second.close()

    run_in_event_loop(reply_to_qps_sharing_a_socket)


@pytest.mark.clause("DGRAM-ERR-15")
def test_protocol_errors_of_a_peer_with_the_q_key_leave_a_ud_endpoint_usable() -> None:
    async def receive_after_protocol_errors() -> None:
        async with aio.open_ud() as end, aio.open_ud() as good:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bad:
                for fields in ({"opcode": 4}, {"opcode": 15}, {"l": 0}, {"mo": 1}):
                    wrong = UDDatagram(segment=DDPDatagram(**fields) / Raw(b"wrong"))
                    bad.sendto(bytes(wrong), end.address)
            await good.send(b"good", end.address)
            assert (await end.recv()).data == b"good"

    run_in_event_loop(receive_after_protocol_errors)


def test_invalid_sends_raise_errors_and_leave_a_ud_endpoint_usable() -> None:
    async def send_after_invalid_sends() -> None:
        async with aio.open_ud() as end:
            with pytest.raises(LimitError):
                await end.send(bytes(65500), end.address)
            with pytest.raises(LimitError):
                await end.send(bytes(70000), end.address)
            await end.send(b"to itself", end.address)
            assert await end.recv() == (b"to itself", end.address)
            with pytest.raises(Error):
                await aio.open_ud(end.address)
        with pytest.raises(StateError):
            await end.recv()
        with pytest.raises(StateError):
            await end.send(b"x", ("127.0.0.1", 1))

    run_in_event_loop(send_after_invalid_sends)
