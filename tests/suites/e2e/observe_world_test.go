// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/machines/ibsim"
	"github.com/accelscope/accelscope/tests/machines/otel"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// watched is the system that the dashboards show: the guest, with containers, fake GPUs and a simulated fabric, and a
// file tree of a node whose HCAs have more counters than Soft-RoCE.
type watched struct {
	name, fixtureName string
	sensor, fixture   *sensor
	pids              map[string]int // of the first processes of the containers, by pod
	gpus              *nvml.Scenario
	net               *ibsim.Net
	fabric            *ibsim.Fabric
	hcas              fixtures.Manifest
	counted           map[string]uint64 // counters of the switches, by port and counter
}

func startWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{name: "node-0", fixtureName: "node-1", counted: map[string]uint64{}}
	w.startFabric(t)
	w.startGPUs(t)
	collector := otel.Config{Dir: t.TempDir(), Endpoint: "127.0.0.1:43170"}
	c, err := otel.Start(t.Context(), os.Getenv(otelcolVar), collector)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Kill() })
	for _, v := range w.gpus.Environment() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	w.sensor = start(t, "--node.name="+w.name, "--rdma.datapath=always", "--gpu.nvml-library="+os.Getenv(nvmlVar),
		"--gpu.process-interval=5s",
		"--collector.fabric", "--fabric.tools="+w.fabric.Tools, "--fabric.interval=20s",
		"--events.otlp-endpoint="+collector.Endpoint, "--events.otlp-insecure")

	if w.hcas, err = fixtures.Write(t.TempDir(), fixtures.Options{
		ComputeHCAs: 2, InfiniBand: true, Services: 1,
		Seed: 3,
	}); err != nil {
		t.Fatal(err)
	}
	w.fixture = start(t, "--node.name="+w.fixtureName, "--path.sysfs="+w.hcas.SysFS(), "--path.procfs="+w.hcas.ProcFS(),
		"--path.cgroup="+w.hcas.CgroupFS(), "--path.host="+w.hcas.Dir, "--no-collector.probe",
		"--no-collector.runtime", "--no-collector.kubelet",
		"--no-collector.node", "--no-collector.container", "--no-collector.access", "--no-collector.gpu")
	w.startContainers(t)
	w.useGPUs()
	return w
}

// startFabric starts five switches and six hosts; the link of one host lost lanes. Another host has the GUID of rxe0,
// so that the device and its workloads have a switch port.
func (w *watched) startFabric(t *testing.T) {
	t.Helper()
	w.net = ibsim.FatTree(3, 2, 2)
	text, err := os.ReadFile("/sys/class/infiniband/rxe0/node_guid")
	if err != nil {
		t.Fatal(err)
	}
	guid, err := strconv.ParseUint(strings.ReplaceAll(strings.TrimSpace(string(text)), ":", ""), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	w.net.Nodes[w.net.Find("host1 mlx5_0")].GUID = guid
	w.net.Links[len(w.net.Links)-1].Width = 4
	host := w.net.Nodes[w.net.Find("host0 mlx5_0")]
	if w.fabric, err = ibsim.Start(t.Context(), ibsim.Options{Net: w.net.String(), Host: host.ID()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.fabric.Close() })
}

// startContainers starts two pods that exchange RDMA traffic, a pod whose verbs and work requests fail, a pod that
// holds memory, and a pod with an idle GPU and an idle HCA.
func (w *watched) startContainers(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	programs := os.Getenv(workloadsVar)
	for n := range 4 { // device nodes that a driver would make
		if err := syscall.Mknod(fmt.Sprint("/dev/nvidia", n), syscall.S_IFCHR|0o666, 195<<8|n); err != nil {
			t.Fatal(err)
		}
	}
	c, err := guest.StartContainerd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w.pids = map[string]int{}
	run := func(o guest.Container, cpu string, memory int, devices ...string) {
		o.Mounts, o.Devices = []string{programs}, devices
		o.Env = []string{"PATH=" + programs + ":/usr/sbin:/usr/bin:/sbin:/bin"}
		pid, err := c.Run(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		w.pids[o.Labels["io.kubernetes.pod.name"]] = pid
		for file, value := range map[string]string{"cpu.max": cpu, "memory.max": strconv.Itoa(memory)} {
			if err := os.WriteFile(filepath.Join("/sys/fs/cgroup", o.Cgroup, file), []byte(value), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	// perftest polls constantly, and there are only two emulated CPUs.
	const free, some, rxe0, rxe1 = "max 100000", "30000 100000", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"
	server, client := guest.Traffic()
	run(server, some, 256<<20, rxe0, "/dev/nvidia0")
	run(client, some, 256<<20, rxe0, "/dev/nvidia1")
	run(guest.PodContainer("ml", "faulty-0", "worker", "bash", "-c",
		"while :; do failures -d rxe0 -n 2; posts -d rxe0 -e -l 4 -s 100; sleep 2; done"), free, 128<<20, rxe0)
	run(guest.PodContainer("ml", "infer-0", "server", "bash", "-c", "verbs -d rxe1 -q 4 -c 2 -m 33554432 & "+
		"while :; do (sleep 2; echo) | posts -w -d rxe1 -o read -n 50 -s 65536; done"), some, 128<<20, rxe1)
	run(guest.PodContainer("ml", "idle-0", "notebook", "sleep", "10000"), free, 64<<20, "/dev/nvidia2", rxe1)

	// A pod with its own network namespace, set up here like a runtime would.
	net := enter(t, "net", "unshare", "--net", "sh", "-c", "ip link add eth0 type veth peer name eth1 && ip link "+
		"set eth0 up && "+
		"ip link set eth1 up && exec sleep 10000")
	eventually(t, 10*time.Second, func() error {
		return child.Command(context.Background(), "nsenter", "-t", strconv.Itoa(net.cmd.Process.Pid), "-n", "ip", "link", "show",
			"eth0").Run()
	})
}

// startGPUs starts four fake GPUs. The last is split into two MIG instances.
func (w *watched) startGPUs(t *testing.T) {
	t.Helper()
	var err error
	if w.gpus, err = nvml.New(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for n := range 4 {
		w.gpus.AddH100(n)
	}
	w.gpus.SplitGPU(3, nvml.Profile3g, nvml.Profile3g)
	w.gpus.Unset("2", "field.230") // like a driver before 570, which reports no recovery action
	if err := w.gpus.Write(); err != nil {
		t.Fatal(err)
	}
}

func (w *watched) useGPUs() {
	const gib = 1 << 30
	w.gpus.Processes = []nvml.Process{
		{Device: "0", PID: w.pids["train-0"], Memory: 48 * gib, SM: 70, Mem: 40},
		{Device: "1", PID: w.pids["train-1"], Memory: 40 * gib, SM: 60, Mem: 35},
		{Device: "1", PID: w.pids["faulty-0"], Memory: 8 * gib, SM: 10, Mem: 5}, // no GPU is allocated to this pod
		{Device: "3:0", PID: w.pids["infer-0"], Memory: 12 * gib},
		{Device: "0", PID: 99999, Memory: gib}, // a process that does not exist
	}
}

// step sets the values that no hardware provides here: the utilization of the fake GPUs, and the counters of the
// simulated switches and of the HCAs in files.
func (w *watched) step(t *testing.T, i int) {
	t.Helper()
	wave := func(low, high, period int) int { // a triangle
		x := i % period
		return low + (high-low)*2*min(x, period-x)/period
	}
	w.gpus.Processes[0].SM, w.gpus.Processes[1].SM = uint64(wave(55, 95, 20)), uint64(wave(20, 80, 14))
	w.gpus.Balance()
	for n := range 4 {
		d := strconv.Itoa(n)
		w.gpus.Set(d, "nvmlDeviceGetPowerUsage", 120000+wave(40, 80, 20)*6000/(n+1))
		w.gpus.Set(d, "nvmlDeviceGetTemperature.0", 38+wave(4, 9, 24)-2*n)
	}
	switch i {
	case 3:
		w.gpus.XID("0", 13) // caused by an application
	case 6:
		w.gpus.XID("2", 48) // a double bit error
	case 9:
		w.gpus.Recovery("1", 1) // a reset
	}
	if err := w.gpus.Write(); err != nil {
		t.Fatal(err)
	}
}

// happen generates traffic, failures and errors until there is enough data, with a time limit, because the tools of the
// fabric may be slow.
func (w *watched) happen(t *testing.T, enough func() bool) {
	t.Helper()
	const last = 20 // two episodes of the rare errors of links
	logged := time.Now()
	for i := 1; i <= last || i <= 4*last && !enough(); i++ {
		begin := time.Now()
		if begin.Sub(logged) >= time.Minute { // a guest that prints nothing for five minutes is ended
			logged = begin
			t.Logf("step %d: at least %d, then until the expected alerts are raised, at most %d", i, last, 4*last)
		}
		w.step(t, i)
		w.count(t, i)
		time.Sleep(time.Until(begin.Add(scrapeEvery)))
	}
}

// rest stops the processes that use the emulated CPUs: nothing more has to be shown.
func (w *watched) rest() {
	for _, pid := range w.pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	w.sensor.stop()
	w.fixture.stop()
}

// count increases the counters of the HCAs in files and of the switches.
func (w *watched) count(t *testing.T, i int) {
	t.Helper()
	seconds := uint64(scrapeEvery.Seconds())
	for k, h := range w.hcas.HCAs {
		const rate = 2e5 // words per second, far below what Soft-RoCE moves
		part := uint64(30 + 10*k + 3*(i%8))
		add := map[string]uint64{
			"counters/port_xmit_data":    rate * part / 100 * seconds,
			"counters/port_rcv_data":     rate * (part - 12) / 100 * seconds,
			"counters/port_xmit_packets": 1e5 * seconds, "counters/port_rcv_packets": 1e5 * seconds,
			"counters/port_xmit_wait":  4e5 * uint64(i%5) * seconds,
			"counters/symbol_error":    uint64(k) * uint64(i%3),
			"counters/port_rcv_errors": uint64(k) * uint64(i%4) * 40,
			"hw_counters/np_cnp_sent":  120 * seconds, "hw_counters/rp_cnp_handled": 90 * seconds,
			"hw_counters/np_ecn_marked_roce_packets": uint64(300+20*(i%7)) * seconds,
			"hw_counters/out_of_buffer":              uint64(k) * uint64(i%4) * 200,
			"hw_counters/out_of_sequence":            3 * seconds, "hw_counters/packet_seq_err": 2 * seconds,
			"hw_counters/local_ack_timeout_err": uint64(i % 2), "hw_counters/rnr_nak_retry_err": uint64(i % 3),
			"hw_counters/roce_adp_retrans": 1,
		}
		for name, by := range add {
			w.counted[h.Name+name] += by
			base := h.Counters[filepath.Base(name)] + h.HWCounters[filepath.Base(name)]
			text := fmt.Appendln(nil, base+w.counted[h.Name+name])
			if err := os.WriteFile(filepath.Join(w.hcas.Dir, h.PortDir, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for k, link := range w.net.Links[:4] {
		const rate = 75e9 / 4 // words per second of a link with 12 lanes HDR
		for counter, by := range map[string]uint64{
			"PortCountersExtended.PortXmitData": rate * uint64(20+15*k+4*(i%5)) / 100 * seconds,
			"PortCountersExtended.PortRcvData":  rate * uint64(15+10*k) / 100 * seconds,
			"PortCounters.PortXmitWait":         uint64(k) * 1000 * seconds,
		} {
			w.set(t, link.A, counter, by)
		}
	}
	bad, fourth := w.net.Links[1], uint64(0)
	if i%8 == 4 { // counters of four bits
		fourth = 1
	}
	for counter, by := range map[string]uint64{
		"PortCounters.SymbolErrorCounter": uint64(i % 3), "PortCounters.PortRcvErrors": uint64(i % 2),
		"PortCounters.PortXmitDiscards":             2,
		"PortCounters.LinkErrorRecoveryCounter":     uint64(i % 2),
		"PortCounters.LinkDownedCounter":            uint64(i / 6 % 2),
		"PortCounters.PortRcvRemotePhysicalErrors":  uint64(i % 2),
		"PortCounters.LocalLinkIntegrityErrors":     fourth,
		"PortCounters.ExcessiveBufferOverrunErrors": fourth, "PortCounters.VL15Dropped": uint64(i % 2),
	} {
		w.set(t, bad.A, counter, by)
	}
}

// set increases a counter of a port of the fabric. ibsim also counts some by itself; the value set here is higher.
func (w *watched) set(t *testing.T, end ibsim.End, counter string, by uint64) {
	t.Helper()
	port := w.net.Port(end)
	key := port + counter
	w.counted[key] += by
	if _, err := w.fabric.Console(fmt.Sprintf("PerformanceSet %s %s=%d", port, counter, w.counted[key])); err != nil {
		t.Fatal(err)
	}
}
