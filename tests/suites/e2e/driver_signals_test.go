// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// signalLimit is how long a sensor may use the driver after a signal. The driver container stops the daemons after it
// has removed the ready file, and waits up to 5 s for each; the managers wait for pods after they have set labels. A
// guest on a busy machine is slow.
const signalLimit = 5 * time.Second

// nvidiaSignals unloads NVIDIA's driver under a running sensor after each signal that the sensor follows. Each time
// another version is loaded, which the sensor then reads.
func (n node) nvidiaSignals(t *testing.T) {
	d := newStubDriver(t)
	d.makeNodes()
	labels := serveNode(t)
	d.load("550.1")
	s := start(t, onlyGPUs("--gpu.release-on-node-labels", "--node.name=gpu01", "--log.level=debug")...)
	labels(nil)
	d.read(s, "550.1")
	version := 550
	for _, tt := range []struct {
		name   string
		before func(*testing.T) // what must exist before the signal
		signal func(*testing.T) // the signal
		reason string           // of the release; empty without a release
		after  func(*testing.T) // ends the signal, after the driver was loaded again
	}{
		{
			name:   "ready file",
			before: func(t *testing.T) { write(t, readyFile, ""); s.logged(t, "watching the ready file") },
			signal: func(t *testing.T) { remove(t, readyFile) },
			reason: "the driver container removed .driver-ctr-ready",
			after:  func(t *testing.T) { write(t, readyFile, "") },
		},
		{
			name: "nvidia-persistenced",
			before: func(t *testing.T) {
				s.daemon(t, d, "nvidia-persistenced", "/run/nvidia-persistenced/nvidia-persistenced.pid")
			},
			signal: func(t *testing.T) {
				remove(t, "/run/nvidia-persistenced/nvidia-persistenced.pid") // as it does when it is stopped
				d.endDaemon()
			},
			reason: "nvidia-persistenced was stopped",
		},
		{
			name: "label of the driver manager",
			signal: func(*testing.T) {
				labels(map[string]string{"nvidia.com/gpu.deploy.dcgm-exporter": "paused-for-driver-upgrade"})
			},
			reason: "node label nvidia.com/gpu.deploy.dcgm-exporter=paused-for-driver-upgrade",
			after:  func(*testing.T) { labels(map[string]string{"nvidia.com/gpu.deploy.dcgm-exporter": "true"}) },
		},
		{name: "unbind", signal: func(*testing.T) { d.bindTo("") }}, // returns when no file of the GPU is open
	} {
		t.Run(tt.name, func(t *testing.T) {
			d.t = t
			if tt.before != nil {
				tt.before(t)
			}
			d.refuses()
			earlier := len(s.releases())
			begin := time.Now()
			tt.signal(t)
			for d.users() != "0" && time.Since(begin) < signalLimit {
				time.Sleep(10 * time.Millisecond)
			}
			took := time.Since(begin)
			t.Logf("reference count %s after %v", d.users(), took.Round(time.Millisecond))
			if took >= signalLimit {
				t.Errorf("the driver is in use %v after the signal", took.Round(time.Millisecond))
			}
			if tt.reason == "" { // there is no GPU: the sensor looks for a GPU each second
				time.Sleep(2500 * time.Millisecond)
				if users := d.users(); users != "0" {
					t.Errorf("reference count %s although no GPU is bound", users)
				}
			}
			d.unload()
			if why := s.releases()[earlier:]; tt.reason != "" && (len(why) != 1 || !strings.Contains(why[0], tt.reason)) {
				t.Errorf("releases: %q, want one because of %q", why, tt.reason)
			} else if tt.reason == "" && len(why) > 0 {
				t.Errorf("releases: %q, want none", why)
			}
			version++
			d.load(fmt.Sprint(version, ".1"))
			d.read(s, fmt.Sprint(version, ".1"))
			if tt.after != nil {
				tt.after(t)
			}
		})
	}
	d.t = t
	t.Run("label of the MIG manager", func(t *testing.T) { // nothing is unloaded
		state := func(want string) {
			t.Helper()
			eventually(t, 30*time.Second, func() error {
				if got := s.scrape().by("accelscope_source_state", "state", "source", "nvidia"); got[want] != 1 {
					return fmt.Errorf("state %v", got)
				}
				return nil
			})
		}
		labels(map[string]string{"nvidia.com/mig.config.state": "pending"})
		state("released")
		if users := d.users(); users != "0" {
			t.Errorf("reference count %s", users)
		}
		labels(map[string]string{"nvidia.com/mig.config.state": "success"})
		state("ok")

		// An operator may end the release while the signal lasts.
		labels(map[string]string{"nvidia.com/mig.config.state": "pending"})
		state("released")
		sh(t, os.Getenv(binaryVar), "gpu", "resume")
		state("ok")
		time.Sleep(2500 * time.Millisecond)
		state("ok")
		labels(map[string]string{"nvidia.com/mig.config.state": "success"})
	})
	s.stop()
	d.unload()
}

// releases returns the lines about releases in the log of the sensor.
func (s *sensor) releases() (lines []string) {
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "NVML is released") {
			lines = append(lines, line)
		}
	}
	return lines
}

const readyFile = "/run/nvidia/validations/.driver-ctr-ready"

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func (s *sensor) logged(t *testing.T, text string) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		if !strings.Contains(s.log.String(), text) {
			return fmt.Errorf("%q is not logged", text)
		}
		return nil
	})
}

// daemon starts a process with the name and the PID file of a daemon of the driver, which has the GPU open like the
// real daemon, and waits until the sensor watches it.
func (s *sensor) daemon(t *testing.T, d *stubDriver, name, pidFile string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	text, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o700); err != nil {
		t.Fatal(err)
	}
	gpu, err := os.OpenFile("/dev/nvidia0", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	cmd := child.Command(context.Background(), program, "3600")
	cmd.ExtraFiles = []*os.File{gpu}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.endDaemon = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	write(t, pidFile, strconv.Itoa(cmd.Process.Pid)+"\n")
	s.logged(t, fmt.Sprintf(`watching a daemon of the driver	{"name": %q`, name))
}

// serveNode serves the node gpu01 like the API server of Kubernetes, for a sensor that is started later. The returned
// function replaces the labels and waits until a watch has received them.
func serveNode(t *testing.T) func(labels map[string]string) {
	t.Helper()
	events := make(chan []byte)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes" || r.URL.Query().Get("fieldSelector") != "metadata.name=gpu01" {
			http.Error(w, "forbidden", http.StatusForbidden)
			return
		}
		for {
			select {
			case e := <-events:
				_, _ = w.Write(e)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	write(t, account+"token", "token")
	write(t, account+"ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	return func(labels map[string]string) {
		t.Helper()
		node, err := json.Marshal(corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu01", Labels: labels}})
		if err != nil {
			t.Fatal(err)
		}
		var e metav1.WatchEvent
		e.Type, e.Object.Raw = "MODIFIED", node
		text, err := json.Marshal(&e)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case events <- text:
		case <-time.After(time.Minute):
			t.Fatal("the sensor does not watch its node")
		}
	}
}
