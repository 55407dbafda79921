/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * sim/sim_world.c - the heap of timers, the tasks and their scheduler, the clock and the random
 * numbers of a world.
 *
 * A task is a thread that runs until a scheduling point. There the thread selects what runs next: a
 * device with work, whose progress round the thread makes itself, or a task, to which the thread
 * passes the turn. The clock advances only when no task and no device can run.
 */
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim/sim_impl.h"

/* pause after the first empty poll; each further empty poll doubles the pause */
#define FIRST_PAUSE_NS 1000
#define MOST_PAUSE_NS  1000000 /* maximum pause after an empty poll */

/* constants of linux/prctl.h since Linux 6.16, which older headers lack */
#ifndef PR_FUTEX_HASH
#define PR_FUTEX_HASH		78
#define PR_FUTEX_HASH_SET_SLOTS 1
#endif

/* maximum number of progress rounds of one device at one instant; more are an endless loop */
#define MOST_ROUNDS 1000000
/*
 * number of a device's progress rounds at one instant after which each round that handles no socket
 * takes simulated time
 */
#define FREE_ROUNDS 16

struct sim_world sim;

static _Thread_local struct sim_task *own;
static _Thread_local char why[256];

/* ---- memory, random numbers ------------------------------------------------------------------ */

static __attribute__((noreturn)) void sim_abort(const char *what)
{
	fprintf(stderr, "siwarp.sim: %s\n", what);
	abort();
}

void *sim_alloc(size_t octets)
{
	void *got = sim_internal_calloc(1, octets);

	if (!got)
		sim_abort("out of memory");
	return got;
}

void *sim_grow_array(void *array, uint32_t n, uint32_t *room, size_t size)
{
	if (n < *room)
		return array;
	*room = *room ? 2 * *room : 16;
	array = sim_internal_realloc(array, *room * size);
	if (!array)
		sim_abort("out of memory");
	return array;
}

uint64_t sim_draw_random(struct sim_random *random)
{
	uint64_t z = random->state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint64_t siw_sim_random(void)
{
	return sim_draw_random(&sim.numbers);
}

#define NUMBERS_NEAR_WRAP 4096 /* number of consecutive RD epochs that are distinct */

void siw_sim_set_sequence_near_wrap(int on)
{
	sim.near_wrap = on;
}

unsigned int __wrap_siw_cpu_count(void);

unsigned int __wrap_siw_cpu_count(void)
{
	return 1;
}

uint32_t __wrap_siw_initial_sequence(uint32_t usual);

/*
 * With siw_sim_set_sequence_near_wrap(), all MSNs begin at the same number, but each RD epoch gets
 * a number of its own, because epochs must differ.
 */
uint32_t __wrap_siw_initial_sequence(uint32_t usual)
{
	uint32_t i = 0;

	if (!sim.near_wrap)
		return usual;
	if (usual == 1)
		return SIW_SIM_NEAR_WRAP;
	while (i < sim.n_firsts && sim.firsts[i] != usual)
		i++;
	if (i == sim.n_firsts) {
		sim.firsts = sim_grow_array(sim.firsts, i, &sim.firsts_room, sizeof(*sim.firsts));
		sim.firsts[sim.n_firsts++] = usual;
	}
	return SIW_SIM_NEAR_WRAP - i % NUMBERS_NEAR_WRAP;
}

/* ---- the heap -------------------------------------------------------------------------------- */

static bool timer_expires_earlier(const struct sim_due *a, const struct sim_due *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void timer_heap_store(const struct sim_due *due, uint32_t place)
{
	sim.heap[place] = *due;
	due->timer->place = place;
}

/*
 * Stores a timer in the heap. place: a free position, from which the timer moves up or down to its
 * final position.
 */
static void timer_heap_insert(struct sim_due due, uint32_t place)
{
	uint32_t child;

	for (; place > 1 && timer_expires_earlier(&due, &sim.heap[place / 2]); place /= 2)
		timer_heap_store(&sim.heap[place / 2], place);
	while ((child = 2 * place) <= sim.n_heap) {
		if (child < sim.n_heap &&
		    timer_expires_earlier(&sim.heap[child + 1], &sim.heap[child]))
			child++;
		if (!timer_expires_earlier(&sim.heap[child], &due))
			break;
		timer_heap_store(&sim.heap[child], place);
		place = child;
	}
	timer_heap_store(&due, place);
}

void sim_timer_stop(struct sim_timer *timer)
{
	struct sim_due last;
	uint32_t place = timer->place;

	if (!place)
		return;
	timer->place = 0;
	last = sim.heap[sim.n_heap--];
	if (last.timer != timer)
		timer_heap_insert(last, place);
}

void sim_timer_set(struct sim_timer *timer, uint64_t at)
{
	if (timer->place && timer->at == at)
		return;
	sim_timer_stop(timer);
	if (at == SIM_NEVER)
		return;
	timer->at = at;
	sim.heap = sim_grow_array(sim.heap, sim.n_heap + 1, &sim.heap_room, sizeof(*sim.heap));
	timer_heap_insert((struct sim_due){ at, ++sim.order, timer }, ++sim.n_heap);
}

static uint64_t next_timer_due_ns(void)
{
	return sim.n_heap ? sim.heap[1].at : SIM_NEVER;
}

/* Advances the clock, and calls the functions of the timers that have expired. */
static void clock_advance(uint64_t to)
{
	if (to > sim.now) {
		sim.now = to;
		sim.stats.instants++;
	}
	while (sim.n_heap && sim.heap[1].at <= sim.now) {
		struct sim_timer *timer = sim.heap[1].timer;

		sim_timer_stop(timer);
		timer->fire(timer);
	}
}

/* ---- turns of tasks -------------------------------------------------------------------------- */

static void task_wait_until_scheduled(struct sim_task *task)
{
	while (!atomic_exchange_explicit(&task->turn, 0, memory_order_acquire))
		syscall(SYS_futex, &task->turn, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static void task_resume(struct sim_task *task)
{
	atomic_store_explicit(&task->turn, 1, memory_order_release);
	syscall(SYS_futex, &task->turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

struct sim_task *sim_current_task(void)
{
	if (!own || own != sim.running)
		sim_abort("a thread that is not a task of the world made a blocking or polling "
			  "call");
	if (sim.in_round)
		sim_abort("a progress round of a device would block");
	return own;
}

static void task_make_ready(struct sim_task *task)
{
	task->state = SIM_READY;
	sim.ready = sim_grow_array(sim.ready, sim.n_ready, &sim.ready_room, sizeof(*sim.ready));
	sim.ready[sim.n_ready++] = task;
}

static void task_wake(struct sim_task *task, bool by_event)
{
	if (task->state != SIM_BLOCKED)
		return;
	for (uint32_t i = 0; i < task->n_waits; i++)
		siw_link_del(&task->waits[i].link);
	task->n_waits = 0;
	sim_timer_stop(&task->timer);
	task->woken = by_event;
	task_make_ready(task);
}

void sim_wake_all(struct siw_link *waiters)
{
	while (!siw_link_empty(waiters))
		task_wake(siw_container(waiters->next, struct sim_wait, link)->task, true);
}

static void task_timer_fire(struct sim_timer *timer)
{
	task_wake(siw_container(timer, struct sim_task, timer), false);
}

/*
 * Returns the lowest-numbered task that is in siw_sim_step_world() or siw_sim_run_world(), or NULL.
 */
static struct sim_task *find_task_that_steps_world(void)
{
	for (uint32_t i = 0; sim.n_stepping && i < sim.n_tasks; i++)
		if (sim.tasks[i] && sim.tasks[i]->state == SIM_STEPPING)
			return sim.tasks[i];
	return NULL;
}

static void task_finish_world_step(struct sim_task *steps, int result)
{
	steps->stepped = result;
	sim.n_stepping--;
	if (steps->runs)
		sim.stopped = false;
	task_make_ready(steps);
}

/* Advances the clock or ends a step of the world, because nothing can run at this instant. */
static void advance_clock_or_end_world_step(void)
{
	struct sim_task *steps = find_task_that_steps_world();
	uint64_t to = next_timer_due_ns();

	if (to <= sim.now) { /* this instant's timers expire before a step ends */
		clock_advance(to);
		return;
	}
	if (steps && steps->runs && sim.stopped) {
		task_finish_world_step(steps, 1);
		return;
	}
	if (steps && steps->until < to)
		to = steps->until > sim.now ? steps->until : sim.now;
	if (to == SIM_NEVER && !steps)
		sim_abort("deadlock: every task waits, and no event will occur");
	if (to != SIM_NEVER)
		clock_advance(to);
	if (steps && (!steps->runs || to == SIM_NEVER || sim.now >= steps->until))
		task_finish_world_step(steps, to == SIM_NEVER ? -EDEADLK : sim.now < steps->until);
}

static void update_requested_poller_schedules(void)
{
	while (!siw_link_empty(&sim.due)) {
		struct siw_llp_poller *poller =
			siw_container(sim.due.next, struct siw_llp_poller, due);

		siw_link_del(&poller->due);
		sim_poller_update_schedule(poller);
	}
}

static void poller_make_progress_round(uint32_t which)
{
	struct siw_llp_poller *poller = sim.work[which];
	uint64_t handed = sim.handed;

	sim.work[which] = sim.work[--sim.n_work];
	poller->has_work = poller->nap_over = false;
	poller->rounds = poller->round_at == sim.now ? poller->rounds + 1 : 0;
	poller->round_at = sim.now;
	if (poller->rounds > MOST_ROUNDS)
		sim_abort("endless loop: a device's progress rounds find work without end at "
			  "one instant");
	sim.stats.rounds++;
	sim.in_round = true;
	if (sim_device_make_progress_round(poller)) {
		/*
		 * The device may have more work, or may be polling the clock, for example to keep
		 * delivery counts 5 us apart. In the latter case time has to pass between the
		 * rounds.
		 */
		if (sim.handed != handed || poller->rounds < FREE_ROUNDS)
			poller->nap_over = true;
		else
			poller->nap_until = sim.now + FIRST_PAUSE_NS;
	}
	sim.in_round = false;
	sim_poller_request_schedule_update(poller);
}

static struct sim_task *choose_next_task(void)
{
	for (;;) {
		uint32_t n, which;

		update_requested_poller_schedules();
		n = sim.n_ready + sim.n_work;
		if (!n) {
			advance_clock_or_end_world_step();
			continue;
		}
		which = n == 1 ? 0 : (uint32_t)(sim_draw_random(&sim.choose) % n);
		if (which < sim.n_ready) {
			struct sim_task *task = sim.ready[which];

			sim.ready[which] = sim.ready[--sim.n_ready];
			return task;
		}
		poller_make_progress_round(which - sim.n_ready);
	}
}

/*
 * Runs other tasks and devices, and returns when the calling task has the turn again. The caller
 * has set the task's state and the objects that the task waits for.
 */
static void run_other_tasks_until_rescheduled(struct sim_task *me)
{
	struct sim_task *next = choose_next_task();
	/* An ended task may be freed as soon as the next task runs. */
	bool ended = me->state == SIM_ENDED;

	sim.running = next;
	if (next == me)
		return;
	sim.stats.switches++;
	task_resume(next);
	if (!ended)
		task_wait_until_scheduled(me);
}

void sim_add_current_task_to_waiters(struct siw_link *waiters)
{
	struct sim_task *me = sim_current_task();
	struct sim_wait *wait;

	if (me->n_waits == me->waits_room) {
		uint32_t n = me->n_waits;
		struct sim_wait *more;

		more = sim_alloc((n ? 2 * n : 4) * sizeof(*more));
		me->waits_room = n ? 2 * n : 4;
		/* Each wait is a member of a list, so its copy must replace it in the list. */
		for (uint32_t i = 0; i < n; i++) {
			more[i].task = me;
			siw_link_add(&me->waits[i].link, &more[i].link);
			siw_link_del(&me->waits[i].link);
		}
		free(me->waits);
		me->waits = more;
	}
	wait = &me->waits[me->n_waits++];
	wait->task = me;
	siw_link_add(waiters, &wait->link);
}

bool sim_block_task(uint64_t until)
{
	struct sim_task *me = sim_current_task();

	me->woken = false;
	me->state = SIM_BLOCKED;
	if (until <= sim.now)
		task_wake(me, false);
	else
		sim_timer_set(&me->timer, until);
	run_other_tasks_until_rescheduled(me);
	return me->woken;
}

void sim_back_off_after_empty_poll(void)
{
	struct sim_task *me = sim_current_task();

	me->pause = !me->pause			    ? FIRST_PAUSE_NS
		    : me->pause < MOST_PAUSE_NS / 2 ? 2 * me->pause
						    : MOST_PAUSE_NS;
	sim_block_task(sim.now + me->pause);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Protects the array sim.tasks, which starting threads read while the running task adds tasks. */
static pthread_mutex_t tasks_lock = PTHREAD_MUTEX_INITIALIZER;

/*
 * Requests four futex hash buckets per task. By default Linux 6.16 and later have only about 16
 * hash buckets for the private futexes of a process, so that waking one task would search a
 * sixteenth of all waiting tasks.
 */
static void request_futex_hash_buckets(void)
{
	if (sim.n_tasks >= 64 && !(sim.n_tasks & (sim.n_tasks - 1)))
		prctl(PR_FUTEX_HASH, PR_FUTEX_HASH_SET_SLOTS, 4ul * sim.n_tasks, 0ul, 0ul);
}

int siw_sim_task_new(void)
{
	struct sim_task *task;

	if (!sim.open)
		return -ENOENT;
	task = sim_alloc(sizeof(*task));
	task->timer.fire = task_timer_fire;
	task->number = (int)sim.n_tasks;
	pthread_mutex_lock(&tasks_lock);
	sim.tasks =
		sim_grow_array(sim.tasks, sim.n_tasks, &sim.tasks_room, sizeof(struct sim_task *));
	sim.tasks[sim.n_tasks++] = task;
	pthread_mutex_unlock(&tasks_lock);
	request_futex_hash_buckets();
	if (task->number)
		task_make_ready(task);
	return task->number;
}

static struct sim_task *task_by_number(int number)
{
	return number >= 0 && (uint32_t)number < sim.n_tasks ? sim.tasks[number] : NULL;
}

void siw_sim_task_wait_first_turn(int number)
{
	struct sim_task *task;

	pthread_mutex_lock(&tasks_lock);
	task = task_by_number(number);
	pthread_mutex_unlock(&tasks_lock);
	if (!task)
		sim_abort("no such task");
	own = task;
	task_wait_until_scheduled(task);
}

void siw_sim_task_end(void)
{
	struct sim_task *me = sim_current_task();

	me->state = SIM_ENDED;
	own = NULL;
	run_other_tasks_until_rescheduled(me);
}

void siw_sim_task_destroy(int number)
{
	struct sim_task *task = task_by_number(number);

	for (uint32_t i = 0; task && i < sim.n_ready; i++)
		if (sim.ready[i] == task) {
			sim.ready[i] = sim.ready[--sim.n_ready];
			task->state = SIM_ENDED;
		}
}

int siw_sim_current_task_number(void)
{
	return own ? own->number : -1;
}

int siw_sim_has_task_ended(int number)
{
	const struct sim_task *task = task_by_number(number);

	return !task || task->state == SIM_ENDED;
}

void siw_sim_yield(void)
{
	sim_block_task(sim.now);
}

void siw_sim_sleep_until(uint64_t at)
{
	sim_block_task(at);
}

static int task_step_world(uint64_t until, bool runs)
{
	struct sim_task *me = sim_current_task();

	me->state = SIM_STEPPING;
	me->until = until;
	me->runs = runs;
	sim.n_stepping++;
	run_other_tasks_until_rescheduled(me);
	return me->stepped;
}

int siw_sim_step_world(uint64_t until)
{
	return task_step_world(until, false);
}

int siw_sim_run_world(uint64_t until)
{
	return task_step_world(until, true);
}

void siw_sim_stop_world_run(void)
{
	sim.stopped = true;
}

int siw_sim_park(uint64_t until)
{
	struct sim_task *me = sim_current_task();
	bool woken = me->unparked;

	if (woken) {
		me->unparked = false;
		sim_block_task(sim.now);
		return 1;
	}
	me->parked = true;
	sim_block_task(until);
	me->parked = false;
	woken = me->unparked;
	me->unparked = false;
	return woken;
}

void siw_sim_unpark(int number)
{
	struct sim_task *task = task_by_number(number);

	if (!task || task->state == SIM_ENDED)
		return;
	task->unparked = true;
	if (task->parked)
		task_wake(task, true);
}

/* ---- system calls of the engine, replaced by the linker's --wrap ----------------------------- */

int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __real_nanosleep(const struct timespec *t, struct timespec *left);
int __wrap_nanosleep(const struct timespec *t, struct timespec *left);
int __real_sched_yield(void);
int __wrap_sched_yield(void);
ssize_t __real_getrandom(void *to, size_t n, unsigned int flags);
ssize_t __wrap_getrandom(void *to, size_t n, unsigned int flags);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t)
{
	uint64_t ns = sim.now;

	if (!sim.open || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME &&
			  clock != CLOCK_MONOTONIC_COARSE && clock != CLOCK_REALTIME_COARSE))
		return __real_clock_gettime(clock, t);
	ns += clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ? SIW_SIM_MONOTONIC
									  : SIW_SIM_REALTIME;
	t->tv_sec = (time_t)(ns / 1000000000);
	t->tv_nsec = (long)(ns % 1000000000);
	return 0;
}

int __wrap_nanosleep(const struct timespec *t, struct timespec *left)
{
	if (!sim.open)
		return __real_nanosleep(t, left);
	sim_block_task(sim.now + (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec);
	return 0;
}

int __wrap_sched_yield(void)
{
	if (!sim.open)
		return __real_sched_yield();
	if (!sim.in_poll)
		sim_back_off_after_empty_poll();
	return 0;
}

ssize_t __wrap_getrandom(void *to, size_t n, unsigned int flags)
{
	uint64_t word = 0;

	if (!sim.open)
		return __real_getrandom(to, n, flags);
	for (size_t i = 0; i < n; i++, word >>= 8) {
		if (i % 8 == 0)
			word = sim_draw_random(&sim.numbers);
		((uint8_t *)to)[i] = (uint8_t)word;
	}
	return (ssize_t)n;
}

/* ---- open, close ----------------------------------------------------------------------------- */

const char *siw_sim_error_text(void)
{
	return why;
}

struct sim_plan *sim_fault_plan_parse(const char *text, enum siw_faults_place place)
{
	struct sim_plan *plan = sim_alloc(sizeof(*plan));

	if (siw_faults_parse(text ? text : "", place, &plan->faults, why, sizeof(why))) {
		free(plan);
		return NULL;
	}
	for (int i = 0; i < plan->faults.n; i++) {
		struct sim_random mix = { sim.net.state ^ plan->faults.clause[i].seed };

		plan->faults.clause[i].seed = sim_draw_random(&mix);
	}
	plan->began = sim.now;
	plan->next = sim.plans;
	sim.plans = plan;
	return plan;
}

/* Resets the global state of the simulator between two worlds. */
static void world_reset(void)
{
	memset(&sim, 0, sizeof(sim));
	siw_link_init(&sim.due);
	siw_link_init(&sim.pollers);
	siw_link_init(&sim.streams);
}

int siw_sim_open(uint64_t seed, const char *faults)
{
	struct sim_random seeds = { seed };

	if (sim.open)
		return -EBUSY;
	world_reset();
	sim.choose.state = sim_draw_random(&seeds);
	sim.numbers.state = sim_draw_random(&seeds);
	sim.net.state = sim_draw_random(&seeds);
	sim.tcp.state = sim_draw_random(&seeds);
	sim.memory.state = sim_draw_random(&seeds);
	sim.plan = sim_fault_plan_parse(faults, SIW_FAULTS_LINK);
	if (!sim.plan)
		return -EINVAL;
	sim.open = true;
	siw_sim_task_new();
	own = sim.running = sim.tasks[0];
	return 0;
}

static bool has_unended_task(void)
{
	for (uint32_t i = 1; i < sim.n_tasks; i++)
		if (sim.tasks[i]->state != SIM_ENDED)
			return true;
	return false;
}

int siw_sim_close_world(void)
{
	struct siw_sim_stats stats = sim.stats;
	uint64_t now = sim.now, hash = sim.hash;

	if (!sim.open)
		return -ENOENT;
	if (sim_current_task()->number || sim.n_pollers || has_unended_task())
		return -EBUSY;
	sim.open = false;
	own = NULL;
	for (uint32_t i = 0; i < sim.n_tasks; i++) {
		free(sim.tasks[i]->waits);
		free(sim.tasks[i]);
	}
	free(sim.firsts);
	sim_net_free();
	for (struct sim_plan *next, *plan = sim.plans; plan; plan = next) {
		next = plan->next;
		free(plan);
	}
	free(sim.tasks);
	free(sim.ready);
	free(sim.work);
	free(sim.heap);
	world_reset();
	sim.stats = stats;
	sim.now = now;
	sim.hash = hash;
	return 0;
}

int siw_sim_is_world_open(void)
{
	return sim.open;
}

uint64_t siw_sim_now(void)
{
	return sim.now;
}

void siw_sim_stats(struct siw_sim_stats *out)
{
	*out = sim.stats;
}

uint64_t siw_sim_trace_hash(void)
{
	return sim.hash;
}

/* ---- fault plans ----------------------------------------------------------------------------- */

int siw_sim_set_fault_plan(const char *faults)
{
	struct sim_plan *plan = sim_fault_plan_parse(faults, SIW_FAULTS_LINK);

	if (!plan)
		return -EINVAL;
	sim.plan = plan;
	return 0;
}

int siw_sim_set_link_fault_plan(int a, int b, const char *faults)
{
	struct sim_path *there, *back;
	struct sim_plan *plan;

	if (a < 0 || b < 0 || (uint32_t)a >= sim.n_hosts || (uint32_t)b >= sim.n_hosts)
		return -ENOENT;
	plan = faults ? sim_fault_plan_parse(faults, SIW_FAULTS_LINK) : NULL;
	if (faults && !plan)
		return -EINVAL;
	there = sim_path_find_or_create(sim.hosts[a], sim.hosts[b]);
	back = sim_path_find_or_create(sim.hosts[b], sim.hosts[a]);
	back->own = there->own = plan;
	there->receives = false;
	back->receives = a != b;
	return 0;
}
