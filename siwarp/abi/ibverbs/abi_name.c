/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_name.c - the complete content of libibverbs.so, a name that some programs open.
 * libibverbs.so depends on libibverbs.so.1, so that dlsym() finds all symbols.
 */
#include <infiniband/verbs.h>

/* A reference to libibverbs.so.1, without which the linker would drop the dependency. */
extern struct ibv_device **(*const siw_abi_needs)(int *num_devices);
struct ibv_device **(*const siw_abi_needs)(int *num_devices) = ibv_get_device_list;
