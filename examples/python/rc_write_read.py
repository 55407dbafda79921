"""One process offers memory; another writes and reads it without action by the first.

python rc_write_read.py                  prints its port, offers memory to one client
python rc_write_read.py 127.0.0.1 PORT
"""

import sys

import siwarp


def serve_memory() -> None:
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        print(listener.address[1], flush=True)
        with listener.accept() as conn:
            memory = conn.register(bytearray(b"what was here before".ljust(64)))
            conn.send(memory.remote().pack())  # address, length and STag of the memory
            print("client says", conn.recv().decode())
            print("memory has", memory.read().rstrip().decode())


def read_and_write_remote_memory(host: str, port: int) -> None:
    with siwarp.connect((host, port)) as conn:
        there = siwarp.RemoteBuffer.unpack(conn.recv())
        print("read:", conn.read(there, length=20).decode())
        conn.write(there, b"what is here now    ")
        print("read:", conn.read(there, length=16).decode())
        conn.send(b"done")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        read_and_write_remote_memory(sys.argv[1], int(sys.argv[2]))
    elif len(sys.argv) == 1:
        serve_memory()
    else:
        sys.exit(__doc__)
