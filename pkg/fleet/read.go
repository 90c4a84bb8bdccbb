// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stateQueries are the queries of a State, the most important first: they get the memory.
var stateQueries = []string{
	"nodes", "nodes_before", "alerts", "job_members", "job_nodes", "job_gpus", "job_idle", "job_idle_hours", "job_transmit", "job_receive",
	"job_errors", "job_completion_errors", "job_verbs_p99", "job_completion_p99", "job_outlier", "transmit", "receive",
	"transmit_attributed", "receive_attributed", "gpus", "gpus_given", "gpu_processes", "gpu_health", "ports", "functions",
	"rail_transmit", "rail_receive", "rail_errors", "rail_lost", "rail_pause",
}

func (r *Reader) read(ctx context.Context, at time.Time) *State {
	a := r.ask(ctx, at, maxState, stateQueriesAtOnce, map[string]string{"alerts": strings.Join(alertNames, "|")}, stateQueries...)
	return stateOf(a, at)
}

func stateOf(a *answers, at time.Time) *State {
	s := &State{At: at, Problems: append([]string{}, a.problems...), Alerts: alertsOf(a.vectors["alerts"]), Jobs: jobsOf(a)}
	nodes := map[string]*Node{}
	for _, one := range a.vectors["nodes"] {
		nodes[label(one, "instance")] = &Node{Name: label(one, "instance"), Rails: map[string]Rail{}}
	}
	_, answered := a.vectors["nodes"]
	for _, one := range a.vectors["nodes_before"] {
		if name := label(one, "instance"); answered && nodes[name] == nil {
			nodes[name] = &Node{Name: name, Down: true, Rails: map[string]Rail{}}
		}
	}
	a.alertsOfNodes(nodes, s.Alerts)
	a.gpus(nodes)
	a.ports(nodes, s.Alerts)
	a.rails(nodes)
	a.bytes(nodes)
	rails := map[string]bool{}
	if answered {
		s.Nodes = make([]Node, 0, len(nodes))
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[name]
		s.Nodes = append(s.Nodes, *n)
		s.Totals.add(n)
		for rail := range n.Rails {
			rails[rail] = true
		}
	}
	ports, known := a.vectors["ports"]
	if known {
		s.Rails = []string{}
	}
	s.Rails = slices.AppendSeq(s.Rails, maps.Keys(rails))
	slices.SortFunc(s.Rails, byNumber)
	if len(ports) > 0 && len(a.vectors["rail_transmit"])+len(a.vectors["rail_receive"]) == 0 {
		s.Problems = append(s.Problems, "the recording rules of accelscope have no series: are they loaded?")
	}
	return s
}

// lastSecond is the end of the year 9999. Later times have no JSON.
const lastSecond = 253402300799

// alertsOf lists alerts, the worst first, then the latest.
func alertsOf(vector []sample) []Alert {
	if vector == nil {
		return nil
	}
	out := make([]Alert, 0, len(vector))
	for _, one := range vector {
		alert := Alert{
			Name: label(one, "alertname"), Severity: Severity(label(one, "severity")), Node: label(one, "instance"),
			Labels: map[string]string{}, Since: time.Unix(int64(max(0, min(one.value, lastSecond))), 0).UTC(),
		}
		for _, l := range one.labels.pairs {
			if !slices.Contains(notSubject, l.name) {
				alert.Labels[l.name] = l.value
			}
		}
		out = append(out, alert)
	}
	slices.SortFunc(out, func(a, b Alert) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), b.Since.Compare(a.Since), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Node, b.Node), cmp.Compare(a.Labels["device"]+a.Labels["uuid"], b.Labels["device"]+b.Labels["uuid"]))
	})
	return out
}

// notSubject are labels of alerts that do not name the subject.
var notSubject = []string{"__name__", "alertname", "severity", "instance", "job"}

// alertsOfNodes counts each node's alerts. A node that has not answered for more than an hour has no other series.
func (a *answers) alertsOfNodes(nodes map[string]*Node, alerts []Alert) {
	for i := range alerts {
		name := alerts[i].Node
		if alerts[i].Name == downAlert && nodes[name] == nil {
			nodes[name] = &Node{Name: name, Down: true, Rails: map[string]Rail{}}
		}
		n := nodes[name]
		if n == nil {
			continue
		}
		if n.Alerts++; n.Alerts == 1 {
			n.Worst = alerts[i].Severity // alerts are sorted
		}
	}
}

// gpus counts GPUs. A part's values count for its GPU.
func (a *answers) gpus(nodes map[string]*Node) {
	type gpu struct{ instance, uuid string }
	type facts struct{ given, known, used, health, healthy bool }
	whole := map[gpu]gpu{}
	all := map[gpu]*facts{}
	for _, one := range a.vectors["gpus"] {
		g := gpu{label(one, "instance"), label(one, "uuid")}
		if parent := label(one, "parent_uuid"); parent != "" {
			whole[g] = gpu{g.instance, parent}
		} else {
			whole[g], all[g] = g, &facts{}
		}
	}
	each := func(name string, do func(*facts, float64)) bool {
		vector, ok := a.vectors[name]
		for _, one := range vector {
			if f := all[whole[gpu{label(one, "instance"), label(one, "uuid")}]]; f != nil {
				do(f, one.value)
			}
		}
		return ok
	}
	given := each("gpus_given", func(f *facts, _ float64) { f.given = true })
	each("gpu_processes", func(f *facts, n float64) { f.known, f.used = true, f.used || n > 0 })
	each("gpu_health", func(f *facts, n float64) { f.healthy, f.health = (f.healthy || !f.health) && n > 0, true })
	if _, ok := a.vectors["gpus"]; !ok {
		return
	}
	for _, n := range nodes {
		if !n.Down {
			n.GPUs.All = new(int)
		}
	}
	count := func(to **int, is bool) {
		if *to == nil {
			*to = new(int)
		}
		if is {
			**to++
		}
	}
	for g, f := range all {
		n := nodes[g.instance]
		if n == nil {
			continue
		}
		count(&n.GPUs.All, true)
		if given {
			count(&n.GPUs.Given, f.given)
		}
		if f.known {
			count(&n.GPUs.Used, f.used)
		}
		if f.known && given {
			count(&n.GPUs.Idle, f.given && !f.used)
		}
		if f.health {
			count(&n.GPUs.Sick, !f.healthy)
		}
	}
}

// ports counts ports, and ports with alerts.
func (a *answers) ports(nodes map[string]*Node, alerts []Alert) {
	vector, ok := a.vectors["ports"]
	if !ok {
		return
	}
	_, judged := a.vectors["alerts"]
	for _, n := range nodes {
		if n.Down {
			continue
		}
		n.Ports.All, n.Ports.Up = new(int), new(int)
		if judged {
			n.Ports.Degraded, n.Ports.Flapping = new(int), new(int)
		}
	}
	for _, one := range vector {
		if n := nodes[label(one, "instance")]; n != nil && !n.Down {
			*n.Ports.All++
			if one.value == 1 {
				*n.Ports.Up++
			}
		}
	}
	type port struct{ instance, device, port string }
	counted := map[string]map[port]bool{degradedAlert: {}, flappingAlert: {}}
	for _, alert := range alerts {
		n, of := nodes[alert.Node], counted[alert.Name]
		p := port{alert.Node, alert.Labels["device"], alert.Labels["port"]}
		if of == nil || of[p] || n == nil || n.Down {
			continue
		}
		of[p] = true
		if alert.Name == degradedAlert {
			*n.Ports.Degraded++
		} else {
			*n.Ports.Flapping++
		}
	}
}

// rails sets the HCAs of nodes, without virtual functions.
func (a *answers) rails(nodes map[string]*Node) {
	type hca struct{ instance, device string }
	virtual := map[hca]bool{}
	for _, one := range a.vectors["functions"] {
		virtual[hca{label(one, "instance"), label(one, "device")}] = true
	}
	rails := map[hca]*Rail{}
	for _, one := range a.vectors["ports"] {
		h := hca{label(one, "instance"), label(one, "device")}
		up := one.value == 1
		if r := rails[h]; r != nil {
			r.Up = r.Up && up
		} else if !virtual[h] {
			rails[h] = &Rail{Up: up}
		}
	}
	each := func(name string, set func(*Rail, float64)) {
		for _, one := range a.vectors[name] {
			if r := rails[hca{label(one, "instance"), label(one, "device")}]; r != nil {
				set(r, one.value)
			}
		}
	}
	for _, name := range []string{"rail_transmit", "rail_receive"} {
		each(name, func(r *Rail, v float64) { r.Use = larger(r.Use, v) })
	}
	for _, name := range []string{"rail_errors", "rail_lost"} {
		each(name, func(r *Rail, v float64) { r.Errors = sum(r.Errors, &v) })
	}
	each("rail_pause", func(r *Rail, v float64) { r.Pause = &v })
	for h, r := range rails {
		if n := nodes[h.instance]; n != nil {
			n.Rails[h.device] = *r
		}
	}
}

func (a *answers) bytes(nodes map[string]*Node) {
	set := func(name string, to func(*Node) **float64) {
		for instance, v := range a.sums(name, "instance") {
			if n := nodes[instance]; n != nil {
				*to(n) = sum(*to(n), &v)
			}
		}
	}
	set("transmit", func(n *Node) **float64 { return &n.Bytes.Transmit })
	set("receive", func(n *Node) **float64 { return &n.Bytes.Receive })
	set("transmit_attributed", func(n *Node) **float64 { return &n.Bytes.Attributed })
	set("receive_attributed", func(n *Node) **float64 { return &n.Bytes.Attributed })
}

func (t *Totals) add(n *Node) {
	t.Nodes++
	if n.Down {
		t.Down++
	}
	for _, c := range []struct{ to, of **int }{
		{&t.GPUs.All, &n.GPUs.All},
		{&t.GPUs.Given, &n.GPUs.Given},
		{&t.GPUs.Used, &n.GPUs.Used},
		{&t.GPUs.Idle, &n.GPUs.Idle},
		{&t.GPUs.Sick, &n.GPUs.Sick},
		{&t.Ports.All, &n.Ports.All},
		{&t.Ports.Up, &n.Ports.Up},
		{&t.Ports.Degraded, &n.Ports.Degraded},
		{&t.Ports.Flapping, &n.Ports.Flapping},
	} {
		*c.to = sum(*c.to, *c.of)
	}
	t.Bytes.Transmit = sum(t.Bytes.Transmit, n.Bytes.Transmit)
	t.Bytes.Receive = sum(t.Bytes.Receive, n.Bytes.Receive)
	t.Bytes.Attributed = sum(t.Bytes.Attributed, n.Bytes.Attributed)
}

// sum adds two figures. Either may be unknown.
func sum[T int | float64](a, b *T) *T {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return new(*a + *b)
}

func larger(a *float64, b float64) *float64 {
	if a != nil {
		b = max(*a, b)
	}
	return new(b)
}

// byNumber compares names of HCAs: mlx5_2 is before mlx5_10.
func byNumber(a, b string) int {
	split := func(name string) (string, int) {
		text := strings.TrimRight(name, "0123456789")
		n, err := strconv.Atoi(name[len(text):])
		if err != nil {
			return name, -1
		}
		return text, n
	}
	x, i := split(a)
	y, j := split(b)
	return cmp.Or(cmp.Compare(x, y), cmp.Compare(i, j), cmp.Compare(a, b))
}
