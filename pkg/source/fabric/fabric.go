// SPDX-License-Identifier: Apache-2.0

// Package fabric reads an InfiniBand subnet with the tools of infiniband-diags, in
// the background, from one port that is in it. Each round is
//
//   - one sweep, `ibnetdiscover --ports`: every port of every node, its link and the
//     other end of that. The sweep is kept in a file, from which the same tool then
//     tells, without asking anybody, the names (--list) and which node a port belongs
//     to, and iblinkinfo what the links could be: "Could be 12X" is what makes a link
//     narrow or slow, and without iblinkinfo that is not known.
//   - `perfquery --extended --loop_ports LID 1-N` for each switch, a few at once: the
//     64-bit counters, and on newer switches the errors. Where it does not tell the
//     errors, they come from a second perfquery without --extended, 32 bits and less,
//     where a counter that is full stays so. One process and one deadline for each
//     switch is what keeps a switch that hangs from costing the others.
//   - `ibqueryerrors --data --skip-sl --ca --router` once: the errors at the hosts'
//     ends. It tells ports that have some; the counters of other ports are an empty
//     list. A host that hangs delays this run by a second. Its --details are
//     not asked for: up to rdma-core 64 it prints the fields of PortXmitDiscardDetails
//     under the names of PortRcvErrorDetails, and those under the names of these.
//
// Data is in units of 4 bytes, as the switches count it.
//
// Nothing here writes: each tool has a list of the options that it may get, and none
// of them resets a counter (run.go, which alone starts the tools).
//
// What a round costs: the sweep asks each node about three things and each switch
// about each port (762 MADs where 12 switches of 40 ports join 64 hosts); perfquery
// 1 + N for a switch of N ports, twice where the errors come separately (984 there);
// ibqueryerrors 1 for each host and 2 for each of its ports (192 there).
//
// A switch that does not answer keeps its last figures, with the time that they are
// of. It is asked last from then on. One that the sweep does not find is gone. LIDs
// are those of the same round's sweep, where that fails those of the last: a subnet
// manager that hands out others after it can make a round's figures those of another
// switch. By those of a sweep that is older than maxRounds nobody is asked.
package fabric

import (
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
	Tools       string        // directory of the tools; empty: the usual places
	Port        string        // HCA/PORT to read it from; empty: the tools' choice, the first active one
	NodeNameMap string        // file with names of nodes, as ibnetdiscover takes it; empty: the tools' own
	Parallel    int           // most switches that are asked at once; 0: 4
	Interval    time.Duration // how often Read is called; 0: a minute
	Logger      *zap.Logger
}

// Deadlines, all of them within that of Read.
const (
	localDeadline  = 10 * time.Second // of a tool that reads a file
	switchDeadline = 10 * time.Second // of a switch; perfquery gives up after three of no answer
	maxRounds      = 5                // without a sweep, after which LIDs are not believed
)

// Source reads the fabric.
type Source struct {
	run      *runner
	log      *zap.Logger
	parallel int
	interval time.Duration
	deadline time.Duration // of a switch
	root     string        // of /sys and /dev

	told map[string]string // what was told last, by what it is about

	// What the last sweep found and the last answers to the questions after it.
	found      *topology
	discovered time.Time
	known      map[string]*answers // by node GUID

	mu      sync.Mutex
	queries map[model.FabricQueries]uint64
}

// New makes a Source. The error is model.ErrUnsupported where infiniband-diags is
// not installed.
func New(o Options) (*Source, error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	if o.Interval <= 0 {
		o.Interval = time.Minute
	}
	s := &Source{
		log: o.Logger, parallel: min(o.Parallel, 64), interval: o.Interval, deadline: switchDeadline, root: "/",
		told: map[string]string{}, known: map[string]*answers{}, queries: map[model.FabricQueries]uint64{},
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

// Close releases nothing: what Read starts ends with Read.
func (s *Source) Close() error { return nil }

// Read returns Fabric. Where the sweep fails, that is the nodes of the last one that
// did not, with counters that are new, and the error. What concerns one switch is in
// its Error.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, s.budget(ctx))
	defer cancel()
	dir, err := tempDir()
	if err != nil {
		return model.Snapshot{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is in a directory for such files
	sweep := filepath.Join(dir, "sweep")
	found, err := s.discover(ctx, sweep)
	if found != nil {
		s.found, s.discovered = found, time.Now()
	}
	if s.found == nil {
		return model.Snapshot{}, err
	}
	s.forget()
	s.ask(ctx, sweep, found != nil)
	return model.Snapshot{Fabric: s.fabric()}, err
}

// budget is how long a round may take: less than Read may, for that what is killed
// can end.
func (s *Source) budget(ctx context.Context) time.Duration {
	left := s.interval
	if end, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(end))
	}
	return left * 9 / 10
}

// tempDir makes a directory for the sweep. A container may have but /dev/shm for that.
func tempDir() (string, error) {
	var errs []error
	for _, parent := range []string{os.TempDir(), "/dev/shm", "/run"} {
		dir, err := os.MkdirTemp(parent, "accelscope-fabric")
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("the sweep of the fabric needs a directory that can be written to (/tmp): %w", errors.Join(errs...))
}

// discover sweeps the fabric.
func (s *Source) discover(ctx context.Context, sweep string) (*topology, error) {
	half, cancel := context.WithTimeout(ctx, time.Until(deadlineOf(ctx))/2)
	defer cancel()
	ports, err := s.run.output(half, s.run.sweep(sweep))
	if err != nil && !errors.Is(err, errTimeout) { // as where the fabric changes meanwhile
		s.log.Debug("the fabric is swept again", zap.Error(err))
		ports, err = s.run.output(half, s.run.sweep(sweep))
	}
	if err != nil {
		return nil, s.reason(err)
	}
	names, err := s.local(ctx, s.run.list(sweep))
	if err != nil {
		return nil, err
	}
	owners, err := s.local(ctx, s.run.owners(sweep))
	if err != nil {
		return nil, err
	}
	t := parseTopology(ports, names, owners)
	switch {
	case len(t.nodes) == 0:
		return nil, fmt.Errorf("ibnetdiscover tells no node: %w", errOutput)
	case !t.linked():
		return nil, errNoLink
	}
	problem := ""
	if t.unread > 0 {
		problem = fmt.Sprintf("%d lines are not understood", t.unread)
	}
	s.tell(ibnetdiscover, problem)
	if !s.run.has(iblinkinfo) {
		s.tell(iblinkinfo, "it is not installed: which links are narrow or slow is not known")
		return t, nil
	}
	if links, err := s.local(ctx, s.run.links(sweep)); err != nil {
		s.tell(iblinkinfo, err.Error())
	} else {
		t.parseLinks(links)
		s.tell(iblinkinfo, "")
	}
	return t, nil
}

func (s *Source) local(ctx context.Context, c command) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, localDeadline)
	defer cancel()
	return s.run.output(ctx, c)
}

// deadlineOf is that of a context that has one.
func deadlineOf(ctx context.Context) time.Time {
	end, _ := ctx.Deadline()
	return end
}

// forget drops what was told by nodes that are gone, and makes room for new ones.
func (s *Source) forget() {
	maps.DeleteFunc(s.known, func(guid string, _ *answers) bool {
		gone := s.found.nodes[guid] == nil
		if gone {
			delete(s.told, guid)
		}
		return gone
	})
	for guid := range s.found.nodes {
		if s.known[guid] == nil {
			s.known[guid] = &answers{}
		}
	}
}

// fabric joins what is known. Nothing of it changes later.
func (s *Source) fabric() *model.Fabric {
	f := &model.Fabric{Discovered: s.discovered, Nodes: make([]model.FabricNode, 0, len(s.found.nodes))}
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

// tell logs what is wrong with something, unless that was told last; "" is nothing.
func (s *Source) tell(about, problem string) {
	if s.told[about] == problem {
		return
	}
	if s.told[about] = problem; problem == "" {
		delete(s.told, about)
		s.log.Info("answers again", zap.String("of", about))
		return
	}
	s.log.Warn("part of the fabric is not read", zap.String("of", about), zap.String("why", problem))
}
