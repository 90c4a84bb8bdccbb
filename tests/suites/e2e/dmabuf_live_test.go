// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// dmabufNode has a Soft-RoCE that registers dma-bufs and peer memory, and a GPU driver that exports them
// (vm.BuildDMABuf).
type dmabufNode struct{ node }

var dmabufScenarios = []scenario[dmabufNode]{
	{"functions", dmabufNode.functions, "", nil},
	{"restart", dmabufNode.restart, "", nil},
	{"fallback", dmabufNode.fallback, "", nil},
}

// TestDMABuf registers dma-bufs by each function of ib_uverbs that maps a dma-buf. `make test-kernels` runs it.
func TestDMABuf(t *testing.T) {
	if !whole() {
		t.Skip("runs in make test-kernels")
	}
	n := dmabufNode{node{kernel: "6.12"}}
	opts := n.options(t)
	if opts.Kernel != "" { // outside the guest
		kernel, err := vm.FetchKernel(t.Context(), n.kernel)
		if err != nil {
			t.Fatal(err)
		}
		if opts.Modules, err = vm.BuildDMABuf(t.Context(), kernel); err != nil {
			t.Fatal(err)
		}
	}
	if !guest.Enter(t, opts) {
		return
	}
	sh(t, "modprobe", "i915")
	play(t, n.node, dmabufScenarios, n)
}

func gpu(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/dev/dri/card*")
	if err != nil || len(files) != 1 {
		t.Fatalf("device files of GPUs: %q, %v", files, err)
	}
	return files[0]
}

// sharer is a container that holds regions, the bytes of each kind of memory, and the bytes with an address in the
// process: its own memory, and a GPU's.
type sharer struct {
	*container
	want      map[string]float64
	addressed float64
}

// share starts a container that registers its own memory, peer memory, and a dma-buf of each exporter. The driver maps
// the dma-bufs by a function, and sets the lengths of their regions or leaves them unset. The sizes depend on i.
func share(t *testing.T, function string, length bool, i int) sharer {
	t.Helper()
	for parameter, value := range map[string]string{"function": function, "length": map[bool]string{true: "Y", false: "N"}[length]} {
		if err := os.WriteFile("/sys/module/rdma_rxe/parameters/dmabuf_"+parameter, []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	page := os.Getpagesize()
	peer := "peer:" + gpu(t)
	sizes := map[string]int{
		"udmabuf": (i + 1) * page, "heap": (i + 10) << 20, gpu(t): (i + 100) * page, peer: (i + 300) * page, "host": (i + 1000) * page,
	}
	args := []string{"dmabuf", "-d", "rxe0"}
	if length {
		args = append(args, "-r")
	}
	for _, exporter := range slices.Sorted(maps.Keys(sizes)) {
		args = append(args, exporter+"="+strconv.Itoa(sizes[exporter]))
	}
	c := enter(t, fmt.Sprint(function, length, i), args...)
	c.line(t, "ready")
	return sharer{c, map[string]float64{
		"host": float64(sizes["host"]), "gpu": float64(sizes[gpu(t)] + sizes[peer]), "dmabuf": float64(sizes["udmabuf"] + sizes["heap"]),
	}, float64(sizes["host"] + sizes[peer])}
}

// held compares the sensor's values of a container with the bytes of each kind of memory.
func held(m metrics, id string, want map[string]float64) error {
	got := m.by("container_rdma_registered_bytes", "memory", "container_id", id)
	maps.DeleteFunc(got, func(_ string, bytes float64) bool { return bytes == 0 })
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("registered bytes of %.12s (-want +got):\n%s", id, diff)
	}
	if regions := m.sum("container_rdma_resources", "container_id", id, "type", "mr"); len(want) > 0 && regions != 5 || len(want) == 0 && regions != 0 {
		return fmt.Errorf("%.12s holds %v memory regions", id, regions)
	}
	return nil
}

func released(s *sensor, sharers []sharer) error {
	m := s.scrape()
	for _, c := range sharers {
		if err := held(m, c.id, map[string]float64{}); err != nil {
			return err
		}
	}
	return nil
}

// attached is a dma-buf in the kernel's list.
var attached = regexp.MustCompile(`(?m)^0*(\d+)\s.*\n(?:.*\n)*?\s*Attached Devices:\n\s*(\S*)`)

// buffers returns the bytes of all dma-bufs that a device has mapped, as the kernel lists them.
func buffers(t *testing.T, device string) (bytes float64) {
	t.Helper()
	list, err := os.ReadFile("/sys/kernel/debug/dma_buf/bufinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range attached.FindAllStringSubmatch(string(list), -1) {
		if b[2] == device {
			size, err := strconv.ParseFloat(b[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			bytes += size
		}
	}
	return bytes
}

// lengths returns the bytes of the memory regions of a process, as netlink lists them.
func lengths(t *testing.T, pid int) (bytes float64) {
	t.Helper()
	var entries []struct {
		PID   int
		MRLen float64
	}
	if err := json.Unmarshal([]byte(sh(t, "rdma", "-j", "resource", "show", "mr")), &entries); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.PID == pid {
			bytes += e.MRLen
		}
	}
	return bytes
}

func total(bytes map[string]float64) (sum float64) {
	for _, b := range bytes {
		sum += b
	}
	return sum
}

// functions: each function that maps a dma-buf is hooked, by each tier, also if the driver leaves the length of the
// region unset.
func (n dmabufNode) functions(t *testing.T) {
	for _, tier := range []string{"kprobe", "fentry"} {
		s := start(t, "--probe.tier="+tier)
		var sharers []sharer
		var mapped float64
		for i, f := range dmabufFunctions {
			if m := s.fresh(); m.sum("accelscope_probe_hook_state", "hook", f.name, "tier", tier, "state", "ok") != 1 {
				t.Errorf("hook %v", m.all("accelscope_probe_hook_state", "hook", f.name))
			}
			for _, length := range []bool{true, false} {
				c := share(t, f.name, length, i)
				sharers = append(sharers, c)
				mapped += total(c.want) - c.addressed
				want := total(c.want)
				if !length {
					want = c.addressed
				}
				if got := lengths(t, c.cmd.Process.Pid); got != want {
					t.Errorf("%s: netlink has %v bytes of %v", f.name, got, want)
				}
				if got := pinned(t, c.cmd.Process.Pid); got != c.addressed {
					t.Errorf("%s: VmPin is %v, %v bytes have an address", f.name, got, c.addressed)
				}
			}
		}
		if got := buffers(t, "rxe0"); got != mapped {
			t.Errorf("the kernel lists %v bytes of dma-bufs with rxe0, the programs registered %v", got, mapped)
		}
		eventually(t, 20*time.Second, func() error {
			m := s.scrape()
			for _, c := range sharers {
				if err := held(m, c.id, c.want); err != nil {
					return err
				}
				// Three dma-bufs, and three attempts that fail.
				verb := []string{"container_id", c.id, "verb", "reg_dmabuf_mr"}
				if calls, failed := m.sum("container_rdma_verbs_total", verb...), m.by("container_rdma_verbs_errors_total", "errno", verb...); calls != 6 || total(failed) != 3 {
					return fmt.Errorf("%v calls of reg_dmabuf_mr, failed: %v", calls, failed)
				}
			}
			return nil
		})
		for i, c := range sharers {
			if i%2 == 0 {
				c.rest(t) // deregisters
			} else if err := c.cmd.Process.Kill(); err != nil {
				t.Error(err)
			} else {
				_ = c.cmd.Wait()
			}
		}
		eventually(t, 20*time.Second, func() error { return released(s, sharers) })
		if got := buffers(t, "rxe0"); got != 0 {
			t.Errorf("the kernel still lists %v bytes of dma-bufs", got)
		}
		s.stop()
	}
}

// restart: netlink does not report the kind of regions that a new sensor adopts.
func (n dmabufNode) restart(t *testing.T) {
	functions := dmabufFunctions
	s := start(t)
	c := share(t, functions[0].name, true, 0)
	unset := share(t, functions[1].name, false, 1)
	eventually(t, 20*time.Second, func() error { return held(s.scrape(), c.id, c.want) })
	s.kill()
	s = start(t)
	after := share(t, functions[2].name, true, 2)
	eventually(t, 20*time.Second, func() error {
		m := s.scrape()
		if err := held(m, c.id, map[string]float64{"unknown": total(c.want)}); err != nil {
			return err
		}
		// The driver left the length of its dma-bufs unset.
		if err := held(m, unset.id, map[string]float64{"unknown": unset.addressed}); err != nil {
			return err
		}
		return held(m, after.id, after.want)
	})
	sharers := []sharer{c, unset, after}
	for _, x := range sharers {
		x.rest(t)
	}
	eventually(t, 20*time.Second, func() error { return released(s, sharers) })
	s.stop()
}

// fallback: RDMA netlink lists the regions, without their kind.
func (n dmabufNode) fallback(t *testing.T) {
	s := start(t, "--probe.tier=tracepoint")
	var sharers []sharer
	for i, f := range dmabufFunctions {
		c := share(t, f.name, true, i)
		sharers = append(sharers, c)
		if got := lengths(t, c.cmd.Process.Pid); got != total(c.want) {
			t.Errorf("%s: netlink has %v bytes of %v", f.name, got, total(c.want))
		}
	}
	eventually(t, time.Minute, func() error {
		m := s.scrape()
		for _, c := range sharers {
			if err := held(m, c.id, map[string]float64{"unknown": total(c.want)}); err != nil {
				return err
			}
		}
		return nil
	})
	for _, c := range sharers {
		c.rest(t)
	}
	eventually(t, time.Minute, func() error { return released(s, sharers) })
	s.stop()
}
