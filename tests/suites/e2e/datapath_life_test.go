// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// seccomp: the sensor tries return probes, and they work in real containers, of containerd and of Docker with its seccomp
// profile.
func (n node) seccomp(t *testing.T) {
	s, keeper := n.watched(t, "--rdma.datapath=always")
	if strings.Contains(s.log.String(), "could not be tried") {
		t.Errorf("return probes were not tried:\n%s", s.log)
	}
	d, err := guest.StartContainerd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop() //nolint:errcheck // the guest ends with the test
	const write = "exec ib_write_bw -F -d rxe0 -x 1 -n 500 -s 4096 -l 5 -p 22000"
	server := guest.PodContainer("default", "path-0", "worker", "sh", "-c", write)
	client := guest.PodContainer("default", "path-1", "worker", "sh", "-c", write+" 10.70.0.1")
	for i, c := range []*guest.Container{&server, &client} {
		if i == 1 {
			listening(t, 22000)
		}
		c.Devices = []string{"/dev/infiniband/uverbs0"}
		if _, err := d.Run(t.Context(), *c); err != nil {
			t.Fatal(err)
		}
		defer d.Delete(t.Context(), c.ID) //nolint:errcheck // the guest ends with the test
	}
	engine, err := guest.StartDocker(t.Context(), "cgroupfs")
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Stop() //nolint:errcheck // the guest ends with the test
	flags := []string{"--network=host", "--device=/dev/infiniband/uverbs0", "--ulimit=memlock=-1"}
	var ids []string
	for i, peer := range []string{"", "10.70.0.1"} {
		if i == 1 {
			listening(t, 22001)
		}
		id, err := engine.Run(t.Context(), flags, "/bin/busybox", "sh", "-c",
			"exec /usr/bin/ibv_rc_pingpong -d rxe0 -g 1 -n 300 -s 1000 -N -p 22001 "+peer)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		if status, err := engine.Do(t.Context(), "wait", id); err != nil || strings.TrimSpace(status) != "0" {
			text, _ := engine.Do(t.Context(), "logs", id)
			t.Errorf("exit status %q in Docker: %v: %s", status, err, text)
		}
	}
	profile, err := engine.Do(t.Context(), "info", "--format", "{{.SecurityOptions}}")
	if err != nil || !strings.Contains(profile, "seccomp") {
		t.Errorf("Docker has no seccomp profile: %s %v", profile, err)
	}
	want := map[string]moved{
		server.ID: {}, client.ID: {"transmit": 500 * 4096, "rdma_write": 500},
		ids[0]: {"transmit": 300e3, "receive": 300e3, "send": 300}, ids[1]: {"transmit": 300e3, "receive": 300e3, "send": 300},
	}
	eventually(t, 20*time.Second, func() error {
		m := s.fresh()
		for id, w := range want {
			if err := w.differs(m.moved(id)); err != nil {
				return fmt.Errorf("%.12s: %w", id, err)
			}
		}
		return nil
	})
	keeper.rest(t)
	s.stop()
}

// entries returns the number of entries of each BPF map of the data path.
func (m metrics) entries() map[string]float64 { return m.by("accelscope_probe_map_entries", "map") }

func (s *sensor) descriptors() map[string]int {
	s.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[string]int{}
	for _, f := range files {
		// Connections of scrapes open and close.
		if to, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && !strings.HasPrefix(to, "socket:") {
			out[to]++
		}
	}
	return out
}

// short: short-lived processes are counted exactly once, and leave no map entries or descriptors.
func (n node) short(t *testing.T) {
	const together = 4
	total := size(1000, 120)
	s, keeper := n.watched(t, "--rdma.datapath=always")
	before, files := s.fresh(), s.descriptors()
	var all []*container
	begin := time.Now()
	for i := range together {
		all = append(all, enter(t, fmt.Sprint("short ", i), "posts", "-d", "rxe0", "-o", "send", "-s", "100", "-n", "2",
			"-f", strconv.Itoa(total/together)))
	}
	most, logged := 0.0, 0.0
	for _, c := range all {
		for ended := false; !ended; {
			select {
			case _, ok := <-c.lines:
				ended = !ok
			case <-time.After(5 * time.Second):
				m := s.scrape()
				most = max(most, m.sum("accelscope_datapath_processes"))
				if sent := m.sum("container_rdma_work_requests_total", "opcode", "send"); sent >= logged+float64(total)/4 {
					t.Logf("%v of %d sent", sent, 2*total) // an emulated preemptible kernel takes minutes
					logged = sent
				}
			}
		}
	}
	t.Logf("%d processes in %v, up to %v watched at once", total, time.Since(begin).Round(time.Second), most)
	want := map[*container]moved{}
	for _, c := range all {
		c.rest(t)
		requests := float64(2 * total / together)
		want[c] = moved{"recv": requests, "receive": 100 * requests}
		want[c].add("send", requests, 100)
	}
	s.equal(want)
	eventually(t, 20*time.Second, func() error {
		m := s.fresh()
		if got := m.sum("accelscope_datapath_processes"); got != before.sum("accelscope_datapath_processes") {
			return fmt.Errorf("%v processes are still watched", got)
		}
		for name, entries := range m.entries() {
			// One entry for a cgroup is not a leak: it is retained for the grace period.
			if was := before.entries()[name]; entries > was+2*together*8 {
				return fmt.Errorf("map %s has %v entries, before %v", name, entries, was)
			}
		}
		if got := s.descriptors(); !maps.Equal(got, files) {
			return fmt.Errorf("descriptors %v, before %v", got, files)
		}
		return nil
	})
	t.Logf("entries of maps: before %v, after %v", before.entries(), s.fresh().entries())
	if late := s.fresh().sum("accelscope_datapath_late_total"); late > 1 {
		t.Errorf("%v contexts were late", late)
	}
	keeper.rest(t)
	s.stop()
}

// first: only the first use of a provider can be late. Later processes post at once, one after the other, and a process
// opens and closes the devices in turn, so that a context gets the address of an earlier context.
func (n node) first(t *testing.T) {
	s := start(t, n.args("--rdma.datapath=always")...)
	use := func(name string, argv ...string) *container {
		t.Helper()
		c := enter(t, name, append([]string{"posts", "-s", "64"}, argv...)...)
		c.line(t, "done")
		c.rest(t)
		return c
	}
	c := enter(t, "first use", "posts", "-s", "64", "-d", "rxe0", "-n", "100")
	c.line(t, "done")
	eventually(t, time.Minute, func() error { // if it ends earlier, its file is not probed
		if probes := s.fresh().sum("accelscope_datapath_probes"); probes < 3 {
			return fmt.Errorf("%v probes", probes)
		}
		return nil
	})
	c.rest(t)
	var late float64
	eventually(t, 30*time.Second, func() error {
		m := s.fresh()
		if probes, watched := m.sum("accelscope_datapath_probes"), m.sum("accelscope_datapath_processes"); probes < 3 || watched > 0 {
			return fmt.Errorf("%v probes, %v processes", probes, watched)
		}
		late = m.sum("accelscope_datapath_late_total")
		return nil
	})
	t.Logf("%v late at the first use", late)

	const processes = 20
	following := use("one after the other", "-d", "rxe0", "-n", "100", "-f", strconv.Itoa(processes))
	turns := use("in turn", "-d", "rxe0,rxe1,rxe0,rxe1,rxe0,rxe1,rxe0", "-n", "10")
	eventually(t, 20*time.Second, func() error {
		m := s.fresh()
		for _, want := range []struct {
			c      *container
			device string
			writes float64
		}{{following, "rxe0", 100 * processes}, {turns, "rxe0", 40}, {turns, "rxe1", 30}} {
			labels := []string{"container_id", want.c.id, "device", want.device}
			if got := m.sum("container_rdma_work_requests_total", labels...); got != want.writes {
				return fmt.Errorf("%v: %v writes, want %v", labels, got, want.writes)
			}
			if got := m.sum("container_rdma_transmit_bytes_total", labels...); got != 64*want.writes {
				return fmt.Errorf("%v: %v bytes, want %v", labels, got, 64*want.writes)
			}
		}
		return nil
	})
	if got := s.fresh().sum("accelscope_datapath_late_total"); got != late {
		t.Errorf("%v contexts were late after the first use", got-late)
	}
	s.stop()
}

// bpfState is the state that bpftool shows: the names of the programs, and the number of links; each probe is one link.
func bpfState(t *testing.T) (programs []string, links int) {
	t.Helper()
	var all []struct{ Name string }
	if err := json.Unmarshal([]byte(sh(t, "bpftool", "-j", "prog", "show")), &all); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		programs = append(programs, p.Name)
	}
	slices.Sort(programs)
	return programs, strings.Count(sh(t, "bpftool", "-j", "link", "show"), `"prog_id"`)
}

// unpin removes the probes that the sensor has left: on a busy machine it had no time to detach them.
func unpin(t *testing.T) {
	t.Helper()
	left, err := filepath.Glob("/sys/fs/bpf/accelscope-uprobes/*")
	if err != nil || len(left) == 0 {
		return
	}
	t.Logf("%d probes are left", len(left))
	for _, link := range left {
		if err := os.Remove(link); err != nil {
			t.Error(err)
		}
	}
}

// harmless: without a process the probes stay. The kernel removes them when the sensor stops or is killed; the traced
// processes continue.
func (n node) harmless(t *testing.T) {
	none, no := bpfState(t)
	gone := func(what string) {
		t.Helper()
		eventually(t, 30*time.Second, func() error { // the kernel frees programs a moment later
			if programs, links := bpfState(t); !slices.Equal(programs, none) || links != no {
				return fmt.Errorf("%s: %d links, before %d; programs %v, before %v", what, links, no, programs, none)
			}
			return nil
		})
	}
	s, keeper := n.watched(t, "--rdma.datapath=always")
	_, attached := bpfState(t)
	probes := int(s.scrape().sum("accelscope_datapath_probes"))
	t.Logf("%d links, of which %d are probes", attached, probes)
	keeper.rest(t)
	eventually(t, 20*time.Second, func() error {
		m := s.fresh()
		left, watched := m.sum("accelscope_datapath_probes"), m.sum("accelscope_datapath_processes")
		if _, links := bpfState(t); links != attached || left != float64(probes) || watched != 0 {
			return fmt.Errorf("without a process: %d links, want %d; %v probes, %v processes", links, attached, left, watched)
		}
		return nil
	})
	for _, end := range []string{"SIGTERM", "SIGKILL"} {
		// Two processes that constantly make probed calls.
		spinning := enter(t, "spinning until "+end, "posts", "-d", "rxe0", "-n", "1", "-p")
		spinning.line(t, "polls")
		x := trial{name: "writing until " + end, argv: []string{"ib_write_bw", "-F", "-d", "rxe0", "-x", "1", "-D", "8", "-s", "4096"}}
		server, client := x.ends(t)
		eventually(t, 20*time.Second, func() error {
			m := s.fresh()
			if count := m.moved(client.id)["rdma_write"]; count == 0 {
				return fmt.Errorf("%s: nothing is counted: %v probes", end, m.sum("accelscope_datapath_probes"))
			}
			return nil
		})
		if end == "SIGTERM" {
			s.stop()
			unpin(t)
		} else {
			s.kill()
		}
		gone(end)
		for len(spinning.lines) > 0 {
			<-spinning.lines
		}
		for range 2 {
			spinning.line(t, "polls")
		}
		spinning.signal(t)
		client.rest(t) // the expected exit status is 0
		server.rest(t)
		if end == "SIGTERM" {
			s = start(t, n.args("--rdma.datapath=always")...)
		}
	}
}
