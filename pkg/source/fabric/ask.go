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

// answers are the counters of a node.
type answers struct {
	ports   map[int][]model.Counter // by number
	at      time.Time
	problem string // why that is not newer
	failed  int    // rounds since it answered

	// fewer says that it is asked only for ports with a link and those that it has
	// answered for: it did not answer for another. Switches count ports that they do
	// not have, as halves of ports.
	fewer bool
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
		}
	}
	slices.SortFunc(jobs, func(a, b string) int {
		return cmp.Or(cmp.Compare(s.known[a].failed, s.known[b].failed), cmp.Compare(a, b))
	})
	shared := sharedLIDs(s.found)
	var all sync.WaitGroup
	hosts := ""
	switch {
	case !s.run.has(ibqueryerrors):
		hosts = s.hostsFail(errors.New("ibqueryerrors is not installed"))
	case swept:
		all.Go(func() { hosts = s.askHosts(ctx, sweep) })
	default:
		hosts = s.hostsFail(errors.New("the sweep failed"))
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
		s.tell(guid, s.known[guid].problem)
	}
	s.tell("hosts", hosts)
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
	n, a := s.found.nodes[guid], s.known[guid]
	switch {
	case time.Since(s.discovered) > maxRounds*s.interval:
		a.fail(errors.New("its LID may be another one by now: no sweep has succeeded for long"))
		return
	case n.lid == 0:
		a.fail(errors.New("it has no LID: the fabric needs a subnet manager (opensm)"))
		return
	case shared[n.lid]:
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
		// It answered, but not for each port. For one that it has, that is a question that got lost.
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

// numbers are those of the node's ports, or of fewer: those with a link, and those that
// it has answered for.
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

// hostsFail keeps what was read of all that is no switch.
func (s *Source) hostsFail(err error) string {
	for guid, n := range s.found.nodes {
		if n.kind != model.FabricSwitch {
			s.known[guid].fail(err)
		}
	}
	return err.Error()
}

var errSilent = errors.New("ibqueryerrors: no answer")

// askHosts reads the errors at the ends that are no switches, and says what is wrong.
func (s *Source) askHosts(ctx context.Context, sweep string) string {
	out, err := s.run.output(ctx, s.run.errors(sweep))
	ports, silent, unknown, complete := parseErrors(out)
	switch {
	case err != nil:
		return s.hostsFail(err)
	case !complete:
		return s.hostsFail(fmt.Errorf("ibqueryerrors does not get to the end: %w", errOutput))
	}
	told := map[string]map[int][]model.Counter{}
	for p, f := range ports {
		guid := s.found.nodeOf(p.guid)
		if told[guid] == nil {
			told[guid] = map[int][]model.Counter{}
		}
		told[guid][p.port] = f.list()
	}
	at, failed := time.Now(), 0
	for guid, n := range s.found.nodes {
		if n.kind == model.FabricSwitch {
			continue
		}
		a, lost := s.known[guid], unknown > 0 && told[guid] == nil
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
		maps.Copy(read, told[guid])
		a.ports, a.at, a.problem, a.failed = read, at, "", 0
	}
	if failed > 0 {
		return fmt.Sprintf("%d of them: %v", failed, errSilent)
	}
	return ""
}
