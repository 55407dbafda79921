/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * base/guard.c - accesses to user memory that return -EFAULT if the memory is not mapped, and the
 * signal handlers that implement this.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/guard.h"
#include "base/lock.h"

/*
 * The place where execution continues after a fault. The compiler's setjmp saves the frame pointer,
 * the address and the stack pointer with three stores, and treats all other registers as lost. The
 * signal handler continues there by changing the context that its return restores. The return
 * therefore also restores the signal mask and the floating-point modes, and sanitizer handlers in
 * between return normally. On other platforms the C library's setjmp is used.
 */
#if defined(__x86_64__) || (defined(__aarch64__) && !defined(__clang__))
#define BY_CONTEXT   1
#define SAVE_HERE(g) __builtin_setjmp((g)->jump)
typedef void *jump_t[5];
#else
#define BY_CONTEXT   0
#define SAVE_HERE(g) _setjmp((g)->jump)
typedef jmp_buf jump_t;
#endif

struct guard {
	jump_t jump;
	uintptr_t start, end; /* the range of user memory whose access may fault */
};

/*
 * The guarded access that this thread is making, or NULL. Initial-exec, because a signal handler
 * must not call the lookup function of thread-local variables, which may allocate memory.
 */
static __thread struct guard *now __attribute__((tls_model("initial-exec")));

#define BARRIER() __asm__ volatile("" ::: "memory")

/*
 * The body of a guarded function. Such functions have no local variables, because a fault loses
 * variables that are kept in registers.
 */
#define GUARDED(theirs, len, access)                                                            \
	do {                                                                                    \
		struct guard g;                                                                 \
                                                                                                \
		if (!(len))                                                                     \
			return 0;                                                               \
		g.start = (uintptr_t)(theirs);                                                  \
		g.end = g.start + (len);                                                        \
		if (SAVE_HERE(&g)) /* the handler of a fault continues here, with `now` NULL */ \
			return -EFAULT;                                                         \
		now = &g;                                                                       \
		BARRIER();                                                                      \
		access;                                                                         \
		BARRIER();                                                                      \
		now = NULL;                                                                     \
		return 0;                                                                       \
	} while (0)

__attribute__((noinline)) int siw_guard_read(void *own, const void *theirs, size_t len)
{
	GUARDED(theirs, len, memcpy(own, theirs, len));
}

__attribute__((noinline)) int siw_guard_write(void *theirs, const void *own, size_t len)
{
	GUARDED(theirs, len, memcpy(theirs, own, len));
}

__attribute__((noinline)) int siw_guard_crc(uint32_t *crc, const void *theirs, size_t len)
{
	GUARDED(theirs, len, *crc = siw_crc32c(*crc, theirs, len));
}

__attribute__((noinline)) int siw_guard_crc_read(uint32_t *crc, void *own, const void *theirs,
						 size_t len)
{
	GUARDED(theirs, len, *crc = siw_crc32c_copy(*crc, own, theirs, len));
}

__attribute__((noinline)) int siw_guard_crc_write(uint32_t *crc, void *theirs, const void *own,
						  size_t len)
{
	GUARDED(theirs, len, *crc = siw_crc32c_copy(*crc, theirs, own, len));
}

/* ---- 64-bit atomic accesses ------------------------------------------------------------------ */

_Static_assert(sizeof(_Atomic uint64_t) == sizeof(uint64_t) && ATOMIC_LLONG_LOCK_FREE == 2,
	       "an atomic 64-bit word has the layout of a plain one");

/* Accesses a word of user memory that other threads of the program may change concurrently. */
static inline _Atomic uint64_t *guard_cast_to_atomic_word(uint64_t *word)
{
	return (_Atomic uint64_t *)word;
}

/*
 * Adds two words field by field (RFC 7306 section 5.1.1): each bit set in bounds is the top bit of
 * a field, and the carry out of a field is dropped.
 */
static uint64_t add_fields_without_carry(uint64_t a, uint64_t b, uint64_t bounds)
{
	return ((a & ~bounds) + (b & ~bounds)) ^ ((a ^ b) & bounds);
}

/*
 * Excludes a function from ThreadSanitizer's instrumentation. ThreadSanitizer's atomics hold an
 * internal lock while they access the word, and a fault would leave that lock held.
 */
#define UNSEEN __attribute__((noinline, no_sanitize("thread")))

/*
 * The functions for atomic accesses must not be inlined: in a guarded function that calls no other
 * function, the compiler assumes that nothing can return to the saved place, and removes it. Both
 * loops repeat only after another thread has changed the word, so some thread always makes
 * progress.
 */
static UNSEEN uint64_t guarded_word_fetch_add(_Atomic uint64_t *word, uint64_t add, uint64_t bounds)
{
	uint64_t old;

	if (!bounds)
		return atomic_fetch_add_explicit(word, add, memory_order_seq_cst);
	old = atomic_load_explicit(word, memory_order_seq_cst);
	while (!atomic_compare_exchange_strong_explicit(word, &old,
							add_fields_without_carry(old, add, bounds),
							memory_order_seq_cst, memory_order_seq_cst))
		;
	return old;
}

static UNSEEN uint64_t guarded_word_cmp_swap(_Atomic uint64_t *word, uint64_t compare,
					     uint64_t compare_mask, uint64_t swap,
					     uint64_t swap_mask)
{
	uint64_t old = atomic_load_explicit(word, memory_order_seq_cst);

	while (!((old ^ compare) & compare_mask) &&
	       !atomic_compare_exchange_strong_explicit(word, &old,
							(old & ~swap_mask) | (swap & swap_mask),
							memory_order_seq_cst, memory_order_seq_cst))
		;
	return old;
}

__attribute__((noinline)) int siw_guard_fetch_add(uint64_t *before, uint64_t *theirs, uint64_t add,
						  uint64_t bounds)
{
	GUARDED(theirs, sizeof(*theirs),
		*before = guarded_word_fetch_add(guard_cast_to_atomic_word(theirs), add, bounds));
}

__attribute__((noinline)) int siw_guard_cmp_swap(uint64_t *before, uint64_t *theirs,
						 uint64_t compare, uint64_t compare_mask,
						 uint64_t swap, uint64_t swap_mask)
{
	GUARDED(theirs, sizeof(*theirs),
		*before = guarded_word_cmp_swap(guard_cast_to_atomic_word(theirs), compare,
						compare_mask, swap, swap_mask));
}

/* ---- the signal handlers --------------------------------------------------------------------- */

static const int signals[2] = { SIGSEGV, SIGBUS };
/* previous signal handlers, stored before siwarp's are installed */
static struct sigaction before[2];
static bool placed[2]; /* whether siwarp's handler was installed */
static unsigned int users;
static siw_lock_t lock = SIW_LOCK_INIT;

/*
 * Returns whether a fault address is in the guarded range. Addresses are compared by page, because
 * some CPUs report only the page of a fault.
 */
static bool guard_contains_fault_address(const struct guard *g, const void *addr)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)addr;

	return at >= (g->start & ~(page - 1)) && at < ((g->end + page - 1) & ~(page - 1));
}

static void guard_set_context_to_recovery_point(struct guard *g, ucontext_t *context)
{
#if BY_CONTEXT && defined(__x86_64__)
	context->uc_mcontext.gregs[REG_RBP] = (greg_t)(uintptr_t)g->jump[0];
	context->uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)g->jump[1];
	context->uc_mcontext.gregs[REG_RSP] = (greg_t)(uintptr_t)g->jump[2];
	/*
	 * Clears the direction flag, because a copy may run backwards and C code expects the flag
	 * to be clear.
	 */
	context->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)0x400;
#elif BY_CONTEXT
	context->uc_mcontext.regs[29] = (uintptr_t)g->jump[0];
	context->uc_mcontext.pc = (uintptr_t)g->jump[1];
	context->uc_mcontext.sp = (uintptr_t)g->jump[2];
#else
	sigset_t mask = context->uc_sigmask;

	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	_longjmp(g->jump, 1);
#endif
}

/*
 * Takes the default action for a signal without another handler: the process terminates, as it
 * would without siwarp.
 */
static void guard_take_default_signal_action(int sig, const siginfo_t *info)
{
	struct sigaction action = { .sa_handler = SIG_DFL };

	sigaction(sig, &action, NULL);
	/*
	 * When this signal handler returns, a fault recurs by itself; a signal that was sent must
	 * be raised again.
	 */
	if (info->si_code <= 0)
		raise(sig);
}

static void guard_call_previous_handler(int sig, siginfo_t *info, void *context)
{
	struct sigaction *old = &before[sig == signals[1]];

	if (!(old->sa_flags & SA_SIGINFO) && old->sa_handler == SIG_DFL) {
		guard_take_default_signal_action(sig, info);
		return;
	}
	if (!(old->sa_flags & SA_SIGINFO) && old->sa_handler == SIG_IGN) {
		if (info->si_code > 0) /* a SIGSEGV or SIGBUS of a fault cannot be ignored */
			guard_take_default_signal_action(sig, info);
		return;
	}
	pthread_sigmask(SIG_BLOCK, &old->sa_mask, NULL);
	if (old->sa_flags & SA_NODEFER) {
		sigset_t own;

		sigemptyset(&own);
		sigaddset(&own, sig);
		pthread_sigmask(SIG_UNBLOCK, &own, NULL);
	}
	if (old->sa_flags & SA_SIGINFO)
		old->sa_sigaction(sig, info, context);
	else
		old->sa_handler(sig);
}

static void handle_fault_signal(int sig, siginfo_t *info, void *context)
{
	struct guard *g = now;
	int saved = errno;

	if (g && info->si_code > 0 && guard_contains_fault_address(g, info->si_addr)) {
		now = NULL;
		guard_set_context_to_recovery_point(g, context);
	} else if (g && info->si_code == SI_TKILL && info->si_pid == getpid()) {
		/*
		 * A handler that was installed after siwarp's handler caught the fault, restored
		 * siwarp's handler and raised the signal again, as Python's faulthandler does. No
		 * action is needed: the fault recurs, and siwarp's handler handles it then.
		 */
	} else {
		guard_call_previous_handler(sig, info, context);
	}
	errno = saved;
}

static bool guard_is_own_handler(const struct sigaction *action)
{
	return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == handle_fault_signal;
}

static bool guard_is_default_or_ignoring_action(const struct sigaction *action)
{
	return !(action->sa_flags & SA_SIGINFO) &&
	       (action->sa_handler == SIG_DFL || action->sa_handler == SIG_IGN);
}

void siw_guard_install_handlers(void)
{
	struct sigaction ours = { .sa_sigaction = handle_fault_signal,
				  .sa_flags = SA_SIGINFO | SA_ONSTACK };

	siw_lock(&lock);
	users++;
	for (int i = 0; i < 2; i++) {
		struct sigaction found;

		sigaction(signals[i], NULL, &found);
		/*
		 * A handler that replaced siwarp's handler may call it. Installing siwarp's handler
		 * on top of such a handler would make the two call each other without end.
		 */
		if (guard_is_own_handler(&found) ||
		    (placed[i] && !guard_is_default_or_ignoring_action(&found)))
			continue;
		before[i] = found;
		placed[i] = true;
		sigaction(signals[i], &ours, NULL);
	}
	siw_unlock(&lock);
}

void siw_guard_remove_handlers(void)
{
	siw_lock(&lock);
	users--;
	for (int i = 0; i < 2 && !users; i++) {
		struct sigaction found;

		sigaction(signals[i], NULL, &found);
		if (!guard_is_own_handler(&found))
			continue;
		sigaction(signals[i], &before[i], NULL);
		placed[i] = false;
	}
	siw_unlock(&lock);
}
