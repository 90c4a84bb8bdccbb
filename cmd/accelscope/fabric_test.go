// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/pkg/sensor"
	"github.com/accelscope/accelscope/tests/machines/ibsim"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// narrowLink is the index of a link that has lost lanes: between the first spine and leaf2.
const narrowLink = 2

// TestBinaryOnFabric runs the program on a fat tree of 64 hosts that ibsim simulates,
// with a real subnet manager and the real tools of infiniband-diags. The node that it
// runs on is made of files, as in TestBinaryOnFakeNode.
func TestBinaryOnFabric(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program, runs ibsim and opensm")
	}
	t.Parallel()
	binary := build(t)
	want := ibsim.FatTree(8, 8, 4)
	want.Links[narrowLink].Width = 4 // of 12
	sim, err := ibsim.Start(t.Context(), ibsim.Options{Net: want.String(), Host: want.Nodes[want.Find("host0 mlx5_0")].ID()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sim.Close() })
	keepReaping(t, sim)
	tools := wrapTools(t, sim.Tools)
	_, args := fakeNode(t)
	args = append(args, "--fabric.tools="+tools.dir, "--fabric.interval=15s") // long enough for a round on a busy machine

	t.Run("off", func(t *testing.T) {
		s := startFabric(t, binary, args)
		for name := range s.scrape() {
			if strings.HasPrefix(name, "infiniband_fabric") || strings.HasPrefix(name, "infiniband_switch") || strings.HasPrefix(name, "infiniband_hca") {
				t.Errorf("there is %s", name)
			}
		}
		if _, ok := s.value("accelscope_source_state", "source=fabric"); ok {
			t.Error("there is a source of it")
		}
		if code, _, body := get(t, s.url+api.FabricPath, ""); code != http.StatusServiceUnavailable || !strings.Contains(body, "switched off") {
			t.Errorf("%d %s", code, body)
		}
		if took, err := s.stop(); err != nil || took > httpserver.DrainTimeout+sensor.CloseTimeout+slack {
			t.Errorf("SIGTERM: %v after %v", err, took)
		}
		if calls := tools.calls(); len(calls) > 0 {
			t.Errorf("tools were started: %q", calls)
		}
	})

	args = append(args, "--collector.fabric")
	s := startFabric(t, binary, args)

	t.Run("the net file", func(t *testing.T) {
		s.t = t
		got := s.await("nobody knows the whole fabric", func(f *fabricAnswer) bool {
			return len(f.Nodes) == len(want.Nodes) && len(f.Links) == len(want.Links) && f.asked()
		})
		if d := cmp.Diff(namesOf(want), got.names()); d != "" {
			t.Errorf("nodes (-net file +answer):\n%s", d)
		}
		if d := cmp.Diff(linksOf(want), got.links()); d != "" {
			t.Errorf("links (-net file +answer):\n%s", d)
		}
		for name, n := range map[string]float64{"type=switch": 12, "type=ca": 64, "type=router": 0} {
			s.awaitValue("infiniband_fabric_nodes", n, name)
		}
		s.awaitValue("infiniband_fabric_links", float64(len(want.Links)))
		s.awaitSum("infiniband_switch_port_up", 64+2*8*4)
		for _, l := range got.Links {
			isNarrow := linkText(l.A, l.B, l.Width, l.Speed) == linkOf(want, want.Links[narrowLink])
			if l.Narrow == nil || l.Slow == nil || *l.Narrow != isNarrow || *l.Slow {
				t.Errorf("%+v: narrow, slow", l)
			}
		}
		narrow := want.Links[narrowLink]
		for _, end := range []ibsim.End{narrow.A, narrow.B} {
			guid, port := fmt.Sprintf("guid=0x%016x", want.Nodes[end.Node].GUID), fmt.Sprint("port=", end.Port)
			s.awaitValue("infiniband_switch_port_degraded", 1, guid, port, "reason=width")
		}
		s.awaitSum("infiniband_switch_port_degraded", 2)
		s.until(func() string {
			_, _, body := get(t, s.url+api.FabricPath+".dot", "")
			if strings.Count(body, " -- ") != len(want.Links) || strings.Count(body, "shape=box") != 12 {
				return "not the graph of the fabric:\n" + body
			}
			return ""
		})
	})

	t.Run("errors and cuts", func(t *testing.T) {
		s.t = t
		stop := s.keepScraping()
		leaf := want.Nodes[0]
		host := fmt.Sprintf("guid=0x%016x", want.Nodes[want.Find("host5 mlx5_0")].GUID)
		s.awaitValue("infiniband_hca_port_symbol_error_total", 0, host, "port=1")
		damaged, cut, busy := ibsim.End{Node: 0, Port: 2}, ibsim.End{Node: 0, Port: 3}, ibsim.End{Node: 0, Port: 10}
		for _, command := range []string{
			"PerformanceSet " + want.Port(damaged) + " PortCounters.SymbolErrorCounter=5",
			"PerformanceSet " + want.Port(damaged) + " PortCounters.LinkDownedCounter=2",
			"PerformanceSet " + want.Port(ibsim.End{Node: want.Find("host5 mlx5_0"), Port: 1}) + " PortCounters.SymbolErrorCounter=7",
			"PerformanceSet " + want.Port(busy) + " PortCountersExtended.PortXmitData=1234567890123",
			"Unlink " + want.Port(cut),
		} {
			if reply, err := sim.Console(command); err != nil {
				t.Fatalf("%s: %v %s", command, err, reply)
			}
		}
		guid := fmt.Sprintf("guid=0x%016x", leaf.GUID)
		s.await("the cut is not seen", func(f *fabricAnswer) bool { return len(f.Links) == len(want.Links)-1 })
		s.awaitValue("infiniband_switch_port_up", 0, guid, "port=3")
		s.awaitValue("infiniband_switch_port_symbol_error_total", 5, guid, "port=2")
		s.awaitValue("infiniband_switch_port_link_downed_total", 2, guid, "port=2")
		s.awaitValue("infiniband_hca_port_symbol_error_total", 7, host, "port=1")
		// The fabric's own management traffic continues, and is counted, too.
		s.until(func() string {
			v, _ := s.value("infiniband_switch_port_transmit_data_bytes_total", guid, "port=10")
			if v < 4*1234567890123 || v > 4*1234567890123+1e6 {
				return fmt.Sprintf("sent on port 10: %v bytes", v)
			}
			return ""
		})
		// Errors are reported with the names of both ends.
		s.awaitValue("infiniband_switch_uplink_info", 1, guid, "port=2", "switch=leaf0", "uplink=host1 mlx5_0", "uplink_port=1")
		if _, ok := s.value("infiniband_switch_uplink_info", guid, "port=3"); ok {
			t.Error("the link that was cut is still reported")
		}
		if reply, err := sim.Console("Link " + want.Port(cut) + " " + want.Port(ibsim.End{Node: want.Find("host2 mlx5_0"), Port: 1})); err != nil {
			t.Fatal(err, reply)
		}
		s.await("the link does not come back", func(f *fabricAnswer) bool { return len(f.Links) == len(want.Links) })
		stop()
	})

	t.Run("a switch that does not answer", func(t *testing.T) {
		s.t = t
		stop := s.keepScraping()
		silent := want.Nodes[want.Find("leaf3")]
		if reply, err := sim.Console(fmt.Sprintf("Error %q[0] 100 1", silent.ID())); err != nil {
			t.Fatal(err, reply)
		}
		// This switch does not answer, and all others do.
		alone := map[string]bool{}
		for _, n := range want.Nodes {
			if n.Switch {
				alone[fmt.Sprintf("0x%016x", n.GUID)] = n.GUID != silent.GUID
			}
		}
		s.until(func() string {
			up := map[string]bool{}
			families := s.scrape()
			for _, m := range families["infiniband_switch_up"].GetMetric() {
				up[label(m, "guid")] = m.GetGauge().GetValue() == 1
			}
			if d := cmp.Diff(alone, up); d != "" {
				return "who answers (-want +got):\n" + d
			}
			if v, ok := valueOf(families, "infiniband_switch_port_up", fmt.Sprintf("guid=0x%016x", silent.GUID), "port=1"); !ok || v != 1 {
				return fmt.Sprintf("its port is not known to be up: %v %v", v, ok)
			}
			return ""
		})
		if reply, err := sim.Console(fmt.Sprintf("Error %q[0] 0 0", silent.ID())); err != nil {
			t.Fatal(err, reply)
		}
		s.awaitValue("infiniband_switch_up", 1, fmt.Sprintf("guid=0x%016x", silent.GUID))
		stop()
	})

	t.Run("tools that hang", func(t *testing.T) {
		s.t = t
		for _, tool := range []string{"perfquery", "ibnetdiscover"} {
			stop := s.keepScraping()
			s.awaitValue("accelscope_source_state", 1, "source=fabric", "state=ok") // the previous state was read
			before, _ := s.value("infiniband_fabric_queries_total", "tool="+tool, "result=timeout")
			tools.hang(tool)
			s.until(func() string { // a scrape that waits for a tool ends after the tool
				running := tools.running()
				s.scrape()
				after := tools.running()
				if !slices.ContainsFunc(running, func(pid string) bool { return slices.Contains(after, pid) }) {
					return "no scrape ended while " + tool + " hung"
				}
				return ""
			})
			s.until(func() string {
				families := s.scrape()
				if after, _ := valueOf(families, "infiniband_fabric_queries_total", "tool="+tool, "result=timeout"); after <= before {
					return tool + " hangs, and nobody says so"
				}
				// The last known values are still reported.
				if v, _ := valueOf(families, "infiniband_fabric_nodes", "type=ca"); v != 64 {
					return fmt.Sprintf("%s hangs: %v adapters", tool, v)
				}
				if v, _ := valueOf(families, "infiniband_switch_port_symbol_error_total", fmt.Sprintf("guid=0x%016x", want.Nodes[0].GUID), "port=2"); v != 5 {
					return fmt.Sprintf("%s hangs: %v symbol errors", tool, v)
				}
				return ""
			})
			tools.release(tool)
			s.awaitValue("accelscope_source_state", 1, "source=fabric", "state=ok")
			stop()
		}
	})

	t.Run("nothing else", func(t *testing.T) {
		s.t = t
		for _, source := range []string{"rdma", "cgroup"} {
			s.awaitValue("accelscope_source_state", 1, "source="+source, "state=ok")
		}
		s.until(func() string {
			if s.scrape()["infiniband_port_receive_data_bytes_total"] == nil {
				return "the HCAs are not reported"
			}
			return ""
		})
		// No tool was run with an option that changes anything, and no counter was reset.
		calls := tools.calls()
		if len(calls) < 20 {
			t.Errorf("%d calls: %q", len(calls), calls)
		}
		for _, call := range calls {
			tool, rest, _ := strings.Cut(call, " ")
			for arg := range strings.FieldsSeq(rest) {
				if changes(tool, arg) {
					t.Errorf("%s", call)
				}
			}
		}
		s.awaitValue("infiniband_switch_port_symbol_error_total", 5, fmt.Sprintf("guid=0x%016x", want.Nodes[0].GUID), "port=2")
		s.until(func() string { // a query may get lost
			out, err := child.Command(t.Context(), filepath.Join(sim.Tools, "perfquery"), "-G", fmt.Sprintf("0x%016x", want.Nodes[0].GUID), "2").Output()
			if err != nil || !strings.Contains(string(out), "SymbolErrorCounter:..............5\n") {
				return fmt.Sprintf("the switch says: %v\n%s", err, out)
			}
			return ""
		})
	})

	t.Run("doctor", func(t *testing.T) {
		s.t = t
		out, _ := child.Command(t.Context(), binary, append([]string{"doctor"}, append(args, "--fabric.interval=1m")...)...).CombinedOutput()
		if !strings.Contains(string(out), "switches: 12, adapters: 64, links: 96") {
			t.Errorf("doctor does not see the fabric:\n%s", out)
		}
		empty := t.TempDir()
		out, _ = child.Command(t.Context(), binary, append([]string{"doctor"}, append(args, "--fabric.tools="+empty)...)...).CombinedOutput()
		if !strings.Contains(string(out), "infiniband-diags") {
			t.Errorf("without tools doctor says:\n%s", out)
		}
	})

	t.Run("it ends while tools hang", func(t *testing.T) {
		s.t = t
		tools.hang("perfquery")
		before := len(tools.calls())
		for began := time.Now(); !slices.ContainsFunc(tools.calls()[before:], isPerfquery); time.Sleep(50 * time.Millisecond) {
			if time.Since(began) > fabricTakes {
				t.Fatal("no perfquery is started")
			}
		}
		if took, err := s.stop(); err != nil || took > httpserver.DrainTimeout+sensor.CloseTimeout+slack {
			t.Errorf("SIGTERM: %v after %v", err, took)
		}
		await(t, tools.ended)
	})
}

// keepReaping frees slots in ibsim for further tools: on a busy machine many tools are killed.
func keepReaping(t *testing.T, sim *ibsim.Fabric) {
	t.Helper()
	end, done := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(end)
		<-done
	})
	go func() {
		defer close(done)
		for {
			if err := sim.Reap(); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-end:
				return
			case <-time.After(time.Second):
			}
		}
	}()
}

func isPerfquery(call string) bool { return strings.HasPrefix(call, "perfquery ") }

// changes reports whether an option makes a tool change the fabric: options of infiniband-diags that reset counters, or
// set anything.
func changes(tool, arg string) bool {
	switch {
	case strings.HasPrefix(arg, "--clear"), strings.HasPrefix(arg, "--reset"), strings.HasPrefix(arg, "--Reset"):
		return true
	case !strings.HasPrefix(arg, "-") || strings.HasPrefix(arg, "--"):
		return false
	case tool == "perfquery":
		return strings.ContainsAny(arg, "rR")
	case tool == "ibqueryerrors":
		return strings.ContainsAny(arg, "kK")
	}
	return !slices.Contains([]string{"ibnetdiscover", "iblinkinfo", "smpquery", "sminfo", "saquery", "ibstat"}, tool)
}

// wrapped are scripts for the tools that log their arguments, and hang if a file requests it.
type wrapped struct {
	t   *testing.T
	dir string
}

func wrapTools(t *testing.T, dir string) wrapped {
	t.Helper()
	w := wrapped{t, t.TempDir()}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		script := fmt.Sprintf(`#!/bin/sh
echo "%[1]s $*" >> %[2]s/.calls
if [ -e %[2]s/.hang-%[1]s ]; then
	echo $$ >> %[2]s/.hanging
	exec sleep 1000
fi
exec %[3]s/%[1]s "$@"
`, e.Name(), w.dir, dir)
		if err := os.WriteFile(filepath.Join(w.dir, e.Name()), []byte(script), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	return w
}

func (w wrapped) lines(name string) []string {
	text, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

func (w wrapped) calls() []string   { return w.lines(".calls") }
func (w wrapped) hanging() []string { return w.lines(".hanging") }

func (w wrapped) hang(tool string) {
	if err := os.WriteFile(filepath.Join(w.dir, ".hang-"+tool), nil, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w wrapped) release(tool string) {
	if err := os.Remove(filepath.Join(w.dir, ".hang-"+tool)); err != nil {
		w.t.Fatal(err)
	}
}

// fabricSensor is a running sensor.
type fabricSensor struct {
	t    *testing.T
	url  string
	stop func() (time.Duration, error)
}

func startFabric(t *testing.T, binary string, args []string) *fabricSensor {
	t.Helper()
	url, _, stop := startProcess(t, binary, args...)
	s := &fabricSensor{t, url, stop}
	ready(t, url)
	return s
}

func (s *fabricSensor) scrape() map[string]*dto.MetricFamily {
	s.t.Helper()
	_, _, body := get(s.t, s.url+"/metrics", "text/plain")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	return families
}

// value returns the value of the first series with these labels.
func (s *fabricSensor) value(name string, labels ...string) (float64, bool) {
	s.t.Helper()
	return valueOf(s.scrape(), name, labels...)
}

func valueOf(families map[string]*dto.MetricFamily, name string, labels ...string) (float64, bool) {
series:
	for _, m := range families[name].GetMetric() {
		for _, l := range labels {
			if k, v, _ := strings.Cut(l, "="); label(m, k) != v {
				continue series
			}
		}
		return m.GetGauge().GetValue() + m.GetCounter().GetValue(), true
	}
	return 0, false
}

const fabricTakes = 4 * time.Minute // limit for reading the fabric again, on a busy machine

// until waits until wrong returns "", and fails with its last result. On a busy machine, a round that exceeds its time
// is reported with the next one.
func (s *fabricSensor) until(wrong func() string) {
	s.t.Helper()
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		said := wrong()
		if said == "" {
			return
		}
		if time.Since(began) > fabricTakes {
			s.t.Fatal(said)
		}
	}
}

func (s *fabricSensor) awaitValue(name string, want float64, labels ...string) {
	s.t.Helper()
	s.until(func() string {
		if v, ok := s.value(name, labels...); !ok || v != want {
			return fmt.Sprintf("%s %v is %v (%v), want %v", name, labels, v, ok, want)
		}
		return ""
	})
}

// awaitSum waits for the sum of all series of a gauge.
func (s *fabricSensor) awaitSum(name string, want float64) {
	s.t.Helper()
	s.until(func() string {
		sum := 0.0
		for _, m := range s.scrape()[name].GetMetric() {
			sum += m.GetGauge().GetValue()
		}
		if sum != want {
			return fmt.Sprintf("the sum of %s is %v, want %v", name, sum, want)
		}
		return ""
	})
}

// await waits for a correct answer.
func (s *fabricSensor) await(complaint string, right func(*fabricAnswer) bool) *fabricAnswer {
	s.t.Helper()
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		_, _, body := get(s.t, s.url+api.FabricPath, "")
		var got struct{ Data *fabricAnswer }
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			s.t.Fatal(err, body)
		}
		if got.Data != nil && right(got.Data) {
			return got.Data
		}
		if time.Since(began) > fabricTakes {
			s.t.Fatalf("%s: %.2000s", complaint, body)
		}
	}
}

// keepScraping scrapes until it is stopped. Every scrape must succeed.
func (s *fabricSensor) keepScraping() (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	client := &http.Client{Timeout: time.Minute}
	go func() {
		defer close(done)
		for {
			answer, err := client.Get(s.url + "/metrics")
			if err != nil {
				s.t.Error(err)
				return
			}
			answer.Body.Close()
			select {
			case <-end:
				return
			case <-time.After(250 * time.Millisecond):
			}
		}
	}()
	return func() {
		close(end)
		<-done // the client has a timeout
	}
}

// fabricAnswer has the fields of /api/v1/fabric that are compared with the net file.
type fabricAnswer struct {
	Nodes []struct {
		GUID, Kind, Name, Error string
		Queried                 *time.Time
	}
	Links []struct {
		A, B   fabricEnd
		Width  int
		Speed  string
		Narrow *bool
		Slow   *bool
	}
}

type fabricEnd struct {
	GUID string
	Port int
}

// asked reports whether all switches have reported their counters.
func (f *fabricAnswer) asked() bool {
	for _, n := range f.Nodes {
		if n.Kind == "switch" && (n.Queried == nil || n.Error != "") {
			return false
		}
	}
	return true
}

func (f *fabricAnswer) names() map[string]string {
	out := map[string]string{}
	for _, n := range f.Nodes {
		out[n.GUID] = n.Kind + " " + n.Name
	}
	return out
}

func namesOf(net *ibsim.Net) map[string]string {
	out := map[string]string{}
	for _, n := range net.Nodes {
		kind := "ca"
		if n.Switch {
			kind = "switch"
		}
		out[fmt.Sprintf("0x%016x", n.GUID)] = kind + " " + n.Name
	}
	return out
}

// linkText formats a link, independent of the order of its ends.
func linkText(a, b fabricEnd, width int, speed string) string {
	ends := []string{fmt.Sprint(a.GUID, "/", a.Port), fmt.Sprint(b.GUID, "/", b.Port)}
	slices.Sort(ends)
	return fmt.Sprintf("%s %dx%s", strings.Join(ends, " - "), width, speed)
}

func (f *fabricAnswer) links() []string {
	var out []string
	for _, l := range f.Links {
		out = append(out, linkText(l.A, l.B, l.Width, l.Speed))
	}
	slices.Sort(out)
	return out
}

func linkOf(net *ibsim.Net, l ibsim.Link) string {
	end := func(e ibsim.End) fabricEnd { return fabricEnd{fmt.Sprintf("0x%016x", net.Nodes[e.Node].GUID), e.Port} }
	return linkText(end(l.A), end(l.B), l.Width, l.Speed)
}

func linksOf(net *ibsim.Net) []string {
	var out []string
	for _, l := range net.Links {
		out = append(out, linkOf(net, l))
	}
	slices.Sort(out)
	return out
}
