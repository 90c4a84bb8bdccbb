// SPDX-License-Identifier: Apache-2.0

package metrics

import (
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
		"*identity* stands for the labels `", strings.Join(exposition.Identity, "`, `"), "`. ",
		"They are empty where they do not apply. The unattributed share has five empty identity labels. ",
		"A scrape with `?collect[]=NAME` has the metrics of this collector only. *full* marks what only `--gpu.detail=full` exports. ",
		"*dcgm* stands for `", strings.Join(dcgmLabels, "`, `"), "`.\n\n")
	all := groups(nil)
	for _, g := range all {
		fmt.Fprintf(&out, "- [%s](#%s)\n", g.title, anchor(g.title))
	}
	for _, g := range all {
		fmt.Fprintf(&out, "\n## %s\n\n%s\n\n| name | type | labels | description |\n|---|---|---|---|\n", g.title, collectorsOf(&g))
		for i := range g.rows {
			m := &g.rows[i]
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s%s |\n", m.name, strings.ToLower(m.typ.String()), labelsCell(m),
				strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(m.help), detailCell(m))
		}
		for i, note := range g.notes {
			if i == 0 {
				fmt.Fprint(&out, "\nNotes:\n\n")
			}
			fmt.Fprintf(&out, "- %s\n", note)
		}
	}
	return out.String()
}

func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case 'a' <= r && r <= 'z', r == '-', r == '_':
			return r
		}
		return -1
	}, strings.ToLower(title))
}

func labelsCell(m *metric) string {
	var labels []string
	if m.owned {
		labels = append(labels, "*identity*")
	}
	names := m.labels
	if m.compat == CompatDCGM && slices.Equal(m.labels[:len(dcgmLabels)], dcgmLabels) {
		labels, names = append(labels, "*dcgm*"), m.labels[len(dcgmLabels):]
	}
	if m.gpu {
		names = slices.Concat(exposition.GPULabels, names)
	}
	for _, l := range names {
		labels = append(labels, "`"+l+"`")
	}
	return strings.Join(labels, ", ")
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

func detailCell(m *metric) string {
	const only = " *full*"
	text := ""
	if m.full {
		text += only + "."
	}
	if m.sum != "" {
		text += fmt.Sprintf("%s by `%s`, otherwise the sum, `%s=\"all\"`.", only, m.sum, m.sum)
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
