// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// composeDir has the files for Docker Compose.
const composeDir = "../../../deploy/docker"

var composeScenarios = []scenario[*composed]{
	{"default", (*composed).standard, "", nil},
	{"capabilities", (*composed).capabilities, "", nil},
	{"nvidia", (*composed).nvidia, "", nil},
}

// TestCompose starts the files of deploy/docker with Debian's docker-compose on Debian's Docker Engine: the image of
// `make image`, and an image with Debian's Prometheus that the test makes. `make test-compose` runs it.
func TestCompose(t *testing.T) {
	if !whole() {
		t.Skip("runs in make test-compose")
	}
	runParallel(t)
	for _, n := range nodes(composeScenarios) {
		t.Run(n.String(), func(t *testing.T) {
			runParallel(t)
			if guest.Enter(t, n.composeOptions()) {
				play(t, n, composeScenarios, startComposed(t))
			}
		})
	}
}

func (n node) composeOptions() vm.Options {
	return vm.Options{
		Kernel: n.kernel, Cgroup: n.cgroup, Devices: 1, Timeout: time.Hour,
		Env: []string{nodesVar + "=" + os.Getenv(nodesVar), binaryVar + "=in the image"},
	}
}

// composed is a Docker Engine with the images.
type composed struct {
	docker *guest.Docker
	hook   string // where the FAKE hook of NVIDIA's container toolkit writes its input state
}

func startComposed(t *testing.T) *composed {
	t.Helper()
	// The engine has the driver nvidia if this program is in its PATH when it starts.
	dir := t.TempDir()
	c := &composed{hook: filepath.Join(dir, "state")}
	write(t, dir+"/nvidia-container-runtime-hook", "#!/bin/sh\necho \"$1\" >>"+c.hook+"\ncat >>"+c.hook+"\n")
	sh(t, "chmod", "755", dir+"/nvidia-container-runtime-hook")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("PROMETHEUS_IMAGE", "prometheus:debian")
	sh(t, "mount", "--make-rshared", "/")   // as systemd does
	sh(t, "umount", "/sys/kernel/security") // without AppArmor, whose parser is not installed
	if _, err := guest.StartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.docker, err = guest.StartDocker(t.Context(), "cgroupfs"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", sh(t, "sh", "-c", `docker ps -a; for c in $(docker ps -aq); do
				docker inspect --format='{{.Name}} {{json .State}}' $c; docker logs --tail 20 $c 2>&1; done`))
		}
	})
	sh(t, "docker", "load", "--input", "../../../bin/accelscope-image.tar")
	root := dir + "/root"
	sh(t, "sh", "-ec", `mkdir -p `+root+`/prometheus
		cp --parents /usr/bin/prometheus $(ldd /usr/bin/prometheus | grep -o '/[^ ]*') `+root+`
		chown 65534 `+root+`/prometheus
		tar -c -C `+root+` . | docker import --change 'ENTRYPOINT ["/usr/bin/prometheus"]' --change 'USER 65534' - $PROMETHEUS_IMAGE
		rm -r `+root)
	version, _, _ := strings.Cut(sh(t, "prometheus", "--version"), " (")
	t.Logf("docker-compose %s, Docker %s, %s", strings.TrimSpace(sh(t, "docker-compose", "version", "--short")),
		strings.TrimSpace(sh(t, "docker", "version", "--format={{.Server.Version}}")), version)
	return c
}

func compose(t *testing.T, files []string, args ...string) string {
	t.Helper()
	var all []string
	for _, f := range files {
		all = append(all, "-f", f)
	}
	return sh(t, "docker-compose", append(all, args...)...)
}

func inspect(t *testing.T, service, format string) string {
	t.Helper()
	id := strings.TrimSpace(sh(t, "docker", "ps", "--quiet", "--no-trunc", "--filter=label=com.docker.compose.project=accelscope",
		"--filter=label=com.docker.compose.service="+service))
	if id == "" { // it restarts
		return ""
	}
	return strings.TrimSpace(sh(t, "docker", "inspect", "--format="+format, id))
}

// healthy waits until the health check of the sensor succeeds. It runs every 30 s.
func healthy(t *testing.T) {
	t.Helper()
	took := eventually(t, 3*time.Minute, func() error {
		if got := inspect(t, "accelscope", "{{.State.Health.Status}}"); got != "healthy" {
			return fmt.Errorf("the sensor is %s: %s", got, inspect(t, "accelscope", "{{json .State.Health.Log}}"))
		}
		return nil
	})
	t.Logf("healthy after %v", took.Round(time.Second))
}

// up starts the services. It waits until Prometheus has scraped the sensor and evaluated the rules, and the sensor
// names the containers as Docker does.
func up(t *testing.T, files []string) {
	t.Helper()
	begin := time.Now()
	compose(t, files, "up", "-d") // starts Prometheus when the sensor is healthy
	t.Logf("up after %v", time.Since(begin).Round(time.Second))
	healthy(t)
	scraped(t, 0)
	p := &prometheus{t: t, url: "http://127.0.0.1:9090"}
	eventually(t, 2*time.Minute, func() error {
		rules := p.rules()
		for _, r := range rules {
			if r.Health != "ok" {
				return fmt.Errorf("rule %s is %s: %s", r.Name, r.Health, r.LastError)
			}
		}
		if len(rules) == 0 {
			return errors.New("no rules")
		}
		return nil
	})
	for _, service := range []string{"accelscope", "prometheus"} {
		name, id := strings.TrimPrefix(inspect(t, service, "{{.Name}}"), "/"), inspect(t, service, "{{.Id}}")
		eventually(t, time.Minute, func() error {
			text := fmt.Sprintf(`accelscope_workload_info{workload="docker:%s", container_id="%s", runtime="docker"}`, name, id)
			got, err := sum(text)
			if err != nil || got != 1 {
				return errors.Join(fmt.Errorf("%s: %v", text, got), err)
			}
			return nil
		})
	}
}

// sum returns the sum of an instant query's series, 0 without series.
func sum(expression string) (sum float64, err error) {
	now := time.Now()
	answer, err := (&prometheus{url: "http://127.0.0.1:9090"}).ask(expression, true, now, now)
	for _, s := range answer.Series {
		sum += s.Value.Value
	}
	return sum, err
}

// scraped waits until Prometheus has scraped a process that started after the previous process. It returns the start.
func scraped(t *testing.T, previous float64) (started float64) {
	t.Helper()
	eventually(t, 2*time.Minute, func() error {
		values := map[string]float64{}
		for _, text := range []string{`up{job="accelscope"}`, `process_start_time_seconds{job="accelscope"}`} {
			var err error
			if values[text], err = sum(text); err != nil {
				return err
			}
		}
		started = values[`process_start_time_seconds{job="accelscope"}`]
		if values[`up{job="accelscope"}`] != 1 || started <= previous {
			return fmt.Errorf("%v, started before at %v", values, previous)
		}
		return nil
	})
	return started
}

// down: nothing is left.
func down(t *testing.T, files []string) {
	t.Helper()
	compose(t, files, "down", "--volumes")
	if left := sh(t, "docker", "ps", "--all", "--quiet") + sh(t, "docker", "volume", "ls", "--quiet"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// standard: compose.yaml as it is. A restarted and a killed sensor are scraped again.
func (c *composed) standard(t *testing.T) {
	files := []string{composeDir + "/compose.yaml"}
	up(t, files)
	if got := inspect(t, "accelscope", "{{.HostConfig.Privileged}}"); got != "true" {
		t.Errorf("privileged: %s", got)
	}
	if out := compose(t, files, "exec", "-T", "accelscope", "accelscope", "doctor"); !strings.Contains(out, "docker") {
		t.Errorf("doctor:\n%s", out)
	}
	started := scraped(t, 0)
	compose(t, files, "restart", "accelscope")
	healthy(t)
	started = scraped(t, started)

	pid, err := strconv.Atoi(inspect(t, "accelscope", "{{.State.Pid}}"))
	if err != nil || pid < 2 {
		t.Fatal(pid, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		if count := inspect(t, "accelscope", "{{.RestartCount}}"); count != "1" {
			return fmt.Errorf("restarted %s times", count)
		}
		return nil
	})
	healthy(t)
	scraped(t, started)
	down(t, files)
}

// old returns a file without the capabilities that Docker before 23 lacks, as its comment says.
func old(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(composeDir, name))
	if err != nil || !strings.Contains(string(text), "[BPF, PERFMON, SYS_ADMIN,") {
		t.Fatal(name, err)
	}
	file := filepath.Join(t.TempDir(), name)
	write(t, file, strings.Replace(string(text), "BPF, PERFMON, ", "", 1))
	return file
}

// capabilities: the services without privileged.
func (c *composed) capabilities(t *testing.T) {
	files := []string{composeDir + "/compose.yaml", old(t, "compose.capabilities.yaml")}
	up(t, files)
	if got := inspect(t, "accelscope", "{{.HostConfig.Privileged}}"); got != "false" {
		t.Errorf("privileged: %s", got)
	}
	down(t, files)
}

// nvidia: the engine asks NVIDIA's container toolkit, here a FAKE hook, for all GPUs of the node.
func (c *composed) nvidia(t *testing.T) {
	files := []string{composeDir + "/compose.yaml", old(t, "compose.capabilities.yaml"), composeDir + "/compose.nvidia.yaml"}
	up(t, files)
	if got := inspect(t, "accelscope", "{{.HostConfig.Privileged}}"); got != "false" {
		t.Errorf("privileged: %s", got)
	}
	state, err := os.ReadFile(c.hook)
	if err != nil || !strings.Contains(string(state), inspect(t, "accelscope", "{{.Id}}")) {
		t.Fatalf("%v: %s", err, state)
	}
	environ, err := os.ReadFile("/proc/" + inspect(t, "accelscope", "{{.State.Pid}}") + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"} {
		if !strings.Contains("\x00"+string(environ), "\x00"+want+"\x00") {
			t.Errorf("no %s in %q", want, environ)
		}
	}
	down(t, files)
}
