/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/abi_name.c - all of libibverbs.so, the name that some programs open. It needs libibverbs.so.1,
 * in which dlsym() then finds everything.
 */
#include <infiniband/verbs.h>

/* A reference, without which the linker would drop the need. */
extern struct ibv_device **(*const siw_abi_needs)(int *num_devices);
struct ibv_device **(*const siw_abi_needs)(int *num_devices) = ibv_get_device_list;
