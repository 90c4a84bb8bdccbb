// SPDX-License-Identifier: Apache-2.0

//go:build vm

// Package e2e tests the main job on a live RDMA stack: a guest with Soft-RoCE, real containers and real traffic. It
// compares the sensor's values with an independent ground truth.
package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/collective"
	"github.com/accelscope/accelscope/tests/fakes/gpumemory"
	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// Environment variables that the host sets in the guest.
const (
	nodesVar        = "ACCELSCOPE_NODES"        // nodes to test: kernel[/tier[/cgroup layout]], kernel/preempt or 6.1/debug, separated by commas
	partVar         = "ACCELSCOPE_PART"         // the scenarios of nodesVar to run: k/n, every nth from k on
	binaryVar       = "ACCELSCOPE_BINARY"       // the program to test
	rdmaTestVar     = "ACCELSCOPE_RDMATEST"     // the compiled tests of source/rdma
	vfTestVar       = "ACCELSCOPE_VFTEST"       // the compiled tests of source/rdma/vf
	datapathTestVar = "ACCELSCOPE_DATAPATHTEST" // the compiled tests of source/datapath
	returnTestVar   = "ACCELSCOPE_RETURNTEST"   // the compiled tests of source/datapath/returnprobe
	probeTestVar    = "ACCELSCOPE_PROBETEST"    // the compiled tests of source/probe
	workloadsVar    = "ACCELSCOPE_WORKLOAD"     // directory of the C programs
	movableVar      = "ACCELSCOPE_MOVABLE"      // the kernel module of pkg/source/rdma/testdata/movable.c
	vfsVar          = "ACCELSCOPE_VFS"          // the kernel module of pkg/source/rdma/vf/testdata/vfs.c
	devxVar         = "ACCELSCOPE_DEVX"         // the kernel module of tests/machines/vm/driver/devx.c
	missedVar       = "ACCELSCOPE_MISSED"       // the kernel module of tests/machines/vm/driver/missed.c
)

// wantTier is the best tier that the kernel supports: a lower tier is a failure.
func (n node) wantTier() string {
	switch {
	case n.tier != "":
		return n.tier
	case n.kernel == "5.10", n.padded == "plain":
		return "kprobe"
	}
	return "fentry"
}

// counts reports whether the tier counts objects in the kernel.
func (n node) counts() bool {
	return n.wantTier() != "tracepoint" && (n.padded != "plain" || n.types != "")
}

// delay returns how long objects may take to appear: short if the kernel counts them, else until the next dump.
func (n node) delay() time.Duration {
	if n.counts() {
		return 10 * time.Second
	}
	return 30 * time.Second
}

func (n node) args(more ...string) []string {
	if n.tier != "" {
		more = append(more, "--probe.tier="+n.tier)
	}
	if n.types != "" {
		more = append(more, "--probe.btf-dir="+n.types)
	}
	return more
}

// countsMissed reports whether the kernel counts skipped kprobes (Linux 6.7), in make test-kernels.
func (n node) countsMissed() bool {
	return whole() && n.plain() && n.padded == "" && (n.kernel == "6.12" || n.kernel == "7")
}

// modules reports whether the harness builds the test's kernel modules for this kernel.
func (n node) modules() bool { return n.kernel == "6.1" && n.padded == "" && !n.debug }

// stub reports whether the harness builds the stub of NVIDIA's module: in make test for 6.1, which builds modules
// anyway.
func (n node) stub() bool {
	return n.plain() && n.padded == "" && !n.debug && (n.kernel == "6.1" || whole() && (n.kernel == "6.12" || n.kernel == "7"))
}

// unloads reports whether NVIDIA's driver is unloaded under a sensor. 7 runs only what older kernels lack.
func (n node) unloads() bool { return n.stub() && n.kernel != "7" }

// module returns the path of the kernel module that an environment variable names, in the guest, or "" for kernels
// without modules.
func (n node) module(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if n.modules() && path == "" {
		t.Fatalf("%s names no kernel module", variable)
	}
	return path
}

// runParallel lets other guests run at the same time as this test's, as many as -parallel permits.
func runParallel(t *testing.T) {
	if os.Getenv(binaryVar) == "" {
		t.Parallel()
	}
}

// nodeScenarios are the parts of TestNode. The data path's scenarios come before the driver is reloaded, which leaves no device.
var nodeScenarios = []scenario[node]{
	{"doctor", node.doctor, "6.1", nil},
	{"truth", node.truth, "6.12 6.1//v1 6.12/preempt 6.1/debug", nil},
	{"cm ids", node.cmIDs, "7", nil},
	{"verbs", node.verbs, "5.10 6.1/tracepoint/v1 6.12/preempt 6.1/debug", nil},
	{"failures", node.failures, "5.10 6.12/preempt 6.1/debug", nil},
	{"threads", node.threads, "6.1//v1 6.12/preempt 6.1/debug", nil},
	{"peers", node.peers, "6.12 6.12/preempt 6.1/debug", nil},
	{"kernel users", node.kernelUsers, "7", func(n node) bool { return n.kernel != "5.10" && n.plain() && n.padded == "" && !n.debug }},
	{"dri", node.dri, "5.10", nil},
	{"devices", node.devices, "6.1", nil},
	{"slurm devices", node.slurmDevices, "7", node.plain},
	{"refusals", node.refusals, "", node.plain},
	{"restart", node.restart, "6.1//v1 6.12/preempt 6.1/debug", nil},
	{"churn", node.churn, "6.12 6.12/preempt 6.1/debug", nil},
	// rxe of 5.10 reuses the numbers of queue pairs at once.
	{"skipped", node.skipped, "6.12/preempt 6.1/debug", func(n node) bool { return n.kernel != "5.10" && n.plain() }},
	{"missed", node.missed, "", node.countsMissed},
	{"preempted", node.preempted, "6.12/preempt", func(n node) bool { return n.preempt }},
	{"permissions", node.permissions, "6.1", node.plain}, // capabilities do not depend on the tier or the cgroup layout
	{"datapath unsupported", node.unsupported, "5.10", func(n node) bool { return n.kernel == "5.10" && n.plain() }},
	{"datapath port", node.port, "7", func(n node) bool { return n.kernel == "7" && n.plain() }}, // the first kernel that counts the bytes of rxe
	{"datapath survey", node.survey, "7", func(n node) bool { return n.kernel == "7" && n.plain() }},
	{"datapath alone", node.alone, "7", func(n node) bool { return n.kernel == "7" && n.plain() }},
	{"datapath hooks", node.datapathHooks, "6.1", node.traces},
	{"datapath exact", node.exact, "6.12 6.12/preempt 6.1/debug", node.uprobes},
	{"datapath extended", node.extended, "6.12 6.12/preempt 6.1/debug", node.traces},
	{"datapath containers", node.seccomp, "6.1 6.12/preempt", node.traces},
	{"datapath coverage", node.coverage, "6.12/preempt", node.traces},
	{"datapath coverage of tools", node.toolCoverage, "", node.traces},
	{"datapath coverage by ports", node.portCoverage, "7", func(n node) bool { return n.kernel == "7" && n.plain() }},
	{"datapath coverage of DEVX", node.devx, "6.1", func(n node) bool { return n.modules() && n.plain() }},
	{"datapath replugged", node.replugged, "6.12 6.12/preempt 6.1/debug", node.traces},
	{"datapath reset", node.reset, "", func(n node) bool { return n.modules() && n.plain() }},
	{"datapath latency", node.latency, "6.12 6.12/preempt", node.traces},
	{"datapath errors", node.completionErrors, "6.1 6.12/preempt 6.1/debug", node.traces},
	{"datapath first", node.first, "6.12 6.12/preempt 6.1/debug", node.traces},
	{"datapath aborted connection", node.abortedConnection, "6.12", node.traces},
	{"datapath two sensors", node.twoSensors, "6.1/debug", node.traces},
	{"datapath images", node.images, "", node.traces},
	{"datapath short", node.short, "6.1 6.12/preempt 6.1/debug", node.traces},
	{"datapath harmless", node.harmless, "6.12 6.12/preempt 6.1/debug", node.traces},
	{"datapath exclusive", node.exclusive, "6.1", node.traces},
	{"datapath survey cost", node.surveyCost, "", node.traces},
	{"datapath stalled", node.stalled, "6.1 6.12/preempt", node.traces},
	{"datapath held", node.held, "6.12 6.1/debug", node.uprobes},
	{"datapath many mappings", node.manyMappings, "6.1/debug", node.uprobes},
	{"receive waits", node.receiveWaits, "6.12 6.12/preempt", node.traces},
	{"ring", node.ring, "", func(n node) bool { return n.plain() && n.kernel != "5.10" && !n.debug }},
	{"ring survey", node.ringSurvey, "", func(n node) bool { return n.plain() && n.kernel != "5.10" && !n.debug }},
	{"uprobes", node.gate, "6.12 6.1/debug", node.plain},
	{"gpu memory", node.gpuMemory, "5.10 6.1/debug", node.plain},
	{"collectives", node.collectives, "6.1/debug", node.plain},
	{"nvidia driver", node.nvidiaDriver, "6.1", node.unloads},
	{"nvidia release", node.nvidiaRelease, "6.1", node.unloads},
	{"nvidia signals", node.nvidiaSignals, "6.1", node.unloads},
	{"gpu driver ioctls", node.driverIoctls, "7", func(n node) bool { return n.tier == "" }}, // kprobes only
	{"gpu driver stuck", node.driverStuck, "6.1", node.stub},
	{"gpu driver vendors", node.vendorDrivers, "", node.plain},
	{"link values", node.linkValues, "6.1", node.links},
	{"link device", node.linkDevice, "6.1", node.links},
	{"link module", node.linkModule, "6.1", node.links},
	{"link source", node.linkSource, "6.1", node.links},
	{"link story", node.linkStory, "", node.links},
	{"hca changes", node.hcaChanges, "7 6.1/debug", node.plain},
	{"reload", node.reload, "6.12 6.12/preempt 6.1/debug", nil},
	{"netlink", node.netlink, "5.10 6.12/preempt 6.1/debug", nil},
}

// plain reports whether tier and cgroup layout are the kernel's own.
func (n node) plain() bool { return n.tier == "" && n.cgroup == "" }

// uprobes reports whether the data path can be traced, for which 5.10 is too old.
func (n node) uprobes() bool { return n.plain() && n.kernel != "5.10" }

// traces reports whether all scenarios of the data path run. On 7 only the exact scenario, scenarios of uprobes, and scenarios that older kernels lack run.
func (n node) traces() bool { return n.uprobes() && n.kernel != "7" }

func TestNode(t *testing.T) {
	runParallel(t)
	for _, same := range boots(nodes(nodeScenarios)) {
		t.Run(same[0].String(), func(t *testing.T) {
			if !guest.Enter(t, same[0].options(t)) {
				return
			}
			for _, n := range same {
				play(t, n, nodeScenarios, n)
			}
		})
	}
}

// options builds, outside the guest, the programs that the tests need in it.
func (n node) options(t *testing.T) vm.Options {
	t.Helper()
	if runParallel(t); os.Getenv(binaryVar) != "" {
		return vm.Options{} // in the guest
	}
	workloads, err := vm.BuildWorkloads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	fakes := t.TempDir()
	gpumemory.Build(t, fakes)
	ranks := t.TempDir()
	collective.Build(t, ranks)
	env := []string{
		nodesVar + "=" + os.Getenv(nodesVar), partVar + "=" + os.Getenv(partVar), ringsVar + "=" + os.Getenv(ringsVar),
		binaryVar + "=" + dir + "/accelscope", workloadsVar + "=" + workloads,
		rdmaTestVar + "=" + dir + "/rdma.test", accessTestVar + "=" + dir + "/access.test", datapathTestVar + "=" + dir + "/datapath.test",
		returnTestVar + "=" + dir + "/returnprobe.test", probeTestVar + "=" + dir + "/probe.test",
		uprobeTestVar + "=" + dir + "/uprobe.test", vfTestVar + "=" + dir + "/vf.test",
		gpuMemoryTestVar + "=" + dir + "/gpumemory.test", slurmTestVar + "=" + dir + "/slurm.test", gpumemory.BuiltVar + "=" + fakes,
		libraryTestVar + "=" + dir + "/library.test",
		collectiveTestVar + "=" + dir + "/collective.test", collective.BuiltVar + "=" + ranks,
		"PATH=" + workloads + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}
	options := vm.Options{
		Kernel: n.kernel, Cgroup: n.cgroup, Devices: 2, Env: append(env, n.buildModules(t)...),
		Timeout: time.Duration(size(60, 30)) * time.Minute, // all scenarios take half an hour, make test's 2 to 15 minutes
	}
	if n.preempt {
		options.Preempt = "full"
	}
	if n.debug {
		options.Kernel, options.Timeout = vm.DebugKernel, time.Hour
	}
	return options
}

// binaries builds the programs that all guests run and returns their directory.
var binaries = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprint("accelscope-e2e-", os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	const module = "github.com/accelscope/accelscope/"
	for _, args := range [][]string{
		{"build", "-o", dir, module + "cmd/..."},
		{"test", "-c", "-o", dir + "/rdma.test", module + "pkg/source/rdma"},
		{"test", "-c", "-o", dir + "/vf.test", module + "pkg/source/rdma/vf"},
		{"test", "-c", "-o", dir + "/access.test", module + "pkg/source/access"},
		{"test", "-c", "-o", dir + "/datapath.test", module + "pkg/source/datapath"},
		{"test", "-c", "-o", dir + "/returnprobe.test", module + "pkg/source/datapath/returnprobe"},
		{"test", "-c", "-o", dir + "/probe.test", module + "pkg/source/probe"},
		{"test", "-c", "-o", dir + "/gpumemory.test", module + "pkg/source/gpumemory"},
		{"test", "-c", "-o", dir + "/library.test", module + "pkg/source/library"},
		{"test", "-c", "-o", dir + "/collective.test", module + "pkg/source/collective"},
		{"test", "-c", "-o", dir + "/uprobe.test", module + "pkg/hook/uprobe"},
		{"test", "-c", "-o", dir + "/slurm.test", module + "pkg/source/cgroup/slurm"},
	} {
		if out, err := child.Command(context.Background(), "go", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("go %v: %w: %s", args, err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(filepath.Join(os.TempDir(), fmt.Sprint("accelscope-e2e-", os.Getpid())))
	os.Exit(code)
}

// buildModules builds, outside the guest, the kernel modules of the tests, and the fake library for the stub of
// NVIDIA's driver. It returns the variables that name them.
func (n node) buildModules(t *testing.T) (env []string) {
	t.Helper()
	sources := map[string]string{}
	if n.modules() {
		sources[movableVar], sources[vfsVar] = "../../../pkg/source/rdma/testdata/movable.c", "../../../pkg/source/rdma/vf/testdata/vfs.c"
		sources[devxVar] = "../../machines/vm/driver/devx.c"
	}
	if n.countsMissed() {
		sources[missedVar] = "../../machines/vm/driver/missed.c"
	}
	if n.stub() {
		sources[stubVar] = "../../machines/vm/driver/nvidia.c"
	}
	if n.links() {
		sources[linktestVar] = "../../machines/vm/driver/linktest.c"
	}
	for variable, source := range sources {
		env = append(env, n.buildModule(t, variable, source))
	}
	if n.unloads() {
		library, err := nvml.Build(t.Context(), t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, nvmlVar+"="+library)
	}
	return env
}

// buildModule builds a kernel module and returns the environment variable with its path.
func (n node) buildModule(t *testing.T, variable, source string) string {
	t.Helper()
	kernel, err := vm.FetchKernel(t.Context(), n.kernel)
	if err != nil {
		t.Fatal(err)
	}
	module, err := vm.BuildModule(t.Context(), kernel, source)
	if err != nil {
		t.Fatal(err)
	}
	return variable + "=" + module
}
