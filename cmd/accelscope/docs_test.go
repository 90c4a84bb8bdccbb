// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// metricName is what looks like one of our metrics in a text.
var metricName = regexp.MustCompile(
	`\b(?:accelscope|container_(?:rdma|device|cpu|memory|network)|node_(?:k8s|ephemeral_storage|infiniband)|` +
		`pod_ephemeral_storage|infiniband_(?:port|device)|rdma_stat)_[a-z_]*[a-z]\b` +
		`|\brdma_resources\b`)

// flagName is a flag; in one that stands for many, a part is in capitals.
var flagName = regexp.MustCompile(`--([a-z]+(?:[.-][a-zA-Z]+)*)`)

// What the documents name must exist: every metric in the generated reference,
// every flag in some command.
func TestDocs(t *testing.T) {
	reference, err := os.ReadFile("../../gen/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(string(reference), -1) {
		// A name of the reference may have a part that drivers fill in.
		name := strings.ReplaceAll(regexp.QuoteMeta(row[1]), "<counter>", "[a-z_]+")
		known = append(known, name+"(_bucket|_sum|_count)?")
	}
	metrics := regexp.MustCompile("^(" + strings.Join(known, "|") + ")$")
	if len(known) < 50 || metrics.MatchString("accelscope_no_such_thing") {
		t.Fatalf("%d metrics in the reference", len(known))
	}

	var c cli
	ctx, err := parse(&c, nil, io.Discard, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{"help"}
	for _, command := range ctx.Model.Leaves(false) {
		for _, group := range command.AllFlags(false) {
			for _, flag := range group {
				flags = append(flags, flag.Name, "no-"+flag.Name)
			}
		}
	}

	for _, pattern := range []string{"../../*.md", "../../bpf/*.md"} {
		documents, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range documents {
			text, err := os.ReadFile(document)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range metricName.FindAllString(string(text), -1) {
				if !metrics.MatchString(name) {
					t.Errorf("%s: there is no metric %s", document, name)
				}
			}
			for _, flag := range flagName.FindAllStringSubmatch(string(text), -1) {
				if strings.ToLower(flag[1]) == flag[1] && !slices.Contains(flags, flag[1]) {
					t.Errorf("%s: there is no flag --%s", document, flag[1])
				}
			}
		}
	}
}
