// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// Collectives are the ranks of communicators on the node, and the clock of their times.
type Collectives struct {
	Clock         clock          `json:"clock"`
	Communicators []Communicator `json:"communicators"`
}

// ClockSynchronized and the other states of a clock.
const (
	ClockSynchronized   = "synchronized"
	clockUnsynchronized = "unsynchronized"
	clockUnknown        = "unknown" // the sensor may not call adjtimex(2)
)

// clock is the node's clock. Its errors are 0 if the program that sets the clock does not report them, or if its state is unknown.
type clock struct {
	State                 string  `json:"state"`
	EstimatedErrorSeconds float64 `json:"estimated_error_seconds"`
	MaximumErrorSeconds   float64 `json:"maximum_error_seconds"`
}

// Communicator is a communicator with its ranks on the node.
type Communicator struct {
	Communicator string             `json:"communicator"`
	Parent       string             `json:"parent"`
	Library      string             `json:"library"`
	Version      string             `json:"version"`
	NRanks       uint32             `json:"nranks"` // 0: unknown
	Ranks        []CommunicatorRank `json:"ranks"`
}

// CommunicatorRank is a rank of a communicator on the node.
type CommunicatorRank struct {
	identity.Owner
	Rank string `json:"rank"`
	// PID is in the initial PID namespace; of several processes with the rank, of the process that launched last. 0: it has ended.
	PID        int        `json:"pid"`
	Launches   uint64     `json:"launches"` // also sends and receives
	LastLaunch *time.Time `json:"last_launch"`
	// ProcessLastLaunch is when the process last launched in any communicator, or a graph, or may have.
	ProcessLastLaunch *time.Time `json:"process_last_launch"`
	// LateSeconds and Number are null if launches were not seen.
	LateSeconds *float64     `json:"late_seconds"`
	Number      *uint64      `json:"number"`
	Times       []launchTime `json:"times"`
}

type launchTime struct {
	Number uint64    `json:"number"`
	Time   time.Time `json:"time"`
}

// collectiveList answers /api/v1/collectives: the communicators of the node, of one workload (?workload=), with one hash (?communicator=)
// or all.
func collectiveList(k *Known, r *http.Request) (any, error) {
	query := r.URL.Query()
	workload, hash := query.Get("workload"), query.Get("communicator")
	out := Collectives{clockOf(k.Facts.Clock), []Communicator{}}
	for i := range k.Shares.Communicators {
		c := &k.Shares.Communicators[i]
		owner := k.Shares.Owners[c.Owner]
		if workload != "" && workload != owner.Workload || hash != "" && hash != c.Key {
			continue
		}
		at := slices.IndexFunc(out.Communicators, func(of Communicator) bool { return of.Communicator == c.Key && of.Library == c.Library })
		if at < 0 {
			at = len(out.Communicators)
			out.Communicators = append(out.Communicators, Communicator{c.Key, c.Parent, c.Library, c.Version, c.Ranks, nil})
		}
		of := &out.Communicators[at]
		of.Ranks = append(of.Ranks, communicatorRankOf(owner, c))
	}
	slices.SortFunc(out.Communicators, func(a, b Communicator) int {
		return cmp.Or(strings.Compare(a.Communicator, b.Communicator), strings.Compare(a.Library, b.Library))
	})
	for _, c := range out.Communicators {
		slices.SortFunc(c.Ranks, func(a, b CommunicatorRank) int {
			return cmp.Or(
				cmp.Compare(len(a.Rank), len(b.Rank)), strings.Compare(a.Rank, b.Rank), strings.Compare(a.ContainerID, b.ContainerID),
			)
		})
	}
	return k.inPart(out, len(k.Shares.Communicators), k.missing(k.Shares.Communicators != nil, "collective"))
}

func communicatorRankOf(owner identity.Owner, c *attribution.CommunicatorShare) CommunicatorRank {
	r := CommunicatorRank{Owner: owner, Rank: c.Rank, PID: c.Process.PID, Times: []launchTime{}}
	for _, o := range c.Operations {
		r.Launches += o.Count
	}
	if c.Process.Ended {
		r.PID = 0 // another process may have it now
	}
	r.LastLaunch = moment(c.LastLaunch)
	r.ProcessLastLaunch = moment(slices.MaxFunc([]time.Time{c.LastLaunch, c.Process.LastLaunch, c.Process.LastGraph}, time.Time.Compare))
	if c.Late.Known {
		r.LateSeconds = &c.Late.Value
	}
	if c.Numbered {
		r.Number = &c.Launched
	}
	for _, l := range c.Kept {
		r.Times = append(r.Times, launchTime{l.Number, l.Time.UTC()})
	}
	return r
}

func clockOf(c *model.Clock) clock {
	if c == nil {
		return clock{State: clockUnknown}
	}
	state := clockUnsynchronized
	if c.Synchronized {
		state = ClockSynchronized
	}
	return clock{state, c.EstimatedError.Seconds(), c.MaximumError.Seconds()}
}
