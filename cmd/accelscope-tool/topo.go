// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/client"
	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
	"github.com/accelscope/accelscope/pkg/source/pci"
	"github.com/accelscope/accelscope/pkg/source/rdma"
)

// topoRun prints the topology that the sensor reports or, without a sensor on this node, the topology in sysfs, without owners.
func topoRun(ctx context.Context, c *config.TopoCommand, stdout io.Writer) error {
	query := url.Values{}
	if c.Workload != "" {
		query.Set("workload", c.Workload)
	}
	var answer struct {
		Data    api.Topology `json:"data"`
		Message string       `json:"message"`
	}
	sensor, err := client.New(c.URL)
	if err != nil {
		return err
	}
	defer sensor.Close()
	body, err := sensor.Get(ctx, api.TopologyPath, query)
	noSensor := errors.Is(err, syscall.ECONNREFUSED) && sensor.OnNode() // the sysfs of this node is of no use for another one
	switch {
	case noSensor:
		if answer.Data, err = topologyOf(ctx, c.Sysfs); err != nil {
			return err
		}
		if body, err = json.Marshal(answer.Data); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(body, &answer); err != nil {
			return fmt.Errorf("%w: %w", client.ErrNoSensor, err)
		}
		if answer.Data.Devices == nil || len(answer.Data.Relations) != len(answer.Data.Devices) {
			return client.ErrNoSensor
		}
	}
	if c.JSON {
		_, err = fmt.Fprintln(stdout, strings.TrimSpace(string(body)))
		return err
	}
	if err := printTopology(stdout, &answer.Data, !noSensor); err != nil {
		return err
	}
	switch {
	case noSensor:
		_, err = fmt.Fprintln(stdout, "\nNo sensor runs here: the devices are those of sysfs, GPUs are numbered by PCI address, "+
			"and owners are not known.")
	case strings.HasPrefix(answer.Message, "partial: "):
		_, err = fmt.Fprintln(stdout, "\nIncomplete: "+format.Line(strings.TrimPrefix(answer.Message, "partial: ")))
	}
	return err
}

// vpdWait is how long the command waits for the VPDs of HCAs: it reads them only once.
const vpdWait = 10 * time.Second

// topologyOf reads the devices in a sysfs. HCAs are RDMA devices, GPUs the PCI functions of their class and vendors.
func topologyOf(ctx context.Context, sysfs string) (api.Topology, error) {
	var s model.Snapshot
	functions, err := pci.New(pci.Options{Sysfs: sysfs, Wait: vpdWait})
	if err != nil {
		return api.Topology{}, err
	}
	read, err := functions.Read(ctx)
	if err != nil && !errors.Is(err, model.ErrAbsent) {
		return api.Topology{}, err
	}
	s.PCI = read.PCI
	hcas, err := rdma.New(rdma.Options{Sysfs: sysfs})
	if err != nil {
		return api.Topology{}, err
	}
	defer hcas.Close() //nolint:errcheck // only read
	if read, err = hcas.Read(ctx); err != nil && !errors.Is(err, model.ErrAbsent) {
		return api.Topology{}, err
	}
	s.HCAs, s.GPUs = read.HCAs, gpuFunctions(s.PCI)
	t := placement.New(&s)
	return api.TopologyOf(&placement.Placement{Topology: t, Owners: make([][]int, len(t.Devices))}, []identity.Owner{{}}, ""), nil
}

// gpuVendors are the vendors of GPUs by the numbers in PCI.
var gpuVendors = map[string]model.Vendor{"10de": model.NVIDIA, "1002": model.AMD, "8086": model.Intel}

// gpuFunctions returns the GPUs among PCI functions, which are sorted by address: display controllers and processing accelerators.
func gpuFunctions(functions []model.PCIFunction) []model.GPU {
	var gpus []model.GPU
	count := map[model.Vendor]int{}
	for i := range functions {
		f := &functions[i]
		id, _, _ := strings.Cut(f.ID, ":")
		vendor := gpuVendors[id]
		if vendor == "" || !strings.HasPrefix(f.Class, "0x03") && !strings.HasPrefix(f.Class, "0x12") {
			continue
		}
		gpus = append(gpus, model.GPU{Vendor: vendor, ID: fmt.Sprint(count[vendor]), UUID: f.Address, PCIAddress: f.Address})
		count[vendor]++
	}
	return gpus
}

// printTopology prints the matrix, and the problems of workloads. owners reports whether they are known.
func printTopology(out io.Writer, t *api.Topology, owners bool) error {
	if len(t.Devices) == 0 {
		_, err := fmt.Fprintln(out, "there is no GPU and no HCA")
		return err
	}
	names := deviceNames(t.Devices)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	header := append(append([]string{""}, names...), "NUMA", "PCIE")
	if owners {
		header = append(header, "WORKLOADS")
	}
	fmt.Fprintln(table, strings.Join(header, "\t"))
	for i := range t.Devices {
		d := &t.Devices[i]
		row := []string{names[i]}
		for _, r := range t.Relations[i] {
			row = append(row, orNone(format.Line(string(r))))
		}
		row = append(row, orNone(format.Line(d.NUMANode)), linkSpeed(d.Link))
		if owners {
			row = append(row, orNone(workloads(d.Owners)))
		}
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if err := printDataDirect(out, t); err != nil {
		return err
	}
	if err := printPeerPaths(out, t, names); err != nil {
		return err
	}
	return printProblems(out, t.Workloads)
}

func printProblems(out io.Writer, list []api.TopologyWorkload) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	first := true
	for _, w := range list {
		for _, p := range w.Problems {
			if first {
				fmt.Fprintln(table, "\nPROBLEM\tWORKLOAD\tDETAIL")
				first = false
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", format.Line(p.Problem), owner(w.Workload), format.Line(p.Text))
		}
	}
	return table.Flush()
}

// deviceNames returns the names of the rows and columns: GPU0, mlx5_0; with GPUs of several vendors nvidia:GPU0.
func deviceNames(devices []api.TopologyDevice) []string {
	gpus := slices.DeleteFunc(slices.Clone(devices), func(d api.TopologyDevice) bool { return d.Kind != placement.GPU })
	several := slices.ContainsFunc(gpus, func(d api.TopologyDevice) bool { return d.Vendor != gpus[0].Vendor })
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = format.Line(d.Name)
		if d.Kind == placement.GPU {
			names[i] = "GPU" + names[i]
		}
		if d.Kind == placement.GPU && several {
			names[i] = format.Line(string(d.Vendor)) + ":" + names[i]
		}
	}
	return names
}

// linkSpeed returns the speed and the width of a link, and the maximum if it is below.
func linkSpeed(l api.TopologyLink) string {
	if l.Speed == 0 || l.Width == 0 {
		return "-"
	}
	text := fmt.Sprintf("%g GT/s x%d", l.Speed/1e9, l.Width)
	if l.MaxSpeed > l.Speed || l.MaxWidth > l.Width {
		text += fmt.Sprintf(" of %g GT/s x%d", l.MaxSpeed/1e9, l.MaxWidth)
	}
	return text
}

func workloads(owners []identity.Owner) string {
	names := make([]string, len(owners))
	for i, o := range owners {
		names[i] = owner(o.Workload)
	}
	return strings.Join(names, ", ")
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
