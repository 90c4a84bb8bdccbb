// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Node is what the kernel tells of the node as a whole, in the words and the
// order of the kernel: the names of node_exporter are made of them elsewhere.
// A part that is nil was not collected.
type Node struct {
	Time         time.Time
	Clocksources []Clocksource
	Uname        *Uname
	OS           *OSRelease
	Load         *Load
	Stat         *Stat
	CPUs         []CPU
	Throttles    []Throttle // thermal, of cores and packages
	Memory       []Figure   // /proc/meminfo: in bytes where the name ends so
	Pressure     []Pressure
	Files        *Files
	Entropy      *Entropy

	VM      []Figure // /proc/vmstat
	Netstat []Figure // /proc/net/netstat, snmp and snmp6: PROTOCOL_NAME
	Sockets []Figure // /proc/net/sockstat and sockstat6: PROTOCOL_STATE

	Disks       []Disk
	Filesystems []Filesystem
	NetDevs     []NetDev
	NetClasses  []NetClass
	Chips       []Chip
}

// Figure is one value under a name of the kernel.
type Figure struct {
	Name  string
	Value float64
}

// Clocksource is one device of /sys/devices/system/clocksource.
type Clocksource struct {
	Device    string // its number
	Current   string
	Available []string
}

// Uname is what uname(2) tells.
type Uname struct {
	Sysname, Release, Version, Machine, Nodename, Domainname string
}

// OSRelease is the file os-release of the distribution.
type OSRelease struct {
	BuildID, ID, IDLike, ImageID, ImageVersion, Name, PrettyName string
	Variant, VariantID, Version, VersionCodename, VersionID      string
	SupportEnd                                                   string // 2028-06-30
}

// Load is /proc/loadavg: the average number of tasks that run or want to.
type Load struct {
	One, Five, Fifteen float64
}

// Stat is /proc/stat without the CPUs.
type Stat struct {
	Interrupts      uint64 // since boot, as the next two
	ContextSwitches uint64
	Forks           uint64
	BootTime        uint64 // in seconds since 1970
	Running         uint64 // tasks, now
	Blocked         uint64 // tasks that wait for I/O, now
}

// CPUModes are the columns of a CPU in /proc/stat.
const CPUModes = 10

// CPU is how long one CPU was in each mode since boot, in seconds and in the
// order of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal,
// guest, guest_nice.
type CPU struct {
	ID      string
	Seconds [CPUModes]float64
}

// Throttle is how often a core, or its package when Core is empty, was slowed
// down because of heat.
type Throttle struct {
	Package string
	Core    string
	Count   uint64
}

// Pressure is one file of /proc/pressure: for how long tasks waited since boot,
// in seconds. The kernel does not tell both of each resource.
type Pressure struct {
	Resource string   // cpu, io, memory, irq
	Some     *float64 // at least one task waited
	Full     *float64 // all of them did
}

// Files is /proc/sys/fs/file-nr: open files of all processes.
type Files struct {
	Allocated, Maximum float64
}

// Entropy is /proc/sys/kernel/random, in bits.
type Entropy struct {
	Available, PoolSize uint64
}

// Disk is one line of /proc/diskstats, and what udev knows of the device.
type Disk struct {
	Name         string
	Major, Minor uint64
	// Stats are the columns after the name, in the units of the kernel (sectors
	// of 512 bytes, milliseconds), as many as it has.
	Stats      []uint64
	Rotational bool

	// The rest is of udev, and empty where udev does not run.
	Path, WWN, Model, Serial, Revision string

	Filesystem *DiskFilesystem
	Mapper     *DiskMapper
	ATA        []Figure // write_cache, write_cache_enabled, rotation_rate_rpm
}

// DiskFilesystem is the file system that udev found on a disk.
type DiskFilesystem struct {
	Type, Usage, UUID, Version string
}

// DiskMapper is what the device mapper calls a disk.
type DiskMapper struct {
	Name, UUID, Group, Volume, Layer string
}

// Filesystem is one mount point of the node.
type Filesystem struct {
	Device, MountPoint, Type string
	Major, Minor             string
	ReadOnly                 bool
	// Error is why the kernel does not tell the rest.
	Error                 string
	Size, Free, Available float64 // bytes; Available is what is left to ordinary users
	FileNodes, FreeNodes  float64
}

// NetDevColumns are the columns of /proc/net/dev after the name.
const NetDevColumns = 16

// NetDev is one line of /proc/net/dev: what a network interface received and
// sent, in the order of its columns.
type NetDev struct {
	Name  string
	Stats [NetDevColumns]uint64
	// NoHandler are packets that nobody took, from sysfs.
	NoHandler *uint64
}

// NetClass is /sys/class/net/NAME. What the driver does not tell is nil or
// empty.
type NetClass struct {
	Name                                            string
	Address, Broadcast, Duplex, OperState, Alias    string
	AddressAssignType, Carrier                      *int64
	CarrierChanges, CarrierUp, CarrierDown          *int64
	DeviceID, Dormant, Flags, Index, Link, LinkMode *int64
	MTU, NameAssignType, Group                      *int64
	SpeedMbits                                      *int64 // -1 for not known
	QueueLength, ProtocolType                       *int64
}

// Chip is one directory of /sys/class/hwmon.
type Chip struct {
	ID      string // made of its device: platform_coretemp_0
	Name    string // of the driver: coretemp; may be empty
	Sensors []Sensor
}

// Sensor is one sensor of a chip.
type Sensor struct {
	Name  string // temp1
	Type  string // temp
	Label *string
	// Figures are its properties (input, max, crit_alarm; empty for a file
	// without one), in the units of the kernel: thousandths of degrees.
	Figures []Figure
}
