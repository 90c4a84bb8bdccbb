// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// machine returns a fact of each kind about a node. cmd/accelscope compares the names with node_exporter.
func machine() *model.Node {
	return &model.Node{
		Time:         time.Unix(1763700000, 500000000).UTC(),
		Clocksources: []model.Clocksource{{Device: "0", Current: "tsc", Available: []string{"tsc", "hpet"}}},
		Uname:        &model.Uname{Sysname: "Linux", Release: "6.1", Version: "#1", Machine: "x86_64", Nodename: "n", Domainname: "(none)"},
		OS:           &model.OSRelease{ID: "debian", VersionID: "12", Name: "Debian", SupportEnd: "2028-06-30"},
		Load:         &model.Load{One: 1.5, Five: 2, Fifteen: 3},
		Stat: &model.Stat{
			Interrupts: model.Some(1), ContextSwitches: model.Some(2), Forks: model.Some(3), BootTime: model.Some(4),
			Running: model.Some(5), Blocked: model.Some(6),
		},
		CPUs: []model.CPU{
			{Seconds: [model.CPUModes]float64{11, 12, 13, 14, 15, 16, 17, 18, 19, 20}},
			{ID: "0", Seconds: [model.CPUModes]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		},
		Throttles: []model.Throttle{{Package: "0", Count: 1}, {Package: "0", Core: "1", Count: 2}},
		Memory:    []model.Figure{{Name: "MemTotal_bytes", Value: 1024}, {Name: "HugePages_Total", Value: 2}, {Name: "a b", Value: 1}},
		Pressure: []model.Pressure{
			{Resource: "cpu", Some: new(1.5), Full: new(0.5)}, {Resource: "memory", Some: new(2.5)}, {Resource: "irq", Full: new(3.5)},
		},
		Files:   &model.Files{Allocated: 1, Maximum: 2},
		Entropy: &model.Entropy{Available: 256, PoolSize: 256},
		VM:      []model.Figure{{Name: "oom_kill", Value: 1}},
		Netstat: []model.Figure{{Name: "Tcp_InSegs", Value: 1}},
		Sockets: []model.Figure{{Name: "TCP_inuse", Value: 1}, {Name: "TCP_mem_bytes", Value: 4096}},
		Disks: []model.Disk{
			{
				Name: "sda", Major: 8, Stats: []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}, Rotational: true,
				Path: "pci-0000", WWN: "0x5", Model: "ST", Serial: "Z", Revision: "1",
				Filesystem: &model.DiskFilesystem{Type: "ext4", Usage: "filesystem", UUID: "u", Version: "1.0"},
				ATA:        []model.Figure{{Name: "write_cache", Value: 1}, {Name: "rotation_rate_rpm", Value: 7200}},
			},
			{Name: "dm-0", Major: 253, Stats: []uint64{1}, Mapper: &model.DiskMapper{Name: "vg-lv", UUID: "LVM", Group: "vg", Volume: "lv"}},
		},
		Filesystems: []model.Filesystem{
			{Device: "/dev/sda", MountPoint: "/", Type: "ext4", Major: "8", Minor: "0", Size: 5, Free: 4, Available: 3, FileNodes: 2, FreeNodes: 1},
			{Device: "/dev/sda", MountPoint: "/ro", Type: "ext4", Major: "8", Minor: "0", ReadOnly: true, Size: 5},
			{Device: "nfs:/", MountPoint: "/nfs", Type: "nfs4", Major: "0", Minor: "63", Error: "mountpoint timeout"},
		},
		NetDevs: []model.NetDev{
			{Name: "eth0", Stats: [model.NetDevColumns]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, NoHandler: new(uint64(17))},
		},
		NetClasses: []model.NetClass{
			{
				Name: "eth0", Address: "02:00", Broadcast: "ff:ff", Duplex: "full", OperState: "up", Alias: `a"b`, Flags: new(int64(0x1003)),
				Carrier: new(int64(1)), CarrierChanges: new(int64(3)), SpeedMbits: new(int64(-1)), MTU: new(int64(1500)),
			},
			{Name: "lo", OperState: "unknown"},
		},
		Chips: []model.Chip{
			{ID: "platform_coretemp_0", Name: "coretemp", Sensors: []model.Sensor{
				{Name: "temp1", Type: "temp", Label: new("Core 0"), Figures: []model.Figure{
					{Name: "input", Value: 45250}, {Name: "crit", Value: 100000}, {Name: "crit_alarm", Value: 0}, {Name: "type", Value: 4},
				}},
				{Name: "energy1", Type: "energy", Figures: []model.Figure{{Name: "input", Value: 5e6}, {Name: "alarm", Value: 1}}},
				{Name: "freq1", Type: "freq", Label: new("SCLK 1"), Figures: []model.Figure{{Name: "input", Value: 13e7}}},
				{Name: "freq2", Type: "freq", Figures: []model.Figure{{Name: "input", Value: 13e7}}},
				{Name: "fan1", Type: "fan", Figures: []model.Figure{{Name: "input", Value: 1200}, {Name: "div", Value: 2}}},
			}},
			{ID: "hwmon1", Sensors: []model.Sensor{
				{Name: "temp1", Type: "temp", Figures: []model.Figure{{Name: "input", Value: 1000}, {Name: "", Value: 2000}}},
				{Name: "power1", Type: "power", Figures: []model.Figure{
					{Name: "average", Value: 41e6}, {Name: "accuracy", Value: 99e4}, {Name: "average_interval", Value: 1000},
				}},
				{Name: "freq1", Type: "freq", Label: new("clk-a"), Figures: []model.Figure{{Name: "input", Value: 1e6}}},
				{Name: "freq2", Type: "freq", Label: new("clk\na"), Figures: []model.Figure{{Name: "input", Value: 2e6}}},
				{Name: "in0", Type: "in", Figures: []model.Figure{{Name: "input", Value: 793}, {Name: "beep", Value: 1}}},
			}},
		},
	}
}

// TestMachine keeps the whole exposition of a node.
func TestMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sources := []engine.Registration{{Source: &fake{name: "node", facts: model.Snapshot{Node: machine()}}}}
		var families []*dto.MetricFamily
		for _, f := range gather(t, sources) {
			if strings.HasPrefix(f.GetName(), "node_") {
				families = append(families, f)
			}
		}
		compare(t, "testdata/machine.txt", library.Encode(t, families, expfmt.TypeTextPlain))

		c := newCollector(setup{Sources: sources, Reuse: time.Nanosecond})
		defer c.Close() //nolint:errcheck // nothing to lose
		compareText(t, c.now(t))
		plain, open := seriesNames(t, c, expfmt.TypeTextPlain), seriesNames(t, c, expfmt.TypeOpenMetrics)
		if plain != open {
			t.Errorf("the formats differ:\n%s\n%s", plain, open)
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c)
		if _, err := registry.Gather(); err != nil {
			t.Error(err)
		}
		// A second refresh reuses all labels.
		before := c.build.Kept().Sets
		time.Sleep(time.Second)
		c.now(t)
		if after := c.build.Kept(); after.Sets != before || after.Used != before {
			t.Errorf("%d label sets, then %d, of which %d are used", before, after.Sets, after.Used)
		}
	})
}

// TestMachineLint checks that promtool complains only about node_exporter's names.
func TestMachineLint(t *testing.T) {
	golden, err := os.Open("testdata/machine.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer golden.Close() //nolint:errcheck // read only
	cmd := child.Command(t.Context(), "promtool", "check", "metrics")
	cmd.Stdin = golden
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("promtool is missing: install the package prometheus: %v", err)
	}
	known := regexp.MustCompile(`^node_(entropy_(available|pool_size)_bits use base unit|(memory|netstat|sockstat)_\w+ metric names)`)
	for line := range strings.Lines(string(out)) {
		if !known.MatchString(line) {
			t.Error(line)
		}
	}
}

func seriesNames(t *testing.T, c collector, typ expfmt.FormatType) string {
	t.Helper()
	text, err := c.Encode(expfmt.NewFormat(typ), false)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "node_") {
			out.WriteString(line[:strings.LastIndexByte(line, ' ')] + "\n")
		}
	}
	return out.String()
}

// TestNoMachine checks that a node that was not read has no series.
func TestNoMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []*model.Node{nil, {}} {
			for _, f := range gather(t, []engine.Registration{{Source: &fake{name: "node", facts: model.Snapshot{Node: n}}}}) {
				if strings.HasPrefix(f.GetName(), "node_") {
					t.Errorf("%s with %+v", f.GetName(), n)
				}
			}
		}
	})
}
