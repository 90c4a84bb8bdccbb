// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"time"
)

const (
	lateNode     = 4               // of sickEach nodes, the node whose ranks are behind: a job of its first nodes begins early and lasts (life)
	trained      = 2 * time.Minute // from the begin of a job, until it stands
	behind       = 3               // launches
	launchPeriod = 500 * time.Millisecond
)

// stands reports whether the job of a rank stands from some time on: it has a node whose ranks are behind, and began early.
func (n *node) stands(birth time.Time) bool {
	return n.number/n.jobs == (n.number-n.number%sickEach+lateNode)/n.jobs && birth.Before(n.middle)
}

// launches returns how many collectives a rank has launched, and when it launched the last of them. All ranks of a job launch together.
func (n *node) launches(birth, at time.Time) (count float64, last time.Time) {
	count = math.Floor(float64(at.Sub(birth)) / float64(launchPeriod))
	if n.stands(birth) {
		most := float64(trained / launchPeriod)
		if n.sick == late {
			most -= behind
		}
		count = min(count, most)
	}
	return count, birth.Add(time.Duration(count) * launchPeriod)
}

// launched is the value of a series of launches.
func (n *node) launched(r *row, at time.Time) (v float64, is bool) {
	switch r.name() {
	case "container_collective_launches_total":
		count, _ := n.launches(r.birth, at)
		return count, true
	case "container_collective_last_launch_timestamp_seconds":
		_, last := n.launches(r.birth, at)
		return float64(last.UnixMilli()) / 1000, true
	}
	return 0, false
}
