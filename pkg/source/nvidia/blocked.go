// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// A call that hangs may hold a lock of the driver for which the calls for all other GPUs wait. The other GPUs may be healthy, so they are
// blocked, and only the GPU that hung first is stuck.

// gspTimeouts are the XIDs that name the GPU for which the driver waits under its locks: a request to its firmware (GSP) timed out (119),
// or the firmware failed (120).
var gspTimeouts = []string{"119", "120"}

// loggedBefore is how long before the hang the driver may have reported such an XID: it retries for minutes.
const loggedBefore = 5 * time.Minute

const (
	// A GPU whose call hung until the child was killed is skipped for skipAfterHang, then for twice the previous pause, up to
	// longestSkip.
	skipAfterHang = time.Minute
	longestSkip   = time.Hour
)

// errRemaining is why no further child is started.
var errRemaining = errors.New("processes that read NVML were killed and have not ended")

// hangs knows the GPUs with calls that hung until their child was killed.
type hangs struct {
	children   *children
	firstFault func(driver model.FaultDriver, codes []string, since time.Time) (pciAddress string, ok bool) // may be nil
	limit      time.Duration                                                                                // Options.hangLimit
	devices    map[string]hungDevice                                                                        // by key; used by the keeper

	mu      sync.Mutex
	suspect suspect
}

// hungDevice is a device with a call that hung until its process was killed.
type hungDevice struct {
	pause time.Duration
	until time.Time
}

// suspect is the GPU for which a call hung until its child was killed.
type suspect struct {
	key, uuid string
	at        time.Time
	answered  bool // another GPU has answered since: no lock of the driver is held for it
}

// ended skips the GPU that hung first for a while after a session has ended. Another session would hang as well, and end for all GPUs.
func (h *hangs) ended(hung *hungError, known map[string]wire.KnownDevice) {
	now, key := time.Now(), h.first(hung, known)
	h.mu.Lock()
	h.suspect = suspect{key: key, uuid: known[key].GPU.UUID, at: now}
	h.mu.Unlock()
	last := h.devices[key]
	pause := skipAfterHang
	if now.Sub(last.until) < longestSkip {
		pause = min(2*last.pause, longestSkip)
	}
	h.devices[key] = hungDevice{max(pause, skipAfterHang), now.Add(max(pause, skipAfterHang))}
}

// skip returns the GPUs to skip, and until when.
func (h *hangs) skip(now time.Time) map[string]time.Time {
	skip := map[string]time.Time{}
	for key, d := range h.devices {
		switch {
		case now.Before(d.until):
			skip[key] = d.until
		case now.Sub(d.until) > longestSkip:
			delete(h.devices, key)
		}
	}
	return skip
}

// block finds the GPU for which the others wait, if no GPU answers, and changes the states of the others. It changes copies: the session
// may use the reading again.
func (h *hangs) block(snap *model.Snapshot) {
	hung := h.suspected()
	held := hung.key != "" && !hung.answered && len(h.children.remaining()) > 0 // for a GPU that is not called any more
	first := -1
	var since time.Time
	var waiting []int
	for i, d := range snap.DeviceStates {
		switch {
		case d.State == model.StateStuck:
			waiting = append(waiting, i)
			if !d.Waiting.IsZero() && (since.IsZero() || d.Waiting.Before(since)) {
				since = d.Waiting
			}
			if (held || !d.Waiting.IsZero()) && (first < 0 || d.Waiting.Before(snap.DeviceStates[first].Waiting)) {
				first = i
			}
		case d.Waiting.IsZero() && !asleep(snap, d.Device): // it answers, with values or with an error
			h.clear(hung)
			return
		}
	}
	if len(waiting) < 2 || first < 0 {
		return
	}
	if since.IsZero() {
		since = time.Now()
	}
	snap.DeviceStates, snap.GPUs = slices.Clone(snap.DeviceStates), slices.Clone(snap.GPUs)
	logged := h.logged(snap, waiting, since.Add(-loggedBefore))
	if logged >= 0 {
		first = logged
	}
	for _, i := range waiting {
		// A skipped GPU hung before the others.
		if d := snap.DeviceStates[i]; i != first && (logged >= 0 || !d.Waiting.IsZero()) {
			setBlocked(snap, i, snap.DeviceStates[first].Device)
		}
	}
}

// logged returns the index of the state of the first GPU with gspTimeouts, or -1.
func (h *hangs) logged(snap *model.Snapshot, waiting []int, since time.Time) int {
	if h.firstFault != nil {
		if address, ok := h.firstFault(model.DriverNVIDIA, gspTimeouts, since); ok {
			return slices.IndexFunc(snap.DeviceStates, func(d model.DeviceState) bool {
				g := gpuOf(snap, d.Device)
				return d.State == model.StateStuck && g != nil && strings.EqualFold(g.PCIAddress, address)
			})
		}
	}
	first, at := -1, time.Time{}
	for _, i := range waiting {
		g := gpuOf(snap, snap.DeviceStates[i].Device)
		if g == nil {
			continue
		}
		for _, x := range g.XIDs {
			if slices.Contains(gspTimeouts, fmt.Sprint(x.Code)) && x.Last.After(since) && (first < 0 || x.Last.Before(at)) {
				first, at = i, x.Last
			}
		}
	}
	return first
}

// gpuOf returns the GPU of a device state, nil if unknown.
func gpuOf(snap *model.Snapshot, device string) *model.GPU {
	i := slices.IndexFunc(snap.GPUs, func(g model.GPU) bool {
		return g.Parent == "" && (g.ID == device || g.PCIAddress == device)
	})
	if i < 0 {
		return nil
	}
	return &snap.GPUs[i]
}

// asleep reports whether a device is not called because it is suspended.
func asleep(snap *model.Snapshot, device string) bool {
	g := gpuOf(snap, device)
	return g == nil || g.Suspended
}

// setBlocked changes the state of a device, of its GPU and of the instances of the GPU.
func setBlocked(snap *model.Snapshot, i int, behind string) {
	d := &snap.DeviceStates[i]
	d.State = model.StateBlocked
	d.Reason = fmt.Sprintf("waits for GPU %s: a call into the driver for that GPU has not returned", behind)
	gpu := gpuOf(snap, d.Device)
	if gpu == nil {
		return
	}
	for j := range snap.GPUs {
		if g := &snap.GPUs[j]; g.UUID == gpu.UUID || g.Parent == gpu.UUID {
			g.Blocked, g.Problems = true, nil
		}
	}
}

// unopened adds the states of the GPUs while the library cannot be opened because of an earlier call that hung.
func (h *hangs) unopened(snap *model.Snapshot, why error) {
	hung := h.suspected()
	over := hung.answered && len(h.children.remaining()) == 0
	if hung.key == "" || over || !errors.Is(why, errHung) && !errors.Is(why, errRemaining) {
		return
	}
	for i := range snap.GPUs {
		g := &snap.GPUs[i]
		if g.Parent != "" {
			continue
		}
		d := model.DeviceState{
			Source: "nvidia", Device: g.ID, State: model.StateStuck, Reason: wire.ErrStuck.Error(), Waiting: hung.at.Add(time.Nanosecond),
		}
		if g.UUID == hung.uuid {
			d.Waiting = hung.at
		}
		snap.DeviceStates = append(snap.DeviceStates, d)
		g.Problems = wire.Fatal{Stuck: true}.Conditions()
	}
	h.block(snap)
}

// suspected returns the suspect, or a suspect with an empty key.
func (h *hangs) suspected() suspect {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.suspect
}

// clear records that a GPU other than the suspect has answered.
func (h *hangs) clear(hung suspect) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.suspect == hung {
		h.suspect.answered = true
	}
}

// first returns the key of the device to skip after a session has ended by a hang. If no device answered, this is the device for which
// the driver reported gspTimeouts, or the suspect of an earlier child that has not ended.
func (h *hangs) first(hung *hungError, known map[string]wire.KnownDevice) string {
	earlier := h.suspected()
	if !hung.all {
		return hung.keys[0]
	}
	if h.firstFault != nil {
		if address, ok := h.firstFault(model.DriverNVIDIA, gspTimeouts, time.Now().Add(-h.limit-loggedBefore)); ok {
			for key := range known {
				if strings.HasPrefix(key, address+"#") {
					return key
				}
			}
		}
	}
	if earlier.key != "" && !earlier.answered && len(h.children.remaining()) > 0 {
		return earlier.key
	}
	return hung.keys[0]
}
