// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/accelscope/accelscope/pkg/model"
)

const rulesDir = "../../deploy/prometheus/rules/"

// withoutVerdict are the alerts that no node can judge alone, and why.
var withoutVerdict = map[string]string{
	"RDMAVerbsSlow":                   "needs the latencies of five minutes by workload and verb, which Prometheus has; top shows the p99",
	"RDMACompletionsSlow":             "compares with the latency an hour and a day ago",
	"RDMACompletionsSlowerThanOthers": "compares latencies of five minutes, which Prometheus has",
	"RDMACongestionStorm":             "compares with an hour and a day ago, and with other nodes",
	"RDMAPauseSustained":              "compares with an hour and a day ago, and with other nodes",
	"RDMABitErrorsRising":             "compares with a day and a week ago, and with other nodes",
	"RDMAPKeyMissing":                 "compares with an hour and a day ago",
	"RDMASubnetManagerChanges":        "an event reports each change",
	"AccelscopeDown":                  "a sensor that is down judges nothing",
	"AccelscopeAbsent":                "a sensor that is down judges nothing",
	"AccelscopeUnattributedHigh":      "RDMACoverageGap names the workloads and the reasons",
	"FabricSwitchLost":                "of the fabric, not of the node that reads it",
	"FabricPortDown":                  "of the fabric, not of the node that reads it",
	"FabricLinkDegraded":              "of the fabric, not of the node that reads it",
	"FabricLinkErrors":                "of the fabric, not of the node that reads it",
	"FabricSwitchNotAnswering":        "of the fabric, not of the node that reads it",
	"FabricStale":                     "of the fabric, not of the node that reads it",
}

// alert is a rule of alerts.yaml.
type alert struct {
	Alert, Expr string
}

func alerts(t *testing.T) map[string]alert {
	t.Helper()
	text, err := os.ReadFile(rulesDir + "alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []alert }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	all := map[string]alert{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" {
				all[r.Alert] = r
			}
		}
	}
	return all
}

// TestAlerts: each condition and alert with the same name has one window, and each alert has a condition or a reason
// why not. TestRules compares the rest.
func TestAlerts(t *testing.T) {
	all := alerts(t)
	named := map[string]bool{}
	for _, c := range Conditions {
		if named[c.Name] {
			t.Errorf("%s is twice in the table", c.Name)
		}
		named[c.Name] = true
		a, ok := all[c.Name]
		switch {
		case c.NoAlert != "" && ok:
			t.Errorf("%s is an alert, too", c.Name)
		case c.NoAlert == "" && !ok:
			t.Errorf("%s is no alert", c.Name)
		case ok:
			compare(t, c, a)
		}
	}
	for name := range all {
		if why := withoutVerdict[name]; named[name] == (why != "") {
			t.Errorf("alert %s: verdict %v, reason for none %q", name, named[name], why)
		}
	}
	for name := range withoutVerdict {
		if _, ok := all[name]; !ok {
			t.Errorf("there is no alert %s", name)
		}
	}
}

func compare(t *testing.T, c *Condition, a alert) {
	t.Helper()
	if slices.ContainsFunc(limited(c), func(l Threshold) bool { return l.Value == 0 }) && !strings.Contains(a.Expr, "> 0") {
		t.Errorf("%s: no limit 0 in the alert", c.Name)
	}
	if got := windows(t, a.Expr); c.Window != 0 && !got[c.Window] {
		t.Errorf("%s: window %v, of the alert %v", c.Name, c.Window, got)
	}
	got := words(a.Expr)
	for _, label := range []string{"problem", "xid", "code", "errno", "status", "action"} {
		if got[label] != nil && c.Words[label] == nil {
			t.Errorf("%s: the alert decides by %s, which the table lacks", c.Name, label)
		}
	}
}

// limited returns the thresholds of a condition and of the conditions that cause it, which its alert leaves out.
func limited(c *Condition) []Threshold {
	all := slices.Clone(c.Thresholds)
	for _, cause := range c.Unless {
		all = append(all, cause.Thresholds...)
	}
	return all
}

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	switch {
	case s == "":
		return 0
	case strings.HasSuffix(s, "d"), strings.HasSuffix(s, "w"):
		n, err := strconv.Atoi(s[:len(s)-1])
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(n) * map[byte]time.Duration{'d': day, 'w': week}[s[len(s)-1]]
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var (
	compared = regexp.MustCompile(`(?:[<>]=?|time\(\) -) *([0-9][0-9.e-]*)`)
	window   = regexp.MustCompile(`(?:\[|offset |rate)(\d+[smhdw])\b`)
	matcher  = regexp.MustCompile(`(\w+)(?:=~|!~|=|!=)"([^"]+)"`)
)

// limits returns the numbers, other than zero, with which an expression compares, in their order.
func limits(t *testing.T, expr string) (found []float64) {
	t.Helper()
	for _, m := range compared.FindAllStringSubmatch(expr, -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		if n != 0 && !slices.Contains(found, n) {
			found = append(found, n)
		}
	}
	return found
}

func windows(t *testing.T, expr string) map[time.Duration]bool {
	t.Helper()
	found := map[time.Duration]bool{}
	for _, m := range window.FindAllStringSubmatch(expr, -1) {
		found[duration(t, m[1])] = true
	}
	// A fault counts for a time that the expression compares with.
	for _, n := range limits(t, expr) {
		found[time.Duration(n)*time.Second] = true
	}
	return found
}

// words returns the alternatives of each label in an expression, sorted.
func words(expr string) map[string][]string {
	found := map[string][]string{}
	for _, m := range matcher.FindAllStringSubmatch(expr, -1) {
		found[m[1]] = append(found[m[1]], strings.Split(m[2], "|")...)
	}
	for label, list := range found {
		slices.Sort(list)
		found[label] = slices.Compact(list)
	}
	return found
}

// TestCongestionCounters: the recording rules read the same counters, under the names that all drivers share.
func TestCongestionCounters(t *testing.T) {
	text, err := os.ReadFile(rulesDir + "recording.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Record, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	exprs := map[string]string{"rdma_cnp_ignored": alerts(t)["RDMACongestionIgnored"].Expr}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if level, rest, _ := strings.Cut(r.Record, ":"); level == "instance_device_port" {
				exprs[strings.TrimSuffix(rest, ":rate5m")] = r.Expr
			}
		}
	}
	counter := regexp.MustCompile(`rdma_(?:port|stat)_(\w+)`)
	for what, want := range map[string][]string{
		"rdma_ecn_marked_packets":    {model.ECNMarked},
		"rdma_receive_out_of_buffer": {model.OutOfBuffer},
		"rdma_retransmissions":       {model.OutOfSequence, model.Retransmitted, model.Timeouts},
		"rdma_cnp_ignored":           {"cnpIgnored", "rp_cnp_ignored"},
	} {
		var got []string
		for _, m := range counter.FindAllStringSubmatch(exprs[what], -1) {
			got = append(got, strings.TrimSuffix(m[1], "_total"))
		}
		if slices.Sort(got); !slices.Equal(slices.Compact(got), want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
}
