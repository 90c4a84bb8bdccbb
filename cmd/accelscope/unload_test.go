// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia"
	"github.com/accelscope/accelscope/pkg/source/nvidia/unload"
)

// holds records the calls of a releaser.
type holds chan string

func (h holds) Release(string, time.Duration) nvidia.Status { return nvidia.Status{} }
func (h holds) Resume() nvidia.Status                       { return nvidia.Status{} }
func (h holds) Status() nvidia.Status                       { return nvidia.Status{} }
func (h holds) EndHold(reason string)                       { h <- "end " + reason }

func (h holds) Hold(reason string, _ time.Duration) nvidia.Status {
	h <- reason
	return nvidia.Status{}
}

// TestWatchUnload removes the ready file of a driver container, below --path.host.
func TestWatchUnload(t *testing.T) {
	f := sensorFlags{Sysfs: t.TempDir(), Procfs: "/proc", Host: t.TempDir()}
	ready := filepath.Join(f.Host, "run/nvidia/validations/.driver-ctr-ready")
	if err := os.MkdirAll(filepath.Dir(ready), 0o755); err != nil {
		t.Fatal(err)
	}
	h := make(holds, 100)
	defer watchUnload(f, h, zap.NewNop())()
	for deadline := time.Now().Add(time.Minute); len(h) == 0; { // a file that is removed before it was seen is no signal
		if err := os.WriteFile(ready, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := os.Remove(ready); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if time.Now().After(deadline) {
			t.Fatal("not released in a minute")
		}
	}
	const reason = "the driver container removed .driver-ctr-ready"
	if got := <-h; got != reason {
		t.Errorf("%q, want %q", got, reason)
	}
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-h:
		if got != "end "+reason {
			t.Errorf("%q, want the end of %q", got, reason)
		}
	case <-time.After(time.Minute):
		t.Error("the release does not end")
	}
}

// TestNodeLabels: doctor reports why the labels of the node cannot be watched.
func TestNodeLabels(t *testing.T) {
	var r report
	r.nodeLabels(t.Context(), nil)
	r.nodeLabels(t.Context(), &unload.Node{Name: "gpu01", Server: "https://127.0.0.1:1", TokenFile: "/nowhere", CAFile: "/nowhere"})
	if len(r.Checks) != 2 || r.Checks[0].State != model.StateUnsupported || !strings.Contains(r.Checks[0].Reason, "outside a pod") ||
		r.Checks[1].State != model.StateFailed || !strings.Contains(r.Checks[1].Cure, "gpu-release") {
		t.Errorf("%+v", r.Checks)
	}
}

// TestOwnNode reads the variables that Kubernetes sets in each container.
func TestOwnNode(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if n := ownNode("gpu01"); n != nil {
		t.Errorf("outside a pod: %+v", n)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if n := ownNode("gpu01"); n == nil || n.Server != "https://[fd00::1]:443" || n.Name != "gpu01" {
		t.Errorf("%+v", n)
	}
}
