// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// gpuSources are the sources that tell of GPUs, by whose they are. The driver of AMD
// comes first, being the one that the Primus Lens node exporter tells of.
var gpuSources = []struct {
	vendor model.Vendor
	source string
}{{model.AMD, "amdgpu"}, {model.NVIDIA, "nvidia"}}

func (k *Known) missingGPUs() error {
	return k.missing(k.Facts.GPUs != nil, gpuSources[0].source, gpuSources[1].source)
}

// gpuIdentity tells which GPU is meant: behind the fields of the Primus Lens node
// exporter, whose number is one of each vendor's.
type gpuIdentity struct {
	ID     string       `json:"id"` // as in gpu_id of the metrics: 0; of a part 0:1
	UUID   string       `json:"uuid"`
	Vendor model.Vendor `json:"vendor"`
	Parent string       `json:"parent_uuid"` // of a part: a MIG instance, a partition
}

func identity(g *model.GPU) gpuIdentity {
	return gpuIdentity{ID: g.ID, UUID: g.UUID, Vendor: g.Vendor, Parent: g.Parent}
}

// number is that of a GPU, or of the GPU that it is a part of.
func number(g *model.GPU) *int {
	first, _, _ := strings.Cut(g.ID, ":")
	if n, err := strconv.Atoi(first); err == nil {
		return &n
	}
	return nil
}

// gpuEntry is one GPU, or one part of a GPU, which follows it. What nobody tells is
// empty.
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
	Problems  []string `json:"problems"` // that it has now; null when nobody can tell
}

// gpuList answers /gpus.
func gpuList(k *Known, _ *http.Request) (any, error) {
	out := []gpuEntry{}
	for i := range k.Facts.GPUs {
		g := &k.Facts.GPUs[i]
		e := gpuEntry{
			GPU: number(g), DRI: driOf(g, k.Facts.DRI), gpuIdentity: identity(g),
			Profile: g.Profile, Nodes: append([]string{}, g.Nodes...), Suspended: g.Suspended, Problems: g.ActiveProblems(),
		}
		e.ASIC.MarketName, e.ASIC.DeviceID, e.ASIC.Serial = g.Name, g.PCIDevice, asicSerial(g)
		e.Bus.BDF = g.PCIAddress
		out = append(out, e)
	}
	return k.inPart(out, len(out), k.missingGPUs())
}

// asicSerial is what amd-smi calls so of AMD: the unique id of the ASIC (0x and 16
// digits), not the number of the board. Parts have that of their GPU.
func asicSerial(g *model.GPU) string {
	id := cmp.Or(g.Parent, g.UUID)
	if n, err := strconv.ParseUint(id, 16, 64); g.Vendor == model.AMD && len(id) == 16 && err == nil {
		return fmt.Sprintf("0x%016X", n)
	}
	return g.Serial
}

// driOf is the device of the Direct Rendering Manager of a GPU: that of its device
// nodes, or of its PCI function, which parts of a GPU share.
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
	for i := range all {
		if strings.EqualFold(all[i].PCIAddress, g.PCIAddress) {
			d.Card, d.Render = all[i].Card, all[i].Render
			break
		}
	}
	return d
}

// gpuLoad is how busy a GPU and how full its memory is, from 0 to 100; null when
// nobody knows.
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
		l := gpuLoad{GPU: number(g), gpuIdentity: identity(g)}
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

// percent is a part of one as a number from 0 to 100, without the digits that
// are the computer's. Of nothing there is no part.
func percent(part float64) *float64 {
	if math.IsNaN(part) || math.IsInf(part, 0) {
		return nil
	}
	p := math.Round(min(max(part, 0), 1)*1e6) / 1e4
	return &p
}

// driverVersion answers /gpuDriverVersion: of the vendor that is asked for
// (?vendor=), else of AMD, else of NVIDIA. The answer has room for one.
func driverVersion(k *Known, r *http.Request) (any, error) {
	vendor := model.Vendor(r.URL.Query().Get("vendor"))
	if vendor != "" && vendor != model.AMD && vendor != model.NVIDIA {
		return nil, statusError{fmt.Errorf("vendor is %q, and has to be %s or %s", vendor, model.AMD, model.NVIDIA), http.StatusBadRequest}
	}
	for _, s := range gpuSources {
		if vendor != "" && vendor != s.vendor {
			continue
		}
		for _, d := range k.Facts.GPUDrivers {
			if d.Vendor == s.vendor && d.Version != "" {
				return d.Version, nil
			}
		}
		if err := k.missing(false, s.source); err != nil {
			return nil, err
		}
	}
	return nil, statusError{errors.New("there is no GPU driver"), http.StatusNotFound}
}
