// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/pkg/exposition"
)

// TestReference keeps gen/metrics.md equal to the metric table.
func TestReference(t *testing.T) {
	compare(t, "../../gen/metrics.md", reference())
}

func reference() string {
	var out strings.Builder
	fmt.Fprint(&out, "<!-- Generated from the metric table in pkg/metrics by go test -update; do not edit. -->\n\n",
		"# Metrics\n\n",
		"*identity* stands for the labels `", strings.Join(exposition.Identity, "`, `"), "`. ",
		"They are empty where they do not apply; the share that nobody is known to own has all five empty.\n")
	sections := []struct{ compat, title string }{
		{"", "Without --metrics.compat"},
		{Process, "Without --web.disable-exporter-metrics (the default)"},
		{CompatLens, "With --metrics.compat=lens (the default)"},
		{CompatNodeExporter, "With --metrics.compat=node_exporter"},
		{CompatRDMAExporter, "With --metrics.compat=rdma_exporter"},
		{CompatDCGM, "With --metrics.compat=dcgm"},
	}
	for _, section := range sections {
		fmt.Fprintf(&out, "\n## %s\n\n| name | type | labels | what it is |\n|---|---|---|---|\n", section.title)
		for _, m := range table(nil) {
			if m.compat != section.compat {
				continue
			}
			var labels []string
			if m.owned {
				labels = append(labels, "*identity*")
			}
			names := m.labels
			if m.gpu {
				names = slices.Concat(exposition.GPULabels, names)
			}
			for _, l := range names {
				labels = append(labels, "`"+l+"`")
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", m.name, strings.ToLower(m.typ.String()), strings.Join(labels, ", "),
				strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(m.help))
		}
	}
	return out.String()
}

// TestTable checks what holds for every row.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range table(nil) {
		name := m.name
		if exposition.IsPattern(m.name) {
			name = exposition.NameOf(m.name, "out_of_buffer")
		}
		if !model.LegacyValidation.IsValidMetricName(name) {
			t.Errorf("%s is no metric name", name)
		}
		if seen[m.name] {
			t.Errorf("%s is declared twice", m.name)
		}
		seen[m.name] = true
		if m.help == "" || m.emit == nil {
			t.Errorf("%s has no help or no values", m.name)
		}
		if m.compat != "" && !slices.Contains(append(CompatSets(), Process), m.compat) {
			t.Errorf("%s belongs to an unknown set %s", m.name, m.compat)
		}
		if (m.typ == counter) != strings.HasSuffix(m.name, "_total") {
			t.Errorf("%s: a counter ends in _total, and nothing else does", m.name)
		}
	}
}

// FuzzNameOf: a driver may call a counter what it likes.
func FuzzNameOf(f *testing.F) {
	for _, name := range []string{"", "rx-bytes", "名", "\xff", "a{b=\"c\"} 1\n", "<x>"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, m := range table(nil) {
			if exposition.IsPattern(m.name) && !model.LegacyValidation.IsValidMetricName(exposition.NameOf(m.name, name)) {
				t.Errorf("%q becomes %q", name, exposition.NameOf(m.name, name))
			}
		}
	})
}
