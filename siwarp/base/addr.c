/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* base/addr.c - conversion of addresses to and from text; declared in <siwarp/types.h>. */
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/addr.h"
#include "base/reason.h"

/* Returns the index of the interface that text gives by name or number; 0: no such interface. */
static uint32_t parse_scope(const char *text)
{
	uint32_t index = if_nametoindex(text);
	unsigned long n;
	char *end;

	if (index || text[0] < '0' || text[0] > '9')
		return index;
	errno = 0;
	n = strtoul(text, &end, 10);
	return errno || *end || n > UINT32_MAX ? 0 : (uint32_t)n;
}

int siw_addr_parse(const char *text, uint16_t port, struct siw_addr *out)
{
	struct siw_addr addr = { .port_be = htons(port) };
	char number[INET6_ADDRSTRLEN];
	const char *percent;
	size_t len;

	if (!text || !out)
		return siw_refuse_null(text ? "out" : "text");
	percent = strchr(text, '%');
	len = percent ? (size_t)(percent - text) : strlen(text);
	if (len >= sizeof(number))
		return siw_refuse(ADDRESS_TEXT);
	memcpy(number, text, len);
	number[len] = '\0';
	if (!percent && inet_pton(AF_INET, number, addr.v4) == 1) {
		addr.family = AF_INET;
	} else if (inet_pton(AF_INET6, number, addr.v6) == 1) {
		addr.family = AF_INET6;
		if (percent) {
			addr.scope = parse_scope(percent + 1);
			if (!addr.scope)
				return siw_refuse(ADDRESS_TEXT);
		}
	} else {
		return siw_refuse(ADDRESS_TEXT);
	}
	*out = addr;
	return 0;
}

/* Formats a scope as "%eth0", or as "%index" if the interface no longer exists; "" for scope 0. */
static const char *format_scope_suffix(uint32_t scope, char text[IF_NAMESIZE + 1])
{
	text[0] = '\0';
	if (scope) {
		text[0] = '%';
		if (!if_indextoname(scope, text + 1))
			snprintf(text + 1, IF_NAMESIZE, "%u", scope);
	}
	return text;
}

char *siw_addr_format(const struct siw_addr *addr, char *text, size_t size)
{
	char number[INET6_ADDRSTRLEN], scope[IF_NAMESIZE + 1];

	if (!addr || !text)
		return text;
	switch (addr->family) {
	case AF_INET:
		inet_ntop(AF_INET, addr->v4, number, sizeof(number));
		snprintf(text, size, "%s:%u", number, siw_addr_port(addr));
		break;
	case AF_INET6:
		inet_ntop(AF_INET6, addr->v6, number, sizeof(number));
		snprintf(text, size, "[%s%s]:%u", number, format_scope_suffix(addr->scope, scope),
			 siw_addr_port(addr));
		break;
	default:
		snprintf(text, size, "(none)");
	}
	return text;
}
