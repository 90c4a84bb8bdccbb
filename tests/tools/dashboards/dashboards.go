// SPDX-License-Identifier: Apache-2.0

// Package dashboards parses the Grafana dashboards of deploy/grafana, as far as needed to send the queries of their
// panels to Prometheus.
package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// Dashboard is a JSON file of a dashboard.
type Dashboard struct {
	File string `json:"-"`

	UID         string   `json:"uid"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
	Schema      int      `json:"schemaVersion"`
	Links       []struct {
		Type string   `json:"type"`
		Tags []string `json:"tags"`
	} `json:"links"`
	Templating struct {
		List []Variable `json:"list"`
	} `json:"templating"`
	Panels []Panel `json:"panels"`
}

// Variable is a selector above the panels.
type Variable struct {
	Name  string          `json:"name"`
	Type  string          `json:"type"`
	Query json.RawMessage `json:"query"` // a string, or an object that has the query
	All   string          `json:"allValue"`
}

// Text returns the query of a variable.
func (v Variable) Text() string {
	var text string
	if json.Unmarshal(v.Query, &text) == nil {
		return text
	}
	var object struct{ Query string }
	_ = json.Unmarshal(v.Query, &object) // anything else is no query
	return object.Query
}

// Panel is a panel of a dashboard, or the title of a row.
type Panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Datasource  struct {
		UID string `json:"uid"`
	} `json:"datasource"`
	Place       Place    `json:"gridPos"`
	Targets     []Target `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit  string `json:"unit"`
			Links []struct {
				URL string `json:"url"`
			} `json:"links"`
		} `json:"defaults"`
		Overrides []Override `json:"overrides"`
	} `json:"fieldConfig"`
	Transformations []struct {
		ID      string `json:"id"`
		Options struct {
			Index  map[string]int    `json:"indexByName"`
			Rename map[string]string `json:"renameByName"`
		} `json:"options"`
	} `json:"transformations"`
}

// Place is the position of a panel, on a grid of 24 columns.
type Place struct{ X, Y, W, H int }

// Target is a query.
type Target struct {
	Ref     string `json:"refId"`
	Expr    string `json:"expr"`
	Legend  string `json:"legendFormat"`
	Instant bool   `json:"instant"`
	Range   bool   `json:"range"`

	Datasource struct {
		UID string `json:"uid"`
	} `json:"datasource"`
}

// Override has the options that differ for some series or columns.
type Override struct {
	Matcher struct {
		ID      string `json:"id"`
		Options string `json:"options"`
	} `json:"matcher"`
	Properties []struct {
		ID    string          `json:"id"`
		Value json.RawMessage `json:"value"`
	} `json:"properties"`
}

// Load reads the dashboards of a directory.
func Load(dir string) ([]Dashboard, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []Dashboard
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		d := Dashboard{File: filepath.Base(file)}
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&d); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, d)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no dashboards in %s", dir)
	}
	return all, nil
}

// Values are the values of variables, in addition to the dashboard's with all values selected.
type Values map[string]string

// reference is a use of a variable: $name, ${name} or ${name:format}. $1 is a group of a regular expression.
var reference = regexp.MustCompile(`\$(?:\{([A-Za-z_]\w*)(?::\w+)?\}|([A-Za-z_]\w*))`)

// Variables returns the names of the variables that a text uses.
func Variables(text string) (names []string) {
	for _, m := range reference.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1]+m[2])
	}
	return names
}

// Expand replaces the variables of a query. Unknown variables stay.
func (d Dashboard) Expand(expr string, values Values) string {
	return reference.ReplaceAllStringFunc(expr, func(use string) string {
		name := Variables(use)[0]
		if v, ok := values[name]; ok {
			return v
		}
		if i := slices.IndexFunc(d.Templating.List, func(v Variable) bool { return v.Name == name }); i >= 0 {
			return d.Templating.List[i].All
		}
		return use
	})
}
