/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim_memory.c - counts the memory that this library holds, by functions in the place of the C
 * library's. A world that is run again must leave as much behind as it did the first time.
 */
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim_impl.h"

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

static void *taken(void *memory)
{
	if (memory)
		atomic_fetch_add_explicit(&blocks, 1, memory_order_relaxed);
	return memory;
}

void *__wrap_malloc(size_t size)
{
	return taken(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
	return taken(__real_calloc(n, size));
}

void *__wrap_realloc(void *old, size_t size)
{
	void *memory = __real_realloc(old, size);

	return old ? memory : taken(memory);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
	return taken(__real_aligned_alloc(alignment, size));
}

int __wrap_posix_memalign(void **to, size_t alignment, size_t size)
{
	int rv = __real_posix_memalign(to, alignment, size);

	if (!rv)
		taken(*to);
	return rv;
}

char *__wrap_strdup(const char *text)
{
	return taken(__real_strdup(text));
}

void __wrap_free(void *memory)
{
	if (memory)
		atomic_fetch_sub_explicit(&blocks, 1, memory_order_relaxed);
	__real_free(memory);
}

int64_t siw_sim_blocks(void)
{
	return atomic_load_explicit(&blocks, memory_order_relaxed);
}
