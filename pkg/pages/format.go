// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"cmp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
)

func quantile(q *overview.Quantile) string {
	switch {
	case q == nil:
		return format.None
	case q.Above:
		return ">" + format.Duration(q.Seconds)
	}
	return format.Duration(q.Seconds)
}

// rate returns a rate of bytes as top prints it: a question mark if none was counted and not all are.
func rate(r *overview.Rate, gaps []model.Gap) string {
	switch {
	case (r == nil || r.PerSecond == 0) && model.Uncounted(gaps):
		return format.Unmeasured
	case r == nil:
		return format.None
	case r.Estimate:
		return format.Estimate + format.Size(r.PerSecond) + "/s"
	}
	return format.Size(r.PerSecond) + "/s"
}

// methods returns how the bytes of a row were counted.
func methods(r *overview.Row) string {
	var names []string
	for _, b := range r.Bytes {
		if name := string(b.Method); b.Bytes > 0 && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return cmp.Or(strings.Join(names, ", "), format.None)
}

// coverage returns whether all bytes are counted, or why they are not.
func coverage(r *overview.Row) string {
	switch {
	case r.Gaps == nil, len(r.Gaps) == 0 && r.Transmit == nil && r.Receive == nil:
		return ""
	case len(r.Gaps) == 0:
		return "all bytes counted"
	}
	names := make([]string, len(r.Gaps))
	for i, g := range r.Gaps {
		if names[i] = string(g); g == model.GapUnattributed && r.Unattributed != nil {
			names[i] += " (at most " + format.Size(float64(*r.Unattributed)) + ")"
		}
	}
	return "missing: " + strings.Join(names, ", ")
}

// registered returns registered memory: of the host, of GPUs, and the rest.
func registered(r *overview.Row) string {
	if r.Registered == nil {
		return format.None
	}
	var rest uint64
	parts := []string{}
	for kind, n := range r.Registered {
		if kind != model.HostMemory && kind != model.GPUMemory {
			rest += n
		}
	}
	for _, p := range []struct {
		name string
		n    uint64
	}{{"host", r.Registered[model.HostMemory]}, {"GPU", r.Registered[model.GPUMemory]}, {"other", rest}} {
		if p.n > 0 {
			parts = append(parts, p.name+" "+format.Size(float64(p.n)))
		}
	}
	return strings.Join(parts, ", ")
}

// deviceName returns the name of a device: mlx5_0, nvidia0.
func deviceName(kind overview.Kind, device, vendor, gpu string) string {
	if kind == overview.GPU {
		return format.Escape(cmp.Or(vendor, "gpu") + " " + gpu)
	}
	return format.Escape(device)
}
