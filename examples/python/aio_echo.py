"""Many connections in one event loop: an echo server, and a client with a hundred connections.

python aio_echo.py                       prints its port, serves until a client sends "stop"
python aio_echo.py 127.0.0.1 PORT
"""

import asyncio
import contextlib
import sys

from siwarp import PeerGone, aio

small = {"recv_size": 1024, "recv_depth": 4}


async def serve_clients() -> None:
    async with aio.listen(("127.0.0.1", 0), **small) as listener:
        print(listener.address[1], flush=True)
        served = 0

        async def echo_messages(conn: aio.Connection) -> None:
            nonlocal served
            async with conn:
                async for message in conn:
                    if message == b"stop":
                        await listener.close()  # ends the loop that accepts connections
                        return
                    await conn.send(message[::-1])
                    served += 1

        talks = [asyncio.create_task(echo_messages(conn)) async for conn in listener]
        await asyncio.gather(*talks)
        print(f"answered {served} on {len(talks)} connections")


async def exchange_message(address: tuple[str, int], number: int) -> bytes:
    async with aio.connect(address, **small) as conn:
        await conn.send(f"hello from {number}".encode())
        return await asyncio.wait_for(conn.recv(), 20)


async def run_client(host: str, port: int) -> None:
    answers = await asyncio.gather(*(exchange_message((host, port), n) for n in range(100)))
    print(len(answers), "answers, the last one", answers[-1].decode())
    async with aio.connect((host, port)) as conn:
        await conn.send(b"stop")
        with contextlib.suppress(PeerGone):
            await conn.recv()  # recv() returns when the server has disconnected


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(run_client(sys.argv[1], int(sys.argv[2])))
    elif len(sys.argv) == 1:
        asyncio.run(serve_clients())
    else:
        sys.exit(__doc__)
