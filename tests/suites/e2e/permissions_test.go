// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

const nobody = 65534

// permissions: with the minimal capabilities the main job works completely. If a capability is missing, doctor names
// it, and everything else works.
func (n node) permissions(t *testing.T) {
	least, admin := []string{"bpf", "perfmon"}, []string{"sys_admin"}
	if n.kernel == "5.10" {
		least, admin = append(least, "sys_resource"), append(admin, "sys_resource")
	}
	before := enter(t, "before the sensor", "verbs", "-d", "rxe0", "-q", "2", "-m", "65536")
	before.line(t, "device")
	for _, tt := range []struct {
		name     string
		uid      int
		paranoid string // kernel.perf_event_paranoid: Debian sets 3
		caps     []string
	}{
		{"root", 0, "2", least},
		{"nobody", nobody, "2", least},
		{"nobody, paranoid", nobody, "3", admin},
	} {
		t.Run(tt.name, func(t *testing.T) {
			confine(t, tt.uid, tt.paranoid, tt.caps)
			if missing, err := n.missing(t); missing != "" || err != nil {
				t.Errorf("doctor: %q is missing, %v; want nothing, and that the main job can run", missing, err)
			}
			n.sees(t, before, tt.name, 1, 65536)
		})
	}

	less := map[string]func(t *testing.T){"CAP_SYS_ADMIN": func(t *testing.T) { confine(t, nobody, "3", least) }}
	for _, name := range least {
		less["CAP_"+strings.ToUpper(name)] = func(t *testing.T) {
			confine(t, nobody, "2", slices.DeleteFunc(slices.Clone(least), func(s string) bool { return s == name }))
		}
	}
	for name, confine := range less {
		t.Run("without "+name, func(t *testing.T) {
			confine(t)
			missing, err := n.missing(t)
			if exit, ok := errors.AsType[*exec.ExitError](err); missing != name || !ok || exit.ExitCode() != 1 {
				t.Errorf("doctor: %q is missing, %v; want %s and exit status 1", missing, err, name)
			}
			if name != "CAP_PERFMON" {
				return // the effect is the same, and a guest is slow
			}
			n.sees(t, before, name, 0, 65536) // bytes from RDMA netlink
		})
	}

	t.Run("hidden processes", func(t *testing.T) {
		sh(t, "mount", "-o", "remount,hidepid=2", "/proc")
		defer sh(t, "mount", "-o", "remount,hidepid=0", "/proc")
		confine(t, nobody, "3", admin)
		if missing, err := n.missing(t); missing != "CAP_SYS_PTRACE" || err != nil {
			t.Errorf("doctor: %q is missing, %v; want CAP_SYS_PTRACE, and that the main job can run", missing, err)
		}
		n.sees(t, before, "hidden", 1, 0)
	})
	before.rest(t)
}

// confine runs the program under test as a user with only these capabilities, which cannot gain others.
func confine(t *testing.T, uid int, paranoid string, caps []string) {
	t.Helper()
	const sysctl = "/proc/sys/kernel/perf_event_paranoid"
	was, err := os.ReadFile(sysctl)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sysctl, []byte(paranoid), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(sysctl, was, 0) })
	dir, err := os.MkdirTemp("", "confined") // only root can read t.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sh(t, "cp", os.Getenv(binaryVar), dir+"/accelscope")
	set := "-all"
	for _, c := range caps {
		set += ",+" + c
	}
	options := "--bounding-set=" + set // the limit for a program of root
	if uid != 0 {
		options += fmt.Sprintf(" --reuid=%d --regid=%[1]d --clear-groups --inh-caps=%s --ambient-caps=%[2]s", uid, set)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec setpriv %s %s/accelscope \"$@\"\n", options, dir)
	if err := os.WriteFile(dir+"/confined", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(binaryVar, dir+"/confined")
}

// missing returns the capabilities that doctor reports as missing; err is the exit status of doctor.
func (n node) missing(t *testing.T) (names string, err error) {
	t.Helper()
	out, err := child.Command(t.Context(), os.Getenv(binaryVar), n.args("doctor", "--json")...).Output()
	var report struct {
		Verdict string
		Checks  []struct{ Area, Name, State, Reason string }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("doctor: %v\n%s", err, out)
	}
	if (report.Verdict == "yes") != (err == nil) {
		t.Errorf("doctor says %q and ends with %v", report.Verdict, err)
	}
	for _, c := range report.Checks {
		if c.Area == "permission" && c.State == "failed" {
			names = strings.TrimSpace(names + " " + c.Name)
		}
	}
	return names, err
}

// sees runs the sensor and another container. It checks the number of create_qp calls of this container, and the
// sensor's registered bytes of the earlier container. The sensor may be ready before it has listed existing objects.
func (n node) sees(t *testing.T, before *container, name string, calls, bytes float64) {
	t.Helper()
	s := start(t, n.args()...)
	c := enter(t, "permissions of "+name, "churn", "rxe0")
	c.rest(t)
	var m metrics
	eventually(t, 20*time.Second, func() error {
		m = s.fresh()
		gotCalls := m.sum("container_rdma_verbs_total", "container_id", c.id, "verb", "create_qp")
		gotBytes := m.sum("container_rdma_registered_bytes", "container_id", before.id)
		if gotCalls != calls || gotBytes != bytes {
			return fmt.Errorf("%v calls of create_qp, want %v; %v bytes registered before the start, want %v", gotCalls, calls, gotBytes, bytes)
		}
		return nil
	})
	if len(m.all("infiniband_port_info")) != 2 {
		t.Error("the two ports are not shown")
	}
	s.stop()
}
