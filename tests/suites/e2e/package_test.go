// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm/guest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// packagesVar names the directory of the packages: the same tree with two versions. The older version has a different
// comment in its configuration, so that the upgrade has a conflict to resolve.
const packagesVar = "ACCELSCOPE_PACKAGES"

const older, newer = "0.0.1", "0.0.2"

// TestPackage runs an administrator's operations with the deb, under the real systemd with all restrictions of the
// unit, while RDMA traffic continues.
func TestPackage(t *testing.T) {
	if !guest.Enter(t, packageOptions(t)) {
		return
	}
	d := newDeployment(t)
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
		long bool // only in make test-kernels
	}{
		{"install", d.install, false},
		{"doctor", d.doctor, false},
		{"upgrade", d.upgrade, true},
		{"rollback", d.rollback, true},
		{"killed", d.killed, false},
		{"options", d.options, true},
		{"kubelet", d.kubelet, true},
		{"TLS", d.tls, true},
		{"fleet", d.fleet, false},
		{"stop", d.stop, false},
		{"remove", d.remove, false},
	} {
		if step.long && !whole() {
			continue
		}
		if begin := time.Now(); !t.Run(step.name, step.run) {
			break // later steps need this one
		} else {
			t.Logf("%s took %v", step.name, time.Since(begin).Round(time.Second))
		}
	}
	touched(t, node{}, "the Debian package under systemd")
	if t.Failed() {
		t.Logf("journal:\n%s", sh(t, "journalctl", "--no-pager", "-o", "short-monotonic", "-u", "accelscope"))
	}
}

// deployment is a node on which the package is installed.
type deployment struct {
	still  []*container // keep their objects during the whole test
	before bpfObjects   // BPF objects that are not the sensor's
}

const (
	unit     = "accelscope.service"
	config   = "/etc/accelscope/accelscope.yaml"
	defaults = "/etc/default/accelscope"
)

func newDeployment(t *testing.T) *deployment {
	t.Helper()
	containerd, err := guest.StartContainerd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := containerd.RunTraffic(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The traffic polls constantly on two emulated CPUs, so it gets a low weight.
	if err := os.WriteFile("/sys/fs/cgroup/kubepods/cpu.weight", []byte("10"), 0); err != nil {
		t.Fatal(err)
	}
	smallDatabase(t)
	d := &deployment{before: bpfNow(t)}
	for _, c := range [][]string{
		{"verbs", "-d", "rxe0", "-q", "4", "-m", "2097152", "-C"},
		{"verbs", "-d", "rxe1", "-p", "2", "-c", "3", "-q", "5", "-m", "8388608", "-m", "3145728"},
	} {
		d.still = append(d.still, enter(t, "still on "+c[2], c...))
		d.still[len(d.still)-1].line(t, "device")
	}
	return d
}

func (d *deployment) install(t *testing.T) {
	dpkg(t, "-i", debOf(os.Getenv(packagesVar), older))
	if state := sh(t, "systemctl", "is-enabled", unit); state != "enabled\n" {
		t.Errorf("the unit is %q", state)
	}
	s := d.running(t, older)
	d.exact(t, s)
	eventually(t, 30*time.Second, func() error {
		m := s.scrape()
		for _, pod := range []string{"default/train-0/worker", "default/train-1/worker"} {
			if m.sum("container_rdma_verbs_total", "workload", pod) == 0 {
				return fmt.Errorf("no verbs of %s: %v", pod, m.by("container_rdma_verbs_total", "workload"))
			}
		}
		return nil
	})
	d.alone(t)
	// systemd reported it as started when it was ready. Its log lines have priorities and no timestamps of their own.
	journal := sh(t, "journalctl", "--no-pager", "-o", "cat", "-u", unit)
	if strings.Contains(journal, time.Now().Format("2006-01-02T")) || strings.Contains(journal, "<6>") {
		t.Errorf("the journal has times or priorities twice:\n%s", journal)
	}
	if !strings.Contains(journal, "hooks attached") {
		t.Errorf("the journal lacks the sensor's log:\n%s", journal)
	}
}

// doctor runs with all restrictions of the unit.
func (d *deployment) doctor(t *testing.T) {
	out := confined(t, "/usr/bin/accelscope doctor --json --rdma.datapath=always")
	var report struct {
		Verdict string
		Checks  []struct{ Area, Name, State, Reason string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if report.Verdict != "yes" {
		t.Errorf("doctor says %q\n%s", report.Verdict, out)
	}
	for _, c := range report.Checks {
		if c.State == "unsupported" && c.Area == "device" && strings.HasSuffix(c.Name, " bytes") {
			continue // Soft-RoCE counts bytes from Linux 6.13 on
		}
		if c.State == "failed" || c.State == "unsupported" && (c.Area != "hook" || inKernel(t, c.Name)) {
			t.Errorf("%s %s is %s: %s", c.Area, c.Name, c.State, c.Reason)
		}
	}
	// The sensor can read files of another user's process, and cannot write to any file system.
	other := child.Command(t.Context(), "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	out = confined(t, fmt.Sprintf("/bin/ls /proc/%d/fd /proc/%d/map_files", other.Process.Pid, other.Process.Pid))
	if !strings.Contains(out, "\n0\n") || !strings.Contains(out, "-") {
		t.Errorf("of another user's process it reads %q", out)
	}
	out = confined(t, `/bin/sh -c "for d in / /etc /home /root /run /run/lock /tmp /var /dev /dev/shm /sys/fs/cgroup; do \
		if touch $d/written; then echo $d; fi; done"`)
	if out != "" {
		t.Errorf("it can write to:\n%s", out)
	}
	// HCAs in another network namespace: Soft-RoCE cannot be moved, so this checks only that the source can enter a
	// namespace and mount its sysfs.
	sh(t, "cp", os.Getenv(rdmaTestVar), "/run/rdma.test")
	out = confined(t, "/run/rdma.test -test.v -test.run=^(TestEnterNamespace|TestOpenSysfs)$", "PrivateTmp=yes")
	for _, test := range []string{"TestEnterNamespace", "TestOpenSysfs"} {
		if !strings.Contains(out, "--- PASS: "+test) {
			t.Errorf("%s under the unit:\n%s", test, out)
		}
	}
}

// upgrade keeps the administrator's changes.
func (d *deployment) upgrade(t *testing.T) {
	edit(t, config, "#rdma.datapath: \"off\"", "rdma.datapath: always")
	sh(t, "systemctl", "restart", unit)
	d.probing(t, d.running(t, older))
	d.to(t, newer)
	if _, err := os.Stat(config + ".dpkg-dist"); err != nil {
		t.Error("the new configuration is not next to the old one: ", err)
	}
}

func (d *deployment) rollback(t *testing.T) { d.to(t, older) }

// to installs a version over another version, while traffic and scrapes continue.
func (d *deployment) to(t *testing.T, version string) {
	t.Helper()
	changed, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	pid := mainPID(t)
	stop := scrapeOn(t)
	dpkg(t, "--force-confold", "-i", debOf(os.Getenv(packagesVar), version))
	s := d.running(t, version)
	if mainPID(t) == pid {
		t.Error("the process was not replaced")
	}
	d.exact(t, s)
	if lives := stop(); lives != 2 {
		t.Errorf("%d processes were scraped, want the old one and the new one", lives)
	}
	if now, _ := os.ReadFile(config); string(now) != string(changed) {
		t.Errorf("the configuration is %q, was %q", now, changed)
	}
	d.probing(t, s)
	d.alone(t)
}

// killed: systemd restarts a sensor that was killed.
func (d *deployment) killed(t *testing.T) {
	pid := mainPID(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error {
		if now := mainPID(t); now == 0 || now == pid {
			return fmt.Errorf("the main process is %d, was %d", now, pid)
		}
		return nil
	})
	s := d.running(t, older)
	if n := property(t, "NRestarts"); n != "1" {
		t.Errorf("%s restarts, want 1", n)
	}
	d.exact(t, s)
	d.alone(t)
}

// stop: nothing of the sensor remains in the kernel, and drivers can be unloaded.
func (d *deployment) stop(t *testing.T) {
	sh(t, "systemctl", "stop", unit)
	if result := property(t, "Result"); result != "success" {
		t.Errorf("it ended with %s", result)
	}
	d.gone(t)
	noEvents(t)
	sh(t, "sh", "-c", "for p in /sys/fs/cgroup/kubepods/burstable/*/*/cgroup.kill; do echo 1 >$p; done")
	eventually(t, 30*time.Second, func() error { // a killed process holds the device until it has exited
		if left := sh(t, "sh", "-c", "cat /sys/fs/cgroup/kubepods/burstable/*/*/cgroup.procs"); left != "" {
			return fmt.Errorf("killed, and still there: %q", left)
		}
		return nil
	})
	for _, c := range d.still {
		c.rest(t)
	}
	for _, device := range []string{"rxe0", "rxe1"} {
		sh(t, "rdma", "link", "delete", device)
	}
	for _, m := range []string{"rdma_ucm", "ib_umad", "rdma_rxe", "ib_uverbs"} {
		sh(t, "modprobe", "-r", m)
	}
}

// remove, then purge: only purge removes the configuration and the record that the unit was enabled.
func (d *deployment) remove(t *testing.T) {
	sh(t, "systemctl", "start", unit) // a node without an HCA
	dpkg(t, "-r", "accelscope")
	if state := property(t, "ActiveState"); state != "inactive" {
		t.Errorf("after the removal it is %s", state)
	}
	if _, err := os.Stat("/usr/bin/accelscope"); err == nil {
		t.Error("the program is still there")
	}
	if _, err := os.Stat(config); err != nil {
		t.Error("the configuration went with it: ", err)
	}
	for _, name := range []string{"tls.crt", "tls.key"} { // the administrator's files, of step TLS: a purge keeps them
		if err := os.Remove("/etc/accelscope/" + name); err != nil && whole() {
			t.Error(err)
		}
	}
	dpkg(t, "-P", "accelscope")
	left := sh(t, "find", "/etc/default", "/etc/systemd", "/var/lib/systemd", "/run/systemd", "/var/lib/dpkg", "/usr/lib/systemd",
		"-name", "*accelscope*")
	for _, path := range []string{"/etc/accelscope", "/usr/bin/accelscope", "/usr/bin/accelscope-tool", "/usr/share/accelscope", "/usr/share/doc/accelscope"} {
		if _, err := os.Lstat(path); err == nil {
			left += path + "\n"
		}
	}
	if left != "" {
		t.Errorf("left after the purge:\n%s", left)
	}
	d.gone(t)
}
