// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	sickEach  = 100 // of this number of nodes, one has each sickness
	firstSick = 21
)

type sickness int

const (
	healthy      sickness = iota
	portDown              // a port is down from the middle of the past on
	uncorrected           // a GPU has uncorrected ECC errors
	lossy                 // packets are lost and sent again
	unresponsive          // the node does not answer from the middle of the past on
	degraded              // a port has half the rate of the other port
	flapping              // a link goes down and up
	storming              // a port pauses its switch, up to pause storms
	fallen                // a GPU reported XID 79 in the middle of the past
	idling                // a workload does not use its GPU from the middle of the past on
	late                  // the ranks on the node are behind the other ranks of their jobs, which wait
	sicknesses
)

type node struct {
	number int
	jobs   int // nodes of a job
	sick   sickness
	begin  time.Time // of the past
	middle time.Time
	rows   []row
}

// row is a series of a node, or of its consecutive workloads.
type row struct {
	*template
	shape
	labels     []byte // encoded for remote write
	state      bool   // its value is a condition of the node
	seed       uint64
	pod        string
	generation int
	birth      time.Time
}

func newNode(number, jobs int, begin, end time.Time, templates []template) *node {
	n := &node{number: number, jobs: jobs, begin: begin, middle: begin.Add((end.Sub(begin) / 2).Truncate(step))}
	if s := healthy + 1 + sickness(number%sickEach-firstSick); s > healthy && s < late {
		n.sick = s
	} else if number%sickEach == lateNode {
		n.sick = late
	}
	all := slices.Concat(templates, n.extra(templates))
	for i := range all {
		t := &all[i]
		if n.sick == fallen && t.name() == "gpu_recovery_action" { // it would suppress the XID problem: the driver is older than 570
			continue
		}
		r := row{
			template: t, shape: n.shapeOf(t), state: slices.Contains(states, t.name()), seed: hash(t.seed, number), pod: t.labels["pod"],
			generation: -1,
		}
		if r.pod == "" {
			r.birth = begin.Add(-24 * time.Hour)
			r.labels = encode(n.labels(t, 0))
		}
		n.rows = append(n.rows, r)
	}
	return n
}

// extra returns the series of sick nodes only.
func (n *node) extra(templates []template) (out []template) {
	for i := range templates {
		if t := templates[i]; n.sick == fallen && t.name() == "gpu_health" && t.labels["gpu_id"] == "1" {
			t.labels = maps.Clone(t.labels)
			t.labels[model.MetricNameLabel], t.labels["xid"], t.value = "gpu_xid_last_timestamp_seconds", "79", float64(n.middle.Unix())
			out = append(out, t)
		}
	}
	return out
}

func (n *node) name() string { return fmt.Sprintf("gpu%04d", n.number) }

// life returns the number and the start of a pod's current life. The pods of a job, one on each node of the job, live
// and end together. A life takes 20 to 60 minutes and begins at a multiple of five.
func (n *node) life(pod string, at time.Time) (int, time.Time) {
	h := hash(n.number/n.jobs, pod)
	length := 20 + 5*int(h%9)
	offset := 5 * int(h>>8%uint64(length/5))
	minutes := int(at.Sub(n.begin)/time.Minute) + offset
	generation := minutes / length
	return generation, n.begin.Add(time.Duration(generation*length-offset) * time.Minute)
}

// labels returns the labels of a series on this node, with the pod's names in that life.
func (n *node) labels(t *template, generation int) map[string]string {
	out := map[string]string{"job": "accelscope", "instance": n.name()}
	pod := t.labels["pod"]
	group := n.number / n.jobs
	for name, v := range t.labels {
		switch name {
		case "pod":
			v += suffix(v, group, generation, n.number%n.jobs)
		case "workload":
			if pod != "" {
				v = strings.Replace(v, "/"+pod, "/"+pod+suffix(pod, group, generation, n.number%n.jobs), 1)
			}
		case "container_id", "pod_uid":
			if v != "" {
				v = fmt.Sprintf("%016x%016x", hash(v, n.number, generation), hash(generation, v, n.number))
			}
		case "job_name":
			if v != "" {
				v = fmt.Sprint(pod, "-", group, "-", generation)
			}
		case "communicator":
			v = fmt.Sprintf("%016x", hash(v, pod, group, generation))
		case "rank": // each workload has one
			v = fmt.Sprint(n.number % n.jobs)
		case "node", "nodename":
			v = n.name()
		case "uuid", "serial", "node_guid", "sys_image_guid", "port_guid", "gid":
			if v != "" {
				v = fmt.Sprint(v, "-", n.number)
			}
		}
		out[name] = v
	}
	return out
}

func suffix(pod string, parts ...int) (s string) {
	if pod == "" {
		return ""
	}
	for _, p := range parts {
		s += fmt.Sprint("-", p)
	}
	return s
}

// encode returns labels, which must be sorted, as the field of a series in a remote-write request.
func encode(labels map[string]string) (b []byte) {
	names := make([]string, 0, len(labels))
	for name, v := range labels {
		if v != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var one []byte
	for _, name := range names {
		one = protowire.AppendTag(one[:0], 1, protowire.BytesType)
		one = protowire.AppendString(one, name)
		one = protowire.AppendTag(one, 2, protowire.BytesType)
		one = protowire.AppendString(one, labels[name])
		b = protowire.AppendTag(b, 1, protowire.BytesType)
		b = protowire.AppendBytes(b, one)
	}
	return b
}

// staleNaN is the value with which Prometheus ends a series.
var staleNaN = math.Float64frombits(0x7ff0000000000002)

// request returns a node's samples at times between which no pod ends.
func (n *node) request(times []time.Time) (body []byte, samples int) {
	var one []byte
	add := func(labels []byte, value func(time.Time) float64, at []time.Time) {
		one = append(one[:0], labels...)
		for _, t := range at {
			one = appendSample(one, value(t), t.UnixMilli())
		}
		body = protowire.AppendTag(body, 1, protowire.BytesType)
		body = protowire.AppendBytes(body, one)
		samples += len(at)
	}
	stale := func(time.Time) float64 { return staleNaN }
	down := func(t time.Time) bool { return n.sick == unresponsive && !t.Before(n.middle) }
	present := times
	if i := slices.IndexFunc(times, down); i >= 0 {
		present = times[:i]
	}
	first := times[0]
	lost := len(present) == 0 && first.Sub(n.middle) < interval // the first failed scrape
	for i := range n.rows {
		r := &n.rows[i]
		if r.pod != "" {
			if g, birth := n.life(r.pod, first); g != r.generation {
				if r.labels != nil && len(present) > 0 {
					add(r.labels, stale, times[:1])
				}
				r.generation, r.birth, r.labels = g, birth, encode(n.labels(r.template, g))
			}
		}
		switch {
		case len(present) > 0:
			add(r.labels, func(t time.Time) float64 { return n.value(r, t) }, present)
		case lost:
			add(r.labels, stale, times[:1])
		}
	}
	for _, own := range []struct {
		name     string
		up, lost float64
	}{{"up", 1, 0}, {"scrape_duration_seconds", 0.02, 10}, {"scrape_samples_scraped", float64(len(n.rows)), 0}} {
		labels := encode(map[string]string{"__name__": own.name, "job": "accelscope", "instance": n.name()})
		add(labels, func(t time.Time) float64 {
			if down(t) {
				return own.lost
			}
			return own.up
		}, times)
	}
	return body, samples
}
