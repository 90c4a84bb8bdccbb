// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs/sysfs"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestRAPL: energy is read at most once per second. A zone that cannot be read is left out.
func TestRAPL(t *testing.T) {
	root := t.TempDir()
	zone := func(name, kind, energy string) {
		dir := "class/powercap/" + name
		write(t, root, map[string]string{dir + "/name": kind + "\n", dir + "/max_energy_range_uj": "262143328850\n", dir + "/energy_uj": energy + "\n"})
	}
	zone("intel-rapl:0", "package-0", "5000000")
	zone("intel-rapl:0:0", "dram", "1500000")
	zone("intel-rapl:1", "package-1", "7000000")
	zone("intel-rapl:1:0", "dram", "no number")
	zone("intel-rapl:2", "package-2-die-1", "8000000")
	zone("intel-rapl:2:0", "core", "6000000")
	zone("intel-rapl:3", "psys", "9000000")
	zone("intel-rapl-mmio:0", "package-0", "5000001") // the same package, read in another way
	write(t, root, map[string]string{"class/powercap/intel-rapl/enabled": "1\n"})
	sys, err := sysfs.NewFS(root)
	if err != nil {
		t.Fatal(err)
	}
	r, now := raplReader{sys: sys}, time.Unix(1000, 0)
	read := func(after time.Duration) []model.EnergyZone {
		t.Helper()
		now = now.Add(after)
		var n reading
		if err := r.update(now, &n); err != nil {
			t.Fatal(err)
		}
		if n.Energy != nil && now.Sub(n.EnergyRead) >= raplPause {
			t.Errorf("read at %v, not %v", n.EnergyRead, now)
		}
		for i := range n.Energy {
			n.Energy[i].Path = strings.TrimPrefix(n.Energy[i].Path, root)
		}
		return n.Energy
	}
	const limit = 262143328850
	want := []model.EnergyZone{
		{Name: "package", Index: 0, Path: "/class/powercap/intel-rapl-mmio:0", Microjoules: 5000001, Limit: limit},
		{Name: "package", Index: 0, Path: "/class/powercap/intel-rapl:0", Microjoules: 5000000, Limit: limit, Domain: model.EnergyOfPackage},
		{Name: "dram", Index: 0, Path: "/class/powercap/intel-rapl:0:0", Microjoules: 1500000, Limit: limit, Domain: model.EnergyOfDRAM},
		{Name: "package", Index: 1, Path: "/class/powercap/intel-rapl:1", Microjoules: 7000000, Limit: limit, Domain: model.EnergyOfPackage},
		{Name: "package-2-die-1", Path: "/class/powercap/intel-rapl:2", Microjoules: 8000000, Limit: limit, Domain: model.EnergyOfPackage},
		{Name: "core", Path: "/class/powercap/intel-rapl:2:0", Microjoules: 6000000, Limit: limit},
		{Name: "psys", Path: "/class/powercap/intel-rapl:3", Microjoules: 9000000, Limit: limit},
	}
	if d := cmp.Diff(want, read(0)); d != "" {
		t.Error(d)
	}
	zone("intel-rapl:0", "package-0", "6000000")
	if got := read(raplPause - 1); got[1].Microjoules != 5000000 {
		t.Errorf("within a second: %+v", got[1])
	}
	want[1].Microjoules = 6000000
	if d := cmp.Diff(want, read(raplPause)); d != "" {
		t.Error(d)
	}
	if err := os.RemoveAll(root + "/class/powercap"); err != nil {
		t.Fatal(err)
	}
	if got := read(raplPause); got != nil {
		t.Errorf("without zones: %+v", got)
	}
	if err := r.update(now.Add(coldAge), &reading{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the class is gone: %v", err)
	}
}

// TestUnreadableRAPL: only root may read energy. Another user gets the reason, and no zone.
func TestUnreadableRAPL(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to become another user")
	}
	root := t.TempDir()
	dir := "class/powercap/intel-rapl:0/"
	write(t, root, map[string]string{dir + "name": "package-0\n", dir + "max_energy_range_uj": "262143328850\n", dir + "energy_uj": "5\n"})
	for path, mode := range map[string]fs.FileMode{filepath.Dir(root): 0o755, root: 0o755, filepath.Join(root, dir, "energy_uj"): 0o400} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	sys, err := sysfs.NewFS(root)
	if err != nil {
		t.Fatal(err)
	}
	var n reading
	asNobody(t, func() { err = (&raplReader{sys: sys}).update(time.Unix(1000, 0), &n) })
	if !errors.Is(err, model.ErrUnsupported) || !errors.Is(err, fs.ErrPermission) || n.Energy != nil {
		t.Errorf("%v, %+v", err, n.Energy)
	}
	s := &Source{log: zap.NewNop()}
	var out model.Snapshot
	s.recordState(&out, nil, "rapl", nil, err)
	if len(out.DeviceStates) != 1 || out.DeviceStates[0].State != model.StateUnsupported {
		t.Errorf("%+v", out.DeviceStates)
	}
}

// asNobody calls f in a thread that has the file permissions of the user nobody.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		const nobody = 65534
		if _, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, nobody, 0, 0); errno != 0 {
			done <- errno
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
