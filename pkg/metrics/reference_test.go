// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

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
		"Metrics that end in `_total` are counters; others without a type in brackets are gauges. The labels are in braces. ",
		"`IDENTITY` stands for `", strings.Join(exposition.Identity, ","), "`: empty where they do not apply, ",
		"all five empty for the unattributed share. A scrape with `?collect[]=NAME` has the metrics of this collector only. ",
		"Metrics of node_exporter, cAdvisor, rdma_exporter and dcgm-exporter are listed by their labels; HELP in `/metrics` describes them. *full* marks what only `--gpu.detail=full` exports. *full* by a label: otherwise the label is `all`, and the value the sum.\n")
	for _, g := range groups(nil) {
		fmt.Fprintf(&out, "\n## %s\n\n%s\n\n", g.title, collectorsOf(&g))
		if first := &g.rows[0]; first.compat == CompatDCGM { // docs/gpus.md has the names: TestDCGMTable
			fmt.Fprintf(&out, "Labels: `%s`; `DCGM_FI_DEV_XID_ERRORS` also `err_code`, `err_msg`.\n", strings.Join(dcgmLabels, ","))
			g.rows = nil
		} else if first.collector == "node" || first.collector == "container" || first.compat != "" && first.compat != CompatLens && first.compat != Process {
			writeNames(&out, g.rows)
			g.rows = nil
		}
		described := map[string]bool{}
		for i := range g.rows {
			described[g.rows[i].name] = true
		}
		twins := slices.DeleteFunc(slices.Clone(g.rows), func(m metric) bool { return !described[twinOf(m.name)] })
		g.rows = slices.DeleteFunc(g.rows, func(m metric) bool { return described[twinOf(m.name)] })
		for i := range g.rows {
			m := &g.rows[i]
			fmt.Fprintf(&out, "- `%s%s`%s: %s%s\n", m.name, labelsOf(m), typeOf(m), strings.ReplaceAll(m.help, "<", "&lt;"), detailOf(m))
		}
		writeNames(&out, twins)
		for i, note := range g.notes {
			if i == 0 {
				fmt.Fprint(&out, "\nNotes:\n\n")
			}
			fmt.Fprintf(&out, "- %s\n", note)
		}
	}
	return out.String()
}

// twinOf returns the switch's metric that describes an HCA's metric, or "".
func twinOf(name string) string {
	if counter, ok := strings.CutPrefix(name, "infiniband_hca_port_"); ok {
		return "infiniband_switch_port_" + counter
	}
	return ""
}

// writeNames writes the names of metrics that another exporter documents, by their labels.
func writeNames(out *strings.Builder, rows []metric) {
	names := map[string][]string{}
	var order []string
	for i := range rows {
		labels := cmp.Or(labelsOf(&rows[i]), "{}")
		if names[labels] == nil {
			order = append(order, labels)
		}
		names[labels] = append(names[labels], "`"+rows[i].name+"`"+typeOf(&rows[i]))
	}
	for _, labels := range order {
		fmt.Fprintf(out, "- `%s`: %s\n", labels, strings.Join(names[labels], ", "))
	}
}

// labelsOf returns the labels of a metric in braces, or "".
func labelsOf(m *metric) string {
	var labels []string
	if m.owned {
		labels = append(labels, "IDENTITY")
	}
	if m.gpu {
		labels = append(labels, exposition.GPULabels...)
	}
	if labels = append(labels, m.labels...); len(labels) == 0 {
		return ""
	}
	return "{" + strings.Join(labels, ",") + "}"
}

// typeOf returns the type of a metric in brackets, or "" if the name says it.
func typeOf(m *metric) string {
	if m.typ == counter || m.typ == gauge {
		return ""
	}
	return " (" + strings.ToLower(m.typ.String()) + ")"
}

func collectorsOf(g *group) string {
	var names []string
	for i := range g.rows {
		if name := "`" + g.rows[i].collector + "`"; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return "Collector: " + strings.Join(names, ", ") + "."
}

func detailOf(m *metric) string {
	const only = " *full*"
	text := ""
	if m.full {
		text += only + "."
	}
	if m.sum != "" {
		text += fmt.Sprintf("%s by `%s`.", only, m.sum)
	}
	if len(m.omit) > 0 {
		text += only + ": `" + strings.Join(m.omit, "`, `") + "`."
	}
	return text
}

// privateWords are words that help and notes must not contain.
var privateWords = regexp.MustCompile(`(?i)\b(tells?|told|telling|strangers?|takeleave|bury|buried|errands?|patience|sight|` +
	`tellers?|trifles?|hopeless|nobody|somebody|whoever|whose|who|anew|beside)\b`)

// TestHelp checks that HELP is one short sentence, except the help that is copied from node_exporter.
func TestHelp(t *testing.T) {
	for _, m := range table(nil) {
		if m.compat == CompatNodeExporter {
			continue
		}
		if n := utf8.RuneCountInString(m.help); n > 120 {
			t.Errorf("%s: the help has %d characters: %s", m.name, n, m.help)
		}
		text, ended := strings.CutSuffix(m.help, ".")
		if !ended || strings.ContainsAny(text, ";!?:") || strings.Contains(text, ". ") {
			t.Errorf("%s: the help is not one sentence: %s", m.name, m.help)
		}
		if first, _ := utf8.DecodeRuneInString(m.help); !unicode.IsUpper(first) {
			t.Errorf("%s: the help begins in lower case: %s", m.name, m.help)
		}
		if word := privateWords.FindString(m.help); word != "" {
			t.Errorf("%s: the help contains %q: %s", m.name, word, m.help)
		}
	}
}

// TestNotes checks that notes name existing metrics and labels, and that compatibility sets have their own groups.
func TestNotes(t *testing.T) {
	names := map[string]bool{}
	for _, m := range table(nil) {
		names[m.name] = true
	}
	word := regexp.MustCompile("`([^`]+)`")
	looksLikeMetric := regexp.MustCompile(`^(accelscope|container|gpu|infiniband|rdma|node|pod|go|process|DCGM)_[A-Za-z0-9_<>]+$`)
	for _, g := range groups(nil) {
		for i := range g.rows {
			if g.rows[i].compat != g.rows[0].compat {
				t.Errorf("%s: %s belongs to another set than the first metric", g.title, g.rows[i].name)
			}
		}
		for _, note := range g.notes {
			if found := privateWords.FindString(note); found != "" {
				t.Errorf("%s: %q in %q", g.title, found, note)
			}
			for _, name := range word.FindAllStringSubmatch(note, -1) {
				if looksLikeMetric.MatchString(name[1]) && !names[name[1]] && !familyPrefix(names, name[1]) {
					t.Errorf("%s: there is no metric %s", g.title, name[1])
				}
			}
		}
	}
}

// familyPrefix reports whether several metrics begin with the name, as in "the families container_network".
func familyPrefix(names map[string]bool, prefix string) bool {
	n := 0
	for name := range names {
		if strings.HasPrefix(name, prefix+"_") {
			n++
		}
	}
	return n > 1
}

// TestTable checks every row of the metric table.
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

// FuzzNameOf checks that any counter name of a driver becomes a valid metric name.
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
