// SPDX-License-Identifier: Apache-2.0

//go:build image

package image

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// command returns a program of the image, run in the image with only /proc and /sys mounted.
func (m *image) command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	for _, dir := range []string{"proc", "sys"} {
		at := filepath.Join(m.root, dir)
		if entries, err := os.ReadDir(at); err != nil || len(entries) > 0 {
			continue
		}
		if err := syscall.Mount("/"+dir, at, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			t.Fatalf("mount %s (as root): %v", at, err)
		}
		if err := syscall.Mount("", at, "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	cmd := child.Command(ctx, args[0], args[1:]...)
	cmd.Env = append(append([]string{}, m.config.Config.Env...), env...)
	cmd.Dir, cmd.SysProcAttr.Chroot = "/", m.root
	return cmd
}

const sensor = "/usr/bin/accelscope"

func TestVersion(t *testing.T) {
	m := unpack(t, native)
	out, err := m.command(t, nil, sensor, "version").CombinedOutput()
	if want := m.config.Config.Labels["org.opencontainers.image.version"]; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v: %q, want version %s", err, out, want)
	}
}

// The sensor executes accelscope-tool of the image.
func TestTool(t *testing.T) {
	m := unpack(t, native)
	out, err := m.command(t, nil, sensor, "top", "--once", "--url=http://127.0.0.1:1/metrics").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "connection refused") {
		t.Errorf("%v: %q, want an error of the tool", err, out)
	}
}

// The arm64 binary is cross-compiled. QEMU runs it with the libraries of its image.
func TestVersionARM(t *testing.T) {
	m := unpack(t, arm64)
	out, err := child.Command(t.Context(), "qemu-aarch64-static", "-L", m.root, m.root+sensor, "version").CombinedOutput()
	want := m.config.Config.Labels["org.opencontainers.image.version"]
	if err != nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), "arm64") {
		t.Errorf("%v: %q, want version %s", err, out, want)
	}
}

// report is the output of doctor.
type report struct {
	Verdict string
	Checks  []struct{ Area, Name, State, Reason string }
}

func (m *image) doctor(t *testing.T, env []string, args ...string) (r report) {
	t.Helper()
	var stderr strings.Builder
	cmd := m.command(t, env, append([]string{sensor, "doctor", "--json"}, args...)...)
	cmd.Stderr = &stderr
	out, _ := cmd.Output() // exit status 1 is correct on a machine without InfiniBand
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s%s", err, out, &stderr)
	}
	if r.Verdict == "" || len(r.Checks) < 5 || stderr.String() != "" {
		t.Errorf("%s%s", out, &stderr)
	}
	return r
}

func (r report) find(area, name string) (state, reason string) {
	for _, c := range r.Checks {
		if c.Area == area && c.Name == name {
			return c.State, c.Reason
		}
	}
	return "", ""
}

// The image's C library searches NVIDIA's library: it reports that the library is missing, or opens it below the node's
// root, where the test puts the fake of tests/fakes/nvml.
func TestNVML(t *testing.T) {
	m := unpack(t, native)
	// Every container runtime makes /dev/null, the input of the program that the sensor starts.
	null := filepath.Join(m.root, "dev/null")
	if err := os.MkdirAll(filepath.Dir(null), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mknod(null, syscall.S_IFCHR|0o666, 1<<8|3); err != nil {
		t.Fatal(err)
	}
	state, reason := m.doctor(t, nil, "--gpu.nvml-library="+nvml.Library).find("source", "nvidia")
	if state == "ok" || !strings.Contains(reason, "cannot open shared object file") {
		t.Errorf("without the library nvidia is %q: %s", state, reason)
	}
	dir := filepath.Join(m.root, "host/usr/lib/x86_64-linux-gnu")
	if _, err := nvml.Build(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	s, err := nvml.New(filepath.Join(m.root, "host"))
	if err != nil {
		t.Fatal(err)
	}
	s.Driver("580.95.05")
	s.AddH100(0)
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	var env []string
	for _, e := range s.Environment() {
		env = append(env, strings.ReplaceAll(e, m.root, ""))
	}
	r := m.doctor(t, env, "--gpu.nvml-library=/host/usr/lib/x86_64-linux-gnu/"+nvml.Library)
	if state, reason := r.find("source", "nvidia"); state != "ok" {
		t.Errorf("with the library nvidia is %q: %s", state, reason)
	}
	if state, reason := r.find("gpu", "nvidia 0"); state != "ok" || !strings.Contains(reason, "H100") {
		t.Errorf("the GPU is %q: %s\n%+v", state, reason, r)
	}
}

// The health check of the image reports the state of its sensor.
func TestHealthcheck(t *testing.T) {
	m := unpack(t, native)
	env := []string{"ACCELSCOPE_WEB_LISTEN_ADDRESS=" + freeAddress(t)}
	check := func() (string, error) {
		// In the image, execvp searches PATH for the program.
		path := filepath.Join("/usr/bin", m.config.Config.Healthcheck.Test[1])
		out, err := m.command(t, env, append([]string{path}, m.config.Config.Healthcheck.Test[2:]...)...).CombinedOutput()
		return string(out), err
	}
	if out, err := check(); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("before the sensor runs: %v, %q", err, out)
	}
	run := m.command(t, env, sensor, "--no-collector.probe", "--no-collector.access", "--no-collector.runtime")
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	out, err := "", error(nil)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if out, err = check(); err == nil {
			break
		}
	}
	if err != nil || out != "" {
		t.Errorf("while the sensor runs: %v, %q", err, out)
	}
	if err := run.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := run.Wait(); err != nil {
		t.Errorf("the sensor ended with %v", err)
	}
	if out, err := check(); err == nil {
		t.Errorf("after its end: healthy, %q", out)
	}
}

// As another user the sensor serves what this user can read, and doctor lists what is missing. With ambient
// capabilities nothing of the kernel is missing.
func TestUser(t *testing.T) {
	m := unpack(t, native)
	least := []string{"CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYSLOG"}
	for name, tt := range map[string]struct {
		ambient      []uintptr
		state, probe string
	}{
		"without capabilities": {nil, "absent failed", "failed"},
		"with ambient capabilities": {[]uintptr{
			unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYSLOG,
		}, "ok", "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			as := func(cmd *exec.Cmd) *exec.Cmd {
				cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65532, Gid: 65532}
				cmd.SysProcAttr.AmbientCaps = tt.ambient
				return cmd
			}
			out, _ := as(m.command(t, nil, sensor, "doctor", "--json")).Output() // its status depends on the machine
			var r report
			if err := json.Unmarshal(out, &r); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, capability := range least {
				if state, reason := r.find("permission", capability); state == "" || !strings.Contains(tt.state, state) {
					t.Errorf("%s is %q: %s", capability, state, reason)
				}
			}
			if state, reason := r.find("permission", "CAP_DAC_OVERRIDE"); state != "absent" || !strings.Contains(reason, "sockets") {
				t.Errorf("the sockets of root are %q: %s", state, reason)
			}
			for source, want := range map[string]string{"cgroup": "ok", "node": "ok", "probe": tt.probe} {
				if state, reason := r.find("source", source); state != want {
					t.Errorf("%s is %q, want %q: %s", source, state, want, reason)
				}
			}
			address := freeAddress(t)
			run := as(m.command(t, []string{"ACCELSCOPE_WEB_LISTEN_ADDRESS=" + address}, sensor))
			if err := run.Start(); err != nil {
				t.Fatal(err)
			}
			text, err := "", error(nil)
			for end := time.Now().Add(time.Minute); time.Now().Before(end) && !strings.Contains(text, "node_memory_MemTotal_bytes "); {
				time.Sleep(100 * time.Millisecond)
				text, err = get("http://" + address + "/metrics")
			}
			if err != nil || !strings.Contains(text, "node_memory_MemTotal_bytes ") ||
				!strings.Contains(text, `accelscope_source_state{source="probe",state="`+tt.probe+`"} 1`) {
				t.Errorf("%v: %.2000s", err, text)
			}
			if err := run.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := run.Wait(); err != nil {
				t.Errorf("the sensor ended with %v", err)
			}
		})
	}
}

func get(url string) (string, error) {
	res, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}

// freeAddress returns a free address.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// The tools of the fabric start in their image.
func TestFabricTools(t *testing.T) {
	m := unpack(t, fabric)
	for _, tool := range []string{"iblinkinfo", "ibnetdiscover", "ibqueryerrors", "perfquery", "sminfo"} {
		out, err := m.command(t, nil, "/usr/sbin/"+tool, "--version").CombinedOutput()
		if !strings.Contains(string(out), tool) {
			t.Errorf("%s: %v: %q", tool, err, out)
		}
	}
}
