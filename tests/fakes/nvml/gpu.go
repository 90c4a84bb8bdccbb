// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"math"
	"strings"
)

const (
	mib = 1 << 20
	// The memory of an H100 and the part that the driver reserves.
	h100Total, h100Reserved = 81559 * mib, 551 * mib
	// overhead is the used memory of a device without processes.
	overhead = 64 * mib
	links    = 18 // NVLinks of an H100
)

// UUID returns the UUID of GPU n.
func UUID(n int) string { return fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", 0xac0000+n, n) }

// Address returns the PCI address of GPU n in the format of sysfs.
func Address(n int) string { return fmt.Sprintf("0000:%02x:00.0", 0x20+0x10*(n%GPUs)+0x08*(n/GPUs)) }

// AddH100 adds GPU n: one of eight on a board, without processes.
func (s *Scenario) AddH100(n int) {
	d := fmt.Sprint(n)
	set := func(key string, values ...any) { s.Set(d, "nvmlDeviceGet"+key, values...) }
	set("UUID", UUID(n))
	set("Name", "NVIDIA H100 80GB HBM3")
	set("Serial", fmt.Sprintf("16530230%05d", n))
	set("VbiosVersion", "96.00.74.00.01")
	set("InforomImageVersion", "G520.0200.00.05")
	set("BoardPartNumber", "692-2G520-0200-000")
	set("PciInfo", "0000"+strings.ToUpper(Address(n)), "0x233010DE", "0x16C110DE")
	set("Brand", 14)
	set("BusType", 2) // PCIe
	set("Architecture", 9)
	set("CudaComputeCapability", 9, 0)
	set("MinorNumber", n)
	set("ModuleId", n+1)
	set("PersistenceMode", 1)
	set("ComputeMode", 0)
	set("AccountingMode", 0)
	set("EccMode", 1, 1)
	set("MigMode", 0, 0)
	set("MaxMigDeviceCount", 7)
	set("VirtualizationMode", 0)
	set("PerformanceState", 0)
	set("PowerUsage", 350000+1000*n)
	set("PowerManagementLimit", 700000)
	set("PowerManagementDefaultLimit", 700000)
	set("PowerManagementLimitConstraints", 200000, 700000)
	set("EnforcedPowerLimit", 700000)
	set("TotalEnergyConsumption", 123456789000+n)
	set("Temperature.0", 40+n)
	set("MarginTemperature", 47-n)
	for limit, celsius := range []int{90, 87, 95, 85} { // shutdown, slowdown, memory, GPU
		set(fmt.Sprint("TemperatureThreshold.", limit), celsius)
	}
	for clock, mhz := range []int{1980, 1980, 2619, 1545} { // graphics, SM, memory, video
		set(fmt.Sprint("ClockInfo.", clock), mhz)
		set(fmt.Sprint("MaxClockInfo.", clock), mhz)
	}
	for _, reasons := range []string{"Event", "Throttle"} {
		set("CurrentClocks"+reasons+"Reasons", 0x4) // power cap
		set("SupportedClocks"+reasons+"Reasons", 0x1ff)
	}
	set("EncoderUtilization", 0, 167000)
	set("DecoderUtilization", 7, 167000)
	set("JpgUtilization", 0, 167000)
	set("OfaUtilization", 0, 167000)
	for key, v := range map[string]int{
		"CurrPcieLinkGeneration": 5, "MaxPcieLinkGeneration": 5, "GpuMaxPcieLinkGeneration": 5,
		"CurrPcieLinkWidth": 16, "MaxPcieLinkWidth": 16, "PcieReplayCounter": n,
		"PcieThroughput.0": 1000 + n, "PcieThroughput.1": 2000 + n, // KB/s: transmitted, received
	} {
		set(key, v)
	}
	for policy := range 6 {
		set(fmt.Sprint("ViolationStatus.", policy), 1, 1e9*policy) // ns
		s.Set(d, fmt.Sprint("field.", 74+policy), 1e9*policy)
	}
	set("SupportedEventTypes", 0x801f)
	set("GpuFabricInfoV", 3, 0, 0x1aa) // completed, successful, healthy
	s.addErrors(d)
	s.addLinks(d, n)
	for id, v := range map[int]string{
		82: "u 55", 83: fmt.Sprint(123456789000 + n), 191: fmt.Sprint(123456789000 + n), 91: fmt.Sprint("u ", links),
		94: fmt.Sprint("u ", n), 230: "u 0", 185: "u 340000", 186: fmt.Sprint("u ", 355000+1000*n),
		193: "i -8", 194: "i -2", 195: "i 0", 196: "i 0", // margins: shutdown, slowdown, memory, GPU
	} {
		s.Set(d, fmt.Sprint("field.", id), v)
	}
	s.addGPM(d)
	s.Balance()
}

// addGPM adds the metrics of GPM, in percent and MiB/s. An H100 has seven engines for video and for JPEG, and one for optical
// flow.
func (s *Scenario) addGPM(d string) {
	// Graphics, SM activity, SM occupancy, integer, any tensor, DFMA, HMMA, IMMA, DRAM bandwidth, FP64, FP32, FP16,
	// PCIe: sent, received; NVLink: received, sent.
	for id, v := range map[int]any{
		1: 60.5, 2: 55.25, 3: 30, 4: 3.5, 5: 20.5, 6: 1, 7: 18, 9: 1.25, 10: 40, 11: 1.5, 12: 10.5, 13: 2, 20: 100, 21: 200, 60: 300, 61: 400,
	} {
		s.Set(d, fmt.Sprint("gpm.", id), v)
	}
	for engine := range 7 {
		s.Set(d, fmt.Sprint("gpm.", 30+engine), engine)
		s.Set(d, fmt.Sprint("gpm.", 40+engine), 10+engine)
	}
	s.Set(d, "gpm.50", 5)
}

// addErrors adds errors: a corrected error in DRAM, an old uncorrected error, a remapped row for each.
func (s *Scenario) addErrors(d string) {
	for kind := range 2 { // corrected, uncorrected
		for scope := range 2 { // volatile, aggregate
			total := 0
			for _, block := range []int{0, 1, 2, 3, 4, 5, 6, 7} {
				n := 0
				if block == 2 && kind <= scope { // DRAM
					n = 1 + scope
				}
				total += n
				s.Set(d, fmt.Sprintf("nvmlDeviceGetMemoryErrorCounter.%d.%d.%d", kind, scope, block), n)
			}
			s.Set(d, fmt.Sprintf("nvmlDeviceGetTotalEccErrors.%d.%d", kind, scope), total)
			s.Set(d, fmt.Sprint("field.", 3+2*scope+kind), total)
		}
	}
	s.Set(d, "nvmlDeviceGetSramEccErrorStatus", strings.Repeat("0 ", 12))
	s.Set(d, "nvmlDeviceGetRemappedRows", 1, 2, 0, 0)
	s.Set(d, "nvmlDeviceGetRowRemapperHistogram", 638, 2, 0, 0, 0)
	for i, v := range []int{1, 2, 0, 0} {
		s.Set(d, fmt.Sprint("field.", 142+i), "u", v)
	}
}

// addLinks adds NVLinks, all but the last one up.
func (s *Scenario) addLinks(d string, n int) {
	for link := range links {
		set := func(key string, values ...any) { s.Set(d, fmt.Sprintf("nvmlDeviceGetNvLink%s", key), values...) }
		up := 1
		if link == links-1 {
			up = 0
		}
		set(fmt.Sprint("State.", link), up)
		set(fmt.Sprint("Version.", link), 4)
		set(fmt.Sprint("RemoteDeviceType.", link), 1) // a switch
		set(fmt.Sprint("RemotePciInfo.", link), fmt.Sprintf("00000000:%02X:00.0", 5+link%4), "0x22A310DE")
		for counter := range 4 {
			set(fmt.Sprintf("ErrorCounter.%d.%d", link, counter), counter)
		}
		for id, v := range map[int]int{138: 1000*n + link, 139: 2000*n + link, 140: 1100*n + link, 141: 2200*n + link} { // KiB
			s.Set(d, fmt.Sprintf("field.%d.%d", id, link), v)
		}
		for id, v := range map[int]int{161: 1, 162: 2, 163: 3} { // errors
			s.Set(d, fmt.Sprintf("field.%d.%d", id, link), v)
		}
		s.Set(d, fmt.Sprintf("field.165.%d", link), "u", up)
	}
	// The sums over the links: KiB, errors.
	for id, v := range map[int]int{138: 1000 * n, 139: 2000 * n, 140: 1100 * n, 141: 2200 * n} {
		s.Set(d, fmt.Sprintf("field.%d.%d", id, uint32(math.MaxUint32)), links*v+links*(links-1)/2)
	}
	for i, id := range []int{38, 45, 52, 59} { // flow control CRC, data CRC, replays, recoveries
		s.Set(d, fmt.Sprint("field.", id), i)
	}
}

// A Profile is the profile of a MIG device.
type Profile struct {
	Name                string
	Slices, SMs, Memory uint64 // Memory in MiB
	instance            int    // number of the first GPU instance of this profile
}

// The profiles of an H100.
var (
	Profile1g = Profile{"1g.10gb", 1, 16, 9856, 7}
	Profile3g = Profile{"3g.40gb", 3, 60, 40320, 1}
)

// SplitGPU enables MIG for GPU n and replaces its MIG devices. As on a real GPU, utilization is no longer reported.
func (s *Scenario) SplitGPU(n int, profiles ...Profile) {
	d := fmt.Sprint(n)
	for m := range 7 {
		s.Remove(fmt.Sprint(d, ":", m))
	}
	s.Set(d, "nvmlDeviceGetMigMode", 1, 1)
	for _, key := range []string{"UtilizationRates", "EncoderUtilization", "DecoderUtilization", "JpgUtilization", "OfaUtilization"} {
		s.Unset(d, "nvmlDeviceGet"+key)
	}
	next := map[string]int{}
	for m, p := range profiles {
		instance := p.instance + next[p.Name]
		next[p.Name]++
		mig := fmt.Sprint(d, ":", m)
		set := func(key string, values ...any) { s.Set(mig, "nvmlDeviceGet"+key, values...) }
		set("UUID", fmt.Sprintf("MIG-%08x-0000-5000-8000-%012x", 0xac0000+n, instance))
		set("Name", "NVIDIA H100 80GB HBM3 MIG "+p.Name)
		set("GpuInstanceId", instance)
		set("ComputeInstanceId", 0)
		set("Attributes", p.SMs, p.Slices, p.Slices, 0, p.Slices, 0, p.Slices, p.Slices, p.Memory)
		s.Set(mig, "gpm.2", 12.5)
		s.Set(mig, "gpm.10", 6.25)
	}
	s.Balance()
}

// Balance sets the memory and the utilization of all devices to the sums of their processes.
func (s *Scenario) Balance() {
	for _, d := range s.Devices() {
		used, sm, mem := uint64(overhead), uint64(0), uint64(0)
		for _, p := range s.Processes {
			if p.Device != d && !strings.HasPrefix(p.Device, d+":") {
				continue
			}
			if p.Memory != Unknown {
				used += p.Memory
			}
			sm, mem = min(sm+p.SM, 100), min(mem+p.Mem, 100)
		}
		total, reserved := uint64(h100Total), uint64(h100Reserved)
		var slices [9]uint64
		if _, err := fmt.Sscan(s.Get(d, "nvmlDeviceGetAttributes"), &slices[0], &slices[1], &slices[2], &slices[3], &slices[4],
			&slices[5], &slices[6], &slices[7], &slices[8]); err == nil {
			total, reserved = slices[8]*mib, 16*mib
		}
		free := total - reserved - used
		s.Set(d, "memory_v2", total, reserved, free, used)
		s.Set(d, "nvmlDeviceGetMemoryInfo", total, free, used+reserved)
		s.Set(d, "nvmlDeviceGetBAR1MemoryInfo", 131072*mib, 131000*mib, 72*mib)
		if !strings.HasPrefix(s.Get(d, "nvmlDeviceGetMigMode"), "1") && !strings.Contains(d, ":") {
			s.Set(d, "nvmlDeviceGetUtilizationRates", sm, mem)
		}
	}
}
