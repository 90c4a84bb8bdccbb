// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// gpuSources are the vendors with a source that reads their GPUs.
var gpuSources = slices.DeleteFunc(slices.Clone(model.GPUVendors), func(v model.GPUVendor) bool { return v.Source == "" })

func (k *Known) missingGPUs() error {
	names := make([]string, 0, len(gpuSources))
	for _, v := range gpuSources {
		names = append(names, v.Source)
	}
	return k.missing(k.Facts.GPUs != nil, names...)
}

// gpuIdentity identifies a GPU. Its fields follow the fields of the Primus Lens node exporter,
// where each vendor numbers its own GPUs.
type gpuIdentity struct {
	ID     string       `json:"id"` // as gpu_id in the metrics: 0; of a part 0:1
	UUID   string       `json:"uuid"`
	Vendor model.Vendor `json:"vendor"`
	Parent string       `json:"parent_uuid"` // of a part: a MIG instance, a partition
}

func identify(g *model.GPU) gpuIdentity {
	return gpuIdentity{ID: g.ID, UUID: g.UUID, Vendor: g.Vendor, Parent: g.Parent}
}

// number returns the number of a GPU. A part has the number of its GPU.
func number(g *model.GPU) *int {
	first, _, _ := strings.Cut(g.ID, ":")
	return parseNumber(first)
}

// parseNumber returns nil if the text is not a number.
func parseNumber(s string) *int {
	if n, err := strconv.Atoi(s); err == nil {
		return &n
	}
	return nil
}

// gpuEntry is a GPU or a part of a GPU. Parts follow their GPU. Unknown values are empty.
type gpuEntry struct {
	GPU  *int `json:"gpu"`
	ASIC struct {
		MarketName string `json:"market_name"`
		DeviceID   string `json:"device_id"`
		Serial     string `json:"asic_serial"`
	} `json:"asic"`
	Bus struct {
		BDF string `json:"bdf"`
	} `json:"bus"`
	DRI driDevice `json:"dri_device"`
	gpuIdentity
	Profile   string   `json:"profile"` // of a part: 1g.10gb, CPX/NPS4
	Nodes     []string `json:"nodes"`   // its device nodes
	Suspended bool     `json:"suspended"`
	Blocked   bool     `json:"blocked"`  // waits for another GPU that is stuck
	Problems  []string `json:"problems"` // current problems; null when unknown
}

// gpuList answers /gpus.
func gpuList(k *Known, _ *http.Request) (any, error) {
	out := []gpuEntry{}
	for i := range k.Facts.GPUs {
		g := &k.Facts.GPUs[i]
		e := gpuEntry{
			GPU: number(g), DRI: driOf(g, k.Facts.DRI), gpuIdentity: identify(g),
			Profile: g.Profile, Nodes: append([]string{}, g.Nodes...), Suspended: g.Suspended, Blocked: g.Blocked,
			Problems: g.ActiveProblems(),
		}
		e.ASIC.MarketName, e.ASIC.DeviceID, e.ASIC.Serial = g.Name, g.PCIDevice, asicSerial(g)
		e.Bus.BDF = g.PCIAddress
		out = append(out, e)
	}
	return k.inPart(out, len(out), k.missingGPUs())
}

// asicSerial returns the serial number that the vendor's tools show. amd-smi shows the unique id of the ASIC (0x and 16
// digits) and not the number of the board. A part has the number of its GPU.
func asicSerial(g *model.GPU) string {
	id := cmp.Or(g.Parent, g.UUID)
	if n, err := strconv.ParseUint(id, 16, 64); g.Vendor.Row().HexSerial && len(id) == 16 && err == nil {
		return fmt.Sprintf("0x%016X", n)
	}
	return g.Serial
}

// driOf returns the device of the Direct Rendering Manager of a GPU: from its device nodes,
// or from its PCI address, which parts of a GPU share.
func driOf(g *model.GPU, all []model.DRIDevice) driDevice {
	d := driDevice{PCIAddress: g.PCIAddress}
	for _, node := range g.Nodes {
		switch {
		case d.Card == "" && strings.HasPrefix(node, "/dev/dri/card"):
			d.Card = node
		case d.Render == "" && strings.HasPrefix(node, "/dev/dri/renderD"):
			d.Render = node
		}
	}
	if d.Card != "" || d.Render != "" || g.Parent != "" || g.PCIAddress == "" {
		return d
	}
	same := func(d model.DRIDevice) bool { return strings.EqualFold(d.PCIAddress, g.PCIAddress) }
	if i := slices.IndexFunc(all, same); i >= 0 {
		d.Card, d.Render = all[i].Card, all[i].Render
	}
	return d
}

// gpuLoad is the utilization of a GPU and of its memory in percent, null when unknown.
type gpuLoad struct {
	GPU       *int     `json:"gpu"`
	UsePct    *float64 `json:"gpu_use_percent"`
	MemoryPct *float64 `json:"memory_use_percent"`
	gpuIdentity
}

// loads answers /cardMetrics.
func loads(k *Known, _ *http.Request) (any, error) {
	out := []gpuLoad{}
	for i := range k.Facts.GPUs {
		g := &k.Facts.GPUs[i]
		l := gpuLoad{GPU: number(g), gpuIdentity: identify(g)}
		if g.Utilization.Known {
			l.UsePct = percent(g.Utilization.Value)
		}
		if used, total := g.Memory.Used, g.Memory.Total; used.Known && total.Known {
			l.MemoryPct = percent(used.Value / total.Value)
		}
		out = append(out, l)
	}
	return k.inPart(out, len(out), k.missingGPUs())
}

// percent returns a fraction in percent from 0 to 100, rounded to remove floating-point
// noise. It returns nil for NaN and infinity.
func percent(part float64) *float64 {
	if math.IsNaN(part) || math.IsInf(part, 0) {
		return nil
	}
	p := math.Round(min(max(part, 0), 1)*1e6) / 1e4
	return &p
}

// driverVersion answers /gpuDriverVersion: the version of the requested vendor (?vendor=), or of the first vendor with
// a driver. The answer has one version only.
func driverVersion(k *Known, r *http.Request) (any, error) {
	vendor := model.Vendor(r.URL.Query().Get("vendor"))
	if vendor != "" && !slices.ContainsFunc(gpuSources, func(v model.GPUVendor) bool { return v.Vendor == vendor }) {
		return nil, statusError{fmt.Errorf("vendor is %q, and has to be %s", vendor, vendorNames()), http.StatusBadRequest}
	}
	for _, s := range gpuSources {
		if vendor != "" && vendor != s.Vendor {
			continue
		}
		for _, d := range k.Facts.GPUDrivers {
			if d.Vendor == s.Vendor && d.Version != "" {
				return d.Version, nil
			}
		}
		if err := k.missing(false, s.Source); err != nil {
			return nil, err
		}
	}
	return nil, statusError{errors.New("there is no GPU driver"), http.StatusNotFound}
}

// vendorNames lists the vendors for messages: "amd or nvidia".
func vendorNames() string {
	names := make([]string, 0, len(gpuSources))
	for _, v := range gpuSources {
		names = append(names, string(v.Vendor))
	}
	return strings.Join(names, " or ")
}
