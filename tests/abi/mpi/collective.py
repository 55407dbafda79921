"""Collective calls of mpi4py, each compared with NumPy's result for the same numbers."""

import numpy
from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size


def data_of_rank(rank, count):
    """Return the numbers of a rank, which every other rank can compute, too."""
    return numpy.random.default_rng(rank * 1000 + count).integers(-1000, 1000, count)


for count in (1, 1000, 60_000):
    every = [data_of_rank(rank, count) for rank in range(SIZE)]
    mine = every[RANK]
    for op, wanted in (
        (MPI.SUM, numpy.sum(every, axis=0)),
        (MPI.MAX, numpy.max(every, axis=0)),
        (MPI.MIN, numpy.min(every, axis=0)),
    ):
        out = numpy.zeros_like(mine)
        COMM.Allreduce(mine, out, op)
        assert numpy.array_equal(out, wanted), (count, op)
    # With floating point numbers the result depends on the order of summation, which MPI chooses.
    out = numpy.zeros(count)
    COMM.Allreduce(mine / 7.0, out)
    assert numpy.allclose(out, numpy.sum(every, axis=0) / 7.0)
    root = count % SIZE
    out = mine.copy() if root == RANK else numpy.zeros_like(mine)
    COMM.Bcast(out, root)
    assert numpy.array_equal(out, every[root])
    out = numpy.zeros((SIZE, count), dtype=mine.dtype)
    COMM.Allgather(mine, out)
    assert numpy.array_equal(out, every)
    out = numpy.zeros_like(mine)
    COMM.Scan(mine, out)
    assert numpy.array_equal(out, numpy.sum(every[: RANK + 1], axis=0))

count = 3000
table = numpy.array([[data_of_rank(a * SIZE + b, count) for b in range(SIZE)] for a in range(SIZE)])
out = numpy.zeros((SIZE, count), dtype=table.dtype)
COMM.Alltoall(table[RANK], out)
assert numpy.array_equal(out, table[:, RANK])
out = numpy.zeros(count, dtype=table.dtype)
COMM.Reduce_scatter_block(table[RANK], out)
assert numpy.array_equal(out, table.sum(axis=0)[RANK])

# The ranks contribute parts of different lengths, which only the root knows.
lengths = [100 * (rank + 1) for rank in range(SIZE)]
whole = numpy.concatenate([data_of_rank(rank, lengths[rank]) for rank in range(SIZE)])
out = numpy.zeros(len(whole), dtype=whole.dtype) if RANK == 0 else None
COMM.Gatherv(data_of_rank(RANK, lengths[RANK]), (out, lengths) if RANK == 0 else None)
assert RANK != 0 or numpy.array_equal(out, whole)
part = numpy.zeros(lengths[RANK], dtype=whole.dtype)
COMM.Scatterv((whole, lengths) if RANK == 0 else None, part)
assert numpy.array_equal(part, data_of_rank(RANK, lengths[RANK]))

half = COMM.Split(RANK % 2, -RANK)
assert half.allgather(RANK) == list(range(RANK % 2, SIZE, 2))[::-1]
waiting = COMM.Ibarrier()
waiting.Wait()
if COMM.allreduce(1) == SIZE and RANK == 0:
    print(f"collective of {SIZE} ranks: correct")
