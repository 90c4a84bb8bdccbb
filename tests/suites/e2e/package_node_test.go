// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// packageOptions builds the packages and the workloads, outside the guest: only make test-kernels upgrades.
func packageOptions(t *testing.T) vm.Options {
	t.Helper()
	if os.Getenv(packagesVar) != "" {
		return vm.Options{} // in the guest
	}
	t.Parallel()
	workloads, err := vm.BuildWorkloads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	versions := map[string]string{older: "# as it was before"}
	library := ""
	if whole() {
		versions[newer] = ""
		if library, err = nvml.Build(t.Context(), dir, false); err != nil {
			t.Fatal(err)
		}
	}
	tests, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	for version, more := range versions {
		sh(t, "make", "-C", "../../..", "packages", "VERSION=v"+version, "PACKAGES="+dir, "COMPRESSION=gzip")
		// Repacked without compression, because an emulated CPU takes long to decompress.
		tree := filepath.Join(dir, version)
		sh(t, "dpkg-deb", "-R", debOf(dir, version), tree)
		sh(t, "sh", "-c", "echo '"+more+"' >>"+tree+config)
		sh(t, "dpkg-deb", "-b", "-Znone", tree, debOf(dir, version))
	}
	return vm.Options{
		Kernel: "6.1", Devices: 2, Systemd: true, Timeout: 30 * time.Minute,
		Env: []string{
			packagesVar + "=" + dir, nodesVar + "=" + os.Getenv(nodesVar), rdmaTestVar + "=" + tests + "/rdma.test", nvmlVar + "=" + library,
			"DEBIAN_FRONTEND=noninteractive",
			"PATH=" + workloads + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		},
	}
}

func debOf(dir, version string) string {
	return filepath.Join(dir, "accelscope_"+version+"_amd64.deb")
}

// smallDatabase reduces dpkg's database to the packages that ours needs: reading the machine's own takes a minute in a
// guest.
func smallDatabase(t *testing.T) {
	t.Helper()
	sh(t, "sh", "-ec", `mkdir -p /run/dpkg/info /run/dpkg/updates /run/dpkg/triggers
		for p in libc6 libgcc-s1 gcc-12-base libcrypt1 init-system-helpers; do
			dpkg -s $p; echo
			cp /var/lib/dpkg/info/$p[.:]* /run/dpkg/info
		done >/run/dpkg/status
		mount --bind /run/dpkg /var/lib/dpkg`)
}

// confined runs a command with the unit's properties and further ones, and returns its output.
func confined(t *testing.T, command string, more ...string) string {
	t.Helper()
	text, err := os.ReadFile("/usr/lib/systemd/system/" + unit)
	if err != nil {
		t.Fatal(err)
	}
	const file = "/run/confined"
	var lines []string
	for line := range strings.SplitSeq(string(text), "\n") {
		switch {
		case line == "Type=notify":
			lines = append(lines, "Type=oneshot", "StandardOutput=truncate:"+file, "StandardError=journal")
			lines = append(lines, more...)
		case strings.HasPrefix(line, "ExecStart="):
			lines = append(lines, "ExecStart="+command)
		case !strings.HasPrefix(line, "Restart="):
			lines = append(lines, line)
		}
	}
	if err := os.WriteFile("/run/systemd/system/confined.service", []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	sh(t, "systemctl", "daemon-reload")
	if out, err := child.Command(t.Context(), "systemctl", "start", "confined.service").CombinedOutput(); err != nil {
		t.Errorf("%s under the unit: %v: %s%s", command, err, out, sh(t, "journalctl", "--no-pager", "-u", "confined"))
	}
	out, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func dpkg(t *testing.T, args ...string) {
	t.Helper()
	begin := time.Now()
	out := sh(t, "dpkg", args...)
	t.Logf("dpkg %s took %v:\n%s", args[0], time.Since(begin).Round(time.Second), out)
}

// running waits until the service is active and ready with this version, and returns a sensor for its process.
func (d *deployment) running(t *testing.T, version string) *sensor {
	t.Helper()
	s := service(t, "http://127.0.0.1:9847", http.DefaultClient)
	eventually(t, 30*time.Second, func() error { // the sensor answers requests before it notifies systemd
		if state := property(t, "ActiveState"); state != "active" {
			return fmt.Errorf("the service is %s", state)
		}
		return nil
	})
	if s.scrape().sum("accelscope_build_info", "version", "v"+version) != 1 {
		t.Errorf("not version %s: %v", version, s.scrape().all("accelscope_build_info"))
	}
	return s
}

// service returns the process of the unit once /readyz reports ready.
func service(t *testing.T, url string, client *http.Client) *sensor {
	t.Helper()
	eventually(t, time.Minute, func() error {
		res, err := client.Get(url + "/readyz")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz: %s", res.Status)
		}
		return nil
	})
	process, err := os.FindProcess(mainPID(t))
	if err != nil {
		t.Fatal(err)
	}
	return &sensor{
		t: t, cmd: &exec.Cmd{Process: process}, url: url, log: &lockedBuffer{}, last: map[string]float64{},
		ports: map[[2]string]float64{}, before: map[[2]string]float64{},
	}
}

func property(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSpace(sh(t, "systemctl", "show", "--value", "-p", name, unit))
}

func mainPID(t *testing.T) int {
	t.Helper()
	pid, err := strconv.Atoi(property(t, "MainPID"))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func edit(t *testing.T, file, line, by string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), line+"\n") {
		t.Fatalf("%s lacks %q", file, line)
	}
	changed := strings.Replace(string(text), line+"\n", by+"\n", 1)
	if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
}
