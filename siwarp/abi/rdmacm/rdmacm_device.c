/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm/rdmacm_device.c - the devices that this library has opened, and their lookup by address. A
 * device is opened when it is first needed and is never closed, because programs may keep objects
 * created on it.
 */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "abi/rdmacm/rdmacm.h"
#include "abi/ibverbs/abi_cancel.h"

struct opened {
	struct opened *next;
	struct ibv_context *verbs;
	struct ibv_pd *pd;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *all; /* list of opened devices, protected by lock */

/* The child of fork() cannot use the parent's devices, so it starts with an empty list. */
static void devices_reset_in_fork_child(void)
{
	pthread_mutex_init(&lock, NULL);
	all = NULL;
}

static void devices_register_fork_handler(void)
{
	pthread_atfork(NULL, NULL, devices_reset_in_fork_child);
}

static void devices_lock(void)
{
	pthread_once(&once, devices_register_fork_handler);
	pthread_mutex_lock(&lock);
}

static void devices_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/* Opens a device, or returns the device if it is already open. The caller holds lock. */
static struct opened *open_device_locked(struct ibv_device *device)
{
	struct opened *one;

	for (one = all; one; one = one->next)
		if (strcmp(one->verbs->device->name, device->name) == 0)
			return one;
	one = calloc(1, sizeof(*one));
	if (!one)
		return NULL;
	one->verbs = ibv_open_device(device);
	if (!one->verbs) {
		free(one);
		return NULL;
	}
	one->next = all;
	all = one;
	return one;
}

static struct ibv_context *open_device(struct ibv_device *device)
{
	struct opened *one;
	int cancel;

	cancel = abi_cancel_disable();
	devices_lock();
	one = open_device_locked(device);
	devices_unlock();
	abi_cancel_restore(cancel);
	return one ? one->verbs : NULL;
}

static bool device_has_address(const struct ibv_device *device, const struct siw_addr *addr)
{
	const struct siw_device_info *info = &((const struct abi_device *)device)->info;

	for (uint32_t i = 0; i < info->n_addrs; i++) {
		const struct siw_addr *own = &info->addrs[i];

		if (own->family != addr->family)
			continue;
		if (own->family == AF_INET
			    ? memcmp(own->v4, addr->v4, 4) == 0
			    : memcmp(own->v6, addr->v6, 16) == 0 &&
				      (!own->scope || !addr->scope || own->scope == addr->scope))
			return true;
	}
	return false;
}

struct ibv_context *cm_device_of_addr(const struct siw_addr *local)
{
	struct ibv_device **list = ibv_get_device_list(NULL), **one;
	struct ibv_context *verbs = NULL;
	int why = ENODEV;

	if (!list)
		return NULL;
	/*
	 * For loopback addresses the first device is returned, because programs that connect to
	 * "localhost" also want a device that reaches other machines.
	 */
	for (one = list; *one && !cm_addr_is_loopback(local) && !device_has_address(*one, local);)
		one++;
	if (*one) {
		verbs = open_device(*one);
		why = errno;
	}
	ibv_free_device_list(list);
	return verbs ? verbs : abi_fail_null(why);
}

bool cm_first_non_loopback_addr(sa_family_t family, struct siw_addr *addr)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	const struct siw_device_info *info;
	bool found = false;

	if (!list)
		return false;
	info = *list ? &((struct abi_device *)*list)->info : NULL;
	for (uint32_t i = 0; info && i < info->n_addrs && !found; i++) {
		found = info->addrs[i].family == family && !info->addrs[i].scope &&
			!cm_addr_is_loopback(&info->addrs[i]);
		if (found)
			*addr = info->addrs[i];
	}
	ibv_free_device_list(list);
	return found;
}

struct ibv_context *cm_device_of_engine_context(const struct siw_context *siw)
{
	struct ibv_context *verbs = NULL;

	devices_lock();
	for (struct opened *one = all; one && !verbs; one = one->next)
		if (siw_ibv_context(one->verbs) == siw)
			verbs = one->verbs;
	devices_unlock();
	return verbs;
}

struct ibv_pd *cm_default_pd(struct ibv_context *verbs)
{
	struct ibv_pd *pd = NULL;

	devices_lock();
	for (struct opened *one = all; one; one = one->next)
		if (one->verbs == verbs) {
			if (!one->pd)
				one->pd = ibv_alloc_pd(verbs);
			if (one->pd)
				siw_ibv_pd_of_ids(one->pd);
			pd = one->pd;
		}
	devices_unlock();
	return pd;
}

int cm_visit_addresses(bool (*visit)(struct ibv_context *verbs, const struct siw_addr *addr,
				     void *arg),
		       void *arg)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *first = NULL;
	bool more = true;
	int why = 0;

	if (!list)
		return errno;
	for (struct ibv_device **one = list; *one && more; one++) {
		const struct siw_device_info *info = &((struct abi_device *)*one)->info;
		struct ibv_context *verbs = open_device(*one);

		if (!verbs) {
			why = errno;
			break;
		}
		first = first ? first : verbs;
		for (uint32_t i = 0; i < info->n_addrs && more; i++)
			more = visit(cm_addr_is_loopback(&info->addrs[i]) ? first : verbs,
				     &info->addrs[i], arg);
	}
	if (!*list)
		why = ENODEV;
	ibv_free_device_list(list);
	return why;
}

struct ibv_context **rdma_get_devices(int *num_devices)
{
	struct ibv_device **list;
	struct ibv_context **out = NULL;
	int n = 0, made = 0;

	if (num_devices)
		*num_devices = 0;
	list = ibv_get_device_list(&n);
	if (!list)
		return NULL;
	out = calloc((size_t)n + 1, sizeof(struct ibv_context *));
	while (out && made < n) {
		struct ibv_context *verbs = open_device(list[made]);

		if (!verbs)
			break;
		out[made++] = verbs;
	}
	ibv_free_device_list(list);
	if (made < n) {
		free(out);
		return NULL;
	}
	if (num_devices)
		*num_devices = n;
	return out;
}

void rdma_free_devices(struct ibv_context **list)
{
	free(list);
}
