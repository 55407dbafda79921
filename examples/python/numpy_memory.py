"""NumPy arrays as RDMA memory, without copies: rows of a matrix are read, changed and written.

python numpy_memory.py                  prints its port, offers a matrix to one client
python numpy_memory.py 127.0.0.1 PORT
"""

import sys

import numpy as np

import siwarp

ROWS, COLUMNS = 4, 1000


def serve_matrix() -> None:
    matrix = np.arange(ROWS * COLUMNS, dtype=np.float64).reshape(ROWS, COLUMNS)
    with siwarp.listen(("127.0.0.1", 0)) as listener:
        print(listener.address[1], flush=True)
        with listener.accept() as conn:
            conn.send(conn.register(matrix).remote().pack())
            conn.recv()  # wait until the client has changed the array by RDMA Writes
    print("sum of each row:", matrix.sum(axis=1).tolist())


def normalize_rows_by_rdma(host: str, port: int) -> None:
    row = np.empty(COLUMNS)
    with siwarp.connect((host, port)) as conn:
        there = siwarp.RemoteBuffer.unpack(conn.recv())
        for i in range(ROWS):
            conn.read_into(there, row, offset=i * row.nbytes)
            row /= row.sum()
            conn.write(there, row, offset=i * row.nbytes)
        conn.send(b"done")
    print("normalized", ROWS, "rows")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        normalize_rows_by_rdma(sys.argv[1], int(sys.argv[2]))
    elif len(sys.argv) == 1:
        serve_matrix()
    else:
        sys.exit(__doc__)
