// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/model"
)

// holds records the calls of a control.Releaser.
type holds chan string

func (h holds) Release(string, time.Duration) model.LibraryStatus { return model.LibraryStatus{} }
func (h holds) Resume() model.LibraryStatus                       { return model.LibraryStatus{} }
func (h holds) Status() model.LibraryStatus                       { return model.LibraryStatus{} }
func (h holds) EndHold(reason string)                             { h <- "end " + reason }

func (h holds) Hold(reason string, _ time.Duration) model.LibraryStatus {
	h <- reason
	return model.LibraryStatus{}
}

// TestWatchUnload removes the ready file of a driver container, below --path.host.
func TestWatchUnload(t *testing.T) {
	var f Options
	f.Sysfs, f.Procfs, f.Host = t.TempDir(), "/proc", t.TempDir()
	ready := filepath.Join(f.Host, "run/nvidia/validations/.driver-ctr-ready")
	if err := os.MkdirAll(filepath.Dir(ready), 0o755); err != nil {
		t.Fatal(err)
	}
	h := make(holds, 100)
	defer watchUnload(&f, h, zap.NewNop())()
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

// TestOwnNode: a pod has a node.
func TestOwnNode(t *testing.T) {
	o := Options{RunCommand: config.RunCommand{SensorFlags: config.SensorFlags{NodeName: "gpu01"}}}
	if n := o.OwnNode(); n != nil {
		t.Errorf("outside a pod: %+v", n)
	}
	o.APIServer = "https://[fd00::1]:443"
	if n := o.OwnNode(); n == nil || n.Server != o.APIServer || n.Name != "gpu01" {
		t.Errorf("%+v", n)
	}
}
