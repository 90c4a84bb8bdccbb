// SPDX-License-Identifier: Apache-2.0

// Package matrix counts how the nodes of a job are connected: from which node to which, by how many queue pairs.
//
// Peers are no metrics: a node has thousands. So the sensors of the nodes of one job are asked, when a viewer looks at the job, for their
// HCAs (/rdma) and their connected queue pairs (/api/v1/peers). The remote end of a queue pair has a GID, or in an InfiniBand subnet a LID
// only. It is the node that has this address at one of its ports. A GID is unique, a LID in its subnet only: what is counted by LIDs is an
// estimate, because different subnets may have the same prefix. An address that no or more than one node of the job has is not assigned to
// any.
//
// The names of the nodes come from labels, and the answers from sensors, which may be hostile: a request goes to a plain host only, and
// the number of nodes, the requests at a time, the size of an answer, the addresses of a node and of all, and the time are bounded. What is
// not known is named.
//
// sensor.go asks one sensor, count.go joins the answers, and this file keeps the result for some seconds.
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
)

const (
	// MaxNodes is the number of nodes of a job that are asked.
	MaxNodes = 64
	// maxRequests is the number of nodes that are asked at a time, for all viewers.
	maxRequests = 8
	// timeout is for all nodes of a job, and nodeTimeout for one.
	timeout     = 5 * time.Second
	nodeTimeout = 2 * time.Second
	// maxAge is how old a matrix may be, and maxKept the number of those that are kept.
	maxAge  = 15 * time.Second
	maxKept = 32
)

// Matrix is how the nodes of a job are connected.
type Matrix struct {
	At    time.Time `json:"at"`
	Nodes []Node    `json:"nodes"` // by name
	// NotAsked are nodes of the job beyond the first MaxNodes.
	NotAsked []string `json:"not_asked"`
	// Pairs are the nodes between which there is a queue pair, by name. Both nodes list a connection.
	Pairs []Pair `json:"pairs"`
	// Elsewhere are the addresses with the most queue pairs that no node has, or more than one.
	Elsewhere []Address `json:"elsewhere"`
}

// Node is a node with members of the job.
type Node struct {
	Name string `json:"node"`
	// Peers and Addresses are whether its queue pairs, and the addresses of its ports, are known.
	Peers     bool `json:"peers_known"`
	Addresses bool `json:"addresses_known"`
	// Problem is why not all is known.
	Problem string `json:"problem,omitempty"`
	// The numbers of queue pairs of the job on the node that lead to no node of Pairs: to an address that no node of the job has, to one
	// that more than one has, and to one that is not known, because they were connected before the sensor started.
	Elsewhere int `json:"queue_pairs_elsewhere"`
	Ambiguous int `json:"queue_pairs_ambiguous"`
	Unknown   int `json:"queue_pairs_unknown"`
}

// Pair is a number of queue pairs on one node that are connected to another, or to the same one.
type Pair struct {
	From       string `json:"from"`
	To         string `json:"to"`
	QueuePairs int    `json:"queue_pairs"`
	// ByLID is the number of those whose remote end has no GID.
	ByLID int `json:"queue_pairs_by_lid"`
}

// Address is a remote address that is not assigned to a node.
type Address struct {
	From       string `json:"from"`
	Address    string `json:"address"`
	QueuePairs int    `json:"queue_pairs"`
	Ambiguous  bool   `json:"ambiguous"` // more than one node has it
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

// kept is a matrix that is complete when done is closed.
type kept struct {
	at     time.Time
	done   chan struct{}
	matrix *Matrix
}

// NewReader returns a reader. The URL is that of a sensor, with {instance} or {host}. The file has the configuration of the HTTP client as
// for fleet.Connect; it may be empty. Its credentials go to each node of a job that is looked at, and nowhere else.
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

// Job returns the matrix of a job with these members, which is at most 15 seconds old. Those that ask for the same job at the same time
// share the requests.
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
		k.matrix = r.ask(now, members)
		return k.matrix
	}
	<-k.done
	return k.matrix
}

// ask asks the sensors of the nodes of members. The context of a viewer does not end it: others wait, too.
func (r *Reader) ask(at time.Time, members []fleet.Member) *Matrix {
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
	asked := names[:min(len(names), MaxNodes)]
	answers := make([]answer, len(asked))
	var all sync.WaitGroup
	for i, name := range asked {
		all.Go(func() { answers[i] = r.sensor(ctx, name, mine[name]) })
	}
	all.Wait()
	m := count(answers)
	for i := range answers {
		r.held.Add(-int64(answers[i].held))
	}
	m.At, m.NotAsked = at.UTC(), append([]string{}, names[len(asked):]...)
	return m
}
