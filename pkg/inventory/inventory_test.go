// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type node struct {
	t     *testing.T
	host  string
	o     Options
	facts model.Snapshot
	state map[string]model.State
	now   time.Time
	log   *observer.ObservedLogs
	i     *Inventory
}

// newNode returns a node with two GPUs and two HCAs that was seen once.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, host: t.TempDir(), now: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	core, log := observer.New(zap.DebugLevel)
	n.log = log
	n.put("etc/machine-id", "m1")
	n.put("proc/sys/kernel/random/boot_id", "b1")
	n.o = Options{
		Dir: filepath.Join(n.host, "state"), Host: n.host, Procfs: filepath.Join(n.host, "proc"), Sysfs: "/sys", Logger: zap.New(core),
	}
	n.facts = model.Snapshot{
		GPUs: []model.GPU{gpu("GPU-a", "0000:10:00.0", "s1"), gpu("GPU-b", "0000:20:00.0", "s2")},
		HCAs: []model.HCA{hca("mlx5_0", "0x1", "0000:18:00.0"), hca("mlx5_1", "0x2", "0000:19:00.0")},
	}
	n.state = map[string]model.State{"nvidia": model.StateOK, "amdgpu": model.StateAbsent, "rdma": model.StateOK}
	n.start()
	if got := n.compare(); len(got) != 0 {
		t.Fatalf("a new node misses %q", got)
	}
	return n
}

func gpu(uuid, address, serial string) model.GPU {
	return model.GPU{Vendor: model.NVIDIA, UUID: uuid, PCIAddress: address, Serial: serial, Name: "H100", Problems: []model.GPUCondition{}}
}

func hca(name, guid, address string) model.HCA {
	return model.HCA{Name: name, NodeGUID: guid, PCIAddress: address}
}

func (n *node) put(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.host, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) start() {
	i := New(n.o)
	n.t.Cleanup(func() { _ = i.Close() })
	n.i = i
}

func (n *node) restart() {
	n.t.Helper()
	if err := n.i.Close(); err != nil {
		n.t.Fatal(err)
	}
	n.start()
}

// compare compares a refresh, and returns missing devices: "gpu GPU-a", with a star if excused.
func (n *node) compare() []string {
	n.t.Helper()
	n.now = n.now.Add(15 * time.Second)
	facts := n.refresh()
	got := []string{}
	for _, m := range facts.Missing {
		text := string(m.Kind) + " " + m.ID
		if m.Excused {
			text += " *"
		}
		got = append(got, text)
	}
	return got
}

func (n *node) refresh() *model.Snapshot {
	facts := n.facts
	var states []model.SourceState
	for name, s := range n.state {
		states = append(states, model.SourceState{Source: name, State: s})
	}
	n.i.Compare(n.now, &facts, states)
	return &facts
}

func (n *node) want(want ...string) {
	n.t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), n.compare()); diff != "" {
		n.t.Errorf("missing (-want +got):\n%s", diff)
	}
}

// logged returns the number of log lines with a text.
func (n *node) logged(text string) int {
	return len(n.log.Filter(func(e observer.LoggedEntry) bool { return strings.Contains(e.Message, text) }).All())
}

// TestVanish: a GPU and an HCA vanish, are missed across restarts of the sensor and the node, with one log line each,
// and return.
func TestVanish(t *testing.T) {
	n := newNode(t)
	gpus, hcas := n.facts.GPUs, n.facts.HCAs
	n.facts.GPUs, n.facts.HCAs = gpus[:1], hcas[:1]
	n.want("gpu GPU-b", "hca 0x2")
	since := n.now
	n.want("gpu GPU-b", "hca 0x2")
	n.restart()
	n.want("gpu GPU-b", "hca 0x2")
	n.put("proc/sys/kernel/random/boot_id", "b2")
	n.restart()
	n.want("gpu GPU-b", "hca 0x2")
	want := model.MissingDevice{
		Kind: model.KindGPU, ID: "GPU-b", Slot: "0000:20:00.0", Name: "H100", Serial: "s2", Seen: since.Add(-15 * time.Second), Since: since,
		Rebooted: true,
	}
	if diff := cmp.Diff(want, n.refresh().Missing[0]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	n.facts.GPUs, n.facts.HCAs = gpus, hcas
	n.want()
	if n.logged("is missing") != 2 || n.logged("is back") != 2 {
		t.Errorf("%v", n.log.All())
	}
	n.restart()
	n.want()
}

// TestRestarted: a device that vanishes while the sensor does not run is missed at the first refresh.
func TestRestarted(t *testing.T) {
	n := newNode(t)
	n.facts.GPUs, n.facts.HCAs = n.facts.GPUs[1:], n.facts.HCAs[1:]
	n.put("proc/sys/kernel/random/boot_id", "b2")
	n.restart()
	n.want("gpu GPU-a", "hca 0x1")
}

// TestSame: the same device, or a device that was replaced, is not missing.
func TestSame(t *testing.T) {
	for name, change := range map[string]func(*node){
		"renamed":     func(n *node) { n.facts.HCAs[0].Name = "rail0" },
		"moved":       func(n *node) { n.facts.HCAs[0].PCIAddress, n.facts.GPUs[0].PCIAddress = "0001:18:00.0", "0001:10:00.0" },
		"swapped":     func(n *node) { n.facts.GPUs[0].PCIAddress, n.facts.GPUs[1].PCIAddress = "0000:20:00.0", "0000:10:00.0" },
		"replaced":    func(n *node) { n.facts.GPUs[0] = gpu("GPU-c", "0000:10:00.0", "s3") },
		"other HCA":   func(n *node) { n.facts.HCAs[0] = hca("mlx5_0", "0x9", "0000:18:00.0") },
		"unreadable":  func(n *node) { n.facts.GPUs[0] = gpu("0000:10:00.0", "0000:10:00.0", "") },
		"other order": func(n *node) { slices.Reverse(n.facts.GPUs) },
		"stuck HCA": func(n *node) {
			n.facts.HCAs = n.facts.HCAs[1:]
			n.facts.DeviceStates = []model.DeviceState{{Source: "rdma", Device: "mlx5_0", State: model.StateStuck}}
		},
		"hidden GPU": func(n *node) {
			n.facts.GPUs = n.facts.GPUs[1:]
			n.facts.DeviceStates = []model.DeviceState{{Source: "nvidia", Device: "0000:10:00.0", State: model.StateUnsupported}}
		},
		"GPU without an address that is stuck": func(n *node) {
			n.facts.GPUs = nil
			n.facts.DeviceStates = []model.DeviceState{{Source: "nvidia", Device: "0", State: model.StateStuck}}
		},
		"switched off": func(n *node) {
			delete(n.state, "rdma")
			n.facts.HCAs = nil
		},
		"failed":   func(n *node) { n.facts.GPUs, n.state["nvidia"] = nil, model.StateFailed },
		"stuck":    func(n *node) { n.facts.HCAs, n.state["rdma"] = nil, model.StateStuck },
		"released": func(n *node) { n.facts.GPUs, n.state["nvidia"] = nil, model.StateReleased },
		"library":  func(n *node) { n.facts.GPUs, n.state["nvidia"] = nil, model.StateUnsupported },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.facts.GPUs, n.facts.HCAs = slices.Clone(n.facts.GPUs), slices.Clone(n.facts.HCAs)
			change(n)
			n.want()
			n.restart()
			n.want()
		})
	}
}

// TestNameless: a GPU without an address that has not answered may be any GPU. After its answer the missing GPU is
// known.
func TestNameless(t *testing.T) {
	n := newNode(t)
	n.facts.GPUs = n.facts.GPUs[1:]
	n.facts.GPUs[0].ID = "0"
	n.facts.DeviceStates = []model.DeviceState{
		{Source: "nvidia", Device: "0", State: model.StateOK}, {Source: "nvidia", Device: "1", State: model.StateOK, Waiting: n.now},
	}
	n.want()
	n.facts.DeviceStates = n.facts.DeviceStates[:1]
	n.want("gpu GPU-a")
}

// TestExcluded: an HCA whose name is left out is unknown. It is excused, so that Prometheus's history does not miss it.
func TestExcluded(t *testing.T) {
	n := newNode(t)
	hcas := n.facts.HCAs
	n.facts.HCAs = hcas[1:]
	n.o.Unwatched = func(name string) bool { return name == "mlx5_0" }
	n.restart()
	n.want("hca 0x1 *")
	n.now = n.now.Add(2 * acceptedFor)
	n.want("hca 0x1 *")
	n.facts.HCAs, n.o.Unwatched = hcas, nil
	n.restart()
	n.want()
}

// TestRenumbered: the devices behind a missing device move to other buses. They take its place, but do not replace it.
func TestRenumbered(t *testing.T) {
	n := newNode(t)
	n.facts.GPUs = []model.GPU{gpu("GPU-b", "0000:10:00.0", "s2")}
	n.facts.HCAs = []model.HCA{hca("mlx5_0", "0x2", "0000:18:00.0")}
	n.restart()
	n.want("gpu GPU-a", "hca 0x1")
	n.want("gpu GPU-a", "hca 0x1")
	n.facts.GPUs = append(n.facts.GPUs, gpu("GPU-c", "0000:20:00.0", "s3"))
	n.want("gpu GPU-a", "hca 0x1")
	n.facts.GPUs[0] = gpu("GPU-d", "0000:10:00.0", "s4") // replaces both earlier GPUs
	n.want("hca 0x1")
}

// TestUnreadable: an unreadable device has only its place. When it vanishes, it is missed once, under its name.
func TestUnreadable(t *testing.T) {
	n := newNode(t)
	n.facts.GPUs = []model.GPU{gpu("GPU-a", "0000:10:00.0", "s1"), gpu("0000:20:00.0", "0000:20:00.0", "")}
	n.restart()
	n.want()
	n.facts.GPUs = n.facts.GPUs[:1]
	n.want("gpu GPU-b")
	n.facts.GPUs = append(n.facts.GPUs, gpu("0000:30:00.0", "0000:30:00.0", "")) // never seen otherwise
	n.want("gpu GPU-b")
	n.facts.GPUs[1] = gpu("GPU-c", "0000:30:00.0", "s3")
	n.want("gpu GPU-b")
	n.facts.GPUs = append(n.facts.GPUs, gpu("", "", ""), gpu(strings.Repeat("x", 999), "", ""))
	n.want("gpu GPU-b")
	n.restart()
	n.want("gpu GPU-b")
	if n.logged("not used") != 0 {
		t.Errorf("%v", n.log.All())
	}
}

// TestUncounted: devices that come and go by configuration are not remembered.
func TestUncounted(t *testing.T) {
	n := newNode(t)
	gpus, hcas := n.facts.GPUs, n.facts.HCAs
	part := gpu("MIG-1", "0000:10:00.0", "")
	part.Parent = "GPU-a"
	vf, sf := hca("mlx5_2", "0x3", "0000:18:00.1"), hca("mlx5_3", "0x4", "0000:18:00.0")
	vf.VF, sf.Subfunction = true, true
	n.facts.GPUs, n.facts.HCAs = append(slices.Clip(gpus), part), append(slices.Clip(hcas), vf, sf)
	n.want()
	n.facts.GPUs, n.facts.HCAs = gpus, hcas
	n.want()
}

// TestAll: the last device of a source is missed, too, although the source is then absent.
func TestAll(t *testing.T) {
	n := newNode(t)
	n.facts.GPUs, n.facts.HCAs = nil, nil
	n.state["nvidia"], n.state["rdma"] = model.StateAbsent, model.StateAbsent
	n.want("gpu GPU-a", "gpu GPU-b", "hca 0x1", "hca 0x2")
	n.state["nvidia"], n.state["rdma"] = model.StateFailed, model.StateStuck
	n.want("gpu GPU-a", "gpu GPU-b", "hca 0x1", "hca 0x2") // nothing new is known
}

// TestBound: devices that come and go, such as Soft-RoCE, do not fill the memory or take the room of present devices.
func TestBound(t *testing.T) {
	n := newNode(t)
	hcas := n.facts.HCAs
	for k := range maxDevices + 10 {
		n.facts.HCAs = append(slices.Clip(hcas), hca(fmt.Sprint("rxe", k), fmt.Sprint("0x1", k), ""))
		n.compare()
	}
	if len(n.i.devices) > maxDevices {
		t.Errorf("%d devices", len(n.i.devices))
	}
	n.facts.HCAs = nil
	if got := n.compare(); !slices.Contains(got, "hca 0x1") || !slices.Contains(got, "hca 0x2") || !slices.Contains(got, "hca 0x1521") {
		t.Errorf("%q", got)
	}
}
