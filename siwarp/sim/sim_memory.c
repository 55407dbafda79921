/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim_memory.c - replacements of the C library's allocation functions, which count the memory
 * that libsiwarp-sim holds and make allocations fail. If the same world runs twice, the second run
 * must not increase the number of blocks.
 */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim_impl.h"
#include "device/device.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **to, size_t alignment, size_t size);
char *__real_strdup(const char *text);
void __real_free(void *memory);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **to, size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *memory);

static _Atomic int64_t blocks;

static void *count_allocated_block(void *memory)
{
	if (memory)
		atomic_fetch_add_explicit(&blocks, 1, memory_order_relaxed);
	return memory;
}

/* Returns whether the next allocation must fail, and sets errno in that case. */
static bool next_allocation_must_fail(void)
{
	if (__builtin_expect(!sim.memory_fails, 1) || !sim.open)
		return false;
	if (sim.memory_decided) {
		bool fails = sim.memory_decided == SIM_MEMORY_FAILS;

		sim.memory_decided = SIM_MEMORY_UNDECIDED;
		if (!fails)
			return false;
	} else if (sim_draw_random(&sim.memory) % 1000000 >= sim.memory_fails) {
		return false;
	}
	sim.stats.allocations_failed++;
	errno = ENOMEM;
	return true;
}

void *__wrap_malloc(size_t size)
{
	return next_allocation_must_fail() ? NULL : count_allocated_block(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
	return next_allocation_must_fail() ? NULL : count_allocated_block(__real_calloc(n, size));
}

static void *counted_realloc(void *old, size_t size)
{
	void *memory = __real_realloc(old, size);

	return old ? memory : count_allocated_block(memory);
}

void *__wrap_realloc(void *old, size_t size)
{
	return next_allocation_must_fail() ? NULL : counted_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
	return next_allocation_must_fail()
		       ? NULL
		       : count_allocated_block(__real_aligned_alloc(alignment, size));
}

int __wrap_posix_memalign(void **to, size_t alignment, size_t size)
{
	int rv = next_allocation_must_fail() ? ENOMEM : __real_posix_memalign(to, alignment, size);

	if (!rv)
		count_allocated_block(*to);
	return rv;
}

char *__wrap_strdup(const char *text)
{
	return next_allocation_must_fail() ? NULL : count_allocated_block(__real_strdup(text));
}

void *sim_internal_malloc(size_t size)
{
	return count_allocated_block(__real_malloc(size));
}

void *sim_internal_calloc(size_t n, size_t size)
{
	return count_allocated_block(__real_calloc(n, size));
}

void *sim_internal_realloc(void *old, size_t size)
{
	return counted_realloc(old, size);
}

int siw_sim_set_allocation_failure_rate(uint32_t of_million)
{
	if (!sim.open)
		return -ENOENT;
	if (of_million > 1000000)
		return -EINVAL;
	sim.memory_fails = of_million;
	return 0;
}

void __wrap_free(void *memory)
{
	if (memory)
		atomic_fetch_sub_explicit(&blocks, 1, memory_order_relaxed);
	__real_free(memory);
}

int64_t siw_sim_allocated_blocks(void)
{
	return atomic_load_explicit(&blocks, memory_order_relaxed);
}

int siw_sim_find_changed_memory(const struct siw_sim_blocks *memories, int n, const void *expected,
				size_t size)
{
	for (int i = 0; i < n; i++) {
		const uint8_t *memory = memories[i].memory;

		for (uint32_t k = 0; k < memories[i].n; k++)
			if (memcmp(memory + memories[i].offsets[k], expected, size))
				return i;
	}
	return -1;
}

/* ---- memory kept from earlier worlds --------------------------------------------------------- */

/*
 * The library keeps some freed memory for reuse without an allocation: destroyed objects of a
 * device, closed devices, buffers of streams. For each object, the wrappers below decide once
 * whether the allocation fails, in the same way for a reused object and for a new one, so that the
 * same seed produces the same run in any process.
 */
struct siw_link *__real_siw_device_freelist_take(struct siw_freelist *list);
struct siw_link *__wrap_siw_device_freelist_take(struct siw_freelist *list);

struct siw_link *__wrap_siw_device_freelist_take(struct siw_freelist *list)
{
	struct siw_link *kept = __real_siw_device_freelist_take(list);

	/*
	 * To let the caller run out of memory, put the kept object back, return NULL, and make the
	 * allocation fail that the caller then attempts.
	 */
	if (kept && next_allocation_must_fail()) {
		siw_device_freelist_give(list, kept);
		sim.stats.allocations_failed--;
		sim.memory_decided = SIM_MEMORY_FAILS;
		return NULL;
	}
	return kept;
}

void __real_siw_device_free_freelist_memory(struct siw_context *ctx);
void __wrap_siw_device_free_freelist_memory(struct siw_context *ctx);

/*
 * siw_device_free_freelist_memory() takes the objects from the freelists only to free them, so the
 * calls that take them must not fail.
 */
void __wrap_siw_device_free_freelist_memory(struct siw_context *ctx)
{
	uint32_t before = sim.memory_fails;

	sim.memory_fails = 0;
	__real_siw_device_free_freelist_memory(ctx);
	sim.memory_fails = before;
}

static uint32_t freelist_length(struct siw_freelist *list)
{
	uint32_t n = 0;

	siw_lock(&list->lock);
	for (struct siw_link *link = list->objects.next; link != &list->objects; link = link->next)
		n++;
	siw_unlock(&list->lock);
	return n;
}

uint32_t siw_sim_count_freelist_objects(struct siw_context *ctx)
{
	uint32_t n = freelist_length(&ctx->free_cqs) + freelist_length(&ctx->free_srqs) +
		     freelist_length(&ctx->free_ahs) + freelist_length(&ctx->free_regions) +
		     freelist_length(&ctx->free_windows);

	for (struct siw_lane *lane = &ctx->lane0; lane; lane = siw_device_next_lane(lane))
		for (int i = 0; i < SIW_QP_TYPES; i++)
			n += freelist_length(&lane->free_qps[i]);
	return n;
}

struct siw_context *__real_siw_device_take_context_for_reuse(void);
struct siw_context *__wrap_siw_device_take_context_for_reuse(void);

/* The allocation of a device's struct always succeeds, as if the struct were reused. */
struct siw_context *__wrap_siw_device_take_context_for_reuse(void)
{
	struct siw_context *kept = __real_siw_device_take_context_for_reuse();

	if (!kept && sim.memory_fails && sim.open)
		sim.memory_decided = SIM_MEMORY_SUCCEEDS;
	return kept;
}

struct siw_mpa_spares;

void *__real_siw_mpa_pool_get(struct siw_mpa_spares *spares);
void *__wrap_siw_mpa_pool_get(struct siw_mpa_spares *spares);

void *__wrap_siw_mpa_pool_get(struct siw_mpa_spares *spares)
{
	return sim.memory_fails && sim.open ? NULL : __real_siw_mpa_pool_get(spares);
}
