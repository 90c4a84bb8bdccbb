// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// throttleReader reads thermal_throttle of the CPUs: all CPUs of a core have the core's counter, all cores of a package
// the package's.
type throttleReader struct {
	dir     string
	counted []throttleFile
	scanned time.Time
}

type throttleFile struct {
	model.Throttle
	path string
}

func (t *throttleReader) read(now time.Time, n *reading) error {
	if now.Sub(t.scanned) >= coldAge {
		t.scanned = now
		if err := t.scan(); err != nil {
			return err
		}
	}
	n.Throttles = make([]model.Throttle, 0, len(t.counted))
	for _, f := range t.counted {
		if v, err := number(f.path); err == nil {
			f.Count = v
			n.Throttles = append(n.Throttles, f.Throttle)
		}
	}
	return nil
}

// scan finds a CPU with a counter for each core and each package.
func (t *throttleReader) scan() error {
	cpus, err := filepath.Glob(t.dir + "/cpu[0-9]*")
	if err != nil {
		return err
	}
	seen := map[model.Throttle]bool{}
	t.counted = t.counted[:0]
	for _, cpu := range cpus[:min(len(cpus), maxDevices)] {
		pkg, err1 := number(cpu + "/topology/physical_package_id")
		core, err2 := number(cpu + "/topology/core_id")
		if err1 != nil || err2 != nil {
			continue
		}
		ofPackage := model.Throttle{Package: fmt.Sprint(pkg)}
		ofCore := model.Throttle{Package: ofPackage.Package, Core: fmt.Sprint(core)}
		for _, f := range []throttleFile{
			{ofCore, cpu + "/thermal_throttle/core_throttle_count"},
			{ofPackage, cpu + "/thermal_throttle/package_throttle_count"},
		} {
			if _, err := number(f.path); err == nil && !seen[f.Throttle] {
				seen[f.Throttle] = true
				t.counted = append(t.counted, f)
			}
		}
	}
	return nil
}
