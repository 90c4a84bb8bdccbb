// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// testPCIe compares the PCIe links and errors of HCAs with the files of a fake sysfs. A VF has none.
func testPCIe(t *testing.T, binary string) {
	m, err := fixtures.Write(t.TempDir(), fixtures.Options{ComputeHCAs: 6, VFs: 2, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	_, args := fakeNode(t)
	args = append(args, "--path.sysfs="+m.SysFS(), "--path.procfs="+m.ProcFS(), "--path.cgroup="+m.CgroupFS())
	want, errs := map[string]map[string]float64{}, uint64(0)
	for _, h := range m.HCAs {
		if h.PhysicalFn == "" {
			want[h.Name] = map[string]float64{
				"link_transfers_per_second": 32e9, "link_max_transfers_per_second": 32e9, "link_width_lanes": 16, "link_max_width_lanes": 16,
				"aer_errors_total correctable": float64(h.AERErrors), "aer_errors_total nonfatal": 0, "aer_errors_total fatal": 0,
			}
			errs += h.AERErrors
		}
	}
	if errs == 0 {
		t.Fatal("no HCA of the fixture has errors")
	}
	url, stop := start(t, binary, args...)
	defer ends(t, stop)
	ready(t, url)
	var got map[string]map[string]float64
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && !cmp.Equal(want, got); time.Sleep(time.Second) {
		got = map[string]map[string]float64{} // the links are read in the background
		e := scrape(t, url)
		for _, name := range []string{
			"link_transfers_per_second", "link_max_transfers_per_second", "link_width_lanes", "link_max_width_lanes", "slot_power_watts",
			"aer_errors_total",
		} {
			for _, s := range e.families["rdma_device_pcie_"+name].GetMetric() {
				device, key := label(s, "device"), name
				if severity := label(s, "severity"); severity != "" {
					key += " " + severity
				}
				if got[device] == nil {
					got[device] = map[string]float64{}
				}
				got[device][key] = s.GetGauge().GetValue() + s.GetCounter().GetValue()
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
