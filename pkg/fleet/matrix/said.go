// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/fleet"
)

// Limits of what a sensor says about members.
const (
	maxVerdicts = 1 << 20
	maxKnown    = 20 // verdicts of a node
	maxEvidence = 4  // of a verdict, each of at most maxText bytes
	maxText     = 300
	maxLaunches = 8 << 20
	maxOmitted  = 1 << 20 // of a node, as its sensor says
	maxFaults   = 1 << 20
	maxRanks    = 128 // of a node
	maxTimes    = 64  // of a rank
)

// rank is a rank on a node, with the times of its launches by number.
type rank struct {
	communicator, library, name, workload string
	nranks                                int
	times                                 map[uint64]time.Time
}

// readVerdicts reads the verdicts on owners.
func (a *answer) readVerdicts(body *fleet.Body, of map[owner]bool) error {
	var answer struct {
		Data struct {
			Verdicts list[api.Verdict]
			Omitted  int
		}
	}
	more := 0
	answer.Data.Verdicts.do = func(v *api.Verdict) error {
		switch {
		case v.Subject.Workload == "" || !of[owner{v.Subject.Workload, v.Subject.ContainerID}]:
		case len(a.verdicts) == maxKnown:
			more++
		default:
			a.verdicts = append(a.verdicts, a.verdict(v))
		}
		return nil
	}
	if err := json.NewDecoder(body).Decode(&answer); err != nil || !answer.Data.Verdicts.known {
		a.verdicts = nil
		return notSensor(err)
	}
	a.omitted = max(0, min(answer.Data.Omitted, maxOmitted)) + more
	return nil
}

func (a *answer) verdict(v *api.Verdict) fleet.Verdict {
	known := fleet.Verdict{
		Node: a.Name, Name: shortened(v.Name, maxText), Severity: fleet.Severity(v.Severity).Known(),
		Subject: shortened(v.Subject.Name, maxText), Workload: v.Subject.Workload, Since: v.Since, Evidence: []string{},
	}
	for _, e := range v.Evidence[:min(len(v.Evidence), maxEvidence)] {
		known.Evidence = append(known.Evidence, shortened(e, maxText))
	}
	return known
}

// readFaults reads the last faults of the members' workloads, whose containers may have been restarted since, and of nobody. The end of a
// fault is not a fault. The text of a process whose owner is unknown may be another tenant's.
func (a *answer) readFaults(body *fleet.Body, of map[owner]bool) error {
	mine := map[string]bool{"": true}
	for o := range of {
		mine[o.workload] = true
	}
	var answer struct {
		Data    list[api.Fault]
		Message string
	}
	answer.Data.do = func(f *api.Fault) error {
		if f.Recovered || !mine[f.Workload] || time.Since(f.Last) > fleet.PastRange {
			return nil
		}
		if a.faults = append(a.faults, a.fault(f)); len(a.faults) > 2*maxKnown {
			a.lastFaults()
		}
		return nil
	}
	err := json.NewDecoder(body).Decode(&answer)
	if a.lastFaults(); err != nil {
		a.faults, a.moreFaults = nil, 0
		return notSensor(err)
	}
	if !answer.Data.known || strings.HasPrefix(answer.Message, "partial") {
		return errors.New(cmp.Or(answer.Message, errNotSensor.Error()))
	}
	return nil
}

// lastFaults sorts the faults, the newest first, and keeps maxKnown.
func (a *answer) lastFaults() {
	slices.SortStableFunc(a.faults, func(a, b fleet.Fault) int { return b.Last.Compare(a.Last) })
	if n := len(a.faults) - maxKnown; n > 0 {
		a.faults, a.moreFaults = a.faults[:maxKnown], a.moreFaults+n
	}
}

func (a *answer) fault(f *api.Fault) fleet.Fault {
	text := f.Text
	if f.Workload == "" && (f.PID != 0 || f.Process != "") {
		text = "a process whose owner is not known"
	}
	return fleet.Fault{
		Node: a.Name, Device: shortened(deviceOf(f), maxText), Driver: shortened(string(f.Driver), maxText),
		Code: shortened(f.Code, maxText), Workload: strings.Clone(f.Workload), Time: f.Time, Last: f.Last,
		Repeated: f.Repeated, Text: shortened(text, maxText),
	}
}

// deviceOf names the device of a fault.
func deviceOf(f *api.Fault) string {
	if f.GPU != "" {
		return "GPU " + f.GPU
	}
	return cmp.Or(f.Device, f.PCIAddress, "an unknown device")
}

// shortened returns a copy, so that the rest of the answer is not kept.
func shortened(text string, limit int) string {
	return strings.Clone(strings.ToValidUTF8(text[:min(len(text), limit)], ""))
}

// launchingRank is a rank in /api/v1/collectives.
type launchingRank struct {
	Workload, Rank string
	ContainerID    string `json:"container_id"`
	Times          list[struct {
		Number uint64
		Time   time.Time
	}]
}

// readLaunches reads the launches of owners' ranks. Some programs that set the clock report no error.
func (a *answer) readLaunches(body *fleet.Body, of map[owner]bool) error {
	type communicator struct {
		Communicator, Library string
		NRanks                uint32
		Ranks                 list[launchingRank]
	}
	var answer struct {
		Data struct {
			Clock struct {
				State               string
				MaximumErrorSeconds float64 `json:"maximum_error_seconds"`
			}
			Communicators list[communicator]
		}
	}
	answer.Data.Communicators.do = func(c *communicator) error {
		for k := range c.Ranks.items {
			r := &c.Ranks.items[k]
			if r.Workload == "" || !of[owner{r.Workload, r.ContainerID}] || len(a.ranks) == maxRanks {
				continue
			}
			known := rank{
				communicator: shortened(c.Communicator, maxText), library: shortened(c.Library, maxText), name: shortened(r.Rank, maxText),
				workload: strings.Clone(r.Workload), nranks: int(c.NRanks), times: map[uint64]time.Time{},
			}
			for _, l := range r.Times.items[:min(len(r.Times.items), maxTimes)] {
				known.times[l.Number] = l.Time
			}
			a.ranks = append(a.ranks, known)
		}
		return nil
	}
	if err := json.NewDecoder(body).Decode(&answer); err != nil || !answer.Data.Communicators.known {
		a.ranks = nil
		return notSensor(err)
	}
	clock := &answer.Data.Clock
	if most := clock.MaximumErrorSeconds; clock.State == api.ClockSynchronized && most > 0 && most < time.Hour.Seconds() {
		a.clock = time.Duration(most * float64(time.Second))
	}
	return nil
}

// said joins what sensors say about the members. Some nodes were not asked.
func said(answers []answer, notAsked int) (s fleet.Said) {
	s.Silent, s.Uncompared, s.Unlogged = notAsked, notAsked, notAsked
	teams := map[[2]string]*team{}
	for i := range answers {
		a := &answers[i]
		s.Verdicts, s.Omitted = append(s.Verdicts, a.verdicts...), s.Omitted+a.omitted
		if !a.Judged {
			s.Silent++
		}
		if !a.launches {
			s.Uncompared++
		}
		s.Faults, s.MoreFaults = append(s.Faults, a.faults...), s.MoreFaults+a.moreFaults
		if !a.logged {
			s.Unlogged++
		}
		for k := range a.ranks {
			r := &a.ranks[k]
			at := [2]string{r.communicator, r.library}
			if teams[at] == nil {
				teams[at] = &team{nodes: map[*answer]bool{}}
			}
			teams[at].add(a, r)
		}
	}
	uncompared := map[*answer]bool{}
	for _, t := range teams {
		s.Late = append(s.Late, t.late(uncompared)...)
		if r, known := t.ranks[0], len(t.names); known < r.nranks {
			s.Incomplete = append(s.Incomplete, fleet.Incomplete{Communicator: r.communicator, Known: known, NRanks: r.nranks})
		}
	}
	s.Uncompared += len(uncompared)
	slices.SortFunc(s.Late, func(a, b fleet.Late) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), strings.Compare(a.Communicator, b.Communicator), strings.Compare(a.Rank, b.Rank))
	})
	slices.SortStableFunc(s.Faults, func(a, b fleet.Fault) int { return b.Last.Compare(a.Last) })
	s.MoreLate = max(0, len(s.Late)-maxSaid)
	s.Late = s.Late[:len(s.Late)-s.MoreLate]
	slices.SortFunc(s.Incomplete, func(a, b fleet.Incomplete) int {
		return cmp.Or(cmp.Compare(b.NRanks, a.NRanks), strings.Compare(a.Communicator, b.Communicator))
	})
	s.MoreIncomplete = max(0, len(s.Incomplete)-maxSaid)
	s.Incomplete = s.Incomplete[:len(s.Incomplete)-s.MoreIncomplete]
	return s
}
