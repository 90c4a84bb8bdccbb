// SPDX-License-Identifier: Apache-2.0

// Package fleet reads the state of all nodes from a Prometheus, or from what answers as Prometheus does.
//
// The distributed engine is Prometheus: it scrapes the sensors, keeps the past and evaluates the rules of deploy/prometheus. This package
// only sends the queries of queries.promql and joins their answers. It keeps nothing but the last answers, for some seconds, so that the
// number of queries does not grow with the number of viewers.
//
// connect.go makes the client, query.go sends queries, read.go makes a State of their answers, job.go and search.go answer what a
// viewer asks for, and reader.go keeps the answers.
package fleet

import "time"

// State is what the nodes do, as far as Prometheus knows. Nil is not known, and empty is none.
type State struct {
	At     time.Time
	Nodes  []Node   // by name
	Rails  []string // names of HCAs that are not virtual functions, in the order of their numbers
	Totals Totals
	Jobs   []Job // with outliers first, then with idle GPUs
	Alerts []Alert
	// Problems are what was not answered, or not known.
	Problems []string
}

// Totals are the figures of all nodes.
type Totals struct {
	Nodes, Down int
	GPUs        GPUs
	Ports       Ports
	Bytes       Bytes
}

// Node is a node, by the label instance of its sensor.
type Node struct {
	Name   string
	Down   bool // its sensor does not answer
	GPUs   GPUs
	Ports  Ports
	Bytes  Bytes
	Rails  map[string]Rail
	Alerts int      // that fire
	Worst  Severity // of them
}

// GPUs are numbers of GPUs. A GPU with parts is given or used if one of the parts is.
type GPUs struct {
	All   *int
	Given *int // to a workload
	Used  *int // by a process
	Idle  *int // given, without a process
	Sick  *int // with a problem
}

// Ports are numbers of ports of HCAs.
type Ports struct {
	All      *int
	Up       *int // state active
	Degraded *int // alert RDMALinkDegraded
	Flapping *int // alert RDMALinkUnstable
}

// Bytes are those of all ports, per second, and the part whose owners are known.
type Bytes struct {
	Transmit, Receive, Attributed *float64
}

// Rail is an HCA of a node. HCAs with the same name on other nodes are usually connected to the same switches.
type Rail struct {
	Use    *float64 // of the busier direction, as a part of the rate of the link
	Errors *float64 // that the port counted, and packets that were lost, per second
	Pause  *float64 // part of the time in which a direction was stopped
	Up     bool     // all ports are
}

// JobName identifies a job.
type JobName struct{ Namespace, Kind, Name string }

// Job is a job, over all its nodes.
type Job struct {
	JobName
	Members, Nodes          int
	GPUs, Idle              *float64
	IdleHours               *float64 // GPU hours without use, of the last day
	Transmit, Receive       *Rate
	Errors                  *float64 // failed verbs and completions, per second
	VerbsP99, CompletionP99 *float64 // seconds
	// Outlier is the member with the slowest completions, and Slower its p99 relative to the median of the members.
	Outlier, OutlierNode string
	Slower               *float64
}

// Rate is a rate of bytes.
type Rate struct {
	PerSecond float64
	Estimate  bool // partly
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
	Name     string
	Severity Severity
	Node     string
	Labels   map[string]string // that name what it is about, without the node
	Since    time.Time
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
