/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/abi_signals.c - waits for events and SA_RESTART. With adapters a program sleeps in read(2) or
 * write(2), which the kernel restarts after such a handler; here it sleeps in poll(2) and its like,
 * which it does not.
 */
#include <signal.h>

#include "abi/abi.h"

/* Of faults of the thread itself, which no wait has: guarded access handles some of them. */
static bool of_a_fault(int number)
{
	return number == SIGSEGV || number == SIGBUS || number == SIGILL || number == SIGFPE ||
	       number == SIGTRAP;
}

bool abi_restarts(void)
{
	for (int number = 1; number <= SIGRTMAX; number++) {
		struct sigaction own;

		if (of_a_fault(number) || sigaction(number, NULL, &own)) /* the C library's own */
			continue;
		if (own.sa_handler != SIG_DFL && own.sa_handler != SIG_IGN &&
		    !(own.sa_flags & SA_RESTART))
			return false;
	}
	return true;
}
