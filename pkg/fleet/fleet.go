// SPDX-License-Identifier: Apache-2.0

// Package fleet reads the state of all nodes from a Prometheus, or from a server with its API.
//
// The distributed engine is Prometheus: it scrapes the sensors, keeps the past and evaluates the rules of
// deploy/prometheus. This package sends the queries of queries.promql and joins the answers. It keeps the last answers
// for some seconds, so that the number of queries does not grow with the number of viewers.
//
// connect.go sends a query, stream.go decodes the answer, memory.go bounds its memory, query.go sends the queries of a
// view. read.go makes a State, job.go and search.go answer viewers' questions, report.go and past.go say how a job is and
// was, visits.go limits the viewers, and reader.go and memo.go keep the answers.
package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// State is what the nodes do, as far as Prometheus knows. Nil is unknown.
type State struct {
	At time.Time `json:"at"`
	// Tried is the time of the last attempt. It is later than At if Prometheus did not answer.
	Tried  time.Time `json:"-"`
	Totals Totals    `json:"totals"`
	Alerts []Alert   `json:"alerts"` // the worst first
	Jobs   []Job     `json:"jobs"`   // with outliers first, then with idle GPUs
	Nodes  []Node    `json:"nodes"`  // by name
	// Rails are the names of HCAs that are not virtual functions, in numerical order.
	Rails []string `json:"rails"`
	// Problems are what was not answered, or is unknown.
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
	Worst  Severity        `json:"worst"`  // of the firing alerts
}

// GPUs are numbers of GPUs. A GPU with parts is given or used if any part is.
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

// Bytes are the bytes per second of all ports, and the part with known owners.
type Bytes struct {
	Transmit   *float64 `json:"transmit"`
	Receive    *float64 `json:"receive"`
	Attributed *float64 `json:"attributed"`
}

// Rail is an HCA of a node. HCAs with the same name are usually connected to the same switches.
type Rail struct {
	Use    *float64 `json:"use"`               // of the busier direction, as a fraction of the link's rate
	Errors *float64 `json:"errors_per_second"` // errors counted by the port, and lost packets
	Pause  *float64 `json:"pause"`             // fraction of time in which a direction was paused
	Up     bool     `json:"up"`                // all ports are up
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
	// Outlier is the member with the slowest completions, and Slower its p99 divided by the median of the members.
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
	Workload    string `json:"workload"`
	Pod         string `json:"pod"`
	Container   string `json:"container"`
	ContainerID string `json:"container_id"`
	Node        string `json:"node"`
	// Lost: the sensor of the node does not answer. The member may have ended since.
	Lost       bool       `json:"lost"`
	Alerts     int        `json:"alerts"` // that fire for the workload, or for its node and no workload
	Worst      Severity   `json:"worst"`
	GPUs       *float64   `json:"gpus"`      // given
	Used       *float64   `json:"gpus_used"` // with a process
	Transmit   *Rate      `json:"transmit"`
	Receive    *Rate      `json:"receive"`
	P99        *float64   `json:"completion_p99_seconds"` // on the slowest HCA
	Slower     *float64   `json:"ratio_median"`           // p99 divided by the median of the members
	Behind     *float64   `json:"launches_behind"`        // the ranks that wait; nil: none, or unknown
	LastLaunch *float64   `json:"last_launch_seconds"`    // age of the last collective: Prometheus's clock less the node's
	Partial    bool       `json:"launches_partial"`       // some launches are not counted by communicator
	GPUUse     []*float64 `json:"gpu_use"`                // mean of its GPUs, for each step of the past; nil: not asked for
	HCAUse     []*float64 `json:"hca_use"`                // of the busiest HCA of the node
}

// Alert is a firing alert of deploy/prometheus.
type Alert struct {
	Name     string            `json:"name"`
	Severity Severity          `json:"severity"`
	Node     string            `json:"node"`
	Labels   map[string]string `json:"labels"` // that name its subject, without the node
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

// Known returns the severity; Info for another word.
func (s Severity) Known() Severity {
	if s == Critical || s == Warning {
		return s
	}
	return Info
}

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

// Subject names the alert's node, workload and device.
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

// Details lists the labels that Subject lacks, as "name value".
func (a *Alert) Details() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(a.Labels)) {
		if !slices.Contains(inSubject, name) && a.Labels[name] != "" {
			out = append(out, name+" "+a.Labels[name])
		}
	}
	return out
}

// inSubject are the labels in Subject, and the labels of its workload's name.
var inSubject = []string{"workload", "namespace", "pod", "container", "container_id", "device", "port", "gpu_id"}

// String names a job.
func (j JobName) String() string {
	if j.Name == "" {
		return ""
	}
	return strings.TrimPrefix(j.Namespace+"/", "/") + j.Kind + "/" + j.Name
}

// Has reports whether a name of the job contains the text, ignoring case.
func (j *Job) Has(text string) bool {
	return has(text, j.Namespace, j.Kind, j.Name, j.String(), j.Outlier, j.OutlierNode)
}

// Has reports whether a name or a label of the alert contains the text, ignoring case.
func (a *Alert) Has(text string) bool {
	return has(text, append(slices.Collect(maps.Values(a.Labels)), a.Name, a.Node)...)
}

// Has reports whether the node's name contains the text, ignoring case.
func (n *Node) Has(text string) bool { return has(text, n.Name) }

func has(text string, names ...string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(strings.ToLower(name), text) })
}

// Share returns the fraction of the bytes with known owners.
func (b Bytes) Share() *float64 {
	if b.Attributed == nil || b.Transmit == nil || b.Receive == nil || !(*b.Transmit+*b.Receive > 0) {
		return nil
	}
	return new(min(1, *b.Attributed/(*b.Transmit+*b.Receive)))
}

// Summary returns a node's busiest HCA and its use, the sum of errors, and the longest pause.
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

// WorstFirst sorts nodes: nodes that do not answer, then by alerts, then nodes with sick GPUs or ports that are not up.
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
