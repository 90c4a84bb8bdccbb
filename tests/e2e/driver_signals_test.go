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

	"github.com/accelscope/accelscope/tests/child"
)

// nvidiaRelease unloads NVIDIA's driver under a running sensor: after each of the signals that the sensor follows, and after
// accelscope gpu release. Each time another version is loaded, which the sensor then reads.
func (n node) nvidiaRelease(t *testing.T) {
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
		signal func(*testing.T) // the signal; the driver must then be unused within seconds
		after  func(*testing.T) // ends the signal, after the driver was loaded again
	}{
		{
			name: "gpu release",
			signal: func(t *testing.T) {
				t.Log(strings.TrimSpace(sh(t, os.Getenv(binaryVar), "gpu", "release", "--for=5m")))
			},
		},
		{
			name:   "ready file",
			before: func(t *testing.T) { write(t, readyFile, ""); s.logged(t, "watching the ready file") },
			signal: func(t *testing.T) { remove(t, readyFile) },
			after:  func(t *testing.T) { write(t, readyFile, "") },
		},
		{
			name: "nvidia-persistenced",
			before: func(t *testing.T) {
				d.persistenced(t)
				s.logged(t, "watching a daemon of the driver")
			},
			signal: func(*testing.T) { d.endDaemon() },
		},
		{
			name: "label of the driver manager",
			signal: func(*testing.T) {
				labels(map[string]string{"nvidia.com/gpu.deploy.dcgm-exporter": "paused-for-driver-upgrade"})
			},
			after: func(*testing.T) { labels(map[string]string{"nvidia.com/gpu.deploy.dcgm-exporter": "true"}) },
		},
		{
			name: "unbind",
			signal: func(*testing.T) {
				begin := time.Now()
				d.bindTo("")
				t.Logf("unbound after %v", time.Since(begin).Round(time.Millisecond))
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d.t = t
			if tt.before != nil {
				tt.before(t)
			}
			if users := d.users(); users == "0" {
				t.Error("the sensor does not use the driver")
			}
			tt.signal(t)
			took := eventually(t, 30*time.Second, func() error {
				if users := d.users(); users != "0" {
					return fmt.Errorf("reference count %s", users)
				}
				return nil
			})
			out, err := d.unload() // once, as the tools do
			t.Logf("unused %v after the signal; rmmod: %v %s", took.Round(time.Millisecond), err, out)
			if err != nil {
				t.Fatal(err)
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
	})
	s.stop()
	if out, err := d.unload(); err != nil {
		t.Errorf("rmmod without a sensor: %v: %s", err, out)
	}
}

const readyFile = "/run/nvidia/validations/.driver-ctr-ready"

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// logged waits until the sensor has logged a text.
func (s *sensor) logged(t *testing.T, text string) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		if !strings.Contains(s.log.String(), text) {
			return fmt.Errorf("%q is not logged", text)
		}
		return nil
	})
}

// persistenced starts a process with the name and the PID file of nvidia-persistenced, which has the GPU open as the real one.
func (d *stubDriver) persistenced(t *testing.T) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "nvidia-persistenced")
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
	write(t, "/run/nvidia-persistenced/nvidia-persistenced.pid", strconv.Itoa(cmd.Process.Pid)+"\n")
}

// serveNode serves the node gpu01 as the API server of Kubernetes does, for a sensor that is started later. The returned function
// replaces the labels and waits until a watch has received them.
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
