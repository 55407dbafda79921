/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * fuzz.h - what the harnesses share: a lower layer of plain memory instead of sockets (fuzz_llp.c),
 * and the input's first two octets, which say how it is fed.
 *
 *   octet 0  CRC 1, Markers 2, strict 4, initiator 8, refuse 16, four bits for the harness
 *   octet 1  three bits: how many octets a read gives at most; 8: every other read finds nothing;
 *            16: at the end silence instead of an end of stream; 32: a reset
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/settings.h"
#include "llp/llp.h"
#include "rd/rd.h"

enum {
	FUZZ_CRC = 1,
	FUZZ_MARKERS = 2,
	FUZZ_STRICT = 4,
	FUZZ_INITIATOR = 8,
	FUZZ_REFUSE = 16,
	FUZZ_OWN = 32,
};

#define CHECK(what)                                                                \
	do {                                                                       \
		if (!(what)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
			abort();                                                   \
		}                                                                  \
	} while (0)

struct fuzz_input {
	uint8_t flags;
	uint8_t *octets; /* freed by fuzz_end */
	size_t len;
};

/* Splits the input; the next socket made reads before, whole, and then the octets as they say. */
bool fuzz_begin(const uint8_t *data, size_t size, const void *before, size_t n,
		struct fuzz_input *in);
void fuzz_end(struct fuzz_input *in);
/* Puts a number (most significant octet first) where the octets have this word of four letters. */
void fuzz_patch(struct fuzz_input *in, const char *word, uint32_t number);
/* What was sent last, 4096 octets of it at the most. */
extern uint8_t fuzz_sent[4096];
extern size_t fuzz_n_sent;
/* All octets that a socket has were read, or an end was told. */
bool fuzz_dry(void);

/* Start-up frames that are sound: for responders and for initiators. Octets. */
size_t fuzz_request(uint8_t *to, uint8_t flags);
size_t fuzz_reply(uint8_t *to, uint8_t flags);

extern const struct siw_addr fuzz_addr;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
