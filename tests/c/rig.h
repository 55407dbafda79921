/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the test programs share: a device, queue pairs on loopback, and steps that die when they
 * fail.
 */
#ifndef TESTS_C_RIG_H
#define TESTS_C_RIG_H

#include <siwarp/cm.h>
#include <siwarp/siw_ext.h>

#define LIMIT_MS 20000 /* whatever is waited for comes long before, also under a sanitizer */

struct rig {
	struct siw_context *ctx;
	struct siw_pd *pd;
	struct siw_cm_channel *cm;
};

/* A queue pair with one CQ on one channel, and memory of slots slots of SLOT octets. */
#define SLOT 256
struct end {
	struct rig *rig;
	struct siw_comp_channel *channel;
	struct siw_cq *cq;
	struct siw_qp *qp;
	struct siw_mr *mr;
	struct siw_cm_id *id; /* RC */
	struct siw_ah *ah;    /* UD: where it sends */
	unsigned int slots;
	char *mem;
};

_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define check(r)                                                                         \
	do {                                                                             \
		int check_ = (r);                                                        \
		if (check_ < 0)                                                          \
			die("%s:%d: %s: %s", __FILE__, __LINE__, #r, strerror(-check_)); \
	} while (0)
#define must(condition)                                                           \
	do {                                                                      \
		if (!(condition))                                                 \
			die("%s:%d: not so: %s", __FILE__, __LINE__, #condition); \
	} while (0)

long now_ms(void);

void rig_open(struct rig *rig);
void rig_close(struct rig *rig);
/* A UD queue pair in RTS that sends to the one at dest, or to itself. */
void ud_open(struct end *end, struct rig *rig, unsigned int slots, const struct end *dest);
/* Two connected RC queue pairs; they may be of one rig. */
void rc_open(struct end *a, struct rig *of_a, struct end *b, struct rig *of_b, unsigned int slots);
void end_close(struct end *end);

/* Posts a receive into this slot; its number is the wr_id. 0 or -errno. */
int post_recv(struct end *end, unsigned int slot);
/* Posts a signalled Send (or Write) of size octets from this slot. 0 or -errno. */
int post_send(struct end *end, unsigned int slot, unsigned int size, uint64_t wr_id);
int post_write(struct end *end, unsigned int slot, unsigned int size, uint64_t wr_id,
	       const struct end *to, unsigned int to_slot);
/* Takes exactly n completions, polling; dies when one failed or they do not come. */
void await(struct end *end, struct siw_wc *wc, int n);
/* A message of size octets from a to b and its completions. a and b may be one. */
void exchange(struct end *a, struct end *b, unsigned int size, char first);

#endif
