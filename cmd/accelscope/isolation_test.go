// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/pkg/sensor"
	"github.com/accelscope/accelscope/tests/fixtures"
)

// The tests of this file run the program on a fake node, a tree of files in which reads fail as on real nodes. Real
// failures need hardware, but files are enough to check that everything else still works.

const (
	// sourceDeadline is how long a scrape waits for a source that reads, and additionally for one that names owners.
	sourceDeadline = 2 * time.Second
	// slack is additional time for a busy machine.
	slack = 10 * time.Second
)

// portCounters maps the files of counters/ to series. The InfiniBand specification defines the values: data is counted
// in words of four bytes.
var portCounters = map[string]struct {
	series string
	unit   float64
}{
	"port_rcv_data":                   {"infiniband_port_receive_data_bytes_total", 4},
	"port_xmit_data":                  {"infiniband_port_transmit_data_bytes_total", 4},
	"port_rcv_packets":                {"infiniband_port_receive_packets_total", 1},
	"port_xmit_packets":               {"infiniband_port_transmit_packets_total", 1},
	"unicast_rcv_packets":             {"infiniband_port_receive_unicast_packets_total", 1},
	"unicast_xmit_packets":            {"infiniband_port_transmit_unicast_packets_total", 1},
	"multicast_rcv_packets":           {"infiniband_port_receive_multicast_packets_total", 1},
	"multicast_xmit_packets":          {"infiniband_port_transmit_multicast_packets_total", 1},
	"port_xmit_wait":                  {"infiniband_port_transmit_wait_total", 1},
	"symbol_error":                    {"infiniband_port_errors_total symbol", 1},
	"link_error_recovery":             {"infiniband_port_errors_total link_recovery", 1},
	"link_downed":                     {"infiniband_port_errors_total link_downed", 1},
	"port_rcv_errors":                 {"infiniband_port_errors_total receive", 1},
	"port_rcv_remote_physical_errors": {"infiniband_port_errors_total receive_remote_physical", 1},
	"port_rcv_switch_relay_errors":    {"infiniband_port_errors_total receive_switch_relay", 1},
	"port_rcv_constraint_errors":      {"infiniband_port_errors_total receive_constraint", 1},
	"port_xmit_constraint_errors":     {"infiniband_port_errors_total transmit_constraint", 1},
	"port_xmit_discards":              {"infiniband_port_errors_total transmit_discard", 1},
	"local_link_integrity_errors":     {"infiniband_port_errors_total local_link_integrity", 1},
	"excessive_buffer_overrun_errors": {"infiniband_port_errors_total excessive_buffer_overrun", 1},
	"VL15_dropped":                    {"infiniband_port_errors_total vl15_dropped", 1},
}

// counterValues are the values of the counters of HCAs, by "mlx5_0 counters/port_rcv_data".
type counterValues map[string]float64

// written returns the values of the manifest.
func written(m fixtures.Manifest) counterValues {
	f := counterValues{}
	for _, h := range m.HCAs {
		for name, v := range h.Counters {
			f[h.Name+" counters/"+name] = portCounters[name].unit * float64(v)
		}
		for name, v := range h.HWCounters {
			f[h.Name+" hw_counters/"+name] = float64(v)
		}
	}
	return f
}

// without removes the values whose key has one of these prefixes.
func (f counterValues) without(prefixes ...string) counterValues {
	maps.DeleteFunc(f, func(key string, _ float64) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) })
	})
	return f
}

// exposition is one scrape.
type exposition struct {
	body     string
	took     time.Duration
	families map[string]*dto.MetricFamily
}

func scrape(t *testing.T, url string) exposition {
	t.Helper()
	began := time.Now()
	code, _, body := get(t, url+"/metrics", "text/plain")
	e := exposition{body: body, took: time.Since(began)}
	if code != http.StatusOK {
		t.Fatalf("/metrics: %d", code)
	}
	if e.took > 2*sourceDeadline+slack {
		t.Errorf("the scrape took %v, the deadline is %v to read and as long to name", e.took, sourceDeadline)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	var err error
	if e.families, err = parser.TextToMetricFamilies(strings.NewReader(body)); err != nil {
		t.Fatal(err)
	}
	return e
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// counters returns the served values.
func (e exposition) counters() counterValues {
	files := map[string]string{}
	for file, c := range portCounters {
		files[c.series] = "counters/" + file
	}
	f := counterValues{}
	for name, family := range e.families {
		for _, m := range family.GetMetric() {
			file, ok := files[strings.TrimSpace(name+" "+label(m, "type"))]
			if hw, isHW := strings.CutPrefix(name, "rdma_stat_"); isHW {
				file, ok = "hw_counters/"+hw, true
			}
			if ok {
				f[label(m, "device")+" "+file] = m.GetCounter().GetValue() + m.GetUntyped().GetValue()
			}
		}
	}
	return f
}

// states returns the states that are 1 in a family of states: "rdma mlx5_0" to "ok".
func (e exposition) states(family string) map[string]string {
	states := map[string]string{}
	for _, m := range e.families[family].GetMetric() {
		if m.GetGauge().GetValue() == 1 {
			states[strings.TrimSpace(label(m, "source")+" "+label(m, "device"))] = label(m, "state")
		}
	}
	return states
}

func (e exposition) gauge(name string) float64 {
	return e.families[name].GetMetric()[0].GetGauge().GetValue()
}

func breakIt(t *testing.T, m fixtures.Manifest, rel string, f fixtures.Fault) {
	t.Helper()
	if err := m.Break(rel, f); err != nil {
		t.Fatal(err)
	}
}

// healthy checks /healthz while a source hangs.
func healthy(t *testing.T, url string) {
	t.Helper()
	began := time.Now()
	if code, _, _ := get(t, url+"/healthz", ""); code != http.StatusOK || time.Since(began) > sourceDeadline {
		t.Errorf("/healthz: %d after %v", code, time.Since(began))
	}
}

// bounded scrapes repeatedly: scrapes must wait for a call that hangs, and not start another one.
func bounded(t *testing.T, url string) {
	t.Helper()
	const scrapes = 5
	var more []string
	// A busy machine may need more threads at the same time than before, but further calls would add threads with each
	// scrape.
	for range 4 {
		first := scrape(t, url)
		last := first
		for range scrapes {
			time.Sleep(1100 * time.Millisecond) // values are reused for 1 s
			last = scrape(t, url)
			healthy(t, url)
		}
		more = nil
		for _, name := range []string{"go_goroutines", "go_threads"} {
			if grown := last.gauge(name) - first.gauge(name); grown >= scrapes {
				more = append(more, fmt.Sprintf("%d scrapes made %v more %s", scrapes, grown, name))
			}
		}
		if more == nil {
			return
		}
	}
	t.Error(more)
}

func ends(t *testing.T, stop func() (time.Duration, error)) {
	t.Helper()
	if took, err := stop(); err != nil || took > httpserver.DrainTimeout+sensor.CloseTimeout+slack {
		t.Errorf("SIGTERM: %v after %v, want exit status 0 within %v", err, took, httpserver.DrainTimeout+sensor.CloseTimeout)
	}
}

func TestIsolation(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	binary := build(t)

	t.Run("all faults at once", func(t *testing.T) {
		t.Parallel()
		m, args := fakeNode(t)
		hca := m.HCAs
		counters := func(i int) string { return filepath.Join(hca[i].PortDir, "counters") }
		want, state := written(m), map[string]string{}
		for _, h := range hca {
			state["rdma "+h.Name] = "ok"
		}
		gone := func(i int, files ...string) {
			for _, f := range files {
				want.without(hca[i].Name + " " + f)
			}
		}

		// A driver that hangs affects only its device.
		breakIt(t, m, counters(0)+"/port_rcv_data", fixtures.FIFO)
		gone(0, "")
		state["rdma "+hca[0].Name] = "stuck"
		// Files that fail affect only their own counters.
		breakIt(t, m, counters(1)+"/port_xmit_wait", fixtures.Invalid)
		breakIt(t, m, hca[1].PortDir+"/hw_counters/out_of_buffer", fixtures.Invalid)
		gone(1, "counters/port_xmit_wait", "hw_counters/out_of_buffer")
		// A restricted function has only such files.
		for name := range hca[2].Counters {
			breakIt(t, m, counters(2)+"/"+name, fixtures.Invalid)
		}
		for name := range hca[2].HWCounters {
			breakIt(t, m, hca[2].PortDir+"/hw_counters/"+name, fixtures.Invalid)
		}
		gone(2, "")
		state["rdma "+hca[2].Name] = "unsupported"
		// Of another HCA all counters fail for another reason.
		breakIt(t, m, counters(7), fixtures.UnreadableFiles)
		breakIt(t, m, hca[7].PortDir+"/hw_counters", fixtures.UnreadableFiles)
		gone(7, "")
		state["rdma "+hca[7].Name] = "failed"
		// Missing files, and values that mean "not available", are no failures.
		breakIt(t, m, counters(3), fixtures.Missing)
		gone(3, "counters/")
		for name := range hca[4].Counters {
			breakIt(t, m, counters(4)+"/"+name, fixtures.NoPMA)
		}
		gone(4, "counters/")
		// Text that is not a number is not exported.
		breakIt(t, m, counters(5)+"/port_rcv_data", fixtures.Garbage)
		breakIt(t, m, counters(5)+"/port_xmit_data", fixtures.Huge)
		breakIt(t, m, counters(5)+"/symbol_error", fixtures.Empty)
		breakIt(t, m, hca[5].PortDir+"/state", fixtures.Huge)
		gone(5, "counters/port_rcv_data", "counters/port_xmit_data", "counters/symbol_error")
		// Cgroups that cannot be read: the files of one cgroup, and a directory.
		breakIt(t, m, "sys/fs/cgroup"+m.Containers[0].Cgroup, fixtures.UnreadableFiles)
		breakIt(t, m, "sys/fs/cgroup", fixtures.TooDeep)

		url, stop := start(t, binary, args...)
		healthy(t, url) // while the first refresh waits
		got := scrape(t, url)
		if diff := cmp.Diff(want, got.counters()); diff != "" {
			t.Errorf("counters (-written +served):\n%s", diff)
		}
		checkStates(t, got, state, map[string]string{"rdma": "ok", "pci": "ok", "cgroup": "ok", "container": "ok"})
		if !strings.Contains(got.body, `infiniband_port_state{device="`+hca[2].Name+`",port="1",state="active"} 1`) {
			t.Error("a port is not reported because its counters fail")
		}

		// A device is removed while the sensor runs.
		if err := m.Unplug(hca[6]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond)
		gone(6, "")
		delete(state, "rdma "+hca[6].Name)
		got = scrape(t, url)
		if diff := cmp.Diff(want, got.counters()); diff != "" {
			t.Errorf("counters without %s (-written +served):\n%s", hca[6].Name, diff)
		}
		checkStates(t, got, state, map[string]string{"rdma": "ok", "pci": "ok", "cgroup": "ok", "container": "ok"})

		bounded(t, url)
		// After several failures a device is no longer read, and its state says so.
		state["rdma "+hca[7].Name] = "quarantined"
		for end := time.Now().Add(quickly); time.Now().Before(end); time.Sleep(1100 * time.Millisecond) {
			if scrape(t, url).states("accelscope_device_state")["rdma "+hca[7].Name] == "quarantined" {
				break
			}
		}
		checkStates(t, scrape(t, url), state, map[string]string{"rdma": "ok", "pci": "ok", "cgroup": "ok", "container": "ok"})
		ends(t, stop)
	})

	t.Run("a source hangs", func(t *testing.T) {
		t.Parallel()
		m, args := fakeNode(t)
		breakIt(t, m, "sys/fs/cgroup/cgroup.subtree_control", fixtures.FIFO)
		url, stop := start(t, binary, args...)
		healthy(t, url)
		got := scrape(t, url)
		if diff := cmp.Diff(written(m), got.counters()); diff != "" {
			t.Errorf("counters (-written +served):\n%s", diff)
		}
		want := map[string]string{"rdma": "ok", "pci": "ok", "cgroup": "stuck", "container": "ok"}
		if diff := cmp.Diff(want, got.states("accelscope_source_state")); diff != "" {
			t.Errorf("sources (-want +got):\n%s", diff)
		}
		if body := ready(t, url); !strings.Contains(body, "cgroup: stuck: ") {
			t.Errorf("/readyz does not list what is stuck:\n%s", body)
		}
		bounded(t, url)
		ends(t, stop)
	})

	t.Run("a file that is read for all devices hangs", func(t *testing.T) {
		t.Parallel()
		m, args := fakeNode(t)
		breakIt(t, m, "sys/class/infiniband_verbs/"+m.HCAs[0].CharDevice+"/ibdev", fixtures.FIFO)
		url, stop := start(t, binary, args...)
		if diff := cmp.Diff(written(m), scrape(t, url).counters()); diff != "" {
			t.Errorf("counters (-written +served):\n%s", diff)
		}
		bounded(t, url)
		ends(t, stop)
	})

	t.Run("two scrapers", func(t *testing.T) {
		t.Parallel()
		m, args := fakeNode(t)
		url, stop := start(t, binary, append(args, "--web.disable-exporter-metrics")...)
		for range 2 {
			// Counters that took long to read on a busy machine are reused for a while.
			for end := time.Now().Add(quickly); ; time.Sleep(1100 * time.Millisecond) {
				var got [2]exposition
				var wg sync.WaitGroup
				for i := range got {
					wg.Go(func() { got[i] = scrape(t, url) })
				}
				wg.Wait()
				diff := cmp.Diff([]counterValues{written(m), written(m)}, []counterValues{got[0].counters(), got[1].counters()})
				if diff == "" {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("counters of the two scrapers (-written +served):\n%s", diff)
				}
			}
			if err := m.Bump(1000); err != nil {
				t.Fatal(err)
			}
			time.Sleep(1100 * time.Millisecond)
		}
		ends(t, stop)
	})

	t.Run("switched off", func(t *testing.T) {
		t.Parallel()
		_, args := fakeNode(t)
		url, stop := start(t, binary, append(args, "--no-collector.rdma")...)
		got := scrape(t, url)
		if diff := cmp.Diff(map[string]string{"cgroup": "ok", "pci": "ok"}, got.states("accelscope_source_state")); diff != "" {
			t.Errorf("sources (-want +got):\n%s", diff)
		}
		if strings.Contains(got.body, `source="rdma"`) || len(got.counters()) > 0 {
			t.Error("the source is reported although it is off")
		}
		if body := ready(t, url); body != "ready\n" {
			t.Errorf("/readyz: %q, want all well", body)
		}
		ends(t, stop)
	})
}

// checkStates compares the states of devices and sources. In addition to the given devices, one cgroup must be reported
// as failed.
func checkStates(t *testing.T, e exposition, devices, sources map[string]string) {
	t.Helper()
	got := e.states("accelscope_device_state")
	cgroups := 0
	for who, state := range got {
		if strings.HasPrefix(who, "cgroup /xxx") && state == "failed" {
			cgroups++
			delete(got, who)
		}
	}
	if cgroups != 1 {
		t.Errorf("%d cgroups are reported as unreadable, want 1", cgroups)
	}
	if diff := cmp.Diff(devices, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(fmt.Sprint(sources), fmt.Sprint(e.states("accelscope_source_state"))); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}
