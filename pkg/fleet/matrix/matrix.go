// SPDX-License-Identifier: Apache-2.0

// Package matrix counts how the nodes of a job are connected: between which nodes, by how many queue pairs. It also asks what the sensors
// say about the members.
//
// A node has thousands of peers, too many for metrics. When a viewer opens a job, the sensors of its nodes are asked
// for their HCAs (/rdma), connected queue pairs (/api/v1/peers), verdicts (/api/v1/verdicts), launches of collectives
// (/api/v1/collectives) and faults in the kernel log (/api/v1/faults). The remote end of a queue pair has a GID or, in an InfiniBand
// subnet, only a LID: the node with a port of this address. A GID is unique, a LID only in its subnet: counts by LID are an estimate,
// because different subnets may have the same prefix. An address that not exactly one node of the job has is not assigned.
//
// Node names come from labels and answers from sensors, which may be hostile: a request goes to a plain host only, and
// the number of nodes, concurrent requests, the size of an answer, the addresses, and the time are bounded. Unknown
// results are named.
//
// sensor.go asks a sensor, count.go, said.go and late.go join the answers, and this file keeps the result for some seconds.
package matrix

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/safely"
)

const (
	// MaxNodes is the number of nodes of a job that are asked.
	MaxNodes = 64
	// maxRequests is the number of concurrent requests for all viewers.
	maxRequests = 8
	// timeout is for all nodes of a job, nodeTimeout for one node.
	timeout     = 5 * time.Second
	nodeTimeout = 2 * time.Second
	// maxAge is how old a matrix may be, maxKept the number of kept matrices.
	maxAge  = 15 * time.Second
	maxKept = 32
)

// Matrix is how the nodes of a job are connected.
type Matrix struct {
	At    time.Time `json:"at"`
	Nodes []Node    `json:"nodes"` // by name
	// NotAsked are the nodes of the job beyond MaxNodes.
	NotAsked []string `json:"not_asked"`
	// Pairs are the nodes with a queue pair between them, by name. Both nodes list a connection.
	Pairs []Pair `json:"pairs"`
	// Elsewhere are the addresses with the most queue pairs that not exactly one node has.
	Elsewhere []Address `json:"elsewhere"`
	// Said is what the sensors say about the members, for the report of the job.
	Said fleet.Said `json:"-"`
}

// Node is a node with members of the job.
type Node struct {
	Name string `json:"node"`
	// Peers, Addresses and Judged report whether its queue pairs, its ports' addresses, and the verdicts of its sensor are known.
	Peers     bool `json:"peers_known"`
	Addresses bool `json:"addresses_known"`
	Judged    bool `json:"verdicts_known"`
	// Problem is why something is unknown.
	Problem string `json:"problem,omitempty"`
	// The job's queue pairs on the node that lead to no node of Pairs: their address belongs to no node of the job, to
	// several nodes, or is unknown, because they were connected before the sensor's start.
	Elsewhere int `json:"queue_pairs_elsewhere"`
	Ambiguous int `json:"queue_pairs_ambiguous"`
	Unknown   int `json:"queue_pairs_unknown"`
}

// Pair is a number of queue pairs from a node to another or the same node.
type Pair struct {
	From       string `json:"from"`
	To         string `json:"to"`
	QueuePairs int    `json:"queue_pairs"`
	// ByLID is the number of queue pairs whose remote end has no GID.
	ByLID int `json:"queue_pairs_by_lid"`
	// How long From has waited for receives from To: the ended waits of all queue pairs, and the longest present wait. They are absent if 0
	// or unknown.
	ReceiveWaitSeconds   float64 `json:"receive_wait_seconds,omitempty"`
	OldestReceiveSeconds float64 `json:"oldest_receive_seconds,omitempty"`
}

// Address is a remote address without a node.
type Address struct {
	From       string `json:"from"`
	Address    string `json:"address"`
	QueuePairs int    `json:"queue_pairs"`
	Ambiguous  bool   `json:"ambiguous"` // several nodes have it
}

// Reader asks sensors.
type Reader struct {
	url    string
	client *http.Client
	now    func() time.Time
	slots  chan struct{} // of maxRequests
	held   atomic.Int64  // addresses of all nodes that are being asked or counted

	timeout, nodeTimeout time.Duration

	mu   sync.Mutex
	kept map[fleet.JobName]*kept
}

// kept is a matrix, complete when done is closed.
type kept struct {
	at     time.Time
	done   chan struct{}
	matrix *Matrix
}

// NewReader returns a reader. The URL of a sensor contains {instance} or {host}. The file has the HTTP client's
// configuration as for fleet.Connect; it may be empty. Its credentials go only to nodes of viewed jobs.
func NewReader(template, file string) (*Reader, error) {
	if err := fleet.CheckNodeURL(template); err != nil {
		return nil, err
	}
	if u, err := url.Parse(fleet.NodeURL(template, "node:1")); err != nil || u.User != nil {
		return nil, errors.New("the URL of nodes contains credentials, which belong into the file of the HTTP client")
	}
	client, err := fleet.Client(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &Reader{
		url: template, client: client, now: time.Now, slots: make(chan struct{}, maxRequests), kept: map[fleet.JobName]*kept{},
		timeout: timeout, nodeTimeout: nodeTimeout,
	}, nil
}

// Job returns the matrix of a job with these members, at most 15 seconds old. Concurrent callers share the requests.
func (r *Reader) Job(job fleet.JobName, members []fleet.Member) *Matrix {
	r.mu.Lock()
	now := r.now()
	maps.DeleteFunc(r.kept, func(_ fleet.JobName, k *kept) bool { return now.Sub(k.at) >= maxAge })
	k, ok := r.kept[job]
	if !ok {
		if len(r.kept) >= maxKept {
			r.kept = map[fleet.JobName]*kept{}
		}
		k = &kept{at: now, done: make(chan struct{})}
		r.kept[job] = k
	}
	r.mu.Unlock()
	if !ok {
		defer close(k.done)
		r.ask(k, members)
		return k.matrix
	}
	<-k.done
	return k.matrix
}

// ask asks the sensors of the members' nodes. A viewer's context does not end it: others wait, too.
func (r *Reader) ask(k *kept, members []fleet.Member) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	mine := map[string]map[owner]bool{}
	for i := range members {
		m := &members[i]
		if mine[m.Node] == nil {
			mine[m.Node] = map[owner]bool{}
		}
		mine[m.Node][owner{m.Workload, m.ContainerID}] = true
	}
	names := slices.Sorted(maps.Keys(mine))
	asked, notAsked := names[:min(len(names), MaxNodes)], names[min(len(names), MaxNodes):]
	answers := make([]answer, len(asked))
	for i, name := range asked {
		answers[i].Node = Node{Name: name, Problem: "no answer"}
	}
	k.matrix = matrixOf(k.at, answers, notAsked) // if reading an answer panics
	defer func() {
		for i := range answers {
			r.held.Add(-int64(answers[i].held))
		}
	}()
	var all safely.Group
	for i, name := range asked {
		all.Go(func() { answers[i] = r.sensor(ctx, name, mine[name]) })
	}
	all.Wait()
	k.matrix = matrixOf(k.at, answers, notAsked)
}

// matrixOf joins the answers.
func matrixOf(at time.Time, answers []answer, notAsked []string) *Matrix {
	m := count(answers)
	m.At, m.NotAsked, m.Said = at.UTC(), append([]string{}, notAsked...), said(answers, len(notAsked))
	return m
}
