// SPDX-License-Identifier: Apache-2.0

// Package budget decides when probes are attached, so that they take at most a
// limited share of the CPU time of each process. It is a controller without
// clock, I/O or goroutines: the caller passes the time and what processes took,
// and attaches and detaches probes.
//
// # Units and accounts
//
// What is switched is a unit: the probes of one group of calls (posting or
// polling) in one file, for all processes that map the file. Each process has an
// account for each group. In an interval in which the process used ΔCPU of CPU
// time and its probes took Δspent of it, the account changes by
//
//	share · 0.9 · L · ΔCPU − Δspent
//
// where L is the limit. Attaching and detaching a probe costs CPU time too and is
// part of Δspent. Posting has priority. Its share is 1 while its account is
// overdrawn, 1/2 until the account is full, then 0; polling has the rest. While
// posting is probed in windows only, polling has a quarter, as otherwise nothing
// would ever be known of received bytes.
//
// # Bounds
//
// Over any time, spent = 0.9·L·CPU + credit before − credit after. So any minute
// keeps the limit if the accounts change by at most a tenth of what the minute
// earns, which is 6 s of earnings. One second of earnings (L times the CPU time
// that the process uses per second, averaged over 10 s) is the unit of all
// bounds, so that the controller treats a process that uses a thousandth of a
// core like one that uses all of it:
//
//   - an account holds at most 1 s, or what it saves for a window; a window opens only
//     if the process may still spend its price within 0.9·L of the last minute;
//   - it may be overdrawn by 0.5 s, so that a burst does not end exact counting;
//   - a late tick adds some 20 ms of one core, or 2 s where L is 1 %.
//
// The limit cannot be kept for a process that stops running in a window or soon
// after it, as it cannot earn what the window cost. It exceeds the limit by that
// window at most. Nor can it be kept when a burst begins just after a check, and
// its probes take more than the process earns in a minute until it is checked and the
// probes are gone: up to 0.4 s the first time, about 0.1 s in a window. So a window
// opens only if the price of the most expensive one of the last minutes fits into the
// minute, whatever the last one cost, and ends while the highest cost of
// detaching can still be paid. An overdrawn account is set to 0 a minute after the last trap,
// since no minute contains both.
//
// # States of a unit
//
// Exact: the probes are attached all the time. This is the first state. The
// accounts are checked after 2 ms, then at intervals that double up to half a
// minute's earnings or 100 ms, whichever is longer: a process may begin to poll
// at full speed just after a check. While no probe is hit, the earnings of a
// whole core count for that. When an account is overdrawn, the unit leaves this
// state.
//
// Waiting: the probes are detached until each process has saved the price of a
// window, times a random factor of 1 to 1.5 so that windows do not run in step
// with the load. The price is what the last window cost; the first one is
// estimated from the calls since the last check. If a window costs more than 45 s
// of earnings, the next one is tried after a minute or later.
//
// Window: the probes are attached. It ends when the caller can remove them at once. The
// unit waits again, unless all accounts can pay for another window: then this one goes
// on, and ends a period every 2 s. Its length changes so that a window costs
// about 0.8 s of earnings of the process that pays most. Probes that are being detached
// cost as much as before and count nothing. So a window that costs more than that does
// not get shorter than the time for which it costs without counting, unless it costs
// more than 6 s: estimates of a steady load change every 15 s. A unit that stays
// attached for 10 s is exact again. Each time it then leaves that state this time
// doubles, up to 5 minutes; it is 10 s again after the unit was exact for four
// times as long.
//
// # Scaling
//
// The counts of a window are scaled to the period since the end of the previous one,
// for each process by its own CPU time, without what its probes added: a process that
// used a hundredth of it in the window has its counts times 100. CPU time earns the
// credit that opens windows, so windows are at random places of the CPU time of a
// process. Scaled by time, bursts would be reported twice. A process that hardly ran
// in the window goes on with its period, and the next window belongs to it, too.
//
// Probes add nothing to the CPU time of a process that polls all the time: it polls less
// while it is probed, and posts as often. Such a process uses as much CPU time outside of
// windows. So does one that posts as often as its CPU time permits, and posts less while
// it is probed: its estimate lacks that. Where probes took most of the CPU time of a window,
// what is left of it is uncertain, and counts are scaled by time.
package budget
