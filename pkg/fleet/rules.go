// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Rule is an alerting rule as Prometheus evaluated it.
type Rule struct {
	Name      string      `json:"name"`
	Health    string      `json:"health"` // ok, err, unknown
	Evaluated time.Time   `json:"lastEvaluation"`
	Alerts    []RuleAlert `json:"alerts"`
}

// RuleAlert is a pending or firing alert of a rule.
type RuleAlert struct {
	Labels map[string]string `json:"labels"`
	State  string            `json:"state"`
}

// Firing is the state of an alert that fires. Other states are pending, and inactive.
const Firing = "firing"

// Rules returns the rules of these names. If Prometheus says that parts of its answer are missing, Rules fails.
func (r *Reader) Rules(ctx context.Context, names ...string) ([]Rule, error) {
	u := *r.prometheus.query.JoinPath("../rules")
	wanted := url.Values{"type": {"alert"}, "rule_name[]": names}
	u.RawQuery = strings.TrimPrefix(u.RawQuery+"&"+wanted.Encode(), "&")
	response, err := r.prometheus.do(ctx, http.MethodGet, u, "")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, failure(response)
	}
	var answer struct {
		Status   string
		Warnings []string
		Data     struct {
			Groups         []struct{ Rules []Rule }
			GroupNextToken string
		}
	}
	body := &Body{From: response.Body, Left: maxAnswer, Part: maxAnswer, TooLarge: errTooLarge}
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	if answer.Status != "success" || len(answer.Warnings) > 0 || answer.Data.GroupNextToken != "" {
		return nil, errors.New("rules: an incomplete answer: " + strings.Join(answer.Warnings, "; "))
	}
	var rules []Rule
	for _, g := range answer.Data.Groups {
		for _, rule := range g.Rules {
			if slices.Contains(names, rule.Name) { // servers before Prometheus 2.46 ignore rule_name[]
				rules = append(rules, rule)
			}
		}
	}
	return rules, nil
}

// Heard are the times of the last answers of sensors, by node.
type Heard struct{ Any, GPUs, HCAs map[string]time.Time }

// Heard returns the sensors' last answers, and those that had GPUs and HCAs. If Prometheus leaves a query unanswered, Heard fails.
func (r *Reader) Heard(ctx context.Context) (Heard, error) {
	names := []string{"heard", "heard_gpus", "heard_hcas"}
	a := r.ask(ctx, r.now(), maxState, queriesAtOnce, nil, names...)
	if len(a.problems) > 0 {
		return Heard{}, errors.New(strings.Join(a.problems, "; "))
	}
	var times [3]map[string]time.Time
	for i, name := range names {
		times[i] = map[string]time.Time{}
		for _, s := range a.vectors[name] {
			times[i][label(s, "instance")] = time.UnixMilli(int64(s.value * 1e3))
		}
	}
	return Heard{times[0], times[1], times[2]}, nil
}
