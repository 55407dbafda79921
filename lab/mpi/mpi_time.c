/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <mpi.h>

#include "lab/mpi/mpi_time.h"

static double seconds;
static long long calls;

void communication_reset_statistics(void)
{
	seconds = 0;
	calls = 0;
}

double communication_seconds(void)
{
	return seconds;
}

long long communication_call_count(void)
{
	return calls;
}

/* Calls a function of MPI by its second name (PMPI_) and adds the duration of the call. */
#define TIMED(call)                      \
	double began = PMPI_Wtime();     \
	int err = (call);                \
                                         \
	seconds += PMPI_Wtime() - began; \
	calls++;                         \
	return err

int MPI_Send(const void *buf, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
	TIMED(PMPI_Send(buf, n, type, to, tag, comm));
}

int MPI_Recv(void *buf, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
	     MPI_Status *status)
{
	TIMED(PMPI_Recv(buf, n, type, from, tag, comm, status));
}

int MPI_Isend(const void *buf, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
	      MPI_Request *request)
{
	TIMED(PMPI_Isend(buf, n, type, to, tag, comm, request));
}

int MPI_Irecv(void *buf, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm,
	      MPI_Request *request)
{
	TIMED(PMPI_Irecv(buf, n, type, from, tag, comm, request));
}

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
	TIMED(PMPI_Wait(request, status));
}

int MPI_Waitall(int n, MPI_Request requests[], MPI_Status statuses[])
{
	TIMED(PMPI_Waitall(n, requests, statuses));
}

int MPI_Sendrecv(const void *out, int outs, MPI_Datatype out_type, int to, int out_tag, void *in,
		 int ins, MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm,
		 MPI_Status *status)
{
	TIMED(PMPI_Sendrecv(out, outs, out_type, to, out_tag, in, ins, in_type, from, in_tag, comm,
			    status));
}

int MPI_Allreduce(const void *out, void *in, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
	TIMED(PMPI_Allreduce(out, in, n, type, op, comm));
}

int MPI_Barrier(MPI_Comm comm)
{
	TIMED(PMPI_Barrier(comm));
}
