// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

// gpuHealthMetrics are what is wrong with GPUs.
func gpuHealthMetrics() []metric {
	return []metric{
		{
			name: "gpu_health", typ: gauge, gpu: true,
			help: "Whether the GPU is healthy (1) or has any of the problems of gpu_problem (0). Absent where it cannot be told.",
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.gpus {
					if problems := g.ActiveProblems(); problems != nil {
						b.Share(truth(len(problems) == 0), g.labels)
					}
				}
			},
		},
		{
			name: "gpu_problem", typ: gauge, gpu: true, labels: []string{"problem"},
			help: "Whether the GPU has the problem (1) or not (0), for all problems that are looked for. One that is lost (fell " +
				"off the bus) or stuck (a call into its driver has not returned) tells nothing else but its XIDs.",
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.gpus {
					for _, p := range g.Problems {
						b.Share(truth(p.Active), g.labels, p.Name)
					}
				}
			},
		},
		{
			name: "gpu_suspended", typ: gauge, gpu: true,
			help: "Whether runtime power management has put the GPU to sleep (1) or not (0). It is not woken: while it sleeps its " +
				"other series are absent.",
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.gpus {
					if !unreadable(g.GPU) {
						b.Share(truth(g.Suspended), g.labels)
					}
				}
			},
		},
		{
			name: "gpu_ecc_errors_total", typ: counter, gpu: true, labels: []string{"type", "scope", "block"},
			help: "Errors in the memories of the GPU that ECC has found, by type (corrected, uncorrected, deferred), scope " +
				"(volatile: since the driver was loaded, aggregate: ever) and block; the block all is a sum over blocks.",
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.gpus {
					for _, e := range g.Errors {
						b.Share(float64(e.Count), g.labels, e.Type, e.Scope, e.Block)
					}
				}
			},
		},
		gpuFigures("gpu_remapped_rows", gauge, "cause", "Rows of the GPU's memory that were replaced by spare ones, by cause: "+
			"correctable or uncorrectable errors.", func(g *gpuView) []model.Figure { return g.RemappedRows }),
		gpuFigures("gpu_retired_pages", gauge, "cause", "Pages of the GPU's memory that are not used any more, by cause.",
			func(g *gpuView) []model.Figure { return g.RetiredPages }),
		xid("gpu_xid_errors_total", counter, "How often the NVIDIA driver reported the error (XID) since the sensor looks.",
			func(x *model.XID) model.Optional { return model.Some(float64(x.Count)) }),
		xid("gpu_xid_last_timestamp_seconds", gauge, "When the NVIDIA driver reported the error (XID) last, in seconds since 1970.",
			func(x *model.XID) model.Optional {
				return model.Optional{Value: float64(x.Last.UnixMilli()) / milliPerUnit, Known: !x.Last.IsZero()}
			}),
	}
}

func xid(name string, typ dto.MetricType, help string, of func(*model.XID) model.Optional) metric {
	return metric{name: name, typ: typ, gpu: true, labels: []string{"xid"}, help: help, emit: func(v *view, b *exposition.Builder) {
		for _, g := range v.gpus {
			for i := range g.XIDs {
				if o := of(&g.XIDs[i]); o.Known {
					b.Share(o.Value, g.labels, strconv.FormatUint(g.XIDs[i].Code, 10))
				}
			}
		}
	}}
}

// unreadable says whether the driver tells nothing of a GPU now.
func unreadable(g *model.GPU) bool {
	return slices.ContainsFunc(g.Problems, func(c model.GPUCondition) bool {
		return c.Active && (c.Name == model.ProblemLost || c.Name == model.ProblemStuck)
	})
}
