// SPDX-License-Identifier: Apache-2.0

// Package compose loads deploy/docker/compose.yaml with the library of `docker compose`, which needs a separate module.
package compose

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"
)

const docker = "../../../deploy/docker"

func load(t *testing.T, files ...string) *types.Project {
	t.Helper()
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = filepath.Join(docker, f)
	}
	options, err := cli.NewProjectOptions(paths, cli.WithWorkingDirectory(docker), cli.WithEnvFiles(), cli.WithDotEnv)
	if err != nil {
		t.Fatal(err)
	}
	p, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCompose(t *testing.T) {
	p := load(t, "compose.yaml")
	if p.Name != "accelscope" || len(p.Services) != 2 {
		t.Errorf("project %s with %v", p.Name, p.ServiceNames())
	}
	s := p.Services["accelscope"]
	if !s.Privileged || s.Pid != "host" || s.NetworkMode != "host" || !s.ReadOnly || s.MemLimit == 0 {
		t.Errorf("accelscope: %+v", s)
	}
	if len(s.Command) > 0 || s.HealthCheck != nil {
		t.Error("the health check of the image does not see arguments")
	}
	for _, service := range p.Services {
		for _, v := range service.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if v.Source == "/run/accelscope" || v.Source == "/var/lib/accelscope" { // the sensor creates a socket and the inventory there
				if v.ReadOnly || v.Bind == nil || !bool(v.Bind.CreateHostPath) {
					t.Errorf("%s: %+v", v.Source, v)
				}
				continue
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Error(err)
			}
			if !v.ReadOnly {
				t.Errorf("%s can be written", v.Source)
			}
		}
	}
	if s.Build == nil {
		t.Fatal("no build")
	}
	if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
		t.Error(err)
	}
	if c := p.Services["prometheus"].DependsOn["accelscope"]; c.Condition != types.ServiceConditionHealthy {
		t.Errorf("prometheus waits for %+v", c)
	}
}

// TestCapabilities: without privileged, the container has the permissions of the DaemonSet's overlay capabilities.
func TestCapabilities(t *testing.T) {
	s := load(t, "compose.yaml", "compose.capabilities.yaml").Services["accelscope"]
	text, err := os.ReadFile("../../../deploy/kubernetes/overlays/capabilities/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var set struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						SecurityContext struct {
							Capabilities struct{ Add, Drop []string }
						} `yaml:"securityContext"`
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &set); err != nil {
		t.Fatal(err)
	}
	want := set.Spec.Template.Spec.Containers[0].SecurityContext.Capabilities
	slices.Sort(want.Add)
	got := slices.Sorted(slices.Values(s.CapAdd))
	if s.Privileged || len(got) == 0 || !slices.Equal(got, want.Add) || !slices.Equal(s.CapDrop, want.Drop) {
		t.Errorf("privileged %v, added %v, dropped %v; want %+v", s.Privileged, got, s.CapDrop, want)
	}
}

// TestNVIDIA: the sensor requests no GPU, only the library that monitors all GPUs, and is not privileged.
func TestNVIDIA(t *testing.T) {
	s := load(t, "compose.yaml", "compose.capabilities.yaml", "compose.nvidia.yaml").Services["accelscope"]
	if s.Privileged || s.Deploy == nil || s.Deploy.Resources.Reservations == nil || len(s.Deploy.Resources.Reservations.Devices) != 1 {
		t.Fatalf("privileged %v, deploy %+v", s.Privileged, s.Deploy)
	}
	if d := s.Deploy.Resources.Reservations.Devices[0]; d.Driver != "nvidia" || d.Count != -1 || !slices.Equal(d.Capabilities, []string{"utility"}) {
		t.Errorf("%+v", d)
	}
}

// TestPrometheus: Debian's promtool accepts the configuration, with the rules where compose.yaml mounts them.
func TestPrometheus(t *testing.T) {
	root := t.TempDir()
	for _, v := range load(t, "compose.yaml").Services["prometheus"].Volumes {
		if v.Type != types.VolumeTypeBind {
			continue
		}
		target := filepath.Join(root, v.Target)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(v.Source, target); err != nil {
			t.Fatal(err)
		}
	}
	// promtool looks for the rules relative to the given path, not to the target of a symbolic link.
	cmd := exec.CommandContext(t.Context(), "promtool", "check", "config", filepath.Join(root, "etc/prometheus/prometheus.yml")) //nolint:forbidigo // tests/tools/child is in another module
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, 5*time.Second
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "alerts.yaml") || !strings.Contains(string(out), "recording.yaml") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestStrict: an unspecified key is an error, on which the test above relies.
func TestStrict(t *testing.T) {
	path := filepath.Join(t.TempDir(), "compose.yaml")
	if err := os.WriteFile(path, []byte("services:\n  a:\n    image: a\n    priviledged: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := cli.NewProjectOptions([]string{path}, cli.WithName("a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := options.LoadProject(t.Context()); err == nil || !strings.Contains(err.Error(), "priviledged") {
		t.Errorf("loaded: %v", err)
	}
}
