/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Opens sockets on one port at all addresses of a device. */
#include <errno.h>

#include "base/addr.h"
#include "qp/qp_everywhere.h"

/* Number of ports tried: another program may use a port at one of the device's addresses. */
#define TRIES 64

static int open_at_each(const struct siw_device_info *device, uint16_t *number,
			struct siw_every_addr *how)
{
	int err = -EADDRNOTAVAIL;
	bool any = false;

	for (uint32_t i = 0; i < device->n_addrs; i++) {
		struct siw_addr addr = device->addrs[i];

		addr.port_be = htons(*number);
		err = how->open(how, &addr);
		if (err == -EADDRNOTAVAIL)
			continue;
		if (err)
			break;
		any = true;
		*number = siw_addr_port(&addr);
	}
	if (err == -EADDRNOTAVAIL && any)
		err = 0;
	if (err)
		how->undo(how);
	return err;
}

int siw_qp_open_every_addr(const struct siw_context *ctx, uint16_t *number,
			   struct siw_every_addr *how)
{
	int tries = *number ? 1 : TRIES, err;

	do {
		uint16_t port = *number;

		err = open_at_each(&ctx->now, &port, how);
		if (!err)
			*number = port;
	} while (err == -EADDRINUSE && --tries);
	return err;
}
