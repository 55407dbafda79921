/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * fuzz.h - shared parts of the fuzz harnesses: an llp layer over memory instead of sockets
 * (fuzz_llp.c), and the first two octets of the input, which control how the rest is fed.
 *
 *   octet 0  CRC 1, Markers 2, strict 4, initiator 8, refuse 16; upper bits: defined by the harness
 *   octet 1  lower three bits: index of the most octets that one read returns; 8: every other read
 *            returns EAGAIN; 16: the input ends with silence instead of an end of stream;
 *            32: the input ends with a reset
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
#include "mem/mem.h"
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
	uint8_t *octets; /* freed by fuzz_input_free */
	size_t len;
};

/*
 * Splits the input. The next socket created returns all of `before` first, and then the octets of
 * the input as octet 1 specifies.
 */
bool fuzz_input_init(const uint8_t *data, size_t size, const void *before, size_t n,
		     struct fuzz_input *in);
void fuzz_input_free(struct fuzz_input *in);
/*
 * Replaces the first occurrence of the four-letter word in the input with a number, most
 * significant octet first.
 */
void fuzz_replace_placeholder(struct fuzz_input *in, const char *word, uint32_t number);
/* The most recently sent octets, at most 4096. */
extern uint8_t fuzz_sent[4096];
extern size_t fuzz_n_sent;
/* Returns whether all octets of the socket have been read, or the end has been reported. */
bool fuzz_input_exhausted(void);

/*
 * Build valid start-up frames, for responders and for initiators. Both functions return the length
 * in octets.
 */
size_t fuzz_build_mpa_request(uint8_t *to, uint8_t flags);
size_t fuzz_build_mpa_reply(uint8_t *to, uint8_t flags);

/*
 * Creates a receive queue and fills it with receives that all have the same attr->max_sge elements
 * (fuzz_queue.c).
 */
struct siw_mem_buffer_queue *fuzz_create_full_queue(const struct siw_mem_queue_attr *attr,
						    const struct siw_sge *sge);

extern const struct siw_addr fuzz_addr;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
