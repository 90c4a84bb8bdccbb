// SPDX-License-Identifier: Apache-2.0

package container

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// reloadDisks is the minimum time between two reads of the list of disks to find unknown disks.
const reloadDisks = 10 * time.Second

type device struct{ major, minor uint32 }

// disks holds the names of the block devices, from /proc/partitions.
type disks struct {
	names  map[device]string
	loaded time.Time
}

func (d *disks) name(procfs string, usages []model.Usage, now time.Time, skipped *boundedfile.SkippedFiles) error {
	var err error
	for i := range usages {
		for j := range usages[i].IO {
			io := &usages[i].IO[j]
			id := device{io.Major, io.Minor}
			if d.names[id] == "" && now.Sub(d.loaded) >= reloadDisks {
				d.loaded = now
				err = d.load(procfs, skipped)
			}
			if io.Device = d.names[id]; io.Device == "" {
				io.Device = fmt.Sprintf("%d:%d", io.Major, io.Minor)
			}
		}
	}
	return err
}

// maxPartitions has room for 16,000 block devices.
const maxPartitions = 1 << 20

func (d *disks) load(procfs string, skipped *boundedfile.SkippedFiles) error {
	b, err := boundedfile.ReadFile(filepath.Join(procfs, "partitions"), nil, maxPartitions)
	if err != nil {
		return fmt.Errorf("names of block devices: %w", err)
	}
	d.names = parsePartitions(b, skipped.In("partitions"))
	return nil
}
