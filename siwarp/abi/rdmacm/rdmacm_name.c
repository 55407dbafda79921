/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm/rdmacm_name.c - the complete content of librdmacm.so, a name that some programs open; see
 * abi_name.c.
 */
#include <rdma/rdma_cma.h>

/* A reference to librdmacm.so.1, without which the linker would drop the dependency. */
extern struct rdma_event_channel *(*const siw_rdmacm_needs)(void);
struct rdma_event_channel *(*const siw_rdmacm_needs)(void) = rdma_create_event_channel;
