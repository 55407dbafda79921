/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_object.c - registry of live handles. Every function except those that post and
 * poll first checks its handle in the registry, so that an invalid handle, a handle of another kind
 * or a destroyed handle causes EINVAL instead of a crash.
 *
 * Posting and polling jump through the context of the object, in code that is compiled into the
 * program. Therefore the memory of an object is only ever reused for objects of the same kind, and
 * the context of a dead object has functions that fail or drop the request.
 */
#include <stdlib.h>

#include "abi/ibverbs/abi.h"

/*
 * The memory of a freed object is reused only after this many later frees of objects of the same
 * kind, so that a late call still finds an object that is marked dead
 */
#define QUARANTINE 64

struct entry {
	void *handle; /* NULL: the slot was never used; TOMB: the slot's object was removed */
	struct ibv_context *owner;
	enum abi_kind kind;
};
static char tomb;
#define TOMB ((void *)&tomb)

struct spare {
	struct spare *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
unsigned int abi_forks;
static struct entry *table;
static size_t slots, used; /* used slots include tombstones, the entries of removed objects */
static struct {
	struct spare *head, **tail;
	unsigned int count;
} spares[ABI_KINDS];

/*
 * Header before each object, for the list of spare objects, so that the object itself stays
 * readable
 */
union front {
	struct spare link;
	max_align_t align;
};

static const size_t sizes[ABI_KINDS] = {
	[ABI_DEVICE] = sizeof(struct abi_device), [ABI_CONTEXT] = sizeof(struct abi_context),
	[ABI_PD] = sizeof(struct abi_pd),	  [ABI_MR] = sizeof(struct abi_mr),
	[ABI_MW] = sizeof(struct abi_mw),	  [ABI_CHANNEL] = sizeof(struct abi_channel),
	[ABI_CQ] = sizeof(struct abi_cq),	  [ABI_QP] = sizeof(struct abi_qp),
	[ABI_SRQ] = sizeof(struct abi_srq),	  [ABI_TD] = sizeof(struct abi_td),
	[ABI_BUF] = sizeof(struct abi_buf),
};

static void registry_lock_without_init(void)
{
	pthread_mutex_lock(&lock);
}

static void registry_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static void registry_unlock_in_fork_child(void)
{
	abi_forks++;
	registry_unlock();
}

/* Registers fork handlers, so that the lock is free in the child of fork(). */
static void registry_register_fork_handlers(void)
{
	pthread_atfork(registry_lock_without_init, registry_unlock, registry_unlock_in_fork_child);
}

void abi_fork_init(void)
{
	pthread_once(&once, registry_register_fork_handlers);
}

static void registry_lock(void)
{
	abi_fork_init();
	registry_lock_without_init();
}

void abi_init_checked_mutex(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(mutex, &attr);
	pthread_mutexattr_destroy(&attr);
}

void *abi_alloc_object(enum abi_kind kind)
{
	union front *front = NULL;

	registry_lock();
	if (spares[kind].count > QUARANTINE) {
		front = (union front *)spares[kind].head;
		spares[kind].head = front->link.next;
		spares[kind].count--;
	}
	registry_unlock();
	if (front)
		return memset(front + 1, 0, sizes[kind]);
	front = calloc(1, sizeof(*front) + sizes[kind]);
	/* cppcheck-suppress memleak ; it is found again by abi_free_object */
	return front ? front + 1 : abi_fail_null(ENOMEM);
}

void abi_free_object(enum abi_kind kind, void *memory)
{
	struct spare *spare = &((union front *)memory - 1)->link;

	registry_lock();
	spare->next = NULL;
	if (spares[kind].count++ == 0)
		spares[kind].head = spare;
	else
		*spares[kind].tail = spare;
	spares[kind].tail = &spare->next;
	registry_unlock();
}

/* Returns the registry slot of a handle, or a free slot for a new handle. */
static struct entry *registry_find_slot_of_handle(const void *handle)
{
	size_t i = ((uintptr_t)handle >> 4) * 0x9e3779b97f4a7c15u >> 7;
	struct entry *free_one = NULL;

	for (;; i++) {
		struct entry *e = &table[i & (slots - 1)];

		if (e->handle == handle)
			return e;
		if (!e->handle)
			return free_one ? free_one : e;
		if (e->handle == TOMB && !free_one)
			free_one = e;
	}
}

static bool registry_grow(void)
{
	struct entry *old = table, *bigger;
	size_t n = slots, live = 0;

	for (size_t i = 0; i < n; i++)
		live += old[i].handle && old[i].handle != TOMB;
	slots = 64;
	while (slots < live * 4)
		slots *= 2;
	bigger = calloc(slots, sizeof(*bigger));
	if (!bigger) {
		slots = n;
		return false;
	}
	table = bigger;
	used = live;
	for (size_t i = 0; i < n; i++)
		if (old[i].handle && old[i].handle != TOMB)
			*registry_find_slot_of_handle(old[i].handle) = old[i];
	free(old);
	return true;
}

bool abi_register_handle(enum abi_kind kind, void *handle, struct ibv_context *owner)
{
	bool ok;

	registry_lock();
	ok = used * 2 < slots || registry_grow();
	if (ok) {
		struct entry *e = registry_find_slot_of_handle(handle);

		used += !e->handle;
		*e = (struct entry){ handle, owner, kind };
	}
	registry_unlock();
	if (!ok)
		errno = ENOMEM;
	return ok;
}

static const char *object_kind_name(enum abi_kind kind)
{
	static const char *const names[ABI_KINDS] = {
		[ABI_DEVICE] = "device",
		[ABI_CONTEXT] = "device context",
		[ABI_PD] = "protection domain",
		[ABI_MR] = "memory region",
		[ABI_MW] = "memory window",
		[ABI_CHANNEL] = "completion channel",
		[ABI_CQ] = "completion queue",
		[ABI_QP] = "queue pair",
		[ABI_SRQ] = "shared receive queue",
		[ABI_AH] = "address handle",
		[ABI_TD] = "thread domain",
		[ABI_BUF] = "DMA buffer",
		[ABI_LIST] = "device list",
	};

	return names[kind];
}

bool abi_is_live_object(enum abi_kind kind, const void *handle)
{
	bool live = false;

	registry_lock();
	if (handle && slots) {
		struct entry *e = registry_find_slot_of_handle(handle);

		live = e->handle == handle && e->kind == kind;
	}
	registry_unlock();
	if (live)
		siw_reason_record(NULL);
	else
		errno = abi_refuse(EINVAL,
				   "%p is not a live %s of this process: it was destroyed, or "
				   "another library created it",
				   handle, object_kind_name(kind));
	return live;
}

/*
 * Replaces the functions of an object, which are called through the object's context, by the
 * functions of dead objects.
 */
static void object_set_functions_of_dead_object(enum abi_kind kind, void *handle)
{
	struct ibv_context *dead = &abi_dead_context.context;

	switch (kind) {
	case ABI_DEVICE:
	case ABI_CONTEXT: /* every function that takes a device or a context checks its handle */
	case ABI_LIST:
		break;
	case ABI_CQ:
		((struct ibv_cq *)handle)->context = dead;
		abi_cq_disable_polling(handle);
		break;
	case ABI_QP:
		((struct ibv_qp *)handle)->context = dead;
		abi_wr_builder_destroy(handle);
		break;
	default:
		/* The first member of each other object is the pointer to its context. */
		*(struct ibv_context **)handle = dead;
	}
}

static void object_mark_dead_locked(struct entry *e)
{
	object_set_functions_of_dead_object(e->kind, e->handle);
	e->handle = TOMB;
}

bool abi_mark_object_dead(enum abi_kind kind, void *handle)
{
	bool ended = false;

	registry_lock();
	if (slots) {
		struct entry *e = registry_find_slot_of_handle(handle);

		ended = e->handle == handle && e->kind == kind;
		if (ended)
			object_mark_dead_locked(e);
	}
	registry_unlock();
	if (ended && kind != ABI_AH && kind != ABI_LIST)
		abi_free_object(kind,
				kind == ABI_CONTEXT ? (void *)abi_context_of(handle) : handle);
	return ended;
}

/*
 * Finds the next registry entry of a context from slot *i on, and sets *i to the slot after the
 * entry.
 */
static bool registry_find_next_of_context(struct ibv_context *context, size_t *i,
					  struct entry *found)
{
	bool is = false;

	registry_lock();
	for (; *i < slots && !is; (*i)++) {
		*found = table[*i];
		is = found->handle && found->handle != TOMB && found->owner == context;
	}
	registry_unlock();
	return is;
}

bool abi_mark_context_dead(struct ibv_context *context)
{
	struct entry one;

	for (size_t i = 0; registry_find_next_of_context(context, &i, &one);)
		abi_mark_object_dead(one.kind, one.handle);
	return abi_mark_object_dead(ABI_CONTEXT, context);
}

void *abi_find_object(enum abi_kind kind, bool (*visit)(void *handle, const void *wanted),
		      const void *wanted)
{
	void *found = NULL;

	registry_lock();
	for (size_t i = 0; i < slots && !found; i++)
		if (table[i].handle && table[i].handle != TOMB && table[i].kind == kind &&
		    visit(table[i].handle, wanted))
			found = table[i].handle;
	registry_unlock();
	return found;
}
