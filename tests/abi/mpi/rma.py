"""One-sided mpi4py: windows with fences, locks and post-start; put, get, accumulate, atomics."""

import numpy
from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
COUNT = 20_000


def data_of_rank(rank, seed):
    """Return the numbers that a rank puts into a window or exposes."""
    return numpy.arange(COUNT, dtype="f8") * 3 + rank * 1e6 + seed


window = MPI.Win.Allocate(COUNT * 8, 8, comm=COMM)
memory = numpy.frombuffer(window.tomemory(), dtype="f8")

# The source of a put must stay unchanged until the epoch ends.
mine = data_of_rank(RANK, 1)
memory[:] = 0
window.Fence()
window.Put(mine, NEXT)
window.Fence()
assert numpy.array_equal(memory, data_of_rank(BEFORE, 1))

came = numpy.zeros(COUNT)
memory[:] = data_of_rank(RANK, 2)
window.Fence()
window.Get(came, NEXT)
window.Fence()
assert numpy.array_equal(came, data_of_rank(NEXT, 2))

mine = data_of_rank(RANK, 3)
memory[:] = 0
window.Fence()
for rank in range(SIZE):
    window.Accumulate(mine, rank, op=MPI.SUM)
window.Fence()
assert numpy.array_equal(memory, sum(data_of_rank(rank, 3) for rank in range(SIZE)))

# With an exclusive lock one rank at a time accesses the window, without a call of the target.
memory[:] = 0
COMM.Barrier()
window.Lock(0, MPI.LOCK_EXCLUSIVE)
ten = numpy.full(10, float(RANK + 1))
window.Put(ten, 0, target=(RANK * 10, 10))
window.Unlock(0)
COMM.Barrier()
window.Lock(0, MPI.LOCK_SHARED)
came = numpy.zeros(SIZE * 10)
window.Get(came, 0, target=(0, SIZE * 10))
window.Flush(0)
window.Unlock(0)
assert numpy.array_equal(came, numpy.repeat(numpy.arange(1.0, SIZE + 1), 10))

# With post and start, only neighbouring ranks synchronize.
COMM.Barrier()
group = COMM.group
mine = data_of_rank(RANK, 4)
memory[:] = 0
COMM.Barrier()
window.Post(group.Incl([BEFORE]))
window.Start(group.Incl([NEXT]))
window.Put(mine, NEXT)
window.Complete()
window.Wait()
assert numpy.array_equal(memory, data_of_rank(BEFORE, 4))
window.Free()

# All ranks draw numbers from a shared counter: each number is drawn once.
counter = MPI.Win.Allocate(8 if RANK == 0 else 0, 8, comm=COMM)
if RANK == 0:
    numpy.frombuffer(counter.tomemory(), dtype="i8")[:] = 0
COMM.Barrier()
one, got, taken = numpy.ones(1, dtype="i8"), numpy.zeros(1, dtype="i8"), []
counter.Lock_all()
for _ in range(50):
    counter.Fetch_and_op(one, got, 0, op=MPI.SUM)
    counter.Flush(0)
    taken.append(int(got[0]))
counter.Unlock_all()
every = COMM.allgather(taken)
assert sorted(n for part in every for n in part) == list(range(50 * SIZE))
COMM.Barrier()
counter.Free()
if RANK == 0:
    print(f"rma of {SIZE} ranks: correct")
