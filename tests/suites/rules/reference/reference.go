// SPDX-License-Identifier: Apache-2.0

// Package reference checks PromQL expressions against gen/metrics.md and the recording rules: that metrics exist, and
// have the labels in matchers, aggregations, vector matching and group modifiers.
package reference

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"gopkg.in/yaml.v3"
)

// Reference has the labels of metrics, by name. A name that ends in * stands for all names with this prefix.
type Reference map[string][]string

// target are the labels that Prometheus adds; own are the series that Prometheus creates for each scrape.
var (
	target = []string{"instance", "job"}
	own    = []string{"up", "scrape_duration_seconds", "scrape_samples_scraped"}
)

var (
	// A line is a section, its notes, a metric with its labels, or the labels of several metrics and their names.
	line    = regexp.MustCompile("(?m)^(?:## (.*)|(Notes):|- `([^`{]*)(?:{(.*)})?`(?: \\((\\w+)\\))?: (.*))$")
	quoted  = regexp.MustCompile("`([^`]+)`")
	pattern = regexp.MustCompile(`<\w+>.*$`)
)

// identity are the labels that IDENTITY stands for.
var identity = []string{"workload", "namespace", "pod", "container", "container_id"}

// Read parses gen/metrics.md for the metrics that a sensor exports by default.
func Read(file string) (Reference, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := Reference{}
	for _, name := range own {
		r[name] = target
	}
	section, notes := "", false
	for _, m := range line.FindAllStringSubmatch(string(text), -1) {
		if m[1] != "" || m[2] != "" {
			section, notes = cmp.Or(m[1], section), m[2] != ""
			continue
		}
		if notes || strings.HasPrefix(section, "With --metrics.compat=") && !strings.HasSuffix(section, "(the default)") {
			continue
		}
		labels := slices.Clone(target)
		for label := range strings.SplitSeq(m[4], ",") {
			if label == "IDENTITY" {
				labels = append(labels, identity...)
			} else if label != "" {
				labels = append(labels, label)
			}
		}
		name := m[3]
		if name == "" {
			for _, other := range quoted.FindAllStringSubmatch(m[6], -1) {
				r[pattern.ReplaceAllString(other[1], "*")] = labels
			}
			continue
		}
		r[pattern.ReplaceAllString(name, "*")] = labels
		if m[5] == "histogram" {
			r[name+"_bucket"] = append(slices.Clone(labels), "le")
			r[name+"_sum"], r[name+"_count"] = labels, labels
		}
	}
	if len(r) < 100 {
		return nil, fmt.Errorf("%s: only %d metrics", file, len(r))
	}
	return r, nil
}

// Record adds the series of a file of recording rules, and Prometheus's series of alerts.
func (r Reference) Record(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var f struct {
		Groups []struct {
			Rules []struct{ Record, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &f); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	r["ALERTS"], r["ALERTS_FOR_STATE"] = ofAlerts, ofAlerts
	var wrong []error
	for _, g := range f.Groups {
		for _, rule := range g.Rules {
			// A rule that keeps its value reads its own series. The first part of its name lists the labels.
			level, _, _ := strings.Cut(rule.Record, ":")
			r[rule.Record] = []string{"job"}
			for label := range strings.SplitSeq(level, "_") {
				if r[rule.Record] = append(r[rule.Record], label); label == "workload" {
					r[rule.Record] = append(r[rule.Record], identity[1:]...)
				}
			}
			labels, err := r.Check(ofPod.Replace(rule.Expr))
			if err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", rule.Record, err))
			}
			r[rule.Record] = labels
		}
	}
	return errors.Join(wrong...)
}

// ofAlerts are the labels of the series of alerts.
var ofAlerts = []string{
	"alertname", "alertstate", "job", "instance", "device", "port", "netdev", "workload", "container_id", "source", "state",
	"guid", "switch", "uplink", "uplink_guid", "uplink_port",
}

// ofPod removes the labels that a scraped pod may add, where a rule aggregates over them.
var ofPod = strings.NewReplacer("(port, namespace, pod, container)", "(port)", "(namespace, pod, container)", "()")

// Check parses an expression and returns the labels of its result, or an error.
func (r Reference) Check(expr string) ([]string, error) {
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, expr)
	}
	labels, err := r.labels(e)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, expr)
	}
	return labels, nil
}

func (r Reference) labels(e parser.Expr) ([]string, error) {
	switch e := e.(type) {
	case *parser.VectorSelector:
		return r.selected(e)
	case *parser.MatrixSelector:
		return r.labels(e.VectorSelector)
	case *parser.SubqueryExpr:
		return r.labels(e.Expr)
	case *parser.ParenExpr:
		return r.labels(e.Expr)
	case *parser.UnaryExpr:
		return r.labels(e.Expr)
	case *parser.StepInvariantExpr:
		return r.labels(e.Expr)
	case *parser.Call:
		return r.called(e)
	case *parser.AggregateExpr:
		return r.aggregated(e)
	case *parser.BinaryExpr:
		return r.joined(e)
	}
	return nil, nil // a number or a string has no labels
}

// selected returns the labels of a selected metric.
func (r Reference) selected(e *parser.VectorSelector) ([]string, error) {
	labels, known := r[e.Name]
	for name, l := range r {
		if begin, is := strings.CutSuffix(name, "*"); is && !known && strings.HasPrefix(e.Name, begin) {
			labels, known = l, true
		}
	}
	if !known {
		return nil, fmt.Errorf("there is no metric %q", e.Name)
	}
	for _, m := range e.LabelMatchers {
		if m.Name != "__name__" && !slices.Contains(labels, m.Name) {
			return nil, fmt.Errorf("%s has no label %q", e.Name, m.Name)
		}
	}
	return labels, nil
}

// called returns the labels of the result of a function.
func (r Reference) called(e *parser.Call) ([]string, error) {
	var labels []string
	for _, arg := range e.Args {
		l, err := r.labels(arg)
		if err != nil {
			return nil, err
		}
		if len(l) > 0 {
			labels = l
		}
	}
	switch e.Func.Name {
	case "histogram_quantile":
		return without(labels, "le"), nil
	case "absent", "absent_over_time", "scalar":
		return nil, nil
	case "label_replace":
		if source := text(e.Args[3]); source != "" && !slices.Contains(labels, source) { // "": the replacement is a constant
			return nil, fmt.Errorf("no label %q to replace", source)
		}
		return append(slices.Clone(labels), text(e.Args[1])), nil
	}
	return labels, nil
}

func text(e parser.Expr) string {
	if s, is := e.(*parser.StringLiteral); is {
		return s.Val
	}
	return ""
}

// aggregated returns the labels of the result of an aggregation.
func (r Reference) aggregated(e *parser.AggregateExpr) ([]string, error) {
	labels, err := r.labels(e.Expr)
	if err != nil {
		return nil, err
	}
	for _, l := range e.Grouping {
		if !slices.Contains(labels, l) {
			return nil, fmt.Errorf("no label %q to aggregate by, or without, in %s", l, e.Expr)
		}
	}
	if e.Op == parser.TOPK || e.Op == parser.BOTTOMK {
		return labels, nil
	}
	result := e.Grouping
	if e.Without {
		result = without(labels, e.Grouping...)
	}
	if value, ok := e.Param.(*parser.StringLiteral); ok { // count_values
		result = append(slices.Clone(result), value.Val)
	}
	return result, nil
}

// joined returns the labels of the result of a binary operation.
func (r Reference) joined(e *parser.BinaryExpr) ([]string, error) {
	left, err := r.labels(e.LHS)
	if err != nil {
		return nil, err
	}
	right, err := r.labels(e.RHS)
	if err != nil {
		return nil, err
	}
	m := e.VectorMatching
	if m == nil || e.LHS.Type() != parser.ValueTypeVector || e.RHS.Type() != parser.ValueTypeVector {
		return append(slices.Clone(left), right...), nil // one side is a number
	}
	for _, l := range m.MatchingLabels {
		if m.On && (!slices.Contains(left, l) || !slices.Contains(right, l)) || !slices.Contains(left, l) && !slices.Contains(right, l) {
			return nil, fmt.Errorf("no label %q to match on both sides of %s", l, parser.ItemTypeStr[e.Op])
		}
	}
	switch {
	case e.Op == parser.LOR:
		return append(slices.Clone(left), right...), nil
	case e.Op == parser.LAND || e.Op == parser.LUNLESS:
		return left, nil
	case m.Card == parser.CardManyToOne || m.Card == parser.CardOneToMany:
		many, one := left, right
		if m.Card == parser.CardOneToMany {
			many, one = right, left
		}
		for _, l := range m.Include {
			if !slices.Contains(one, l) {
				return nil, fmt.Errorf("no label %q to take over in %s", l, parser.ItemTypeStr[e.Op])
			}
		}
		return append(slices.Clone(many), m.Include...), nil
	case e.Op.IsComparisonOperator() && !e.ReturnBool:
		return left, nil
	case m.On:
		return m.MatchingLabels, nil
	}
	return without(left, m.MatchingLabels...), nil
}

func without(labels []string, gone ...string) []string {
	return slices.DeleteFunc(slices.Clone(labels), func(l string) bool { return slices.Contains(gone, l) })
}
