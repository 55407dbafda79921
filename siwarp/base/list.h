/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/list.h - an intrusive doubly linked list. A list head is a link too. An empty list, and an
 * element that is in no list, point to themselves.
 */
#ifndef SIW_BASE_LIST_H
#define SIW_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct siw_link {
	struct siw_link *next, *prev;
};

static inline void siw_link_init(struct siw_link *l)
{
	l->next = l->prev = l;
}

static inline bool siw_link_empty(const struct siw_link *l)
{
	return l->next == l;
}

/* Appends l, which must be in no list, to the list. */
static inline void siw_link_add(struct siw_link *list, struct siw_link *l)
{
	l->prev = list->prev;
	l->next = list;
	list->prev->next = l;
	list->prev = l;
}

static inline void siw_link_del(struct siw_link *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	siw_link_init(l);
}

/* The object that contains *ptr as its member. */
#define siw_container(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#endif
