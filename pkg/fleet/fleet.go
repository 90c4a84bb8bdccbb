// SPDX-License-Identifier: Apache-2.0

// Package fleet reads the state of all nodes from a Prometheus, or from what answers as Prometheus does.
//
// The distributed engine is Prometheus: it scrapes the sensors, keeps the past and evaluates the rules of deploy/prometheus. This package
// only sends the queries of queries.promql and joins their answers. It keeps nothing but the last answers, for some seconds, so that the
// number of queries does not grow with the number of viewers.
//
// connect.go sends a query, stream.go decodes its answer, memory.go bounds what is kept of the answers, and query.go sends those of a view.
// read.go makes a State of them, job.go and search.go answer what a viewer asks for, for as many as visits.go lets in, and reader.go and
// memo.go keep the answers.
package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// State is what the nodes do, as far as Prometheus knows. Nil is not known, and empty is none.
type State struct {
	At time.Time `json:"at"`
	// Tried is the time of the last attempt, which is later if Prometheus did not answer it.
	Tried  time.Time `json:"-"`
	Totals Totals    `json:"totals"`
	Alerts []Alert   `json:"alerts"` // the worst first
	Jobs   []Job     `json:"jobs"`   // with outliers first, then with idle GPUs
	Nodes  []Node    `json:"nodes"`  // by name
	// Rails are names of HCAs that are not virtual functions, in the order of their numbers.
	Rails []string `json:"rails"`
	// Problems are what was not answered, or not known.
	Problems []string `json:"problems"`
}

// Totals are the figures of all nodes.
type Totals struct {
	Nodes int   `json:"nodes"`
	Down  int   `json:"down"`
	GPUs  GPUs  `json:"gpus"`
	Ports Ports `json:"ports"`
	Bytes Bytes `json:"bytes_per_second"`
}

// Node is a node, by the label instance of its sensor.
type Node struct {
	Name   string          `json:"name"`
	Down   bool            `json:"down"` // its sensor does not answer
	GPUs   GPUs            `json:"gpus"`
	Ports  Ports           `json:"ports"`
	Bytes  Bytes           `json:"bytes_per_second"`
	Rails  map[string]Rail `json:"rails"`
	Alerts int             `json:"alerts"` // that fire
	Worst  Severity        `json:"worst"`  // of them
}

// GPUs are numbers of GPUs. A GPU with parts is given or used if one of the parts is.
type GPUs struct {
	All   *int `json:"all"`
	Given *int `json:"given"` // to a workload
	Used  *int `json:"used"`  // by a process
	Idle  *int `json:"idle"`  // given, without a process
	Sick  *int `json:"sick"`  // with a problem
}

// Ports are numbers of ports of HCAs.
type Ports struct {
	All      *int `json:"all"`
	Up       *int `json:"up"`       // state active
	Degraded *int `json:"degraded"` // alert RDMALinkDegraded
	Flapping *int `json:"flapping"` // alert RDMALinkUnstable
}

// Bytes are those of all ports, per second, and the part whose owners are known.
type Bytes struct {
	Transmit   *float64 `json:"transmit"`
	Receive    *float64 `json:"receive"`
	Attributed *float64 `json:"attributed"`
}

// Rail is an HCA of a node. HCAs with the same name on other nodes are usually connected to the same switches.
type Rail struct {
	Use    *float64 `json:"use"`               // of the busier direction, as a part of the rate of the link
	Errors *float64 `json:"errors_per_second"` // that the port counted, and packets that were lost
	Pause  *float64 `json:"pause"`             // part of the time in which a direction was stopped
	Up     bool     `json:"up"`                // all ports are
}

// JobName identifies a job.
type JobName struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
}

// Job is a job, over all its nodes.
type Job struct {
	JobName
	Members       int      `json:"members"`
	Nodes         int      `json:"nodes"`
	GPUs          *float64 `json:"gpus"`
	Idle          *float64 `json:"idle_gpus"`
	IdleHours     *float64 `json:"idle_gpu_hours_1d"` // of the last day
	Transmit      *Rate    `json:"transmit"`
	Receive       *Rate    `json:"receive"`
	Errors        *float64 `json:"errors_per_second"` // failed verbs and completions
	VerbsP99      *float64 `json:"verbs_p99_seconds"`
	CompletionP99 *float64 `json:"completion_p99_seconds"`
	// Outlier is the member with the slowest completions, and Slower its p99 relative to the median of the members.
	Outlier     string   `json:"outlier"`
	OutlierNode string   `json:"outlier_node"`
	Slower      *float64 `json:"outlier_ratio_median"`
}

// Rate is a rate of bytes.
type Rate struct {
	PerSecond float64 `json:"bytes_per_second"`
	Estimate  bool    `json:"estimate"` // partly
}

// Member is a workload of a job.
type Member struct {
	Workload, Pod, Container, ContainerID, Node string
	GPUs, Used                                  *float64 // given; with a process
	Transmit, Receive                           *Rate
	P99                                         *float64 // of completions on its slowest HCA, in seconds
	Slower                                      *float64 // relative to the median of the members
}

// Alert is an alert of deploy/prometheus that fires.
type Alert struct {
	Name     string            `json:"name"`
	Severity Severity          `json:"severity"`
	Node     string            `json:"node"`
	Labels   map[string]string `json:"labels"` // that name what it is about, without the node
	Since    time.Time         `json:"since"`
}

// Severity is how bad an alert is.
type Severity string

// The severities of alerts.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
	Info     Severity = "info"
)

// rank returns the order of severities, the worst first.
func (s Severity) rank() int {
	switch s {
	case Critical:
		return 0
	case Warning:
		return 1
	case Info:
		return 2
	}
	return 3
}

// Subject names what an alert is about: node, workload and device.
func (a *Alert) Subject() string {
	parts := []string{a.Node}
	if a.Labels["workload"] != "" {
		parts = append(parts, a.Labels["workload"])
	}
	switch device := a.Labels["device"]; {
	case device != "" && a.Labels["port"] != "":
		parts = append(parts, device+"/"+a.Labels["port"])
	case device != "":
		parts = append(parts, device)
	case a.Labels["gpu_id"] != "":
		parts = append(parts, "GPU "+a.Labels["gpu_id"])
	}
	return cmp.Or(strings.TrimSpace(strings.Join(parts, " ")), "all nodes")
}

// Details lists the labels that the subject does not name, as "name value".
func (a *Alert) Details() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(a.Labels)) {
		if !slices.Contains(inSubject, name) && a.Labels[name] != "" {
			out = append(out, name+" "+a.Labels[name])
		}
	}
	return out
}

// inSubject are the labels that the subject has, or that belong to the name of its workload.
var inSubject = []string{"workload", "namespace", "pod", "container", "container_id", "device", "port", "gpu_id"}

// String names a job.
func (j JobName) String() string {
	if j.Name == "" {
		return ""
	}
	return strings.TrimPrefix(j.Namespace+"/", "/") + j.Kind + "/" + j.Name
}

// Has reports whether a text is in a name of the job, without regard to case.
func (j *Job) Has(text string) bool {
	return has(text, j.Namespace, j.Kind, j.Name, j.String(), j.Outlier, j.OutlierNode)
}

// Has reports whether a text is in a name or a label of the alert, without regard to case.
func (a *Alert) Has(text string) bool {
	return has(text, append(slices.Collect(maps.Values(a.Labels)), a.Name, a.Node)...)
}

// Has reports whether a text is in the name of the node, without regard to case.
func (n *Node) Has(text string) bool { return has(text, n.Name) }

func has(text string, names ...string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(strings.ToLower(name), text) })
}

// Share returns the part of the bytes whose owners are known.
func (b Bytes) Share() *float64 {
	if b.Attributed == nil || b.Transmit == nil || b.Receive == nil || !(*b.Transmit+*b.Receive > 0) {
		return nil
	}
	return new(min(1, *b.Attributed/(*b.Transmit+*b.Receive)))
}

// Summary returns the busiest HCA of a node and its use, the errors of all, and the longest pause.
func (n *Node) Summary() (busiest string, use, errors, pause *float64) {
	for _, name := range slices.SortedFunc(maps.Keys(n.Rails), byNumber) {
		r := n.Rails[name]
		if r.Use != nil && (use == nil || *r.Use > *use) {
			busiest, use = name, r.Use
		}
		errors = sum(errors, r.Errors)
		if r.Pause != nil {
			pause = larger(pause, *r.Pause)
		}
	}
	return busiest, use, errors, pause
}

// WorstFirst sorts nodes: those that do not answer, then by their alerts, then those with sick GPUs or ports that are not up.
func WorstFirst(nodes []Node) []*Node {
	out := make([]*Node, len(nodes))
	for i := range nodes {
		out[i] = &nodes[i]
	}
	rank := func(n *Node) int {
		worst := min(n.Alerts, 50)
		switch {
		case n.Down:
			worst += 1000
		case n.Worst == Critical:
			worst += 300
		case n.Worst == Warning:
			worst += 200
		case n.GPUs.Sick != nil && *n.GPUs.Sick > 0, n.Ports.All != nil && *n.Ports.Up < *n.Ports.All:
			worst += 150
		case n.Worst == Info:
			worst += 100
		}
		return worst
	}
	slices.SortStableFunc(out, func(a, b *Node) int { return cmp.Compare(rank(b), rank(a)) })
	return out
}
