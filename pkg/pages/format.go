// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
)

// utc and clock format a time with its zone.
func utc(t time.Time) string {
	if t.IsZero() {
		return format.None
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

func clock(t time.Time) string { return t.UTC().Format("15:04 UTC") }

// age formats the time since an event in its two largest units.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func optional[T any](v *T, render func(T) string) string {
	if v == nil {
		return format.None
	}
	return render(*v)
}

func number(n uint64) string { return format.Count(float64(n)) }

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

// width returns the width of a bar, 0 to 100; a part that is not 0 is visible.
func width(part, whole float64) int {
	if !(part > 0) || !(whole > 0) {
		return 0
	}
	return int(math.Min(100, math.Max(1, math.Round(100*part/whole))))
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

// coverage returns why bytes are not counted.
func coverage(r *overview.Row) string {
	switch {
	case r.Gaps == nil:
		return ""
	case len(r.Gaps) == 0:
		return "complete"
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

func workloadLink(workload, id string) string {
	q := url.Values{"name": {workload}}
	if id != "" {
		q.Set("id", id)
	}
	return "/workload?" + q.Encode()
}

func deviceLink(device string) string { return "/device?" + url.Values{"name": {device}}.Encode() }

// deviceName returns the name of a device: mlx5_0, nvidia0.
func deviceName(kind overview.Kind, device, vendor, gpu string) string {
	if kind == overview.GPU {
		return format.Escape(cmp.Or(vendor, "gpu") + " " + gpu)
	}
	return format.Escape(device)
}
