/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * rdmap/rdmap_port.c - what this layer hands down unchanged: the crank, memory, receive queues.
 *
 * A siw_rdmap_port is the siw_ddp_port below it, a siw_rdmap_queue the siw_ddp_queue: this layer
 * has nothing to add to them, so the pointers only change their type (rdmap_impl.h).
 */
#include "rdmap/rdmap_impl.h"

int siw_rdmap_port_open(struct siw_rdmap_port **out)
{
	return siw_ddp_port_open((struct siw_ddp_port **)out);
}

void siw_rdmap_port_close(struct siw_rdmap_port *port)
{
	siw_ddp_port_close(ddp_port(port));
}

int siw_rdmap_port_poll(struct siw_rdmap_port *port, void **tokens, int n)
{
	return siw_ddp_port_poll(ddp_port(port), tokens, n);
}

uint64_t siw_rdmap_port_clock(const struct siw_rdmap_port *port)
{
	return siw_ddp_port_clock((const struct siw_ddp_port *)port);
}

int siw_rdmap_port_arm(struct siw_rdmap_port *port)
{
	return siw_ddp_port_arm(ddp_port(port));
}

void siw_rdmap_port_disarm(struct siw_rdmap_port *port)
{
	siw_ddp_port_disarm(ddp_port(port));
}

bool siw_rdmap_port_armed(const struct siw_rdmap_port *port)
{
	return siw_ddp_port_armed((const struct siw_ddp_port *)port);
}

void siw_rdmap_port_wake(struct siw_rdmap_port *port)
{
	siw_ddp_port_wake(ddp_port(port));
}

_Static_assert(sizeof(struct siw_rdmap_waitset) == sizeof(struct siw_ddp_waitset) &&
		       offsetof(struct siw_rdmap_waitset, fds) ==
			       offsetof(struct siw_ddp_waitset, fds) &&
		       offsetof(struct siw_rdmap_waitset, out) ==
			       offsetof(struct siw_ddp_waitset, out),
	       "siw_ddp_waitset");
_Static_assert(sizeof(struct siw_rdmap_interface) == sizeof(struct siw_ddp_interface) &&
		       offsetof(struct siw_rdmap_interface, mtu) ==
			       offsetof(struct siw_ddp_interface, mtu) &&
		       offsetof(struct siw_rdmap_interface, n_addrs) ==
			       offsetof(struct siw_ddp_interface, n_addrs) &&
		       offsetof(struct siw_rdmap_interface, addrs) ==
			       offsetof(struct siw_ddp_interface, addrs),
	       "siw_ddp_interface");

void siw_rdmap_waitset_fill(struct siw_rdmap_port *port, struct siw_rdmap_waitset *set)
{
	siw_ddp_waitset_fill(ddp_port(port), (struct siw_ddp_waitset *)set);
}

int siw_rdmap_wait(const struct siw_rdmap_waitset *set, int extra_fd, int64_t timeout_us)
{
	return siw_ddp_wait((const struct siw_ddp_waitset *)set, extra_fd, timeout_us);
}

int siw_rdmap_event_open(void)
{
	return siw_ddp_event_open();
}

void siw_rdmap_event_set(int fd)
{
	siw_ddp_event_set(fd);
}

void siw_rdmap_event_clear(int fd)
{
	siw_ddp_event_clear(fd);
}

void siw_rdmap_event_close(int fd)
{
	siw_ddp_event_close(fd);
}

int siw_rdmap_interfaces(struct siw_rdmap_interface *out, int max)
{
	return siw_ddp_interfaces((struct siw_ddp_interface *)out, max);
}

int siw_rdmap_watch_open(struct siw_rdmap_port *port, const char *name, void *token,
			 struct siw_rdmap_watch **out)
{
	return siw_ddp_watch_open(ddp_port(port), name, token, (struct siw_ddp_watch **)out);
}

int siw_rdmap_watch_read(struct siw_rdmap_watch *watch)
{
	return siw_ddp_watch_read((struct siw_ddp_watch *)watch);
}

void siw_rdmap_watch_close(struct siw_rdmap_watch *watch)
{
	siw_ddp_watch_close((struct siw_ddp_watch *)watch);
}

static struct siw_ddp_region as_ddp(const struct siw_rdmap_region *region)
{
	return (struct siw_ddp_region){
		.addr = region->addr,
		.length = region->length,
		.to_base = region->zero_based ? 0 : (uintptr_t)region->addr,
		.rights = (region->rights &
			   (SIW_DDP_LOCAL_WRITE | SIW_DDP_REMOTE_WRITE | SIW_DDP_REMOTE_READ |
			    SIW_DDP_REMOTE_ATOMIC | SIW_DDP_REMOTE_INVALIDATE)) |
			  (region->window ? 0 : SIW_DDP_LOCAL_READ),
		.pd = region->pd,
		.stream = region->owner,
	};
}

int siw_rdmap_stag_alloc(struct siw_rdmap_port *port, const struct siw_rdmap_region *region,
			 uint32_t *stag)
{
	struct siw_ddp_region below = as_ddp(region);

	return siw_ddp_stag_alloc(ddp_port(port), &below, stag);
}

int siw_rdmap_stag_free(struct siw_rdmap_port *port, uint32_t stag)
{
	return siw_ddp_stag_free(ddp_port(port), stag);
}

int siw_rdmap_stag_reserve(struct siw_rdmap_port *port, bool window, uint32_t *stag)
{
	return siw_ddp_stag_reserve(ddp_port(port), window, stag);
}

int siw_rdmap_stag_bind(struct siw_rdmap_port *port, uint32_t stag,
			const struct siw_rdmap_region *region)
{
	struct siw_ddp_region below = as_ddp(region);

	return siw_ddp_stag_bind(ddp_port(port), stag, &below);
}

bool siw_rdmap_stag_alive(struct siw_rdmap_port *port, uint32_t stag)
{
	return siw_ddp_stag_alive(ddp_port(port), stag);
}

int siw_rdmap_stag_invalidate(struct siw_rdmap_port *port, uint32_t stag, const void *owner)
{
	return siw_ddp_stag_invalidate(ddp_port(port), stag, owner);
}

int siw_rdmap_queue_create(struct siw_rdmap_port *port, uint32_t depth, uint32_t max_sge,
			   uint32_t pd, struct siw_rdmap_queue **out)
{
	struct siw_ddp_queue_attr attr = { .depth = depth, .max_sge = max_sge, .pd = pd };

	return siw_ddp_queue_create(ddp_port(port), &attr, (struct siw_ddp_queue **)out);
}

void siw_rdmap_queue_destroy(struct siw_rdmap_queue *queue)
{
	siw_ddp_queue_destroy(ddp_queue(queue));
}

int siw_rdmap_queue_post(struct siw_rdmap_queue *queue, uint64_t cookie, const struct siw_sge *sgl,
			 int nsge)
{
	return siw_ddp_queue_post(ddp_queue(queue), cookie, sgl, nsge);
}

uint32_t siw_rdmap_queue_used(const struct siw_rdmap_queue *queue)
{
	return siw_ddp_queue_used((const struct siw_ddp_queue *)queue);
}

int siw_rdmap_queue_take(struct siw_rdmap_queue *queue, uint64_t *cookie)
{
	return siw_ddp_queue_take(ddp_queue(queue), cookie);
}
