// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// The values equal client_golang's.
func TestProcessMetrics(t *testing.T) {
	c := newCollector(setup{Compat: []string{Process}})
	defer c.Close() //nolint:errcheck // nothing to lose
	ours := mustGather(t, c)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	theirs, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for name, slack := range map[string]float64{
		"process_cpu_seconds_total":     1, // client_golang counts in ticks, and reads later
		"process_resident_memory_bytes": 64 << 20,
		"process_start_time_seconds":    1, // client_golang has the boot time in seconds
		"go_goroutines":                 10,
		"go_threads":                    10,
		"go_memstats_mallocs_total":     1e6,
		"go_gc_gomemlimit_bytes":        0,
	} {
		got, ok := value(ours, name)
		want, _ := value(theirs, name)
		if !ok || got <= 0 || got < want-slack || got > want+slack {
			t.Errorf("%s is %v, client_golang says %v", name, got, want)
		}
	}
}
