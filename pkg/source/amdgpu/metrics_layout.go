// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"slices"
)

// id is one field of a gpu_metrics table, independent of the revision.
type id uint8

const (
	ignored id = iota
	temperatureEdge
	temperatureHotspot
	temperatureMemory
	temperatureVRGFX
	temperatureVRSoC
	temperatureVRMemory
	temperatureHBM
	activityGFX // percent, as the others
	activityMemory
	activityVideo
	activityJPEG   // of each JPEG engine
	partitionGFX   // of each XCC of each partition
	partitionJPEG  // of each JPEG engine of each partition
	partitionVideo // of each VCN of each partition
	power
	energy      // 2^-16 J
	driverClock // ns
	clockGFX    // MHz, as the others
	clockSoC
	clockMemory
	clockFabric
	clockVideo
	throttleStatus // bits with the same meaning on every chip
	cycles         // firmware cycles, the base of the following counters
	cyclesProchot
	cyclesPower
	cyclesThermal
	cyclesVR
	cyclesMemory
	cyclesBelowLimit // of each XCC: its clock is below the limit that the host set, for any reason
	cyclesBelowLimitPower
	cyclesBelowLimitThermal
	busyGFX // accumulated; only data center chips have it
	pcieWidth
	pcieSpeed      // 0.1 GT/s
	pcieRecoveries // of the link, from L0
	pcieReplays
	pcieRollovers // of the number of replays: the link was trained again
	pcieNAKsSent
	pcieNAKsReceived
	xgmiRead // KiB
	xgmiWritten
	xgmiStatus // 1 or 0
	ids        // number of IDs
)

// member is a member of a C struct, or an array.
type member struct {
	id            id
	width, number int
}

func u8(i id) member           { return member{i, 1, 1} }
func u16(i id) member          { return member{i, 2, 1} }
func u32(i id) member          { return member{i, 4, 1} }
func u64(i id) member          { return member{i, 8, 1} }
func u16s(i id, n int) member  { return member{i, 2, n} }
func u32s(i id, n int) member  { return member{i, 4, n} }
func u64s(i id, n int) member  { return member{i, 8, n} }
func skip(width, n int) member { return member{ignored, width, n} }

// layout is the struct of one revision, after the header, with the alignment of a 64-bit
// machine: struct gpu_metrics_vFORMAT_CONTENT of the kernel's kgd_pp_interface.h. The header
// has its size.
type layout struct {
	members []member
	size    int
	// partitions is the number of structs of stride bytes at the end, each with the members of
	// partition; 0 for none. A 32-bit number follows them.
	partitions, stride int
	partition          []member
}

var (
	temperatures1 = []member{
		u16(temperatureEdge), u16(temperatureHotspot), u16(temperatureMemory),
		u16(temperatureVRGFX), u16(temperatureVRSoC), u16(temperatureVRMemory),
	}
	activity1 = []member{u16(activityGFX), u16(activityMemory), u16(activityVideo), u16(power)}
	// Averages of graphics, SoC, memory, two of video and decoder; then the current values.
	clocks1 = []member{
		skip(2, 7), u16(clockGFX), u16(clockSoC), u16(clockMemory), u16(clockVideo), skip(2, 3),
	}
	v10 = slices.Concat([]member{skip(8, 1)}, temperatures1, activity1, []member{skip(4, 1)}, clocks1, []member{
		skip(4, 1), skip(2, 1), u8(pcieWidth), u8(pcieSpeed),
	})
	v11 = slices.Concat(temperatures1, activity1, []member{u64(energy), u64(driverClock)}, clocks1, []member{
		skip(4, 1), skip(2, 1), u16(pcieWidth), u16(pcieSpeed), skip(2, 1),
		u32(busyGFX), skip(4, 1), u16s(temperatureHBM, 4),
	})
	v12 = slices.Concat(v11, []member{skip(8, 1)})
	v13 = slices.Concat(v12, []member{skip(2, 4), u64(throttleStatus)})

	instinct = []member{
		u16(temperatureHotspot), u16(temperatureMemory), u16(temperatureVRSoC), u16(power),
		u16(activityGFX), u16(activityMemory),
	}
	pcieXGMI = []member{
		u16(pcieWidth), u16(pcieSpeed), skip(2, 2), u32(busyGFX), skip(4, 1), skip(8, 2), u64(pcieRecoveries), u64(pcieReplays),
		u64(pcieRollovers),
	}
	naks       = []member{u32(pcieNAKsSent), u32(pcieNAKsReceived)}
	xgmi       = []member{u64s(xgmiRead, 8), u64s(xgmiWritten, 8)}
	xgmiStates = []member{u16s(xgmiStatus, 8), skip(2, 1)}
	clocks4    = []member{
		skip(8, 1), u16s(clockGFX, 8), u16s(clockSoC, 4), u16s(clockVideo, 4), skip(2, 4), u16(clockMemory), skip(2, 1),
	}
	residency = []member{
		u32(cycles), u32(cyclesProchot), u32(cyclesPower), u32(cyclesThermal), u32(cyclesVR), u32(cyclesMemory),
	}
	counters = []member{u64(energy), u64(driverClock)}
	status   = []member{skip(4, 2)} // of throttling, by bits of the chip, and of clocks
	locks    = []member{skip(4, 1)}
	video4   = []member{u16s(activityVideo, 4)}
	video5   = []member{u16s(activityVideo, 4), u16s(activityJPEG, 32)}

	v16 = slices.Concat(instinct, counters, residency, locks, pcieXGMI, naks, xgmi, clocks4)
	v17 = slices.Concat(
		instinct, []member{skip(8, 1)}, counters, residency, locks, pcieXGMI, naks, xgmi, xgmiStates, clocks4)

	// The units of temperatures, power and activity in tables of APUs before 2.4 differ
	// between chips: these values are read from other files.
	v21 = []member{
		skip(2, 14), skip(8, 1), skip(2, 12), skip(2, 6), u16(clockGFX), u16(clockSoC), u16(clockMemory), u16(clockFabric),
		u16(clockVideo), skip(2, 11), skip(4, 1), skip(2, 4),
	}
	v22 = slices.Concat(v21, []member{u64(throttleStatus)})
)

// layouts are the structs of each revision. 1.6 has two: the kernel changed it later. The PCIe
// bandwidth is in none of them: the kernel documents GB/s, AMD's tools Mb/s, and both values
// are the sum of both directions.
var layouts = map[[2]uint8][]layout{
	{1, 0}: {{size: 80, members: v10}},
	{1, 1}: {{size: 96, members: v11}},
	{1, 2}: {{size: 104, members: v12}},
	{1, 3}: {{size: 120, members: v13}},
	{1, 4}: {{size: 288, members: slices.Concat(instinct, video4, counters, status, pcieXGMI, xgmi, clocks4)}},
	{1, 5}: {{size: 360, members: slices.Concat(instinct, video5, counters, status, pcieXGMI, naks, xgmi, clocks4)}},
	{1, 6}: {
		{size: 1664, members: v16, partitions: 8, stride: 168, partition: partitionOf(32)},
		{size: 384, members: slices.Concat(instinct, video5, counters, residency, status, pcieXGMI, naks, xgmi, clocks4)},
	},
	{1, 7}: {{size: 2208, members: v17, partitions: 8, stride: 232, partition: partitionOf(32, cyclesBelowLimit)}},
	// AMD's own driver has one more array here than the kernel.
	{1, 8}: {
		{size: 3360, members: v17, partitions: 8, stride: 376, partition: partitionOf(40, cyclesBelowLimitPower, cyclesBelowLimitThermal)},
		{
			size: 3872, members: v17, partitions: 8, stride: 440,
			partition: partitionOf(40, cyclesBelowLimitPower, cyclesBelowLimitThermal, ignored, cyclesBelowLimit),
		},
	},
	{2, 0}: {{size: 120, members: slices.Concat([]member{
		skip(8, 1), skip(2, 14), skip(2, 12), skip(2, 6), u16(clockGFX), u16(clockSoC), u16(clockMemory), u16(clockFabric),
		u16(clockVideo), skip(2, 11), skip(4, 1), skip(2, 2),
	})}},
	{2, 1}: {{size: 120, members: v21}},
	{2, 2}: {{size: 128, members: v22}},
	{2, 3}: {{size: 152, members: slices.Concat(v22, []member{skip(2, 12)})}},
	{2, 4}: {{size: 168, members: slices.Concat(v22, []member{skip(2, 18)})}},
	// Its clocks are averages; the unit of its residencies is undocumented. Its activities are
	// hundredths of a percent with some firmware, and of video with all: the kernel
	// divides them in gpu_busy_percent, not here.
	{3, 0}: {{size: 264, members: []member{
		skip(2, 49), skip(8, 1), skip(4, 1), skip(2, 1), skip(4, 4),
		skip(2, 19), u16(clockGFX), u16(clockSoC), skip(2, 2), u16(clockFabric), u16(clockVideo), u16(clockMemory),
		skip(2, 19), skip(4, 8),
	}}},
}

// partitionOf returns the members of amdgpu_xcp_metrics: the activity of a partition's XCCs, JPEG engines and VCNs, and
// after the accumulated activity of its XCCs their other counters.
func partitionOf(jpegs int, counters ...id) []member {
	list := []member{u32s(partitionGFX, 8), u16s(partitionJPEG, jpegs), u16s(partitionVideo, 4), skip(8, 8)}
	for _, c := range counters {
		list = append(list, u64s(c, 8))
	}
	return list
}

// attributes maps the attributes of revision 1.9 to fields, by their number in enum
// amdgpu_metrics_attr_id.
var attributes = map[uint64]id{
	0: temperatureHotspot, 1: temperatureMemory, 2: temperatureVRSoC, 3: power, 4: activityGFX, 5: activityMemory,
	7: energy, 8: driverClock, 9: cycles, 10: cyclesProchot, 11: cyclesPower, 12: cyclesThermal, 13: cyclesVR,
	14: cyclesMemory, 16: pcieWidth, 17: pcieSpeed, 20: busyGFX, 24: pcieRecoveries, 25: pcieReplays, 26: pcieRollovers,
	27: pcieNAKsSent, 28: pcieNAKsReceived, 29: xgmiRead,
	30: xgmiWritten, 31: xgmiStatus, 33: clockGFX, 34: clockSoC, 35: clockVideo, 37: clockMemory, 41: activityJPEG, 42: activityVideo,
	44: cyclesBelowLimitPower, 45: cyclesBelowLimitThermal, 47: cyclesBelowLimit, 48: temperatureHBM,
}
