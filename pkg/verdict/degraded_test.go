// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

// TestDegradedLinks: an HCA with a link that the topology marks as degraded has this verdict only.
func TestDegradedLinks(t *testing.T) {
	for _, link := range []model.PCILink{
		{Speed: 32e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16},
		{Speed: 32e9, MaxSpeed: 32e9, Width: 8, MaxWidth: 16},
		{Speed: 16e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16},
		{Speed: 16e9, Width: 16},
		{MaxSpeed: 32e9, MaxWidth: 16},
	} {
		facts := model.Snapshot{
			HCAs: []model.HCA{{Name: "mlx5_0", PCIAddress: "0000:18:00.0"}},
			PCI:  []model.PCIFunction{{Address: "0000:18:00.0", PCIEnd: model.PCIEnd{Link: link}}},
		}
		in := Input{At: start, Facts: &facts, Shares: &attribution.Attribution{}, States: []model.SourceState{{Source: "pci", State: model.StateOK}}}
		found := slices.ContainsFunc(new(Judge).Update(in).Verdicts, func(v Verdict) bool { return v.Name == pcieDegraded.Name })
		topology := placement.New(&facts)
		if marked := topology.Devices[0].Degraded(); marked != found {
			t.Errorf("%+v: marked %v, verdict %v", link, marked, found)
		}
	}
}
