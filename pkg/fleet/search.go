// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
)

// MinText is the minimum length of a text for a search in Prometheus.
const MinText = 3

// Found is a workload, an HCA or a GPU whose name, GUID or UUID contains the text.
type Found struct {
	Kind string // workload, HCA, VF, GPU
	Name string
	Node string
	ID   string // GUID or UUID
	Job  JobName
}

// Search looks for a text in names of workloads, in GUIDs and in UUIDs of GPUs. It returns at most 50 results of each
// kind, nil if no query was answered, and what was not answered. The caller has called Enter.
func (r *Reader) Search(ctx context.Context, text string) (found []Found, problems []string) {
	if len(text) < MinText {
		return nil, nil
	}
	return r.found.get(ctx, text, r.now, func() ([]Found, []string, int) {
		ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
		defer cancel()
		names, values := []string{"found_workloads", "found_gpus"}, map[string]string{"text": contains(text)}
		if guid := guidOf(text); guid != "" {
			names, values["guid"] = append(names, "found_devices"), contains(guid)
		}
		a := r.ask(ctx, r.now(), maxQuestion, queriesAtOnce, values, names...)
		return a.found(), a.problems, a.charged
	})
}

func contains(text string) string { return "(?i).*" + regexp.QuoteMeta(text) + ".*" }

// guidOf returns the text as part of a GUID in the form of the metrics, without 0x and colons; "" if it cannot be part
// of a GUID.
func guidOf(text string) string {
	hex := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(text), "0x"), ":", "")
	if len(hex) < MinText || strings.Trim(hex, "0123456789abcdef") != "" {
		return ""
	}
	return hex
}

func (a *answers) found() []Found {
	if len(a.vectors) == 0 {
		return nil
	}
	out := []Found{}
	for _, one := range a.vectors["found_workloads"] {
		out = append(out, Found{Kind: "workload", Name: label(one, "workload"), Node: label(one, "instance"), Job: jobName(one)})
	}
	for _, one := range a.vectors["found_gpus"] {
		name := label(one, "vendor") + " " + label(one, "gpu_id")
		out = append(out, Found{Kind: "GPU", Name: name, Node: label(one, "instance"), ID: label(one, "uuid")})
	}
	for _, one := range a.vectors["found_devices"] {
		f := Found{Kind: "HCA", Name: label(one, "device"), Node: label(one, "instance")}
		f.ID = cmp.Or(label(one, "node_guid"), label(one, "port_guid"))
		if pf := label(one, "pf_device"); pf != "" && f.Name == "" {
			f.Kind, f.Name = "VF", pf+" VF "+label(one, "vf")
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Found) int {
		return cmp.Or(cmp.Compare(b.Kind, a.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
	})
	return slices.Compact(out)
}
