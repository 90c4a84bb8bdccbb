// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/prometheus/procfs/sysfs"

	"github.com/accelscope/accelscope/pkg/model"
)

// raplPause is the shortest time between two reads of energy: what reads faster can learn what other programs compute (PLATYPUS,
// CVE-2020-8694). Since Linux 5.10 only root may read it.
const raplPause = time.Second

// raplReader reads the energy of CPU packages and their memory: energy_uj of class/powercap. Zones are listed once a minute.
type raplReader struct {
	sys          sysfs.FS
	zones        []sysfs.RaplZone
	listed, read time.Time
	last         []model.EnergyZone
}

func (r *raplReader) update(now time.Time, n *reading) error {
	if now.Sub(r.read) < raplPause {
		n.Energy = r.last
		return nil
	}
	if now.Sub(r.listed) >= coldAge {
		zones, err := sysfs.GetRaplZones(r.sys)
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("power zones: %w", err)
		}
		r.zones, r.listed = zones[:min(len(zones), maxDevices)], now
	}
	r.read, r.last = now, nil
	for _, z := range r.zones {
		if v, err := z.GetEnergyMicrojoules(); err == nil {
			r.last = append(r.last, model.EnergyZone{Name: z.Name, Index: z.Index, Path: z.Path, Joules: float64(v) / 1e6})
		}
	}
	n.Energy = r.last
	return nil
}
