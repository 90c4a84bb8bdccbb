// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// exact: objects and registered bytes of the containers equal netlink's and /proc's, each counted once. The containers
// are older than the sensor, so the kind of their memory is unknown.
func (d *deployment) exact(t *testing.T, s *sensor) {
	t.Helper()
	kinds := []string{"qp", "cq", "mr", "pd", "ctx"}
	took := eventually(t, 40*time.Second, func() error {
		m := s.fresh()
		for _, kind := range kinds {
			truth := dumped(t, kind)
			for i, c := range d.still {
				device := fmt.Sprint("rxe", i)
				want := truth[device][c.id]
				got := m.sum("container_rdma_resources", "container_id", c.id, "device", device, "type", kind)
				if got != want || want == 0 {
					return fmt.Errorf("%s on %s: %v, netlink has %v", kind, device, got, want)
				}
			}
		}
		for _, c := range d.still {
			want := pinned(t, c.cmd.Process.Pid)
			if got := m.sum("container_rdma_registered_bytes", "container_id", c.id, "memory", "unknown"); got != want || want == 0 {
				return fmt.Errorf("%v bytes registered, VmPin is %v", got, want)
			}
		}
		return nil
	})
	t.Logf("exact after %v", took.Round(100*time.Millisecond))
}

// probing: the data path of the traffic is traced.
func (d *deployment) probing(t *testing.T, s *sensor) {
	t.Helper()
	eventually(t, 60*time.Second, func() error {
		m := s.scrape()
		if n := m.sum("container_rdma_work_requests_total", "workload", "default/train-1/worker"); n == 0 {
			return fmt.Errorf("no work requests; probes: %v", m.all("accelscope_datapath_probes"))
		}
		return nil
	})
}

// scrapeOn scrapes until stop is called, which returns how many processes answered. The checks of every scrape apply to
// each process separately: counters do not fall.
func scrapeOn(t *testing.T) (stop func() (lives int)) {
	t.Helper()
	ended, done := make(chan struct{}), make(chan struct{})
	processes := map[float64]*sensor{}
	client := &http.Client{Timeout: 20 * time.Second}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	scrapes := 0
	go func() {
		defer close(done)
		for {
			select {
			case <-ended:
				return
			case <-time.After(200 * time.Millisecond):
			}
			res, err := client.Get("http://127.0.0.1:9847/metrics")
			if err != nil {
				continue // the old process has ended and the new process does not answer yet
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != http.StatusOK {
				continue
			}
			m, err := parser.TextToMetricFamilies(bytes.NewReader(text))
			if err != nil {
				t.Errorf("scrape: %v", err)
				return
			}
			began := metrics(m).sum("process_start_time_seconds")
			s := processes[began]
			if s == nil {
				s = &sensor{t: t, ports: map[[2]string]float64{}, before: map[[2]string]float64{}}
				processes[began] = s
			}
			s.conserved(m)
			s.monotonic(m)
			scrapes++
		}
	}()
	return func() int {
		close(ended)
		<-done
		t.Logf("%d scrapes meanwhile", scrapes)
		return len(processes)
	}
}

// bpfObjects are the programs, maps and links in the kernel by kind and id, with a description.
type bpfObjects map[string]bpfObject

type bpfObject struct {
	ID         int
	Type, Name string
	Maps       []int `json:"map_ids"`
}

// bpfNow returns the current objects, except systemd's objects on cgroups.
func bpfNow(t *testing.T) bpfObjects {
	t.Helper()
	all := bpfObjects{}
	for _, kind := range []string{"prog", "map", "link"} {
		var list []bpfObject
		if out := sh(t, "bpftool", "-j", kind, "show"); strings.TrimSpace(out) != "" {
			if err := json.Unmarshal([]byte(out), &list); err != nil {
				t.Fatalf("bpftool %s show: %v: %s", kind, err, out)
			}
		}
		for _, o := range list {
			if !strings.HasPrefix(o.Name, "sd_") {
				all[fmt.Sprint(kind, " ", o.ID)] = o
			}
		}
	}
	return all
}

// without returns the objects missing in others.
func (b bpfObjects) without(others bpfObjects) bpfObjects {
	more := bpfObjects{}
	for name, o := range b {
		if _, ok := others[name]; !ok {
			more[name] = o
		}
	}
	return more
}

// alone: the kernel has only the objects of the sensor that the running process holds. Objects of the ended process are
// freed a moment later, and probes may end with the traffic between two reads.
func (d *deployment) alone(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		pid, now := mainPID(t), bpfNow(t).without(d.before)
		held := holds(t, pid)
		for name, o := range now {
			if held[name] { // an object that the process holds also holds its maps
				for _, id := range o.Maps {
					held[fmt.Sprint("map ", id)] = true
				}
			}
		}
		for name, o := range now {
			if !held[name] {
				return fmt.Errorf("process %d does not hold %s: %+v", pid, name, o)
			}
		}
		if len(now) < 10 {
			return fmt.Errorf("it has only %d programs, maps and links", len(now))
		}
		return nil
	})
	noEvents(t)
}

// gone: the kernel has no objects of the sensor any more. It frees programs a moment later.
func (d *deployment) gone(t *testing.T) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		if left := bpfNow(t).without(d.before); len(left) > 0 {
			return fmt.Errorf("left in the kernel: %v", left)
		}
		return nil
	})
}

// bpfFile is what the kernel reports of an open BPF object.
var bpfFile = regexp.MustCompile(`(?m)^(prog|map|link)_id:\s*(\d+)$`)

// holds returns the BPF objects that a process has open, by kind and id. An open link also identifies its program.
func holds(t *testing.T, pid int) map[string]bool {
	t.Helper()
	held := map[string]bool{}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // the descriptor may be closed meanwhile
		for _, m := range bpfFile.FindAllStringSubmatch(string(text), -1) {
			held[m[1]+" "+m[2]] = true
		}
	}
	return held
}

// noEvents: nothing is pinned, and no event of tracefs outlives its process.
func noEvents(t *testing.T) {
	t.Helper()
	if pinned, err := os.ReadDir("/sys/fs/bpf"); err != nil || len(pinned) > 0 {
		t.Errorf("pinned: %v, %v", pinned, err)
	}
	for _, file := range []string{"kprobe_events", "uprobe_events", "dynamic_events"} {
		text, err := os.ReadFile(filepath.Join("/sys/kernel/tracing", file))
		if diff := cmp.Diff("", string(text)); diff != "" || err != nil {
			t.Errorf("%s: %v: %s", file, err, text)
		}
	}
}
