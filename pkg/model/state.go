// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"strings"
	"time"
)

// ErrAbsent reports that the object of a source does not exist on this node (no HCA, no cgroup
// file system). It is a state, not a failure.
var ErrAbsent = errors.New("absent")

// ErrUnsupported reports that the object exists, but that this kernel, driver or build cannot
// report its values.
var ErrUnsupported = errors.New("unsupported")

// ErrReleased reports that the object exists and is left alone for a while, because somebody
// works on it.
var ErrReleased = errors.New("released")

// Hook is one kernel function or tracepoint for a probe.
type Hook struct {
	Name   string // kernel function or tracepoint
	Tier   string // fentry, kprobe, tracepoint, raw_tracepoint, iterator or uprobe; empty if not attached
	State  State
	Reason string // why it is not attached
	Err    error  // the error of attaching, also in Reason; nil if it was not tried
}

// Map is the fill of one BPF map.
type Map struct {
	Name     string
	Entries  uint64
	Capacity uint64
}

// Loss counts what a probe could not record.
type Loss struct {
	Reason string
	Count  uint64
}

// SkippedLines counts the lines of a file, or of the files of that name of all processes and cgroups, that could not be parsed and
// were left out. A line that stays in its file is counted once.
type SkippedLines struct {
	File  string // net/dev, io.stat
	Count uint64
}

// ChildProcesses counts the child processes of a source.
type ChildProcesses struct {
	Source string
	Ends   []Loss // unexpected ends, by reason
	Stuck  uint64 // were killed and have not ended
}

// ProbeDurations are how long calls took that attach or detach one uprobe, by source, and how long a fork may have waited for them.
type ProbeDurations struct {
	Source, Operation string
	Calls, Forks      Histogram
}

// Repair counts objects that were added to or removed from the counts of the probe.
type Repair struct {
	Change string
	Count  uint64
}

// State is the state of a source, a device or a hook.
type State string

// The states. Hooks are absent while there is no device to watch. A device is blocked if calls
// for it wait for another device that is stuck. A device is quarantined if it failed too often
// and is not read anymore. A source is released while an operator, or a tool, works on its
// devices.
const (
	StateOK          State = "ok"
	StateAbsent      State = "absent"
	StateUnsupported State = "unsupported"
	StateFailed      State = "failed"
	StateStuck       State = "stuck"
	StateBlocked     State = "blocked"
	StateQuarantined State = "quarantined"
	StateReleased    State = "released"
)

// SourceState is the state of one source.
type SourceState struct {
	Source string
	State  State  // ok, absent, unsupported, failed, stuck or released
	Reason string // why it is not ok
	Err    error  // the error with the text Reason
	// Took is the duration of its last answer, Age the time since then: negative if there was
	// none.
	Took time.Duration
	Age  time.Duration
}

// DeviceState is the state of one device in one source.
type DeviceState struct {
	Source string
	Device string
	State  State
	Reason string // why it is not ok, or what was left out although it is
	// Waiting is the start of a call for the device that has not returned; zero if there is none or if it is unknown.
	Waiting time.Time
}

// WithoutState removes the state from the ends of each line of a reason that is shown next to the state: errors that wrap
// ErrAbsent or ErrUnsupported have the text of that error there.
func WithoutState(reason string, state State) string {
	lines := strings.Split(reason, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimSuffix(line, ": "+string(state)), string(state)+": ")
	}
	return strings.Join(lines, "\n")
}
