// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// typesVar is the environment variable with the directory of vm.PaddedModules.Types, in the guest.
const typesVar = "ACCELSCOPE_BTF_DIR"

// paddedScenarios run with RDMA modules whose structures differ from the layout that the kernel describes. They need no
// VFs.
var paddedScenarios = []scenario[node]{
	{"refused", node.refused, "", node.withoutTypes},
	{"attached", node.attached, "", node.counts},
	{"verbs", node.verbs, "", nil},
	{"truth", node.truth, "", nil},
	{"peers", node.peers, "", nil},
	{"restart", node.restart, "", node.counts},
	{"datapath exact", node.exact, "", node.counts},
}

func (n node) withoutTypes() bool { return !n.counts() }

// TestPadded: the modules have no type information, the sensor gets it from files, or the modules have it themselves.
// `make test-kernels` runs it.
func TestPadded(t *testing.T) {
	if !whole() {
		t.Skip("runs in make test-kernels")
	}
	for _, padded := range []string{"plain", "typed"} {
		t.Run(padded, func(t *testing.T) {
			n := node{kernel: "6.1", padded: padded}
			if !guest.Enter(t, n.paddedOptions(t)) {
				return
			}
			n.outOfTree(t)
			play(t, n, paddedScenarios, n)
			if n.withoutTypes() {
				n.types = os.Getenv(typesVar)
				t.Run("files", func(t *testing.T) { play(t, n, paddedScenarios, n) })
			}
			t.Run("netlink", n.netlink) // last, because it changes the devices
		})
	}
}

// paddedOptions builds the modules, outside the guest.
func (n node) paddedOptions(t *testing.T) vm.Options {
	t.Helper()
	opts := n.options(t)
	if opts.Kernel == "" {
		return opts // in the guest
	}
	kernel, err := vm.FetchKernel(t.Context(), n.kernel)
	if err != nil {
		t.Fatal(err)
	}
	modules, err := vm.BuildPadded(t.Context(), kernel)
	if err != nil {
		t.Fatal(err)
	}
	opts.Modules = map[string]string{"plain": modules.Plain, "typed": modules.Typed}[n.padded]
	opts.Env = append(opts.Env, typesVar+"="+modules.Types)
	return opts
}

// outOfTree checks that the guest has loaded the modules of the test.
func (n node) outOfTree(t *testing.T) {
	t.Helper()
	for _, module := range []string{"ib_core", "ib_uverbs", "rdma_rxe"} {
		taint, err := os.ReadFile("/sys/module/" + module + "/taint")
		if err != nil || !strings.Contains(string(taint), "O") {
			t.Errorf("%s has the taint %q, %v", module, taint, err)
		}
		if _, err := os.Stat("/sys/kernel/btf/" + module); (err == nil) != (n.padded == "typed") {
			t.Errorf("type information of %s: %v", module, err)
		}
	}
}

// structureHooks are the hooks on this kernel whose programs read structures of RDMA modules.
func structureHooks(m metrics, t *testing.T) (hooks []string) {
	t.Helper()
	var without []string
	for _, f := range dmabufFunctions {
		if !inKernel(t, f.name) {
			without = append(without, f.name)
		}
	}
	if !inKernel(t, "rdma_restrack_begin_del") {
		without = append(without, "rdma_restrack_begin_del")
	}
	for name := range m.by("accelscope_probe_hook_state", "hook") {
		structures := slices.ContainsFunc([]string{"rdma_", "ib_umem_", "ib_modify_qp", "datapath_"}, func(prefix string) bool {
			return strings.HasPrefix(name, prefix)
		})
		if structures && !slices.Contains(without, name) {
			hooks = append(hooks, name)
		}
	}
	if len(hooks) < 9 {
		t.Errorf("only %q", hooks)
	}
	return hooks
}

// refused: hooks do not read structures of an unknown layout. doctor names the reason and the cure, and the main job
// runs.
func (n node) refused(t *testing.T) {
	s := start(t, n.args("--rdma.datapath=always")...)
	m := s.fresh()
	for _, hook := range structureHooks(m, t) {
		if m.sum("accelscope_probe_hook_state", "hook", hook, "state", "unsupported") != 1 {
			t.Errorf("not refused: %v", m.all("accelscope_probe_hook_state", "hook", hook))
		}
	}
	if m.sum("accelscope_source_state", "source", "datapath", "state", "unsupported") != 1 {
		t.Errorf("state %v", m.all("accelscope_source_state", "source", "datapath"))
	}
	for _, hook := range []string{"ib_uverbs_ioctl", "ib_uverbs_write"} {
		if m.sum("accelscope_probe_hook_state", "hook", hook, "tier", n.wantTier(), "state", "ok") != 1 {
			t.Errorf("%s: %v", hook, m.all("accelscope_probe_hook_state", "hook", hook))
		}
	}
	s.stop()
	report := sh(t, os.Getenv(binaryVar), append([]string{"doctor"}, n.args()...)...)
	t.Logf("%s", report)
	for _, want := range []string{
		"ib_core: not the kernel's own build (taint OE), and its structures may differ", "--probe.btf-dir",
		"Is the use of HCAs counted by workload: yes",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("doctor does not print %q", want)
		}
	}
}

// attached: all hooks are attached, by the tiers that the modules allow.
func (n node) attached(t *testing.T) {
	s := start(t, n.args("--rdma.datapath=always")...)
	m := s.fresh()
	for _, hook := range append(structureHooks(m, t), "ib_uverbs_ioctl", "ib_uverbs_write") {
		if m.sum("accelscope_probe_hook_state", "hook", hook, "state", "ok") != 1 {
			t.Errorf("not attached: %v", m.all("accelscope_probe_hook_state", "hook", hook))
		}
	}
	s.stop()
	t.Logf("%s", sh(t, os.Getenv(binaryVar), append([]string{"doctor"}, n.args()...)...))
}
