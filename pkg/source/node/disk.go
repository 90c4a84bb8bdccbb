// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// notDisks matches devices that node_exporter leaves out: partitions, memory, loop devices.
var notDisks = regexp.MustCompile(`^(z?ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+$`)

// Limits of disks, and of columns per disk.
const (
	maxDisks    = 4096
	diskColumns = 17
)

// diskReader reads /proc/diskstats. udev's properties and the rotational flag are cached.
type diskReader struct {
	reader              *reader
	procfs, sysfs, root string
	known               map[string]*knownDisk
}

type knownDisk struct {
	model.Disk // without counters
	hidden     bool
	read       time.Time
}

func (d *diskReader) read(now time.Time, n *reading) error {
	b, err := d.reader.file(d.procfs + "/diskstats")
	if err != nil {
		return err
	}
	skipped := n.skipped.In("diskstats")
	lines := parseDisks(b, skipped) // copied: udev's files use the same buffer
	known := make(map[string]*knownDisk, len(d.known))
	disks := make([]model.Disk, 0, len(d.known))
	for _, line := range lines {
		k := d.known[line.Name]
		if k == nil || k.Major != line.Major || k.Minor != line.Minor {
			k = &knownDisk{hidden: notDisks.MatchString(line.Name)}
			k.Name, k.Major, k.Minor = line.Name, line.Major, line.Minor
		}
		known[k.Name] = k
		if k.hidden {
			continue
		}
		if now.Sub(k.read) >= coldAge {
			k.read = now
			d.describe(&k.Disk)
		}
		disk := k.Disk
		disk.Stats = line.Stats
		disks = append(disks, disk)
	}
	if err := unparsed("diskstats", len(known), skipped); err != nil {
		return err
	}
	d.known, n.Disks = known, disks
	return nil
}

// parseDisks parses lines of MAJOR, MINOR, name, and up to 17 counters.
func parseDisks(b []byte, skipped *boundedfile.Skipped) []model.Disk {
	disks := []model.Disk{}
	for len(b) > 0 && len(disks) < maxDisks {
		var line []byte
		line, b = cutLine(b)
		majorField, rest := cutField(line)
		minorField, rest := cutField(rest)
		name, rest := cutField(rest)
		major, okMajor := parseUint(majorField)
		minor, okMinor := parseUint(minorField)
		var columns [diskColumns]uint64
		count, ok := parseUints(rest, columns[:])
		if !okMajor || !okMinor || !ok || len(name) == 0 {
			skipped.Add(line)
			continue
		}
		disks = append(disks, model.Disk{
			Name: string(name), Major: major, Minor: minor, Stats: append([]uint64(nil), columns[:count]...),
		})
	}
	return disks
}

// describe reads block/NAME/queue/rotational and the file of udev's database, which contains lines E:KEY=VALUE.
func (d *diskReader) describe(disk *model.Disk) {
	*disk = model.Disk{Name: disk.Name, Major: disk.Major, Minor: disk.Minor}
	// The kernel shows cciss/c0d0 as cciss!c0d0.
	dir := strings.ReplaceAll(disk.Name, "/", "!")
	if v, err := number(filepath.Join(d.sysfs, "block", dir, "queue/rotational")); err == nil {
		disk.Rotational = v == 1
	}
	b, err := d.reader.fileBelow(d.root, fmt.Sprintf("run/udev/data/b%d:%d", disk.Major, disk.Minor))
	if err != nil {
		return
	}
	info := map[string]string{}
	for line := range bytes.Lines(b) {
		line, ok := bytes.CutPrefix(line, []byte("E:"))
		key, value, ok2 := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte("="))
		if ok && ok2 && len(info) < maxFigures {
			info[string(key)] = clean(string(value))
		}
	}
	disk.Path, disk.WWN, disk.Model = info["ID_PATH"], info["ID_WWN"], info["ID_MODEL"]
	disk.Revision = info["ID_REVISION"]
	disk.Serial = cmp.Or(info["SCSI_IDENT_SERIAL"], info["ID_SERIAL_SHORT"], info["ID_SERIAL"])
	if info["ID_FS_TYPE"] != "" {
		disk.Filesystem = &model.DiskFilesystem{
			Type: info["ID_FS_TYPE"], Usage: info["ID_FS_USAGE"], UUID: info["ID_FS_UUID"], Version: info["ID_FS_VERSION"],
		}
	}
	if info["DM_NAME"] != "" {
		disk.Mapper = &model.DiskMapper{
			Name: info["DM_NAME"], UUID: info["DM_UUID"],
			Group: info["DM_VG_NAME"], Volume: info["DM_LV_NAME"], Layer: info["DM_LV_LAYER"],
		}
	}
	if info["ID_ATA"] == "" {
		return
	}
	for _, a := range [][2]string{
		{"write_cache", "ID_ATA_WRITE_CACHE"},
		{"write_cache_enabled", "ID_ATA_WRITE_CACHE_ENABLED"},
		{"rotation_rate_rpm", "ID_ATA_ROTATION_RATE_RPM"},
	} {
		if v, ok := parseFloat([]byte(info[a[1]])); ok {
			disk.ATA = append(disk.ATA, model.Figure{Name: a[0], Value: v})
		}
	}
}
