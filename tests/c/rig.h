/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared by the test programs: a device, queue pairs on loopback, and steps that abort the program
 * on failure.
 */
#ifndef TESTS_C_RIG_H
#define TESTS_C_RIG_H

#include <siwarp/cm.h>
#include <siwarp/siw_ext.h>

/* time limit in ms, far longer than any wait takes, even under a sanitizer */
#define LIMIT_MS 20000

struct rig {
	struct siw_context *ctx;
	struct siw_pd *pd;
	struct siw_cm_channel *cm;
};

/*
 * A queue pair with one CQ on one completion channel, and memory of `slots` slots of SLOT octets.
 */
#define SLOT 256
struct end {
	struct rig *rig;
	struct siw_comp_channel *channel;
	struct siw_cq *cq;
	struct siw_qp *qp;
	struct siw_mr *mr;
	struct siw_cm_id *id; /* the connection id; RC only */
	struct siw_ah *ah;    /* the destination of Sends; UD only */
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
/* Creates a UD queue pair in RTS that sends to the queue pair of dest, or to itself. */
void open_ud_endpoint(struct end *end, struct rig *rig, unsigned int slots, const struct end *dest);
/* Creates two connected RC queue pairs, possibly on the same rig. */
void connect_rc_endpoints(struct end *a, struct rig *of_a, struct end *b, struct rig *of_b,
			  unsigned int slots);
void close_endpoint(struct end *end);

/* Posts a receive into this slot; the slot number is the wr_id. Returns 0 or -errno. */
int post_recv(struct end *end, unsigned int slot);
/* Posts a signalled Send (or Write) of size octets from this slot. Returns 0 or -errno. */
int post_send(struct end *end, unsigned int slot, unsigned int size, uint64_t wr_id);
int post_write(struct end *end, unsigned int slot, unsigned int size, uint64_t wr_id,
	       const struct end *to, unsigned int to_slot);
/*
 * Polls for exactly n completions; aborts the program if one has failed or they do not arrive in
 * time.
 */
void await_completions(struct end *end, struct siw_wc *wc, int n);
/*
 * Sends a message of size octets from a to b and waits for its completions. a and b may be the
 * same.
 */
void send_and_check_message(struct end *a, struct end *b, unsigned int size, char first);

#endif
