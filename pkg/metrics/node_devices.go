// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var deviceLabels = []string{"device"}

// diskColumns lists the columns of /proc/diskstats. The kernel counts sectors of 512 bytes, and milliseconds.
var diskColumns = []struct {
	name string
	typ  dto.MetricType
	unit float64
	help string
}{
	{"reads_completed_total", counter, 1, "Completed reads."},
	{"reads_merged_total", counter, 1, "Merged reads."},
	{"read_bytes_total", counter, 512, "Bytes read."},
	{"read_time_seconds_total", counter, 1e-3, "Time of all reads."},
	{"writes_completed_total", counter, 1, "Completed writes."},
	{"writes_merged_total", counter, 1, "Merged writes."},
	{"written_bytes_total", counter, 512, "Bytes written."},
	{"write_time_seconds_total", counter, 1e-3, "Time of all writes."},
	{"io_now", gauge, 1, "Reads and writes in progress."},
	{"io_time_seconds_total", counter, 1e-3, "Time with requests in progress."},
	{"io_time_weighted_seconds_total", counter, 1e-3, "Time with requests in progress, times their number."},
	{"discards_completed_total", counter, 1, "Completed discards."},
	{"discards_merged_total", counter, 1, "Merged discards."},
	{"discarded_sectors_total", counter, 1, "Discarded sectors."},
	{"discard_time_seconds_total", counter, 1e-3, "Time of all discards."},
	{"flush_requests_total", counter, 1, "Completed flushes."},
	{"flush_requests_time_seconds_total", counter, 1e-3, "Time of all flushes."},
}

func nodeDiskMetrics() []metric {
	rows := []metric{
		{
			name: "node_disk_info", typ: gauge,
			labels: []string{"device", "major", "minor", "path", "wwn", "model", "serial", "revision", "rotational"},
			help:   "Numbers, path, model, serial number and revision of the disk.",
			emit: each(disksOf, func(_ *view, b *exposition.Builder, d *model.Disk) {
				rotational := "0"
				if d.Rotational {
					rotational = "1"
				}
				b.Value(1, d.Name, strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10),
					d.Path, d.WWN, d.Model, d.Serial, d.Revision, rotational)
			}),
		},
		{
			name: "node_disk_filesystem_info", typ: gauge, labels: []string{"device", "type", "usage", "uuid", "version"},
			help: "File system on the disk.",
			emit: each(disksOf, func(_ *view, b *exposition.Builder, d *model.Disk) {
				if f := d.Filesystem; f != nil {
					b.Value(1, d.Name, f.Type, f.Usage, f.UUID, f.Version)
				}
			}),
		},
		{
			name: "node_disk_device_mapper_info", typ: gauge,
			labels: []string{"device", "name", "uuid", "vg_name", "lv_name", "lv_layer"},
			help:   "Device-mapper name, volume group and volume of the disk.",
			emit: each(disksOf, func(_ *view, b *exposition.Builder, d *model.Disk) {
				if m := d.Mapper; m != nil {
					b.Value(1, d.Name, m.Name, m.UUID, m.Group, m.Volume, m.Layer)
				}
			}),
		},
	}
	for _, ata := range []string{"write_cache", "write_cache_enabled", "rotation_rate_rpm"} {
		rows = append(rows, metric{
			name: "node_disk_ata_" + ata, typ: gauge, labels: deviceLabels,
			help: "Setting of the ATA disk.",
			emit: each(disksOf, func(_ *view, b *exposition.Builder, d *model.Disk) {
				known(b, named(d.ATA, ata), nil, d.Name)
			}),
		})
	}
	for column, c := range diskColumns {
		rows = append(rows, metric{
			name: "node_disk_" + c.name, typ: c.typ, labels: deviceLabels, help: c.help,
			emit: each(disksOf, func(_ *view, b *exposition.Builder, d *model.Disk) {
				if column < len(d.Stats) {
					b.Value(float64(d.Stats[column])*c.unit, d.Name)
				}
			}),
		})
	}
	return rows
}

// filesystemLabels begins with the labels that distinguish file systems.
var filesystemLabels = []string{"mountpoint", "device", "fstype", "device_error"}

func nodeFilesystemMetrics() []metric {
	row := func(name, help string, of func(*model.Filesystem) model.Optional) metric {
		return metric{
			name: "node_filesystem_" + name, typ: gauge, labels: filesystemLabels, help: help,
			emit: each(filesystemsOf, func(_ *view, b *exposition.Builder, f *model.Filesystem) {
				known(b, of(f), nil, f.MountPoint, f.Device, f.Type, f.Error)
			}),
		}
	}
	size := func(name, help string, of func(*model.Filesystem) float64) metric {
		return row(name, help, func(f *model.Filesystem) model.Optional {
			return model.Optional{Value: of(f), Known: f.Error == ""}
		})
	}
	return []metric{
		row("device_error", "Whether statfs failed or hangs.",
			func(f *model.Filesystem) model.Optional { return model.Some(truth(f.Error != "")) }),
		row("readonly", "Whether the file system is read-only.",
			func(f *model.Filesystem) model.Optional { return model.Some(truth(f.ReadOnly)) }),
		size("size_bytes", "Size of the file system.", func(f *model.Filesystem) float64 { return f.Size }),
		size("free_bytes", "Free space of the file system.", func(f *model.Filesystem) float64 { return f.Free }),
		size("avail_bytes", "Free space for users other than root.",
			func(f *model.Filesystem) float64 { return f.Available }),
		size("files", "Inodes of the file system.", func(f *model.Filesystem) float64 { return f.FileNodes }),
		size("files_free", "Free inodes of the file system.", func(f *model.Filesystem) float64 { return f.FreeNodes }),
		{
			name: "node_filesystem_mount_info", typ: gauge, labels: []string{"mountpoint", "device", "major", "minor"},
			help: "Device and device number of the mount point.",
			emit: each(filesystemsOf, func(_ *view, b *exposition.Builder, f *model.Filesystem) {
				if f.Error == "" {
					b.Value(1, f.MountPoint, f.Device, f.Major, f.Minor)
				}
			}),
		},
	}
}

// netDevColumns lists the columns of /proc/net/dev.
var netDevColumns = [model.NetDevColumns]string{
	"receive_bytes", "receive_packets", "receive_errs", "receive_drop", "receive_fifo", "receive_frame",
	"receive_compressed", "receive_multicast",
	"transmit_bytes", "transmit_packets", "transmit_errs", "transmit_drop", "transmit_fifo", "transmit_colls",
	"transmit_carrier", "transmit_compressed",
}

func nodeNetworkMetrics() []metric {
	var rows []metric
	for column, name := range netDevColumns {
		rows = append(rows, metric{
			name: "node_network_" + name + "_total", typ: counter, labels: deviceLabels,
			help: "Counter " + name + " of the interface.",
			emit: each(netDevsOf, func(_ *view, b *exposition.Builder, d *model.NetDev) {
				b.Value(float64(d.Stats[column]), d.Name)
			}),
		})
	}
	rows = append(rows,
		metric{
			name: "node_network_receive_nohandler_total", typ: counter, labels: deviceLabels,
			help: "Received packets without a protocol handler.",
			emit: each(netDevsOf, func(_ *view, b *exposition.Builder, d *model.NetDev) {
				known(b, valueOf(d.NoHandler), nil, d.Name)
			}),
		},
		metric{
			name: "node_network_up", typ: gauge, labels: deviceLabels,
			help: "Whether the interface's operational state is up.",
			emit: each(netClassesOf, func(_ *view, b *exposition.Builder, c *model.NetClass) {
				b.Value(truth(c.OperState == "up"), c.Name)
			}),
		},
		metric{
			name: "node_network_info", typ: gauge,
			labels: []string{"device", "address", "broadcast", "duplex", "operstate", "adminstate", "ifalias"},
			help:   "Addresses, duplex mode, states and alias of the interface.",
			emit: each(netClassesOf, func(_ *view, b *exposition.Builder, c *model.NetClass) {
				b.Value(1, c.Name, c.Address, c.Broadcast, c.Duplex, c.OperState, adminState(c.Flags), c.Alias)
			}),
		})
	for _, p := range []struct {
		name string
		typ  dto.MetricType
		of   func(*model.NetClass) *int64
	}{
		{"address_assign_type", gauge, func(c *model.NetClass) *int64 { return c.AddressAssignType }},
		{"carrier", gauge, func(c *model.NetClass) *int64 { return c.Carrier }},
		{"carrier_changes_total", counter, func(c *model.NetClass) *int64 { return c.CarrierChanges }},
		{"carrier_up_changes_total", counter, func(c *model.NetClass) *int64 { return c.CarrierUp }},
		{"carrier_down_changes_total", counter, func(c *model.NetClass) *int64 { return c.CarrierDown }},
		{"device_id", gauge, func(c *model.NetClass) *int64 { return c.DeviceID }},
		{"dormant", gauge, func(c *model.NetClass) *int64 { return c.Dormant }},
		{"flags", gauge, func(c *model.NetClass) *int64 { return c.Flags }},
		{"iface_id", gauge, func(c *model.NetClass) *int64 { return c.Index }},
		{"iface_link", gauge, func(c *model.NetClass) *int64 { return c.Link }},
		{"iface_link_mode", gauge, func(c *model.NetClass) *int64 { return c.LinkMode }},
		{"mtu_bytes", gauge, func(c *model.NetClass) *int64 { return c.MTU }},
		{"name_assign_type", gauge, func(c *model.NetClass) *int64 { return c.NameAssignType }},
		{"net_dev_group", gauge, func(c *model.NetClass) *int64 { return c.Group }},
		{"speed_bytes", gauge, speedBytes},
		{"transmit_queue_length", gauge, func(c *model.NetClass) *int64 { return c.QueueLength }},
		{"protocol_type", gauge, func(c *model.NetClass) *int64 { return c.ProtocolType }},
	} {
		rows = append(rows, metric{
			name: "node_network_" + p.name, typ: p.typ, labels: deviceLabels,
			help: "Attribute " + strings.ReplaceAll(p.name, "_", " ") + " of the interface.",
			emit: each(netClassesOf, func(_ *view, b *exposition.Builder, c *model.NetClass) {
				known(b, valueOf(p.of(c)), nil, c.Name)
			}),
		})
	}
	return rows
}

// speedBytes returns the speed in bytes per second. The kernel's -1 (unknown) becomes -125000, as in node_exporter.
func speedBytes(c *model.NetClass) *int64 {
	if c.SpeedMbits == nil {
		return nil
	}
	return new(*c.SpeedMbits * 1000 * 1000 / 8)
}

// adminState returns the administrative state of an interface, its flag IFF_UP.
func adminState(flags *int64) string {
	switch {
	case flags == nil:
		return "unknown"
	case *flags&1 == 1:
		return "up"
	}
	return "down"
}
