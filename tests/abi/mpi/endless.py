"""Each mpi4py rank sends to the next one and receives forever, until a test kills a rank."""

import numpy
from mpi4py import MPI

COMM = MPI.COMM_WORLD
came = numpy.zeros(1000, dtype="i8")
while True:
    COMM.Sendrecv(came, (COMM.rank + 1) % COMM.size, 1, came.copy(), MPI.ANY_SOURCE, 1)
