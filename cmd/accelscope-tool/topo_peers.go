// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/format"
)

// printDataDirect prints the Data Direct functions with their HCAs, or why they are not known.
func printDataDirect(out io.Writer, t *api.Topology) error {
	if len(t.DataDirect) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nDATA DIRECT\tHCA")
	for i := range t.DataDirect {
		d := &t.DataDirect[i]
		hca := "unknown: " + d.Unknown
		if d.Unknown == "" {
			hca = strings.Join(hcaNames(t.Devices, d.HCAs), ", ")
		}
		fmt.Fprintf(table, "%s\t%s\n", format.Line(d.PCIAddress), format.Line(hca))
	}
	return table.Flush()
}

// hcaNames returns the names of the RDMA devices at PCI addresses. An address without an RDMA device stands for itself.
func hcaNames(devices []api.TopologyDevice, addresses []string) []string {
	names := make([]string, len(addresses))
	for i, address := range addresses {
		names[i] = address
		if n := slices.IndexFunc(devices, func(d api.TopologyDevice) bool { return d.PCIAddress == address }); n >= 0 {
			names[i] = devices[n].Name
		}
	}
	return names
}

// printPeerPaths prints what the switches between GPUs and HCAs do with their transfers, and how
// their settings compare with what rdma_topo requires of those with Data Direct.
func printPeerPaths(out io.Writer, t *api.Topology, names []string) error {
	paths := slices.DeleteFunc(slices.Clone(t.PeerPaths), func(p api.TopologyPeerPath) bool {
		return p.GPU < 0 || p.HCA < 0 || p.GPU >= len(names) || p.HCA >= len(names)
	})
	if len(paths) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nGPU\tHCA\tTHROUGH\tREQUESTS\tCOMPLETIONS\tIOMMU GROUPS\tACS OF HCA'S PORT\tACS OF GPU'S PORT")
	for i := range paths {
		p := &paths[i]
		groups := orUnknown(p.IOMMUGroups.HCA) + ", " + orUnknown(p.IOMMUGroups.GPU)
		fmt.Fprintln(table, strings.Join([]string{
			names[p.GPU], names[p.HCA], orNone(format.Line(p.DataDirect)), orUnknown(string(p.Requests)), orUnknown(string(p.Completions)),
			groups, port(&p.HCAPort), port(&p.GPUPort),
		}, "\t"))
	}
	first := true
	for i := range paths {
		p := &paths[i]
		if p.DataDirect == "" {
			continue
		}
		if first {
			fmt.Fprintln(table, "\nGPU\tHCA\tCOMPARED WITH RDMA_TOPO")
			first = false
		}
		for _, text := range compared(p) {
			fmt.Fprintf(table, "%s\t%s\t%s\n", names[p.GPU], names[p.HCA], format.Line(text))
		}
	}
	return table.Flush()
}

// compared returns what differs on a path from what rdma_topo requires, and what was not compared.
func compared(p *api.TopologyPeerPath) []string {
	var lines []string
	for _, text := range p.Differs {
		lines = append(lines, "differs: "+text)
	}
	for _, text := range p.NotCompared {
		lines = append(lines, "not compared: "+text)
	}
	if lines == nil {
		return []string{"as required"}
	}
	return lines
}

func port(p *api.TopologyPort) string {
	if p.PCIAddress == "" {
		return "-"
	}
	return format.Line(p.PCIAddress) + " " + orUnknown(p.ACS)
}

func orUnknown(text string) string { return cmp.Or(format.Line(text), "unknown") }
