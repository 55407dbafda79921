/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * abi/ibverbs/abi_signals.c - restarting waits for events according to SA_RESTART. With an adapter
 * a program sleeps in read(2) or write(2), which the kernel restarts after a handler with
 * SA_RESTART. With siwarp a program sleeps in poll(2) and similar calls, which the kernel does not
 * restart.
 */
#include <signal.h>

#include "abi/ibverbs/abi.h"

/*
 * Returns whether a signal reports a fault of the thread itself, which cannot interrupt a wait. The
 * engine handles some of these signals for its guarded accesses.
 */
static bool is_synchronous_fault_signal(int number)
{
	return number == SIGSEGV || number == SIGBUS || number == SIGILL || number == SIGFPE ||
	       number == SIGTRAP;
}

bool abi_should_restart_interrupted_wait(void)
{
	for (int number = 1; number <= SIGRTMAX; number++) {
		struct sigaction own;

		/* sigaction fails for signals that the C library reserves */
		if (is_synchronous_fault_signal(number) || sigaction(number, NULL, &own))
			continue;
		if (own.sa_handler != SIG_DFL && own.sa_handler != SIG_IGN &&
		    !(own.sa_flags & SA_RESTART))
			return false;
	}
	return true;
}
