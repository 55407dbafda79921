/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events of connections and the locks that protect them. "read": the end of a connection is
 * reported to a thread although the progress lock is held. "move": an id moves to another channel
 * while its connection ends; the event arrives in the new channel, whichever is first. "cross": two
 * threads move two ids between two channels at the same time, while their connection ends and a
 * thread reads events; each id's event arrives once, and each channel counts its ids.
 */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "device/device.h"
#include "rig.h"

#define CONNECTIONS 200

static struct rig rig;
static struct siw_cm_channel *other;
static struct end a, b;
static pthread_barrier_t both;

static void await_cm_event(struct siw_cm_channel *channel)
{
	struct pollfd readable = { .fd = siw_cm_channel_fd(channel), .events = POLLIN };

	must(poll(&readable, 1, LIMIT_MS) == 1);
}

/* Reads the event that the connection of one of the two ids has ended, and returns the id. */
static struct siw_cm_id *read_disconnected_event(struct siw_cm_channel *channel)
{
	struct siw_cm_event event;

	await_cm_event(channel);
	check(siw_cm_get_event(channel, &event, 0));
	must(event.event == SIW_CM_DISCONNECTED);
	return event.id;
}

static void read_cm_event_with_progress_lock_held(void)
{
	connect_rc_endpoints(&a, &rig, &b, &rig, 1);
	check(siw_cm_disconnect(a.id));
	await_cm_event(rig.cm);
	siw_lock(&rig.ctx->lane0.lock);
	read_disconnected_event(rig.cm);
	siw_unlock(&rig.ctx->lane0.lock);
	close_endpoint(&a);
	close_endpoint(&b);
}

static void *migrate_ids(void *unused)
{
	(void)unused;
	for (int i = 0; i < CONNECTIONS; i++) {
		pthread_barrier_wait(&both);
		check(siw_cm_migrate_id(a.id, other));
		check(siw_cm_migrate_id(b.id, other));
		pthread_barrier_wait(&both);
	}
	return NULL;
}

static void migrate_ids_whose_connection_ends(void)
{
	struct siw_cm_event event;
	pthread_t mover;

	must(pthread_barrier_init(&both, NULL, 2) == 0);
	must(pthread_create(&mover, NULL, migrate_ids, NULL) == 0);
	for (int i = 0; i < CONNECTIONS; i++) {
		struct siw_cm_id *first;

		connect_rc_endpoints(&a, &rig, &b, &rig, 1);
		pthread_barrier_wait(&both);
		check(siw_cm_disconnect(a.id));
		pthread_barrier_wait(&both);
		first = read_disconnected_event(other);
		must(first != read_disconnected_event(other));
		must(siw_cm_get_event(rig.cm, &event, 0) < 0);
		close_endpoint(&a);
		close_endpoint(&b);
	}
	must(pthread_join(mover, NULL) == 0);
	must(pthread_barrier_destroy(&both) == 0);
}

static atomic_bool moving;

/* Moves both ids to and fro between two channels. The two threads begin in opposite directions. */
static void *migrate_ids_to_and_fro(void *begins_with_other)
{
	bool to_other = begins_with_other != NULL;

	for (; moving; to_other = !to_other) {
		check(siw_cm_migrate_id(a.id, to_other ? other : rig.cm));
		check(siw_cm_migrate_id(b.id, to_other ? rig.cm : other));
		sched_yield(); /* so that each thread also runs between two events */
	}
	return NULL;
}

/* Returns the id of the next event of either channel; the events are ends of connections. */
static struct siw_cm_id *read_disconnected_event_from_either_channel(void)
{
	struct siw_cm_event event;

	for (int i = 0; i < LIMIT_MS; i++) {
		if (siw_cm_get_event(i % 2 ? other : rig.cm, &event, 1) == 0) {
			must(event.event == SIW_CM_DISCONNECTED);
			return event.id;
		}
	}
	die("no event arrives");
}

static void migrate_ids_with_two_threads(void)
{
	pthread_t movers[2];

	for (int i = 0; i < CONNECTIONS / 2; i++) {
		struct siw_cm_id *first;
		struct siw_cm_event event;

		connect_rc_endpoints(&a, &rig, &b, &rig, 1);
		moving = true;
		for (int j = 0; j < 2; j++)
			must(pthread_create(&movers[j], NULL, migrate_ids_to_and_fro,
					    j ? &moving : NULL) == 0);
		check(siw_cm_disconnect(a.id));
		first = read_disconnected_event_from_either_channel();
		must(first != read_disconnected_event_from_either_channel());
		moving = false;
		for (int j = 0; j < 2; j++)
			must(pthread_join(movers[j], NULL) == 0);
		must(siw_cm_get_event(rig.cm, &event, 0) < 0);
		must(siw_cm_get_event(other, &event, 0) < 0);
		close_endpoint(&a);
		close_endpoint(&b);
	}
}

int main(int argc, char **argv)
{
	must(argc == 2);
	rig_open(&rig);
	other = siw_cm_create_channel(rig.ctx);
	must(other);
	if (strcmp(argv[1], "read") == 0)
		read_cm_event_with_progress_lock_held();
	else if (strcmp(argv[1], "move") == 0)
		migrate_ids_whose_connection_ends();
	else
		migrate_ids_with_two_threads();
	check(siw_cm_destroy_channel(other));
	rig_close(&rig);
	return 0;
}
