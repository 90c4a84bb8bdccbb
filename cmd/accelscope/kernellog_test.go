// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// fakeLog is a FIFO in place of /dev/kmsg. What is written to it before the sensor starts is from before the start.
type fakeLog struct {
	t        *testing.T
	file     *os.File
	sequence int
}

func newFakeLog(t *testing.T, host string) *fakeLog {
	t.Helper()
	path := filepath.Join(host, "dev/kmsg")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return &fakeLog{t: t, file: file, sequence: 1}
}

// xid logs an XID of a GPU as NVIDIA's driver does. A priority of 8 and more comes from user space.
func (l *fakeLog) xid(priority, gpu int, text string) {
	l.t.Helper()
	l.record(priority, "c", fmt.Sprintf("NVRM: Xid (PCI:%s): %s", strings.TrimSuffix(nvml.Address(gpu), ".0"), text))
}

// slice logs an XID of a MIG slice.
func (l *fakeLog) slice(gpu, instance int, text string) {
	l.t.Helper()
	l.record(4, "c", fmt.Sprintf("NVRM: Xid (PCI:%s GPU-I:%02d): %s", strings.TrimSuffix(nvml.Address(gpu), ".0"), instance, text))
}

// device logs a text as dev_printk does: "DRIVER ADDRESS…".
func (l *fakeLog) device(text string) {
	l.t.Helper()
	address := strings.TrimSuffix(strings.Fields(text)[1], ":")
	l.record(3, "-", text+"\n SUBSYSTEM=pci\n DEVICE=+pci:"+address)
}

func (l *fakeLog) record(priority int, flag, text string) {
	l.t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		l.t.Fatal(err)
	}
	l.sequence++
	if _, err := fmt.Fprintf(l.file, "%d,%d,%d,%s;%s\n", priority, l.sequence, now.Nano()/1000, flag, text); err != nil {
		l.t.Fatal(err)
	}
}

// faultNode is a node with a fake kernel log and fake GPUs, and with two real processes in two real cgroups with names of
// containers.
type faultNode struct {
	*gpuNode
	log       *fakeLog
	processes []*exec.Cmd
	pids      []int
}

func newFaultNode(t *testing.T) *faultNode {
	t.Helper()
	s, err := nvml.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &faultNode{gpuNode: &gpuNode{Manifest: fixtures.Manifest{Dir: t.TempDir()}, Scenario: s}}
	for i := range 2 {
		c := fixtures.Container{
			ID:     fmt.Sprintf("%x", sha256.Sum256([]byte{0xfa, byte(i)})),
			PodUID: fmt.Sprintf("acce15c0-fa01-4000-8000-%012d", os.Getpid()),
		}
		leaves := containerCgroups(t, c)
		cmd := child.Command(context.Background(), "sleep", "300")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // before the cleanup that removes its cgroups
		for _, leaf := range leaves {
			if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		c.PIDs = []int{cmd.Process.Pid}
		n.Containers, n.processes, n.pids = append(n.Containers, c), append(n.processes, cmd), append(n.pids, cmd.Process.Pid)
	}
	n.Node(n.pids...)
	n.bind(t, nvml.GPUs)
	n.Set("4", "field.230", "u", 1) // the recovery action: a reset. NVML reports it as a state only, not as an XID
	n.write(t)
	n.log = newFakeLog(t, n.Dir)
	return n
}

// TestFaultsByContainer has real processes in real cgroups with names of containers; the kernel log and the GPUs are fakes.
func TestFaultsByContainer(t *testing.T) {
	root(t)
	binary, library := buildNVML(t)
	n := newFaultNode(t)
	log, processes, pids := n.log, n.processes, n.pids
	log.xid(4, 0, "79, GPU has fallen off the bus.")
	n.start(t, binary, library, time.Hour)
	defer func() { ends(t, n.stop) }()
	e := n.listed(t)
	n.listening(t)
	if got := e.by("gpu_faults_total", "uuid", "code"); !maps.Equal(got, map[string]float64{nvml.UUID(0) + " 79": 0}) {
		t.Errorf("faults from before the start: %v", got)
	}
	if e.by("gpu_fault_last_timestamp_seconds", "code")["79"] == 0 {
		t.Error("the last fault from before the start is missing")
	}

	// NVML reports one XID that is in the log as well.
	n.XID("1", 31)
	n.write(t)
	for range 3 {
		log.xid(4, 1, fmt.Sprintf("31, pid=%d, name=sleep, Ch 00000010, MMU Fault", pids[0]))
	}
	log.xid(12, 1, fmt.Sprintf("79, pid=%d, name=sleep, written by a program", pids[0]))
	log.xid(4, 2, fmt.Sprintf("45, pid=%d, name=nvidia-cuda-mps, Ch 00000011", pids[0]))
	log.xid(4, 4, "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
	// Tenants of one GPU: two slices, and a driver that does not log the slice.
	log.slice(7, 7, fmt.Sprintf("13, pid=%d, name=sleep, Graphics Exception", pids[0]))
	log.slice(7, 8, fmt.Sprintf("13, pid=%d, name=sleep, Graphics Exception", pids[1]))
	log.xid(4, 7, fmt.Sprintf("43, pid=%d, name=sleep, Ch 00000012", pids[0]))
	log.xid(4, 7, fmt.Sprintf("43, pid=%d, name=sleep, Ch 00000013", pids[1]))
	log.slice(7, 9, "94, Contained: SM (0x1). RST: No, D-RST: No")
	// Other drivers.
	log.device("amdgpu 0000:c1:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32770)")
	log.device(fmt.Sprintf("amdgpu 0000:c1:00.0: amdgpu:  for process sleep pid %d thread sleep pid %d)", pids[0], pids[0]))
	log.device("amdgpu 0000:c1:00.0: amdgpu: {12}1 new uncorrectable hardware errors detected in umc block")
	log.device("ice 0000:d1:00.0: Requesting a reset")
	log.device("bnxt_en 0000:d2:00.0 ens2f0np0: Detected firmware fatal condition, initiating reset")
	log.device("efa 0000:d3:00.0: Wait for completion (polling) timeout")
	_ = processes[1].Process.Kill() // it is in the last list of NVML
	_ = processes[1].Wait()
	log.xid(4, 1, fmt.Sprintf("43, pid=%d, name=sleep, Ch 00000011", pids[1]))
	// NVML reports nothing about the GPU any more.
	n.Fail("3", "*", nvml.GPUIsLost)
	n.write(t)
	n.until(t, "the GPU is reported as lost", func(e exposition) bool { return slices.Contains(problemsOf(e, nvml.UUID(3)), "lost") })
	log.xid(4, 3, "119, pid=2, name=kworker/0:1, Timeout after 6s of waiting for RPC response from GPU3 GSP!")

	e = n.until(t, "the last fault is counted", func(e exposition) bool { return e.by("gpu_faults_total", "code")["119"] == 1 })
	one, other := n.Containers[0].ID, n.Containers[1].ID
	if diff := cmp.Diff(map[string]float64{
		nvml.UUID(0) + " 79": 0, nvml.UUID(1) + " 31": 3, nvml.UUID(1) + " 43": 1, nvml.UUID(2) + " 45": 1, nvml.UUID(3) + " 119": 1,
		nvml.UUID(4) + " 154": 1, nvml.UUID(7) + " 13": 2, nvml.UUID(7) + " 43": 2, nvml.UUID(7) + " 94": 1,
		" page_fault": 1, " ras_uncorrectable": 1,
	}, e.by("gpu_faults_total", "uuid", "code")); diff != "" {
		t.Errorf("faults of GPUs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{
		one + " 1  31": 3, " 1  31": 0, other + " 1  43": 1, " 1  43": 0, " 2  45": 1, " 3  119": 1, " 4  154": 1,
		one + " 7 7 13": 1, " 7 7 13": 0, other + " 7 8 13": 1, " 7 8 13": 0, " 7 9 94": 1,
		one + " 7  43": 1, other + " 7  43": 1, " 7  43": 0,
		one + "   page_fault": 1, "   page_fault": 0, "   ras_uncorrectable": 1,
	}, e.by("container_gpu_faults_total", "container_id", "gpu_id", "gpu_instance", "code")); diff != "" {
		t.Errorf("faults of containers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]float64{
		"irdma 0000:d1:00.0 reset_requested": 1, "bnxt_en 0000:d2:00.0 firmware_fatal": 1, "efa 0000:d3:00.0 command_timeout": 1,
	}, e.by("rdma_faults_total", "driver", "pci_address", "code")); diff != "" {
		t.Errorf("faults of HCAs (-want +got):\n%s", diff)
	}
	e = n.until(t, "the XID that NVML reports is counted", func(e exposition) bool { return e.by("gpu_xid_errors_total", "xid")["31"] > 0 })
	if got := e.by("gpu_xid_errors_total", "uuid", "xid"); !maps.Equal(got, map[string]float64{nvml.UUID(1) + " 31": 1}) {
		t.Errorf("NVML reported one XID, counted are %v", got)
	}
	if got := e.by("gpu_recovery_action", "uuid", "action")[nvml.UUID(4)+" reset"]; got != 1 {
		t.Errorf("the state of the GPU whose XID only the log has: %v", got)
	}

	_, _, body := get(t, n.url+"/api/v1/faults?device="+nvml.UUID(1), "")
	var answer struct {
		Data []struct {
			Code        string
			ContainerID string `json:"container_id"`
			Repeated    int
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatal(err)
	}
	var history []string
	for _, f := range answer.Data {
		history = append(history, fmt.Sprint(f.Code, " ", f.ContainerID, " ", f.Repeated))
	}
	if diff := cmp.Diff([]string{"31 " + one + " 2", "43 " + other + " 0"}, history); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}
