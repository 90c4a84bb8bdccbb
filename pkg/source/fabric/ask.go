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
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// answers are the counters of a switch, or of all that is no switch.
type answers struct {
	ports   map[end][]model.Counter // by node GUID and number
	at      time.Time
	problem string // why that is not newer
	failed  int    // rounds since it answered

	// linked says that it is asked for ports with a link only: it did not answer for
	// others. Switches count ports that they do not have, as halves of ports.
	linked bool
}

// fail keeps what was read.
func (a *answers) fail(err error) {
	a.problem = err.Error()
	a.failed++
}

// ask reads the counters: of the hosts in one go, of the switches a few at once, the
// ones that answered last time first.
func (s *Source) ask(ctx context.Context, sweep string, swept bool) {
	var jobs []string
	for guid, n := range s.found.nodes {
		if n.kind == model.FabricSwitch {
			jobs = append(jobs, guid)
			if s.switches[guid] == nil {
				s.switches[guid] = &answers{}
			}
		}
	}
	slices.SortFunc(jobs, func(a, b string) int {
		return cmp.Or(cmp.Compare(s.switches[a].failed, s.switches[b].failed), cmp.Compare(a, b))
	})
	shared := sharedLIDs(s.found)
	var all sync.WaitGroup
	switch {
	case !s.run.has(ibqueryerrors):
		s.hosts.problem = "ibqueryerrors is not installed"
	case swept:
		all.Go(func() { s.askHosts(ctx, sweep) })
	}
	next := make(chan string)
	for range min(s.parallel, len(jobs)) {
		all.Go(func() {
			for guid := range next {
				s.askSwitch(ctx, guid, shared)
			}
		})
	}
	for _, guid := range jobs {
		next <- guid
	}
	close(next)
	all.Wait()
	for _, guid := range jobs {
		s.tell(guid, s.switches[guid].problem)
	}
	s.tell("hosts", s.hosts.problem)
}

// sharedLIDs are those that more than one node has, for a moment of a subnet manager.
func sharedLIDs(t *topology) map[uint32]bool {
	count := map[uint32]int{}
	for _, n := range t.nodes {
		count[n.lid]++
	}
	maps.DeleteFunc(count, func(_ uint32, n int) bool { return n < 2 })
	shared := map[uint32]bool{}
	for lid := range count {
		shared[lid] = true
	}
	return shared
}

// askSwitch reads the counters of a switch, all of them or none.
func (s *Source) askSwitch(ctx context.Context, guid string, shared map[uint32]bool) {
	n, a := s.found.nodes[guid], s.switches[guid]
	switch {
	case n.lid == 0:
		a.fail(errors.New("it has no LID: the fabric needs a subnet manager (opensm)"))
		return
	case shared[n.lid]:
		a.fail(fmt.Errorf("another node has its LID %d", n.lid))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.deadline)
	defer cancel()
	ports, err := s.counters(ctx, n.lid, n.numbers(a.linked))
	if err != nil && len(ports) > 0 && !a.linked && ctx.Err() == nil {
		// It answered, but not for each port.
		if ports, err = s.counters(ctx, n.lid, n.numbers(true)); err == nil {
			a.linked = true
		}
	}
	if err != nil {
		a.fail(err)
		return
	}
	a.ports = map[end][]model.Counter{}
	for number, f := range ports {
		a.ports[end{guid, number}] = f.list()
	}
	a.at, a.problem, a.failed = time.Now(), "", 0
}

// numbers are those of the node's ports, or of those with a link.
func (n *node) numbers(linked bool) []int {
	numbers := []int{}
	for number, p := range n.ports {
		if number > 0 && (!linked || p.peer != nil) {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// noExtended is what perfquery says where the question for extended counters fails,
// and the one before, what there is to ask for, does not.
const noExtended = "perfextquery"

// counters asks for the extended counters, and for the others where they do not come
// with these. With an error come those of the ports that were answered for.
func (s *Source) counters(ctx context.Context, lid uint32, numbers []int) (map[int]figures, error) {
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
		return short, fmt.Errorf("perfquery does not tell of each port: %w", errOutput)
	case mask&hasExtended == 0: // a switch that counts with 32 bits, and no further
		return short, nil
	case failed != nil:
		return short, failed
	case !whole(ports, numbers, "PortXmitData"):
		return ports, fmt.Errorf("perfquery does not tell of each port: %w", errOutput)
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

// whole says whether each port has a counter.
func whole(ports map[int]figures, numbers []int, counter string) bool {
	for _, number := range numbers {
		if _, ok := ports[number][counter]; !ok {
			return false
		}
	}
	return true
}

// askHosts reads the errors at the ends that are no switches.
func (s *Source) askHosts(ctx context.Context, sweep string) {
	out, err := s.run.output(ctx, s.run.errors(sweep))
	ports, unanswered, complete := parseErrors(out)
	switch {
	case err != nil:
		s.hosts.fail(err)
		return
	case !complete:
		s.hosts.fail(fmt.Errorf("ibqueryerrors does not get to the end: %w", errOutput))
		return
	}
	a := answers{ports: map[end][]model.Counter{}, at: time.Now()}
	if unanswered > 0 { // by whom is not known
		a.problem = fmt.Sprintf("ibqueryerrors: %d questions to hosts were not answered", unanswered)
	} else {
		for guid, n := range s.found.nodes {
			for number := range n.ports {
				a.ports[end{guid, number}] = []model.Counter{}
			}
		}
	}
	for at, f := range ports {
		a.ports[end{s.found.nodeOf(at.guid), at.port}] = f.list()
	}
	s.hosts = a
}
