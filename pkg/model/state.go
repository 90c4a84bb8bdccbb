// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"strings"
	"time"
)

// ErrAbsent means that the object of a source does not exist on this node (no HCA, no cgroup file system). This is not a
// failure.
var ErrAbsent = errors.New("absent")

// ErrUnsupported means that the object exists, but this kernel, driver or build cannot report its values.
var ErrUnsupported = errors.New("unsupported")

// ErrReleased means that the object exists and is left alone for a while, because an operator works on it.
var ErrReleased = errors.New("released")

// LibraryStatus is whether a source has the library of a driver open, which keeps the driver loaded.
type LibraryStatus struct {
	State  State     // ok, released, or why the library is not open
	Reason string    // empty if the library is open
	Until  time.Time // end of the release
	Closed []string  // device nodes that the release has closed
	Open   []string  // device nodes that are open, also in a process that was killed and has not ended
}

// Hook is a kernel function or tracepoint for a probe.
type Hook struct {
	Name   string // kernel function or tracepoint
	Tier   string // fentry, kprobe, tracepoint, raw_tracepoint, iterator or uprobe; empty if not attached
	State  State
	Reason string // why the hook is not attached
	Err    error  // the error of attaching, also in Reason; nil without an attempt
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

// SkippedLines counts unparsable lines of a file, or of the files of a name of all processes and cgroups, that were
// left out. A line that stays in its file is counted once.
type SkippedLines struct {
	File  string // net/dev, io.stat
	Count uint64
}

// ChildProcesses counts the child processes of a source.
type ChildProcesses struct {
	Source string
	Ends   []Loss // unexpected ends, by reason
	Stuck  uint64 // killed, but not ended
}

// ProbeDurations are the times of calls that attach or detach one uprobe, by source, and how long forks may have waited
// for them.
type ProbeDurations struct {
	Source, Operation string
	Calls, Forks      Histogram
}

// Repair counts objects that were added to or removed from the probe's counts.
type Repair struct {
	Change string
	Count  uint64
}

// State is the state of a source, a device or a hook.
type State string

// The states. Hooks are absent while there is no device to watch. A device is blocked if calls for it wait for another,
// stuck device. A quarantined device failed too often and is not read any more. A source is released while an operator
// or a tool works on its devices.
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
	Reason string // why the state is not ok
	Err    error  // the error with the text Reason
	// Took is the duration of the last answer, Age the time since then: negative before the first answer.
	Took time.Duration
	Age  time.Duration
}

// DeviceState is the state of a device in a source.
type DeviceState struct {
	Source string
	Device string
	State  State
	Reason string // why the state is not ok, or what was left out although it is ok
	// Waiting is the start of a call for the device that has not returned; zero without such a call, or if unknown.
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
