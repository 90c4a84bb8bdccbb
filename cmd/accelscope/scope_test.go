// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/metrics"
)

func TestContainerScope(t *testing.T) {
	alone, cluster := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(cluster, "var/lib/kubelet/pod-resources"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		want metrics.Scope
		args []string
	}{
		{metrics.ScopeAll, []string{"--path.host=" + alone}},
		{metrics.ScopeAccelerated, []string{"--path.host=" + cluster}},
		{metrics.ScopeAccelerated, []string{"--path.host=" + alone, "--kubelet.pod-resources=/run/kubelet.sock"}},
		{metrics.ScopeAccelerated, []string{"--path.host=" + alone, "--kubelet.url=https://192.0.2.1:10250"}},
		{metrics.ScopeAll, []string{"--path.host=" + cluster, "--no-collector.kubelet"}},
		{metrics.ScopeAll, []string{"--path.host=" + cluster, "--container.scope=all"}},
		{metrics.ScopeAccelerated, []string{"--path.host=" + alone, "--container.scope=accelerated"}},
		{metrics.ScopeNone, []string{"--path.host=" + alone, "--container.scope=none"}},
		{metrics.ScopeNone, []string{"--path.host=" + cluster, "--no-collector.container"}},
		{metrics.ScopeNone, []string{"--path.host=" + cluster, "--container.scope=all", "--no-collector.container"}},
	} {
		c, err := parseArgs(t, "", test.args...)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Run.containerScope(); got != test.want {
			t.Errorf("%q: %q, want %q", test.args, got, test.want)
		}
	}
}

// TestStatesFlag runs the program with and without the series of all states.
func TestStatesFlag(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	_, args := fakeNode(t)
	binary := build(t)
	for _, test := range []struct {
		flags []string
		all   bool
	}{{nil, false}, {[]string{"--metrics.states=all"}, true}} {
		url, stop := start(t, binary, slices.Concat(args, test.flags)...)
		body := scrape(t, url).body
		if _, err := stop(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(body, `accelscope_source_state{source="rdma",state="ok"} 1`) {
			t.Errorf("%q: rdma is not ok", test.flags)
		}
		if got := strings.Contains(body, `accelscope_source_state{source="rdma",state="stuck"} 0`); got != test.all {
			t.Errorf("%q: other states: %v", test.flags, got)
		}
	}
}
