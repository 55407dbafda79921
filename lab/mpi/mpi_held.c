/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "lab/mpi/mpi_held.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)

/*
 * Nothing is counted in builds with a sanitizer, which replaces malloc itself, and with C libraries
 * other than glibc, which have no second name for malloc that a replacement could call.
 */
void heap_start_counting(void)
{
}

int64_t heap_octets_of_siwarp(void)
{
	return 0;
}

#else

/* The allocation functions of glibc, whose usual names this file redefines. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

#define MOST_LIBRARIES 4

static struct range {
	uintptr_t from;
	uintptr_t to;
} ours[MOST_LIBRARIES];
static int libraries;
static _Atomic int64_t held;

static int heap_add_library_address_range(struct dl_phdr_info *info, size_t size, void *unused)
{
	static const char *const names[] = { "/libsiwarp.so.0", "/libibverbs.so.1",
					     "/librdmacm.so.1" };

	(void)size;
	(void)unused;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strstr(info->dlpi_name, names[i]) || libraries == MOST_LIBRARIES)
			continue;
		for (int k = 0; k < info->dlpi_phnum; k++) {
			const ElfW(Phdr) *segment = &info->dlpi_phdr[k];

			if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X))
				continue;
			ours[libraries].from = info->dlpi_addr + segment->p_vaddr;
			ours[libraries].to = ours[libraries].from + segment->p_memsz;
			libraries++;
			break;
		}
	}
	return 0;
}

void heap_start_counting(void)
{
	dl_iterate_phdr(heap_add_library_address_range, NULL);
}

int64_t heap_octets_of_siwarp(void)
{
	return atomic_load_explicit(&held, memory_order_relaxed);
}

/*
 * Adds (sign 1) or subtracts (-1) the size of a block if the caller is code of siwarp's libraries.
 */
static void heap_add_or_subtract_block(const void *caller, void *memory, int sign)
{
	for (int i = 0; memory && i < libraries; i++)
		if ((uintptr_t)caller >= ours[i].from && (uintptr_t)caller < ours[i].to)
			atomic_fetch_add_explicit(&held, sign * (int64_t)malloc_usable_size(memory),
						  memory_order_relaxed);
}

void *malloc(size_t size)
{
	void *memory = __libc_malloc(size);

	heap_add_or_subtract_block(__builtin_return_address(0), memory, 1);
	return memory;
}

void *calloc(size_t n, size_t size)
{
	void *memory = __libc_calloc(n, size);

	heap_add_or_subtract_block(__builtin_return_address(0), memory, 1);
	return memory;
}

void *realloc(void *memory, size_t size)
{
	heap_add_or_subtract_block(__builtin_return_address(0), memory, -1);
	memory = __libc_realloc(memory, size);
	heap_add_or_subtract_block(__builtin_return_address(0), memory, 1);
	return memory;
}

void free(void *memory)
{
	heap_add_or_subtract_block(__builtin_return_address(0), memory, -1);
	__libc_free(memory);
}

#endif
