// SPDX-License-Identifier: Apache-2.0

// Package fabric reads an InfiniBand subnet with the tools of infiniband-diags, in the background, from one port of the
// subnet. Each round runs:
//
//   - one sweep, `ibnetdiscover --ports`: every port of every node, its link and the remote end. The sweep is kept in a file. From
//     this file, without requests, the same tool prints the names (--list) and the node of each port, and iblinkinfo the
//     capabilities of the links: a link is narrow or slow if iblinkinfo prints "Could be 12X". Without iblinkinfo this is unknown.
//   - `perfquery --extended --loop_ports LID 1-N` for each switch, a few at a time: the 64-bit counters, and on newer switches the
//     errors. On other switches the errors come from a second perfquery without --extended, with 32 bits and less; a full counter
//     keeps its maximum. Each switch has its own process and deadline, so that a switch that hangs does not delay the others.
//   - `ibqueryerrors --data --skip-sl --ca --router` once: the errors at the hosts' ends. It prints only ports with errors; the
//     counters of other ports are an empty list. A host that hangs delays this run by a second. --details is not used: up to
//     rdma-core 64 it swaps the names of the fields of PortXmitDiscardDetails and PortRcvErrorDetails.
//   - `sminfo`: the master subnet manager, one request. A new GUID means a new master.
//
// Data is in units of 4 bytes, as the switches count it.
//
// The tools only read: each tool has a list of allowed options, and none of them resets a counter. Only run.go starts
// the tools.
//
// Requests per round: the sweep sends about three to each node and one per port of each switch; perfquery 1 + N for a
// switch of N ports, twice as many if the errors are read separately; ibqueryerrors 1 for each host and 2 for each of
// its ports.
//
// A switch that does not answer keeps its last counters and their time, and is read last from then on. A node missing
// from the sweep is dropped. LIDs come from the sweep of the same round, or from the last sweep if it fails: if a
// subnet manager assigns new LIDs after the sweep, the counters of one round may belong to another switch. LIDs from a
// sweep older than maxRounds are not used.
package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// Options configure a Source.
type Options struct {
	Tools       string        // directory of the tools; empty: the default directories
	Port        string        // HCA/PORT to read from; empty: the tools' default, the first active port
	NodeNameMap string        // file with names of nodes, in the format of ibnetdiscover; empty: the tools' default
	Directory   string        // for the files of a round; empty: the first that can be written to of TMPDIR, /dev/shm and /run
	Parallel    int           // maximum number of switches that are read at a time; 0: 4
	Interval    time.Duration // interval of Read; 0: a minute
	Logger      *zap.Logger
}

// Deadlines, shorter than the deadline of Read.
const (
	localDeadline  = 10 * time.Second // of a tool that reads a file
	switchDeadline = 10 * time.Second // of a switch; perfquery gives up after three attempts without an answer
	maxRounds      = 5                // maximum age of LIDs in rounds
)

// Source reads the fabric.
type Source struct {
	run      *runner
	log      *zap.Logger
	parallel int
	interval time.Duration
	deadline time.Duration // of a switch
	root     string        // prefix of /sys and /dev
	dir      string        // Options.Directory

	problems map[string]string // last logged problem by part

	// Result of the last sweep, and the last counters.
	found      *topology
	discovered time.Time
	known      map[string]*answers // by node GUID

	master        *model.FabricMaster // of this round
	lastMaster    string              // GUID of the last master
	masterChanges uint64

	mu      sync.Mutex
	queries map[model.FabricQueries]uint64
}

// New returns a Source. The error is model.ErrUnsupported if infiniband-diags is not installed.
func New(o Options) (*Source, error) {
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	if o.Interval <= 0 {
		o.Interval = time.Minute
	}
	s := &Source{
		log: o.Logger, parallel: min(o.Parallel, 64), interval: o.Interval, deadline: switchDeadline, root: "/", dir: o.Directory,
		problems: map[string]string{}, known: map[string]*answers{}, queries: map[model.FabricQueries]uint64{},
	}
	var err error
	s.run, err = newRunner(o, s.count)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Name returns "fabric".
func (s *Source) Name() string { return "fabric" }

// Close does nothing: the processes that Read starts end with Read.
func (s *Source) Close() error { return nil }

// Read returns Fabric. If the sweep fails, it contains the nodes of the last sweep with new counters, and Read also
// returns the error. A node's error is in its field Error.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, s.budget(ctx))
	defer cancel()
	dir, err := s.tempDir()
	if err != nil {
		return model.Snapshot{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the directory is for temporary files
	sweep := filepath.Join(dir, "sweep")
	found, err := s.discover(ctx, sweep)
	if found != nil {
		s.found, s.discovered = found, time.Now()
	}
	if s.found == nil {
		return model.Snapshot{}, err
	}
	s.forget()
	s.readCounters(ctx, sweep, found != nil)
	s.readMaster(ctx) // last: without a subnet manager it takes its whole deadline
	return model.Snapshot{Fabric: s.fabric()}, err
}

// budget returns the time limit of a round: shorter than Read's, because killed processes need time to end.
func (s *Source) budget(ctx context.Context) time.Duration {
	left := s.interval
	if end, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(end))
	}
	return left * 9 / 10
}

// tempDir makes a directory for the sweep. In a container only /dev/shm may be writable.
func (s *Source) tempDir() (string, error) {
	parents := []string{os.TempDir(), "/dev/shm", "/run"}
	if s.dir != "" {
		parents = []string{s.dir}
	}
	var errs []error
	for _, parent := range parents {
		dir, err := os.MkdirTemp(parent, "accelscope-fabric")
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("the sweep of the fabric needs a directory that can be written to: %w", errors.Join(errs...))
}

// discover sweeps the fabric, and sweeps it again if that fails, for instance because the fabric changed meanwhile.
func (s *Source) discover(ctx context.Context, sweep string) (*topology, error) {
	end, _ := ctx.Deadline() // Read sets one
	half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
	defer cancel()
	t, err := s.sweep(ctx, half, sweep)
	if err != nil && !errors.Is(err, errTimeout) {
		s.log.Debug("the fabric is swept again", zap.Error(err))
		t, err = s.sweep(ctx, half, sweep)
	}
	switch {
	case err != nil:
		return nil, s.reason(err)
	case len(t.nodes) == 0:
		return nil, fmt.Errorf("ibnetdiscover prints no node: %w", errOutput)
	case !t.linked():
		return nil, errNoLink
	}
	problem := ""
	if t.unread > 0 {
		problem = fmt.Sprintf("%d lines cannot be parsed", t.unread)
	}
	s.logState(ibnetdiscover, problem)
	if !s.run.has(iblinkinfo) {
		s.logState(iblinkinfo, "it is not installed: which links are narrow or slow is not known")
		return t, nil
	}
	if links, err := s.local(ctx, s.run.links(sweep)); err != nil {
		s.logState(iblinkinfo, err.Error())
	} else {
		t.parseLinks(links)
		s.logState(iblinkinfo, "")
	}
	return t, nil
}

// sweep sweeps the fabric once, until half ends, and reads what the sweep wrote. If a link changed within the sweep, the tool may write a
// file that it refuses to load.
func (s *Source) sweep(ctx, half context.Context, file string) (*topology, error) {
	ports, err := s.run.output(half, s.run.sweep(file))
	if err != nil {
		return nil, err
	}
	names, err := s.local(ctx, s.run.list(file))
	if err != nil {
		return nil, err
	}
	owners, err := s.local(ctx, s.run.owners(file))
	if err != nil {
		return nil, err
	}
	return parseTopology(ports, names, owners), nil
}

func (s *Source) local(ctx context.Context, c command) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, localDeadline)
	defer cancel()
	return s.run.output(ctx, c)
}

// forget drops the counters of removed nodes, and creates entries for new nodes.
func (s *Source) forget() {
	maps.DeleteFunc(s.known, func(guid string, _ *answers) bool {
		gone := s.found.nodes[guid] == nil
		if gone {
			delete(s.problems, guid)
		}
		return gone
	})
	for guid := range s.found.nodes {
		if s.known[guid] == nil {
			s.known[guid] = &answers{}
		}
	}
}

// fabric returns the result of the round. It does not change later.
func (s *Source) fabric() *model.Fabric {
	f := &model.Fabric{
		Discovered: s.discovered, Master: s.master, MasterChanges: s.masterChanges,
		Nodes: make([]model.FabricNode, 0, len(s.found.nodes)),
	}
	for _, guid := range slices.Sorted(maps.Keys(s.found.nodes)) {
		n := s.found.nodes[guid]
		f.Nodes = append(f.Nodes, n.fact(guid, s.known[guid]))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for q, count := range s.queries {
		q.Count = count
		f.Queries = append(f.Queries, q)
	}
	slices.SortFunc(f.Queries, func(a, b model.FabricQueries) int {
		return slices.Compare([]string{a.Tool, a.Result}, []string{b.Tool, b.Result})
	})
	return f
}

func (s *Source) count(tool, result string) {
	s.mu.Lock()
	s.queries[model.FabricQueries{Tool: tool, Result: result}]++
	s.mu.Unlock()
}

// logState logs a changed problem of a part; "" means no problem.
func (s *Source) logState(about, problem string) {
	if s.problems[about] == problem {
		return
	}
	if s.problems[about] = problem; problem == "" {
		delete(s.problems, about)
		s.log.Info("part of the fabric is read again", zap.String("part", about))
		return
	}
	s.log.Warn("part of the fabric is not read", zap.String("part", about), zap.String("reason", problem))
}
