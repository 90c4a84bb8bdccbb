// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

// pciFunctions are PCI functions by their address in lower case.
type pciFunctions map[string]*model.PCIFunction

func functionsOf(all []model.PCIFunction) pciFunctions {
	functions := make(pciFunctions, len(all))
	for i := range all {
		functions[strings.ToLower(all[i].Address)] = &all[i]
	}
	return functions
}

// pcieRules judge the PCIe links of HCAs and GPUs.
type pcieRules struct {
	*round
	*hcaRoles
	functions pciFunctions
}

func (r pcieRules) judge() {
	own := model.ByFunction(r.Facts.HCAs)
	for i := range r.Facts.HCAs {
		h, address := &r.Facts.HCAs[i], strings.ToLower(r.Facts.HCAs[i].PCIAddress)
		f := r.functions[address]
		if f == nil || own[address] != h || h.VF || r.management[h.Name] {
			continue
		}
		s := Subject{Kind: OfHCA, Device: h.Name}
		if speed, width, degraded := possible(f); degraded {
			r.findLater(pcieDegraded, s, time.Time{}, pcieEvidence(f.Link, speed, width))
		}
		r.judgeAER(pcieErrors, s, h.Name, f)
	}
	for i := range r.Facts.GPUs {
		g := &r.Facts.GPUs[i]
		f := r.functions[strings.ToLower(g.PCIAddress)]
		if g.Parent != "" {
			continue
		}
		if f != nil {
			r.judgeAER(gpuPCIeErrors, subjectOf(g), g.UUID, f)
		}
		if p := &g.PCIe; p.Generation.Known && p.MaxGeneration.Known && g.Utilization.Known &&
			below(p.Generation.Value, p.MaxGeneration.Value) && 100*g.Utilization.Value > gpuPCIeSlow.limit(1) {
			r.find(gpuPCIeSlow, subjectOf(g), time.Time{}, fmt.Sprintf("generation %.0f of %.0f, the GPU is %s busy",
				p.Generation.Value, p.MaxGeneration.Value, format.Percent(g.Utilization.Value)))
		}
	}
}

// possible returns the speed and width that both ends of a link support, and whether the link has less.
func possible(f *model.PCIFunction) (speed float64, width int, degraded bool) {
	speed, width = f.Possible()
	return speed, width, below(f.Link.Speed, speed) || below(float64(f.Link.Width), float64(width))
}

func below(is, possible float64) bool {
	return is > 0 && possible > 0 && is/possible < pcieDegraded.limit(0)
}

func pcieEvidence(l model.PCILink, speed float64, width int) Evidence {
	return func() []string { return []string{pcieText(l.Speed, l.Width), pcieText(speed, width) + " is possible"} }
}

func pcieText(speed float64, width int) string {
	return fmt.Sprintf("%g GT/s, %d lanes", speed/1e9, width)
}

// judgeAER judges the errors that both ends of a link detected.
func (r pcieRules) judgeAER(c *Condition, s Subject, device string, f *model.PCIFunction) {
	if f.AER == nil && f.Upstream.AER == nil {
		return
	}
	var bad, corrected uint64
	var sums [3]model.Counter // correctable, nonfatal, fatal
	for _, e := range f.Errors(sums[:0]) {
		if e.Name == "correctable" {
			corrected += e.Value
		} else {
			bad += e.Value
		}
	}
	bad = r.grown(counterKey{condition: c, device: device}, bad)
	corrected = r.grown(counterKey{condition: c, number: 1, device: device}, corrected)
	if float64(bad) > c.limit(0) || float64(corrected) > c.limit(1) {
		r.find(c, s, time.Time{}, grewIn("nonfatal and fatal errors", bad, c.Window), grewIn("correctable errors", corrected, c.Window))
	}
}

// carriedBits returns the bits per second that a PCIe link carries in one direction, including packet headers; 0 if
// unknown. Links up to 5 GT/s encode 8 bits as 10, faster links 128 as 130. From 64 GT/s on nearly all bits are data.
func carriedBits(l model.PCILink) float64 {
	bits := l.Speed * float64(l.Width)
	if l.Speed <= 5e9 {
		return bits * 8 / 10
	}
	return bits * 128 / 130
}
