// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Communicator is a rank of a communicator of NCCL or RCCL, in a process of a cgroup.
type Communicator struct {
	Cgroup  CgroupID
	Library string // nccl or rccl
	Version string // of the library; empty: unknown
	// Key is a keyed hash of the communicator's id, which is the same in all ranks and nodes. Parent is the Key of the communicator
	// from which it was made; empty: none.
	Key, Parent string
	// Rank is the rank in the communicator. "parent-3" is the rank 3 of the parent, where its own rank is unknown.
	Rank string
	// Ranks is the number of ranks; 0: unknown.
	Ranks uint32
	// Since is a time at which all Operations were 0; zero if unknown.
	Since time.Time
	// LastLaunch is the last call of an operation; zero: none was seen.
	LastLaunch time.Time
	// Late is how many seconds its launches were after the first launch with the same number on this node, added up. Unknown: no other
	// rank is on this node, or launches of a rank on this node were not seen.
	Late Optional
	// Numbered: all launches were seen. Launched is the number of the last launch, which is the same in all ranks: sends and receives have
	// none. Kept are times of earlier launches. Both are empty unless Numbered.
	Numbered bool
	Launched uint64
	Kept     []KeptLaunch
	// Operations are the called operations, sorted by name.
	Operations []CommunicatorOperation
	// Ended is when the rank left the communicator: it called destroy, abort or finalize, or its process ended. Zero: it has not.
	Ended   time.Time
	Process LaunchingProcess
}

// LaunchingProcess is the process of a rank. All times have a reading of the monotonic clock, so that they stay right when the node's
// clock is set.
type LaunchingProcess struct {
	PID   int  // in the initial PID namespace
	Ended bool // the process has ended
	// State is the letter of its first thread in /proc/PID/stat, at each reading since StateSince; empty: not read. A process whose
	// first thread ended before its other threads has no state. CPU is the CPU time of all its threads at the last reading.
	State      string
	StateSince time.Time
	CPU        time.Duration
	// LastLaunch is the last launch in any communicator, also if the communicator is not listed.
	LastLaunch time.Time
	// LastGraph is the last time at which it had launched another graph, or may have; zero: it has launched none.
	LastGraph time.Time
}

// KeptLaunch is when a rank launched, by the present time of the node's clock, exact to 256 ns.
type KeptLaunch struct {
	Number uint64
	Time   time.Time
}

// Clock is the state of the node's clock, from adjtimex(2). The errors are 0 if the program that sets the clock does not report them.
type Clock struct {
	Synchronized                 bool
	EstimatedError, MaximumError time.Duration
}

// CommunicatorOperation is what a rank of a communicator launched of an operation, such as all_reduce.
type CommunicatorOperation struct {
	Operation string
	Launches
}

// Launches is a number of calls of collective operations, and the bytes of their arguments: elements times the size of the type.
type Launches struct{ Count, Bytes uint64 }

// Add adds v.
func (l *Launches) Add(v *Launches) { l.Count, l.Bytes = l.Count+v.Count, l.Bytes+v.Bytes }

// Subtract subtracts v.
func (l *Launches) Subtract(v *Launches) { l.Count, l.Bytes = l.Count-v.Count, l.Bytes-v.Bytes }

// Fell reports whether a count is smaller than in last.
func (l *Launches) Fell(last *Launches) bool { return l.Count < last.Count || l.Bytes < last.Bytes }

// The communicators of a CollectiveKey.
const (
	// LateCommunicators were made before the probes were attached, or their id could not be read.
	LateCommunicators = "late"
	// OtherCommunicators are more than the sensor lists.
	OtherCommunicators = "other"
)

// CollectiveGap is why the launches of a workload are not all counted, or not by communicator. Empty: they are.
type CollectiveGap string

// The gaps.
const (
	CollectiveLate      CollectiveGap = "late"       // has LateCommunicators
	CollectiveOther     CollectiveGap = "other"      // has OtherCommunicators
	CollectiveStatic    CollectiveGap = "static"     // linked statically: the compiler may have moved calls around the functions
	CollectiveNoSymbols CollectiveGap = "no_symbols" // linked statically without symbols: nothing is counted
	CollectiveGraphs    CollectiveGap = "graphs"     // launches graphs, in which collectives are not counted
	CollectiveRefused   CollectiveGap = "refused"    // functions are not probed
	CollectiveBudget    CollectiveGap = "budget"     // functions are not probed for a while, because they are called too often
	CollectiveLost      CollectiveGap = "lost"       // the counts lack earlier launches or communicators, for want of room or of probes
	CollectiveBehind    CollectiveGap = "behind"     // Late is too small: a rank was too many launches behind, or its times had no room
)

// CollectiveCoverage is a gap of a cgroup with a process that uses NCCL or RCCL.
type CollectiveCoverage struct {
	Cgroup CgroupID
	Gap    CollectiveGap
}
