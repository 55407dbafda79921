/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm/rdmacm_newer.c - functions that librdmacm introduced after release 44 (RDMACM_1.4): events
 * written by the program, and asynchronous name resolution.
 */
#include <netdb.h>
#include <stdlib.h>

#include "abi/rdmacm/rdmacm.h"

/* Flags of rdma_resolve_addrinfo: RAI_SA and RAI_DNS. */
enum {
	BY_SA = 0x10,
	BY_DNS = 0x20,
};

#pragma GCC visibility push(default)
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
			uint64_t arg);
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);
#pragma GCC visibility pop

/* ---- events written by the program ----------------------------------------------------------- */

uint64_t cm_pop_event_arg(struct cm_id *id)
{
	struct cm_arg *first = id->args;
	uint64_t arg = first ? first->arg : 0;

	if (first)
		id->args = first->next;
	free(first);
	return arg;
}

/*
 * Queues the event on the channel and its argument behind the earlier arguments. Returns 0 or a
 * negative errno value.
 */
static int write_event(struct cm_id *id, int status, uint64_t arg)
{
	struct cm_arg *added = calloc(1, sizeof(*added)), **last = &id->args;
	int r;

	if (!added)
		return -ENOMEM;
	added->arg = arg;
	cm_lock();
	while (*last)
		last = &(*last)->next;
	*last = added;
	r = siw_cm_tell(id->siw, CM_EVENT_USER, status);
	if (r < 0) {
		*last = NULL;
		free(added);
	}
	cm_unlock();
	return r;
}

int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
			uint64_t arg)
{
	if (!cm_live(CM_ID, id))
		return -1;
	if ((int)event != CM_EVENT_USER)
		return cm_fail(EINVAL);
	return cm_result(write_event(cm_id_of(id), status, arg));
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Converts an error code of getaddrinfo(3) to an errno value for the status of an event. */
static int errno_of_eai(int why)
{
	switch (why) {
	case EAI_MEMORY:
		return ENOMEM;
	case EAI_AGAIN:
		return EAGAIN;
	case EAI_SYSTEM:
		return errno;
	case EAI_BADFLAGS:
	case EAI_FAMILY:
	case EAI_SERVICE:
		return EINVAL;
	default:
		return ENODATA;
	}
}

int rdma_resolve_addrinfo(struct rdma_cm_id *rdma_id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo wanted = { 0 }, *found = NULL;
	struct cm_id *id = cm_id_of(rdma_id);
	int why, r;

	if (!cm_live(CM_ID, rdma_id))
		return -1;
	if (!node && !service && !hints)
		return cm_fail(EINVAL);
	if (hints)
		wanted = *hints;
	/* resolution by the InfiniBand subnet administrator, which does not exist here */
	if (wanted.ai_flags & BY_SA)
		return cm_fail(wanted.ai_flags & BY_DNS ? EINVAL : EOPNOTSUPP);
	wanted.ai_flags &= ~BY_DNS;
	/*
	 * The system's resolver determines the time-out; the event is queued when it has finished.
	 */
	why = rdma_getaddrinfo(node, service, hints ? &wanted : NULL, &found);
	r = siw_cm_tell(id->siw, why ? CM_EVENT_ADDRINFO_ERROR : CM_EVENT_ADDRINFO_RESOLVED,
			why ? -errno_of_eai(why) : 0);
	if (r < 0) {
		rdma_freeaddrinfo(found);
		return cm_fail(-r);
	}
	rdma_freeaddrinfo(id->info);
	id->info = found;
	return cm_complete(id);
}

int rdma_query_addrinfo(struct rdma_cm_id *rdma_id, struct rdma_addrinfo **info)
{
	struct cm_id *id = cm_id_of(rdma_id);

	if (!info || !cm_live(CM_ID, rdma_id))
		return cm_fail(EINVAL);
	if (!id->info)
		return cm_fail(ENODATA);
	*info = cm_copy_info(id->info);
	return *info ? 0 : cm_fail(ENOMEM);
}

void cm_free_newer(struct cm_id *id)
{
	while (id->args)
		cm_pop_event_arg(id);
	rdma_freeaddrinfo(id->info);
}
