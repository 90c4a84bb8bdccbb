// SPDX-License-Identifier: Apache-2.0

//go:build vm

package vm_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/machines/vm"
)

// run runs a shell script in a guest and returns what it printed.
func run(t *testing.T, opts vm.Options, script string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	opts.Command = []string{"bash", "-c", script}
	opts.Stdout = &out
	if opts.Share == "" {
		opts.Share = t.TempDir()
	}
	res, err := vm.Run(t.Context(), opts)
	if err != nil {
		t.Fatalf("%v\noutput: %s", err, out.String())
	}
	return out.String(), res.Status
}

// TestHarness checks on each kernel the features that other tests rely on: devices, traffic, module reload, the share.
func TestHarness(t *testing.T) {
	programs, err := vm.BuildWorkloads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, kernel := range []string{"5.10", "6.1", "6.12", "7"} {
		t.Run(kernel, func(t *testing.T) {
			share := t.TempDir()
			out, status := run(t, vm.Options{
				Kernel: kernel, Devices: 2, Share: share,
				Env: []string{"SHARE=" + share, "PATH=" + programs + ":/usr/sbin:/usr/bin:/sbin:/bin"},
			}, `
				set -e
				uname -r
				rdma link
				(ib_write_bw -F -d rxe0 -n 100 >/dev/null & until ib_write_bw -F -d rxe0 -n 100 10.70.0.1; do sleep 1; done; wait)
				cat /sys/fs/cgroup/cgroup.subtree_control
				uverbs-trace -o $SHARE/trace failures
				threads -n 2 </dev/null & p=$!
				until rdma resource show | grep 'rxe0: pd 3 cq 3 qp 3'; do sleep 0.2; done; kill $p; wait $p
				rdma link delete rxe0; rdma link delete rxe1
				modprobe -r rdma_ucm ib_umad; modprobe -r rdma_rxe; modprobe -r ib_uverbs
				if grep '^ib_uverbs ' /proc/modules; then exit 1; fi
				modprobe ib_uverbs
				echo this is /dev/stderr >/dev/stderr
				exit 42`)
			t.Log(out)
			if status != 42 {
				t.Errorf("exit status %d, want 42", status)
			}
			for _, want := range []string{
				kernel, "link rxe0/1 state ACTIVE", "link rxe1/1 state ACTIVE", "65536 ", "rdma", "reg_mr EFAULT 3",
				"rxe0: pd 3 cq 3 qp 3", "this is /dev/stderr",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("output lacks %q", want)
				}
			}
			trace, err := os.ReadFile(filepath.Join(share, "trace"))
			if err != nil {
				t.Fatal(err)
			}
			if want := `"write_cmd":9,"errno":14,"count":3}`; !strings.Contains(string(trace), want) {
				t.Errorf("trace lacks %s:\n%s", want, trace)
			}
		})
	}
}

// TestHung: a guest that hangs is tried once more, and named in the summary. The test simulates it with messages.
func TestHung(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // the log is kept there
	share := t.TempDir()
	out, status := run(t, vm.Options{Share: share, Env: []string{"SHARE=" + share}}, `
		[ -e $SHARE/once ] && exit 7
		touch $SHARE/once
		for i in 1 2 3 4; do echo "<0>watchdog: BUG: soft lockup, says the test" >/dev/kmsg; done; sleep 200`)
	if status != 7 || !strings.Contains(out, "stage: "+vm.Again+"kernel 6.1, guest hung with soft lockups\n") {
		t.Errorf("exit status %d, want 7: %s", status, out)
	}
}

// TestCrashed: a guest whose kernel crashes is a failure, and is not tried again.
func TestCrashed(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // the log is kept there
	share := t.TempDir()
	_, err := vm.Run(t.Context(), vm.Options{
		Command: []string{"bash", "-c", "echo tried >>" + share + "/tries; echo c >/proc/sysrq-trigger; sleep 200"}, Share: share,
	})
	if err == nil || !strings.Contains(err.Error(), "the kernel crashed") || !strings.Contains(err.Error(), "sysrq triggered crash") {
		t.Errorf("the guest ended with %v", err)
	}
	if tries, err := os.ReadFile(filepath.Join(share, "tries")); string(tries) != "tried\n" {
		t.Errorf("tries: %q, %v", tries, err)
	}
}

// TestProgramsWarning: a program's write to the kernel log is not a fault of the kernel.
func TestProgramsWarning(t *testing.T) {
	out, status := run(t, vm.Options{}, `echo "<4>WARNING: said by a program" >/dev/kmsg; dmesg | grep "WARNING: said"`)
	if status != 0 {
		t.Errorf("exit status %d:\n%s", status, out)
	}
}

// TestCgroupLayouts checks the three layouts of cgroup file systems that the guest mounts.
func TestCgroupLayouts(t *testing.T) {
	for layout, want := range map[string]string{
		vm.CgroupV2:     "0::/a\n",
		vm.CgroupV1:     ":rdma:/a\n",
		vm.CgroupHybrid: "0::/u\n",
	} {
		t.Run(layout, func(t *testing.T) {
			out, status := run(t, vm.Options{Cgroup: layout}, `
				cd /sys/fs/cgroup
				for parent in . rdma memory pids devices; do mkdir $parent/a && echo $$ >$parent/a/cgroup.procs; done 2>/dev/null
				if [ -d unified ]; then mkdir unified/u && echo $$ >unified/u/cgroup.procs; fi
				cat /proc/self/cgroup`)
			if status != 0 || !strings.Contains(out, want) {
				t.Errorf("status %d, /proc/self/cgroup lacks %q:\n%s", status, want, out)
			}
		})
	}
}
