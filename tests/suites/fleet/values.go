// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// troubles are counters that do not grow on a healthy node.
var troubles = regexp.MustCompile(`error|fault|lost|dropp|discard|fail|oom|retrans|rnr|out_of|violation|slow_restart|restarts|downed|flap|missed|` +
	`ignored|seq_err|timeout|throttled|killed|storm|pcie_stalled|retry|unresolved|unattributed_reset`)

// value returns the value of a series at a time. It depends on nothing else: counters have no state.
func (n *node) value(r *row, at time.Time) float64 {
	if r.state {
		return n.condition(r, at)
	}
	if n.unused(r, at) {
		return 0
	}
	if v, is := n.launched(r, at); is {
		return v
	}
	// Two numbers from 0 to 1 that differ between series, and between the lives of a workload.
	s := r.template.seed ^ r.seed + uint64(r.generation+1)*0x9e3779b97f4a7c15
	size, phase := float64(s>>40&0xfff)/0xfff, float64(s>>52)/0xfff
	wave := 2 * math.Pi / (300 + 1500*phase) // of a period between 5 and 30 minutes
	seconds := at.Sub(r.birth).Seconds()
	if !r.counter {
		if !r.varies {
			return r.value
		}
		v := r.most * (0.7 + 0.3*math.Sin(wave*seconds+phase))
		if r.whole {
			return math.Floor(v)
		}
		return max(0, v)
	}
	// The integral of a varying rate: it never falls.
	passed := seconds + 0.5*(math.Sin(wave*seconds+phase)-math.Sin(phase))/wave
	v := (r.least + (r.most-r.least)*size) * passed * r.share
	if r.whole {
		return math.Floor(v)
	}
	return v
}

// shape is how the values of a series change.
type shape struct {
	least, most float64 // of a counter's growth in a second; most is the highest value of a gauge
	whole       bool    // values are whole numbers
	varies      bool    // a varying gauge, unlike states and limits
}

func (n *node) shapeOf(t *template) shape {
	name := t.name()
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(name, p) })
	}
	first := t.labels["device"] == "mlx5_0"
	if !t.counter {
		switch {
		case has("utilization_ratio"):
			return shape{most: 1, varies: true}
		case has("celsius", "watts", "used_bytes", "working_set"):
			return shape{most: t.value, varies: true, whole: true}
		}
		return shape{}
	}
	s := shape{whole: !strings.HasSuffix(name, "_sum") && (!has("seconds") || has("_duration_seconds"))}
	switch {
	case n.sick == lossy && has("rdma_port_out_of_sequence"):
		s.least, s.most = 20, 120
	case n.sick == flapping && first && has("rdma_port_link_flaps"), n.sick == storming && first && has("pause_storm") && t.labels["type"] == "error":
		s.least, s.most = 0.01, 0.02
	case troubles.MatchString(name):
	case has("pause_seconds"):
		s.most = 0.01
		if n.sick == storming && first {
			s.least, s.most = 0.2, 0.4
		}
	case has("cnp", "ecn"):
		s.most = 20
	case has("bytes", "data"):
		s.least, s.most = 1e9, 2e10
	case has("packets"):
		s.least, s.most = 2e5, 5e6
	case has("_duration_seconds"): // a histogram
		s.least, s.most = 0.1, 20
	case has("seconds"):
		s.most = 1
	default:
		s.most = 10
	}
	return s
}

// states are the series with the node's condition as value: the recorded node has all problems.
var states = []string{
	"gpu_problem", "gpu_health", "gpu_recovery_action", "infiniband_port_state", "infiniband_port_rate_bytes_per_second", "container_gpu_memory_used_bytes",
	"rdma_port_roce_v2_gid_missing", "rdma_port_module_alarm", "rdma_port_module_fault",
	"rdma_device_pcie_link_width_lanes", "rdma_device_pcie_link_max_width_lanes",
	"rdma_device_pcie_link_transfers_per_second", "rdma_device_pcie_link_max_transfers_per_second",
}

// unused reports whether a series is the use of a GPU by a workload that does not use it at the time.
func (n *node) unused(r *row, at time.Time) bool {
	return n.sick == idling && r.template.labels["gpu_id"] == "1" && !at.Before(n.middle) &&
		(r.name() == "container_gpu_processes" || r.name() == "container_gpu_utilization_ratio")
}

func (n *node) condition(r *row, at time.Time) float64 {
	l, is := r.template.labels, false
	switch r.name() {
	case "gpu_problem":
		is = n.sick == uncorrected && l["gpu_id"] == "0" && l["problem"] == "ecc_uncorrected" ||
			n.sick == fallen && l["gpu_id"] == "1" && l["problem"] == "xid" && !at.Before(n.middle)
	case "gpu_health":
		is = (n.sick != uncorrected || l["gpu_id"] != "0") && (n.sick != fallen || l["gpu_id"] != "1" || at.Before(n.middle))
	case "gpu_recovery_action":
		is = l["action"] == "none"
	case "infiniband_port_state":
		down := n.sick == portDown && l["device"] == "mlx5_0" && !at.Before(n.middle)
		is = !down && l["state"] == "active" || down && l["state"] == "down"
	case "infiniband_port_rate_bytes_per_second":
		if n.sick == degraded && l["device"] == "mlx5_1" {
			return r.value / 2
		}
		return r.value
	case "rdma_device_pcie_link_width_lanes", "rdma_device_pcie_link_max_width_lanes":
		return 16
	case "rdma_device_pcie_link_transfers_per_second", "rdma_device_pcie_link_max_transfers_per_second":
		return 32e9
	case "container_gpu_memory_used_bytes": // the driver's own part is small
		if l["workload"] != "" {
			return r.value
		}
		return math.Floor(r.value / 1000)
	}
	if is {
		return 1
	}
	return 0
}
