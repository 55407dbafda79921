/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_private.c - the functions that rdma-core exports for its providers, in the symbol
 * versions named PRIVATE.
 *
 * Programs of Linux distributions are linked with provider libraries (libmlx5, libefa), which bind
 * these functions when they are loaded. Registering a provider has no effect, because siwarp has no
 * devices of providers. The functions that would drive a device are therefore never called, and
 * return EOPNOTSUPP.
 *
 * Each release of rdma-core that changes this interface has a separate PRIVATE symbol version with
 * the same function names. Provider libraries of all these releases must be loadable.
 */
#include "abi/ibverbs/abi.h"

/* Functions of rdma-core that pass a command to the kernel driver */
#define COMMANDS(X)                       \
	X(execute_ioctl)                  \
	X(ibv_cmd_advise_mr)              \
	X(ibv_cmd_alloc_dm)               \
	X(ibv_cmd_alloc_mw)               \
	X(ibv_cmd_alloc_pd)               \
	X(ibv_cmd_attach_mcast)           \
	X(ibv_cmd_close_xrcd)             \
	X(ibv_cmd_create_ah)              \
	X(ibv_cmd_create_counters)        \
	X(ibv_cmd_create_cq)              \
	X(ibv_cmd_create_cq_ex)           \
	X(ibv_cmd_create_flow)            \
	X(ibv_cmd_create_flow_action_esp) \
	X(ibv_cmd_create_qp)              \
	X(ibv_cmd_create_qp_ex)           \
	X(ibv_cmd_create_qp_ex2)          \
	X(ibv_cmd_create_rwq_ind_table)   \
	X(ibv_cmd_create_srq)             \
	X(ibv_cmd_create_srq_ex)          \
	X(ibv_cmd_create_wq)              \
	X(ibv_cmd_dealloc_mw)             \
	X(ibv_cmd_dealloc_pd)             \
	X(ibv_cmd_dereg_mr)               \
	X(ibv_cmd_destroy_ah)             \
	X(ibv_cmd_destroy_counters)       \
	X(ibv_cmd_destroy_cq)             \
	X(ibv_cmd_destroy_flow)           \
	X(ibv_cmd_destroy_flow_action)    \
	X(ibv_cmd_destroy_qp)             \
	X(ibv_cmd_destroy_rwq_ind_table)  \
	X(ibv_cmd_destroy_srq)            \
	X(ibv_cmd_destroy_wq)             \
	X(ibv_cmd_detach_mcast)           \
	X(ibv_cmd_free_dm)                \
	X(ibv_cmd_get_context)            \
	X(ibv_cmd_modify_cq)              \
	X(ibv_cmd_modify_flow_action_esp) \
	X(ibv_cmd_modify_qp)              \
	X(ibv_cmd_modify_qp_ex)           \
	X(ibv_cmd_modify_srq)             \
	X(ibv_cmd_modify_wq)              \
	X(ibv_cmd_open_qp)                \
	X(ibv_cmd_open_xrcd)              \
	X(ibv_cmd_poll_cq)                \
	X(ibv_cmd_post_recv)              \
	X(ibv_cmd_post_send)              \
	X(ibv_cmd_post_srq_recv)          \
	X(ibv_cmd_query_context)          \
	X(ibv_cmd_query_device_any)       \
	X(ibv_cmd_query_mr)               \
	X(ibv_cmd_query_port)             \
	X(ibv_cmd_query_qp)               \
	X(ibv_cmd_query_srq)              \
	X(ibv_cmd_read_counters)          \
	X(ibv_cmd_reg_dm_mr)              \
	X(ibv_cmd_reg_dmabuf_mr)          \
	X(ibv_cmd_reg_mr)                 \
	X(ibv_cmd_req_notify_cq)          \
	X(ibv_cmd_rereg_mr)               \
	X(ibv_cmd_resize_cq)

/* Functions of rdma-core releases after 44 that pass a command to the kernel driver */
#define NEWER_COMMANDS(X)               \
	X(ibv_cmd_alloc_dmah)           \
	X(ibv_cmd_create_comp_cntr)     \
	X(ibv_cmd_create_cq_ex2)        \
	X(ibv_cmd_destroy_comp_cntr)    \
	X(ibv_cmd_export_dmabuf_fd)     \
	X(ibv_cmd_free_dmah)            \
	X(ibv_cmd_inc_comp_cntr)        \
	X(ibv_cmd_inc_err_comp_cntr)    \
	X(ibv_cmd_qp_attach_comp_cntr)  \
	X(ibv_cmd_query_comp_cntr_caps) \
	X(ibv_cmd_query_port_speed)     \
	X(ibv_cmd_read_comp_cntr)       \
	X(ibv_cmd_read_err_comp_cntr)   \
	X(ibv_cmd_reg_mr_ex)            \
	X(ibv_cmd_set_comp_cntr)        \
	X(ibv_cmd_set_err_comp_cntr)

ABI_EXPORT int abi_fail_unsupported_driver_call(void);
int abi_fail_unsupported_driver_call(void)
{
	return EOPNOTSUPP;
}

ABI_EXPORT void *abi_fail_unsupported_device_call(void);
void *abi_fail_unsupported_device_call(void)
{
	return abi_fail_null(EOPNOTSUPP);
}

/*
 * Returns the name of an opcode, for use in messages. Newer headers also declare ibv_wr_opcode_str
 * for programs.
 */
ABI_EXPORT const char *abi_wr_opcode_str(int opcode);
const char *abi_wr_opcode_str(int opcode)
{
	static const char *const names[] = {
		[IBV_WR_RDMA_WRITE] = "RDMA_WRITE",
		[IBV_WR_RDMA_WRITE_WITH_IMM] = "RDMA_WRITE_WITH_IMM",
		[IBV_WR_SEND] = "SEND",
		[IBV_WR_SEND_WITH_IMM] = "SEND_WITH_IMM",
		[IBV_WR_RDMA_READ] = "RDMA_READ",
		[IBV_WR_ATOMIC_CMP_AND_SWP] = "ATOMIC_CMP_AND_SWP",
		[IBV_WR_ATOMIC_FETCH_AND_ADD] = "ATOMIC_FETCH_AND_ADD",
		[IBV_WR_LOCAL_INV] = "LOCAL_INV",
		[IBV_WR_BIND_MW] = "BIND_MW",
		[IBV_WR_SEND_WITH_INV] = "SEND_WITH_INV",
		[IBV_WR_TSO] = "TSO",
		[IBV_WR_DRIVER1] = "DRIVER1",
	};
	const unsigned int n = sizeof(names) / sizeof(names[0]);

	return (unsigned int)opcode < n && names[opcode] ? names[opcode] : "unknown";
}

/* Does nothing. The constructors and destructors of providers call this function. */
ABI_EXPORT void abi_do_nothing(void);
void abi_do_nothing(void)
{
}

#define ALIAS(name, of) ABI_EXPORT extern __typeof__(of) name __attribute__((alias(#of)))
/* at is "@@" for the default version, which unversioned references bind to, and "@" for others. */
#define NODE(gen, at, name, of)         \
	ALIAS(of##_##gen##_##name, of); \
	__asm__(".symver " #of "_" #gen "_" #name "," #name at "IBVERBS_PRIVATE_" #gen)
#define EACH(name, of)            \
	NODE(34, "@@", name, of); \
	NODE(57, "@", name, of);  \
	NODE(59, "@", name, of);  \
	NODE(64, "@", name, of);  \
	NODE(65, "@", name, of);

#define NEWER(name, of)          \
	NODE(59, "@", name, of); \
	NODE(64, "@", name, of); \
	NODE(65, "@@", name, of);

#define NEWER_COMMAND(name) NEWER(name, abi_fail_unsupported_driver_call)
NEWER_COMMANDS(NEWER_COMMAND)
NEWER(ibv_dmabuf_heap_alloc, abi_fail_unsupported_device_call)
NEWER(ibv_dmabuf_heap_cc_shared_init, abi_fail_unsupported_device_call)
NEWER(ibv_dmabuf_heap_destroy, abi_do_nothing)
NEWER(ibv_dmabuf_heap_free, abi_do_nothing)
NEWER(ibv_wr_opcode_str, abi_wr_opcode_str)

#define COMMAND(name) EACH(name, abi_fail_unsupported_driver_call)
COMMANDS(COMMAND)
COMMAND(__ioctl_final_num_attrs)
COMMAND(ibv_read_ibdev_sysfs_file)
EACH(verbs_open_device, abi_fail_unsupported_device_call)
EACH(_verbs_init_and_alloc_context, abi_fail_unsupported_device_call)
EACH(verbs_set_ops, abi_do_nothing)
EACH(verbs_uninit_context, abi_do_nothing)
EACH(verbs_init_cq, abi_do_nothing)
EACH(__verbs_log, abi_do_nothing)

/* Each PRIVATE version of rdma-core has a registration function with another name. */
NODE(34, "@@", verbs_register_driver_34, abi_do_nothing);
NODE(57, "@@", verbs_register_driver_57, abi_do_nothing);
NODE(59, "@@", verbs_register_driver_59, abi_do_nothing);
NODE(64, "@@", verbs_register_driver_64, abi_do_nothing);
NODE(65, "@@", verbs_register_driver_65, abi_do_nothing);

/* Tells providers whether objects of an unplugged device may be destroyed. */
ABI_EXPORT extern bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy;
