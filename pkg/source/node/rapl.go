// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
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
	err          error // of the last read
}

// update returns zones that can be read. It fails if the sensor may not read zones.
func (r *raplReader) update(now time.Time, n *reading) error {
	if now.Sub(r.read) >= raplPause {
		r.read, r.last = now, nil
		r.err = r.readZones(now)
	}
	n.Energy, n.EnergyRead = r.last, r.read
	return r.err
}

func (r *raplReader) readZones(now time.Time) error {
	if now.Sub(r.listed) >= coldAge {
		zones, err := sysfs.GetRaplZones(r.sys)
		if err != nil {
			return denied(fmt.Errorf("power zones: %w", err))
		}
		r.zones, r.listed = zones[:min(len(zones), maxDevices)], now
	}
	var refused error
	for _, z := range r.zones {
		v, err := z.GetEnergyMicrojoules()
		if errors.Is(err, fs.ErrPermission) {
			refused = denied(fmt.Errorf("power zones: %w", err))
		}
		if err == nil {
			r.last = append(r.last, model.EnergyZone{
				Name: z.Name, Index: z.Index, Path: z.Path, Microjoules: v, Limit: z.MaxMicrojoules, Domain: domainOf(z),
			})
		}
	}
	return refused
}

// denied makes a refusal a limit of this sensor, not a failure of the node.
func denied(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", err, model.ErrUnsupported)
	}
	return err
}

// domainOf returns the domain of a zone of the driver intel-rapl, which serves Intel and AMD: package-0, package-0-die-1,
// dram. Zones of intel-rapl-mmio have the energy of the same packages.
func domainOf(z sysfs.RaplZone) model.EnergyDomain {
	switch {
	case !strings.HasPrefix(filepath.Base(z.Path), "intel-rapl:"):
	case z.Name == "package" || strings.HasPrefix(z.Name, "package-"):
		return model.EnergyOfPackage
	case z.Name == "dram":
		return model.EnergyOfDRAM
	}
	return ""
}
