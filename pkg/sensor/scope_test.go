// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/accelscope/accelscope/pkg/config"
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
		c, _, err := config.Parse(config.Sensor, test.args, "", io.Discard, io.Discard, func(int) { t.Error("exit") })
		if err != nil {
			t.Fatal(err)
		}
		if got := (&Options{RunCommand: c.Run}).containerScope(); got != test.want {
			t.Errorf("%q: %q, want %q", test.args, got, test.want)
		}
	}
}
