// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

type answers struct {
	ports   map[int][]model.Counter // by number
	at      time.Time
	problem string // why the counters are old
	failed  int    // failed rounds since the last answer

	// fewer limits the requests to ports with a link and ports that have answered before, because a request for another
	// port failed. Switches report ports that they do not have, such as the halves of split ports.
	fewer bool
}

func (a *answers) fail(err error) {
	a.problem = err.Error()
	a.failed++
}

// readCounters reads the counters: all hosts in one run, the switches a few at a time, beginning with the switches that
// answered last time.
func (s *Source) readCounters(ctx context.Context, sweep string, swept bool) {
	var jobs []string
	for guid, n := range s.found.nodes {
		if n.kind == model.FabricSwitch {
			jobs = append(jobs, guid)
		}
	}
	slices.SortFunc(jobs, func(a, b string) int {
		return cmp.Or(cmp.Compare(s.known[a].failed, s.known[b].failed), cmp.Compare(a, b))
	})
	nodes := map[uint32]int{} // by LID: several nodes may share a LID while a subnet manager assigns LIDs
	for _, n := range s.found.nodes {
		nodes[n.lid]++
	}
	var all safely.Group
	hosts := ""
	switch {
	case !s.run.has(ibqueryerrors):
		hosts = s.failHosts(errors.New("ibqueryerrors is not installed"))
	case swept:
		all.Go(func() { hosts = s.readHosts(ctx, sweep) })
	default:
		hosts = s.failHosts(errors.New("the sweep failed"))
	}
	slots := make(chan struct{}, s.parallel)
	for _, guid := range jobs {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			s.readSwitch(ctx, guid, nodes)
		})
	}
	all.Wait()
	for _, guid := range jobs {
		s.logState(guid, s.known[guid].problem)
	}
	s.logState("hosts", hosts)
}

// readSwitch reads all counters of a switch or none. nodes is the number of nodes by LID.
func (s *Source) readSwitch(ctx context.Context, guid string, nodes map[uint32]int) {
	n, a := s.found.nodes[guid], s.known[guid]
	switch {
	case time.Since(s.discovered) > maxRounds*s.interval:
		a.fail(errors.New("its LID may have changed: no sweep has succeeded for too long"))
		return
	case n.lid == 0:
		a.fail(errors.New("it has no LID: the fabric needs a subnet manager (opensm)"))
		return
	case nodes[n.lid] > 1:
		a.fail(fmt.Errorf("another node has its LID %d", n.lid))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.deadline)
	defer cancel()
	all, some := n.numbers(false, nil), n.numbers(true, a.ports)
	if a.fewer {
		all = some
	}
	ports, err := s.counters(ctx, n.lid, all)
	if err != nil && len(ports) > 0 && ctx.Err() == nil {
		// The switch answered, but not for each port. If such a port has answered before, the request was lost.
		first := slices.IndexFunc(all, func(p int) bool { return ports[p] == nil })
		if first >= 0 && !slices.Contains(some, all[first]) {
			ports, err = s.counters(ctx, n.lid, some)
			a.fewer = err == nil
		}
	}
	if err != nil {
		a.fail(err)
		return
	}
	a.ports = map[int][]model.Counter{}
	for number, f := range ports {
		a.ports[number] = f.list()
	}
	a.at, a.problem, a.failed = time.Now(), "", 0
}

// numbers returns the numbers of the node's ports. If fewer is set, it leaves out ports without a link that have not
// answered before.
func (n *node) numbers(fewer bool, answered map[int][]model.Counter) []int {
	numbers := []int{}
	for number, p := range n.ports {
		if number > 0 && (!fewer || p.peer != nil || answered[number] != nil) {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// noExtended is in the output of perfquery if the request for extended counters fails after the capability mask was
// read.
const noExtended = "perfextquery"

// counters requests the extended counters, and the others if they are not included. On an error it returns the ports
// that answered.
func (s *Source) counters(ctx context.Context, lid uint32, numbers []int) (map[int]counterValues, error) {
	if len(numbers) == 0 {
		return nil, nil
	}
	out, failed := s.run.output(ctx, s.run.counters(true, lid, numbers))
	ports, _ := parsePerfquery(out)
	if failed == nil && whole(ports, numbers, "SymbolErrorCounter") {
		return ports, nil
	}
	if failed != nil && (len(ports) > 0 || !bytes.Contains(out, []byte(noExtended))) {
		return ports, failed
	}
	out, err := s.run.output(ctx, s.run.counters(false, lid, numbers))
	short, mask := parsePerfquery(out)
	switch {
	case err != nil:
		return short, err
	case !whole(short, numbers, "SymbolErrorCounter"):
		return short, fmt.Errorf("perfquery does not report each port: %w", errOutput)
	case mask&hasExtended == 0: // a switch with 32-bit counters only
		return short, nil
	case failed != nil:
		return short, failed
	case !whole(ports, numbers, "PortXmitData"):
		return ports, fmt.Errorf("perfquery does not report each port: %w", errOutput)
	}
	for number, f := range ports {
		for name, v := range short[number] {
			if _, wide := f[name]; !wide {
				f[name] = v
			}
		}
	}
	return ports, nil
}

func whole(ports map[int]counterValues, numbers []int, counter string) bool {
	for _, number := range numbers {
		if _, ok := ports[number][counter]; !ok {
			return false
		}
	}
	return true
}

// failHosts stores an error for all nodes except switches and keeps their counters.
func (s *Source) failHosts(err error) string {
	for guid, n := range s.found.nodes {
		if n.kind != model.FabricSwitch {
			s.known[guid].fail(err)
		}
	}
	return err.Error()
}

var errSilent = errors.New("ibqueryerrors: no answer")

// readHosts reads the error counters of all nodes except switches, and returns a description of the errors.
func (s *Source) readHosts(ctx context.Context, sweep string) string {
	out, err := s.run.output(ctx, s.run.errors(sweep))
	ports, silent, unknown, complete := parseErrors(out)
	switch {
	case err != nil:
		return s.failHosts(err)
	case !complete:
		return s.failHosts(fmt.Errorf("ibqueryerrors does not get to the end: %w", errOutput))
	}
	counted := map[string]map[int][]model.Counter{}
	for p, f := range ports {
		guid := s.found.nodeOf(p.guid)
		if counted[guid] == nil {
			counted[guid] = map[int][]model.Counter{}
		}
		counted[guid][p.port] = f.list()
	}
	at, failed := time.Now(), 0
	for guid, n := range s.found.nodes {
		if n.kind == model.FabricSwitch {
			continue
		}
		a, lost := s.known[guid], unknown > 0 && counted[guid] == nil
		read := map[int][]model.Counter{}
		for number, p := range n.ports {
			lost = lost || silent[p.lid]
			read[number] = []model.Counter{}
		}
		if lost {
			a.fail(errSilent)
			failed++
			continue
		}
		maps.Copy(read, counted[guid])
		a.ports, a.at, a.problem, a.failed = read, at, "", 0
	}
	if failed > 0 {
		return fmt.Sprintf("%d of them: %v", failed, errSilent)
	}
	return ""
}
