// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs/sysfs"

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
		for i := range n.Energy {
			n.Energy[i].Path = strings.TrimPrefix(n.Energy[i].Path, root)
		}
		return n.Energy
	}
	want := []model.EnergyZone{
		{Name: "package", Index: 0, Path: "/class/powercap/intel-rapl:0", Joules: 5},
		{Name: "dram", Index: 0, Path: "/class/powercap/intel-rapl:0:0", Joules: 1.5},
		{Name: "package", Index: 1, Path: "/class/powercap/intel-rapl:1", Joules: 7},
	}
	if d := cmp.Diff(want, read(0)); d != "" {
		t.Error(d)
	}
	zone("intel-rapl:0", "package-0", "6000000")
	if got := read(raplPause - 1); got[0].Joules != 5 {
		t.Errorf("within a second: %+v", got[0])
	}
	want[0].Joules = 6
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
