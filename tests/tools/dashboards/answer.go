// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// Answer is Prometheus's response to a query ("data" of its API).
type Answer struct {
	Type   string   `json:"resultType"`
	Series []Series `json:"result"`
}

// Series is a series of an answer: a range query has values, an instant query one value.
type Series struct {
	Labels map[string]string `json:"metric"`
	Values []Point           `json:"values,omitempty"`
	Value  *Point            `json:"value,omitempty"`
	// Native histograms, which are not parsed.
	Histograms []json.RawMessage `json:"histograms,omitempty"`
	Histogram  json.RawMessage   `json:"histogram,omitempty"`
}

// Point is a value and its time in seconds.
type Point struct{ Time, Value float64 }

// UnmarshalJSON reads [1700000000.1, "1.5"].
func (p *Point) UnmarshalJSON(text []byte) error {
	var value string
	if err := json.Unmarshal(text, &[]any{&p.Time, &value}); err != nil {
		return err
	}
	var err error
	if p.Value, err = strconv.ParseFloat(value, 64); err != nil {
		return fmt.Errorf("a value of Prometheus: %w", err)
	}
	return nil
}

// Points returns the values of a series, of a range or of an instant.
func (s Series) Points() []Point {
	if s.Value != nil {
		return []Point{*s.Value}
	}
	return s.Values
}

// HasData reports whether an answer has a number or a native histogram.
func (a Answer) HasData() bool {
	for _, s := range a.Series {
		if len(s.Histograms) > 0 || len(s.Histogram) > 0 {
			return true
		}
		for _, p := range s.Points() {
			if !math.IsNaN(p.Value) {
				return true
			}
		}
	}
	return false
}
