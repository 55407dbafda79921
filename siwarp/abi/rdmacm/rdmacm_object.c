/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/rdmacm/rdmacm_object.c - registry of live ids, channels and events, and waiting for
 * acknowledgements.
 */
#include <search.h>

#include "abi/rdmacm/rdmacm.h"
#include "abi/ibverbs/abi_cancel.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t acked = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *alive; /* binary tree of struct cm_object, ordered by handle */

static void cm_lock_without_init(void)
{
	pthread_mutex_lock(&lock);
}

void cm_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/*
 * Registers fork handlers, so that the lock is free in the child of fork(). Handlers that prepare a
 * fork run in the reverse order of their registration. The handlers of libibverbs must be
 * registered first, because the lock of libibverbs is acquired while the lock of librdmacm is held.
 */
static void cm_register_fork_handlers(void)
{
	ibv_fork_init();
	pthread_atfork(cm_lock_without_init, cm_unlock, cm_unlock);
}

void cm_lock(void)
{
	pthread_once(&once, cm_register_fork_handlers);
	cm_lock_without_init();
}

static int compare_object_handles(const void *a, const void *b)
{
	uintptr_t one = (uintptr_t)((const struct cm_object *)a)->handle;
	uintptr_t two = (uintptr_t)((const struct cm_object *)b)->handle;

	return (one > two) - (one < two);
}

bool cm_register_object_locked(struct cm_object *object, enum cm_kind kind, const void *handle)
{
	object->handle = handle;
	object->kind = kind;
	if (tsearch(object, &alive, compare_object_handles))
		return true;
	errno = ENOMEM;
	return false;
}

bool cm_register_object(struct cm_object *object, enum cm_kind kind, const void *handle)
{
	bool ok;

	cm_lock();
	ok = cm_register_object_locked(object, kind, handle);
	cm_unlock();
	return ok;
}

bool cm_is_live_object_locked(enum cm_kind kind, const void *handle)
{
	const struct cm_object wanted = { .handle = handle };
	struct cm_object *const *found = handle ? tfind(&wanted, &alive, compare_object_handles)
						: NULL;

	if (found && (*found)->kind == kind)
		return true;
	errno = EINVAL;
	return false;
}

bool cm_is_live_object(enum cm_kind kind, const void *handle)
{
	bool live;

	cm_lock();
	live = cm_is_live_object_locked(kind, handle);
	cm_unlock();
	if (live)
		siw_reason_record(NULL);
	else
		abi_refuse(EINVAL, "%p is not a live %s of this process: it was destroyed", handle,
			   kind == CM_ID	? "id"
			   : kind == CM_CHANNEL ? "event channel"
						: "event");
	return live;
}

void cm_mark_object_dead_locked(struct cm_object *object)
{
	tdelete(object, &alive, compare_object_handles);
}

void cm_mark_object_dead(struct cm_object *object)
{
	cm_lock();
	cm_mark_object_dead_locked(object);
	cm_unlock();
}

void cm_note_event_acknowledged(struct cm_id *id)
{
	cm_lock();
	id->unacked--;
	pthread_cond_broadcast(&acked);
	cm_unlock();
}

void cm_wait_until_events_acknowledged(struct cm_id *id)
{
	int cancel;

	/*
	 * Cancellation is disabled, because a thread cancelled in the unlimited wait would keep the
	 * lock.
	 */
	cancel = abi_cancel_disable();
	cm_lock();
	while (id->unacked)
		pthread_cond_wait(&acked, &lock);
	cm_unlock();
	abi_cancel_restore(cancel);
}
