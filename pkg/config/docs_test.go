// SPDX-License-Identifier: Apache-2.0

package config

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// metricName matches text with the form of our metric names.
var metricName = regexp.MustCompile(
	`\b(?:accelscope|container_(?:rdma|device|cpu|memory|network|gpu)|node_(?:k8s|ephemeral_storage|infiniband)|` +
		`pod_ephemeral_storage|infiniband_(?:port|device|switch|fabric|hca)|rdma_stat|rdma_faults?|gpu)_[a-z0-9_]*[a-z0-9]\b` +
		`|\brdma_resources\b`)

// noMetrics are names with that form that are not metrics: a file of amdgpu.
var noMetrics = []string{"gpu_metrics"}

// ruleName matches the name of a recording rule: level:metric:operation. The tests of the rules check these names.
var ruleName = regexp.MustCompile(`[a-zA-Z0-9_]+:[a-zA-Z0-9_]+(:[a-zA-Z0-9_]+)?`)

// flagName matches a flag; a name for several flags has a part in capitals.
var flagName = regexp.MustCompile(`--([a-z]+(?:[.-][a-zA-Z]+)*)`)

// otherFlags are flags of other programs outside deploy: of helm, apt-get, nvidia-smi, curl and srun.
var otherFlags = []string{"install", "namespace", "set", "no-install-recommends", "gpm-metrics", "gpu-reset", "unix-socket", "gres-flags", "query-gpu"}

// The names in the documents must exist: every metric in the generated reference, every flag in a command.
func TestDocs(t *testing.T) {
	reference, err := os.ReadFile("../../gen/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	// A line has a metric with its labels in braces, or labels in braces and the names of several metrics.
	word := regexp.MustCompile("`([^`{]*)(?:{([^}`]*)})?`")
	for _, line := range regexp.MustCompile("(?m)^- `[^` ]+`.*$").FindAllString(string(reference), -1) {
		for _, found := range word.FindAllStringSubmatch(line, -1) {
			// A name in the reference may contain a part that drivers set.
			name := strings.ReplaceAll(regexp.QuoteMeta(found[1]), "<counter>", "[a-z_]+")
			known = append(known, name+"(_bucket|_sum|_count)?")
			for label := range strings.SplitSeq(found[2], ",") {
				known = append(known, label) // gpu_id has the form of a metric name, too
			}
		}
	}
	metrics := regexp.MustCompile("^(" + strings.Join(append(known, noMetrics...), "|") + ")$")
	if len(known) < 50 || metrics.MatchString("accelscope_no_such_thing") {
		t.Fatalf("%d metrics in the reference", len(known))
	}

	var c CLI
	ctx, err := parse(&c, nil, "", io.Discard, io.Discard, nil)
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

	variables := ansibleVariables(t)
	for _, document := range documents(t) {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		deploy := strings.HasPrefix(document, deployDir)
		prose := ruleName.ReplaceAllString(string(text), "")
		for _, name := range metricName.FindAllString(prose, -1) {
			if !metrics.MatchString(name) && (!deploy || !slices.Contains(variables, name)) {
				t.Errorf("%s: there is no metric %s", document, name)
			}
		}
		for _, flag := range flagName.FindAllStringSubmatch(string(text), -1) {
			if deploy && !ours(flag[1], flags) || slices.Contains(otherFlags, flag[1]) {
				continue
			}
			if strings.ToLower(flag[1]) == flag[1] && !slices.Contains(flags, flag[1]) {
				t.Errorf("%s: there is no flag --%s", document, flag[1])
			}
		}
	}
}

const deployDir = "../../deploy"

// documents returns the documents at the root, in docs, docs/internals and bpf, and all below deploy.
func documents(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/internals/*.md", "../../bpf/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, err)
		}
		files = append(files, found...)
	}
	err := filepath.WalkDir(deployDir, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// ansibleVariables are the variables and groups of the role, which have the form of metric names.
func ansibleVariables(t *testing.T) (names []string) {
	t.Helper()
	key := regexp.MustCompile(`(?m)^ *(accelscope_[a-z_]+):`)
	err := filepath.WalkDir(filepath.Join(deployDir, "ansible"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yml" && filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range key.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// ours reports whether a flag is of a group that only our program has. Documents below deploy also mention flags of
// other programs, and Prometheus has the groups config, log and web, too.
func ours(flag string, flags []string) bool {
	group, _, dotted := strings.Cut(strings.TrimPrefix(flag, "no-"), ".")
	return dotted && !slices.Contains([]string{"config", "log", "web"}, group) &&
		slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, group+".") })
}
