// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Node is the kernel's report on the node, with the names and in the order of the kernel. A nil part was not collected.
type Node struct {
	Time         time.Time
	Clocksources []Clocksource
	Uname        *Uname
	OS           *OSRelease
	Load         *Load
	Stat         *Stat
	CPUs         []CPU
	Throttles    []Throttle // thermal, of cores and packages
	Memory       []Figure   // /proc/meminfo: in bytes if the name ends in _bytes
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
	Energy      []EnergyZone // /sys/class/powercap
	EnergyRead  time.Time    // when Energy was read: it may be older than the other parts
}

// EnergyZone is a RAPL zone: a CPU package, its cores, its memory.
type EnergyZone struct {
	Name        string // without the number: package, dram
	Index       int    // the number; of zones with one name, counted from 0
	Path        string // in sysfs
	Microjoules uint64 // cumulative; starts again after Limit
	Limit       uint64
	Domain      EnergyDomain
}

// EnergyDomain is what the energy of a zone is spent on. It is empty for a zone within another zone, around other zones,
// or with the energy of another zone.
type EnergyDomain string

// The domains of zones. No two domains have energy in common.
const (
	EnergyOfPackage EnergyDomain = "package" // CPU packages, or their dies
	EnergyOfDRAM    EnergyDomain = "dram"    // their memory
)

// Figure is one value with a name.
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

// Uname is the result of uname(2).
type Uname struct {
	Sysname, Release, Version, Machine, Nodename, Domainname string
}

// OSRelease is the file os-release of the distribution.
type OSRelease struct {
	BuildID, ID, IDLike, ImageID, ImageVersion, Name, PrettyName string
	Variant, VariantID, Version, VersionCodename, VersionID      string
	SupportEnd                                                   string // 2028-06-30
}

// Load is /proc/loadavg: the average number of running and runnable tasks.
type Load struct {
	One, Five, Fifteen float64
}

// Stat is /proc/stat without the CPUs.
type Stat struct {
	Interrupts      Optional // since boot, like the next two
	ContextSwitches Optional
	Forks           Optional
	BootTime        Optional // in seconds since 1970
	Running         Optional // tasks, now
	Blocked         Optional // tasks that wait for I/O, now
}

// CPUModes are the columns of a CPU in /proc/stat.
const CPUModes = 10

// CPU is a CPU's seconds in each mode since boot, in the order of /proc/stat: user, nice, system, idle, iowait, irq,
// softirq, steal, guest, guest_nice.
type CPU struct {
	ID      string // empty: the sum of all CPUs
	Seconds [CPUModes]float64
}

// Throttle counts how often heat throttled a core, or a package if Core is empty.
type Throttle struct {
	Package string
	Core    string
	Count   uint64
}

// Pressure is a file of /proc/pressure: seconds that tasks waited since boot. Some resources lack one of the values.
type Pressure struct {
	Resource string   // cpu, io, memory, irq
	Some     *float64 // at least one task waited
	Full     *float64 // all tasks waited
}

// Files is /proc/sys/fs/file-nr: open files of all processes.
type Files struct {
	Allocated, Maximum float64
}

// Entropy is /proc/sys/kernel/random, in bits.
type Entropy struct {
	Available, PoolSize uint64
}

// Disk is a line of /proc/diskstats, with udev's properties of the device.
type Disk struct {
	Name         string
	Major, Minor uint64
	// Stats are the columns after the name, in the kernel's units (sectors of 512 bytes, milliseconds). Their number
	// depends on the kernel.
	Stats      []uint64
	Rotational bool

	// udev reports the other fields; without udev they are empty.
	Path, WWN, Model, Serial, Revision string

	Filesystem *DiskFilesystem
	Mapper     *DiskMapper
	ATA        []Figure // write_cache, write_cache_enabled, rotation_rate_rpm
}

// DiskFilesystem is the file system that udev found on a disk.
type DiskFilesystem struct {
	Type, Usage, UUID, Version string
}

// DiskMapper is the device mapper's name of a disk.
type DiskMapper struct {
	Name, UUID, Group, Volume, Layer string
}

// Filesystem is one mount point of the node.
type Filesystem struct {
	Device, MountPoint, Type string
	Major, Minor             string
	ReadOnly                 bool
	// Error is the reason for missing values.
	Error                 string
	Size, Free, Available float64 // bytes; Available is free for users other than root
	FileNodes, FreeNodes  float64
}

// NetDevColumns are the columns of /proc/net/dev after the name.
const NetDevColumns = 16

// NetDev is a line of /proc/net/dev: received and sent counters of an interface, in the order of the columns.
type NetDev struct {
	Name      string
	Stats     [NetDevColumns]uint64
	NoHandler *uint64
}

// NetClass is /sys/class/net/NAME. Values that the driver does not report are nil or empty.
type NetClass struct {
	Name                                            string
	Address, Broadcast, Duplex, OperState, Alias    string
	AddressAssignType, Carrier                      *int64
	CarrierChanges, CarrierUp, CarrierDown          *int64
	DeviceID, Dormant, Flags, Index, Link, LinkMode *int64
	MTU, NameAssignType, Group                      *int64
	SpeedMbits                                      *int64 // -1 if unknown
	QueueLength, ProtocolType                       *int64
}

// Chip is a directory of /sys/class/hwmon.
type Chip struct {
	ID      string // derived from the device: platform_coretemp_0
	Name    string // of the driver: coretemp; may be empty
	Sensors []Sensor
}

// Sensor is one sensor of a chip.
type Sensor struct {
	Name  string // temp1
	Type  string // temp
	Label *string
	// Figures are properties (input, max, crit_alarm; the empty name is the file without a property) in the kernel's
	// units: thousandths of degrees.
	Figures []Figure
}
