// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// DataDirect is an HCA's function for GPU memory (model.PCIFunction.IsDataDirect).
type DataDirect struct {
	Address    string
	Path       []string
	NUMANode   string
	IOMMUGroup string
	// HCAs are the addresses of its HCA's functions, empty if the HCA is unknown. Unknown is why.
	HCAs    []string
	Unknown string
}

// dataDirect returns the Data Direct functions. The UUID of the card pairs them with their HCAs, as in rdma-core's
// rdma_topo, but not if several Data Direct functions, or functions on several buses, have the UUID. The kernel pairs
// by data that it does not show: the VPD keyword VU and the HCA firmware's answer to QUERY_VUID.
func dataDirect(functions []model.PCIFunction) []DataDirect {
	var found []DataDirect
	for i := range functions {
		if f := &functions[i]; f.IsDataDirect() {
			d := DataDirect{Address: f.Address, Path: f.Path, NUMANode: f.NUMANode, IOMMUGroup: f.IOMMUGroup}
			d.HCAs, d.Unknown = pair(f, functions)
			found = append(found, d)
		}
	}
	return found
}

// pair returns the functions of a Data Direct function's HCA, or why they are unknown. The kernel does not use a
// function without its driver.
func pair(direct *model.PCIFunction, functions []model.PCIFunction) (hcas []string, unknown string) {
	switch direct.Driver {
	case model.DataDirectDriver:
	case "":
		return nil, "no driver is bound to it"
	default:
		return nil, "its driver is " + direct.Driver + ", not " + model.DataDirectDriver
	}
	uuid := direct.VPD.UUID
	if uuid == "" {
		return nil, cmp.Or(direct.VPD.Missing, "its VPD was not read")
	}
	var unread []string
	for i := range functions {
		switch f := &functions[i]; {
		case f.Address == direct.Address:
		case f.VPD.UUID == uuid && f.IsDataDirect():
			return nil, f.Address + " has the same UUID"
		case f.VPD.UUID == uuid:
			hcas = append(hcas, f.Address)
		case f.VPD.UUID == "" && !f.IsDataDirect():
			if why := cmp.Or(f.VPD.Missing, notRead(f)); why != "" {
				unread = append(unread, f.Address+": "+why)
			}
		}
	}
	if len(hcas) == 0 {
		return nil, strings.Join(append([]string{"no HCA whose UUID is known has its UUID"}, unread...), "; ")
	}
	for _, hca := range hcas {
		if busOf(hca) != busOf(hcas[0]) {
			return nil, "several HCAs have its UUID: " + strings.Join(hcas, ", ")
		}
	}
	for i := range functions { // in a partly known pair, a workload on the unknown part would count as far away
		if f := &functions[i]; f.VPD.Missing != "" && busOf(f.Address) == busOf(hcas[0]) {
			return nil, hcas[0] + " has its UUID; the UUID of " + f.Address + " on the same bus is not known: " + f.VPD.Missing
		}
	}
	return hcas, ""
}

// notRead is why the VPD of a function that may be an HCA (a network controller with mlx5's vendor number) is not read.
// It is empty for other functions.
func notRead(f *model.PCIFunction) string {
	switch {
	case !strings.HasPrefix(f.ID, "15b3:") || !strings.HasPrefix(f.Class, "0x02"):
		return ""
	case f.Driver == "":
		return "not read, it has no driver"
	}
	return "not read, its driver is " + f.Driver
}

// busOf returns the bus of a PCI address, which all functions of a device share: 0000:18.
func busOf(address string) string { return address[:max(strings.LastIndexByte(address, ':'), 0)] }

// dataDirectOf returns the Data Direct function of an HCA's function, nil if unknown.
func (t *Topology) dataDirectOf(address string) *DataDirect {
	i := slices.IndexFunc(t.DataDirect, func(d DataDirect) bool { return slices.Contains(d.HCAs, address) })
	if i < 0 {
		return nil
	}
	return &t.DataDirect[i]
}
