"""Point-to-point calls of mpi4py: blocking, non-blocking and persistent, buffers and objects."""

import numpy
from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def make_numbers_of_rank(rank, count, seed):
    """Return numbers that identify their rank and their position."""
    return numpy.arange(count, dtype="i8") * 7919 + rank * 104729 + seed


def check_received_pattern(came, count, seed):
    """Compare the received data with the pattern of the previous rank."""
    assert numpy.array_equal(came[:count], make_numbers_of_rank(BEFORE, count, seed)), (
        RANK,
        count,
        seed,
    )


for size in (1, 100, 1024, 8192, 100_000, 500_000):
    came = numpy.zeros(size, dtype="i8")
    COMM.Sendrecv(make_numbers_of_rank(RANK, size, 1), NEXT, 1, came, BEFORE, 1)
    check_received_pattern(came, size, 1)
    # A synchronous send completes when the receive has started.
    sent = COMM.Issend(make_numbers_of_rank(RANK, size, 2), NEXT, 2)
    COMM.Recv(came, BEFORE, 2)
    sent.Wait()
    check_received_pattern(came, size, 2)

# Many messages are in flight at the same time and received in a different order.
out = [make_numbers_of_rank(RANK, 2000, tag) for tag in range(50)]
into = [numpy.zeros(2000, dtype="i8") for _ in range(50)]
requests = [COMM.Irecv(into[tag], BEFORE, 100 + tag) for tag in reversed(range(50))]
requests += [COMM.Isend(out[tag], NEXT, 100 + tag) for tag in range(50)]
MPI.Request.Waitall(requests)
for tag in range(50):
    check_received_pattern(into[tag], 2000, tag)

# Persistent requests, and a message whose length its receiver probes before receiving it.
mine, came = make_numbers_of_rank(RANK, 5000, 3), numpy.zeros(5000, dtype="i8")
pair = [COMM.Recv_init(came, BEFORE, 3), COMM.Send_init(mine, NEXT, 3)]
for _ in range(20):
    came[:] = 0
    MPI.Prequest.Startall(pair)
    MPI.Request.Waitall(pair)
    check_received_pattern(came, 5000, 3)
for request in pair:
    request.Free()
sent = COMM.Isend(make_numbers_of_rank(RANK, RANK + 1, 4), NEXT, 4)
status = MPI.Status()
COMM.Probe(BEFORE, 4, status)
assert status.Get_count(MPI.INT64_T) == BEFORE + 1
COMM.Recv(came, BEFORE, 4)
sent.Wait()
check_received_pattern(came, BEFORE + 1, 4)

told = COMM.sendrecv({"rank": RANK, "text": "x" * 70_000}, NEXT, 5, None, BEFORE, 5)
assert told == {"rank": BEFORE, "text": "x" * 70_000}
if COMM.allreduce(1) == SIZE and RANK == 0:
    print(f"p2p of {SIZE} ranks: correct")
