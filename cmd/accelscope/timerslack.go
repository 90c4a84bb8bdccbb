// SPDX-License-Identifier: Apache-2.0

package main

// The Go runtime has a thread that monitors the others (sysmon). It sleeps 20 µs, looks, and sleeps again, for as long as Go code
// runs, which took up to a fifth of the CPU time of a scrape. The kernel may wake a thread later than requested by the slack of its
// timers: 50 µs by default, 500 µs here. The price is that goroutines which wait for a thread in a system call start up to 500 µs
// later, and that timers are as much less exact.
//
// A thread inherits the slack from the thread that creates it, and only a process with CAP_SYS_NICE may change the slack of
// another thread. So it is set before the Go runtime starts.

/*
#include <sys/prctl.h>

__attribute__((constructor)) static void set_timer_slack(void)
{
	prctl(PR_SET_TIMERSLACK, 500000UL, 0UL, 0UL, 0UL);
}
*/
import "C"
