// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/cgroup"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// fakeHost is a machine made of files; the test sets which of its functions work.
func fakeHost(t *testing.T, files map[string]string, works ...string) host {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(root) // so that reasons name the same paths everywhere
	can := map[string]bool{}
	for _, w := range works {
		can[w] = true
	}
	try := func(what string) error {
		if can[what] {
			return nil
		}
		return fmt.Errorf("%s: %w", what, unix.EPERM)
	}
	return host{
		sysfs: "sys", procfs: "proc", release: "5.10.0", uid: 1000, tier: "auto",
		netlink: func() error { return try("netlink") }, attach: try,
		gpuProcesses: func() error { return fmt.Errorf("%w: other namespaces", model.ErrUnsupported) },
	}
}

var goodFiles = map[string]string{
	"proc/1/cgroup":                    "0::/\n",
	"proc/self/status":                 "Name:\tx\nCapEff:\t000001ffffffffff\n",
	"sys/kernel/security/lockdown":     "none [integrity] confidentiality\n",
	"sys/kernel/btf/vmlinux":           "",
	"sys/kernel/tracing/events/enable": "",
	"sys/module/ib_core/refcnt":        "1\n",
	"sys/module/ib_uverbs/refcnt":      "1\n",
}

var badFiles = map[string]string{
	"proc/self/status":                    "CapEff:\t0000000000000000\n",
	"proc/self/limits":                    "Max locked memory         65536                65536                bytes     \n",
	"proc/sys/kernel/perf_event_paranoid": "3\n",
	"sys/kernel/security/lockdown":        "none integrity [confidentiality]\n",
}

// failing returns the states of sources that fail with an error, as the engine reports it.
func failing(err error, names ...string) []model.SourceState {
	out := states(model.StateFailed, err.Error(), names...)
	for i := range out {
		out[i].Err = err
	}
	return out
}

func states(state model.State, reason string, names ...string) []model.SourceState {
	var out []model.SourceState
	for _, n := range names {
		out = append(out, model.SourceState{Source: n, State: state, Reason: reason})
	}
	return out
}

// TestDoctorGolden compares the table with testdata. The machines are fakes: files, and the functions that the test
// enables.
func TestDoctorGolden(t *testing.T) {
	golden, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	foreign := fmt.Errorf("%w: ib_core: not the kernel's own build (taint OE)", hook.ErrTypes)
	tests := map[string]struct {
		files   map[string]string
		works   []string
		sources []model.SourceState
		facts   model.Snapshot
		verdict string
	}{
		"healthy": {
			files: goodFiles, works: []string{"netlink", "kprobe", "tracepoint"},
			sources: states(model.StateOK, "", "cgroup", "rdma", "probe", "nvidia", "amdgpu"),
			facts: model.Snapshot{
				HCAs: []model.HCA{{Name: "mlx5_0", Ports: []model.Port{
					{Number: 1, State: "ACTIVE", LinkLayer: "InfiniBand"},
				}}},
				GPUs: []model.GPU{
					{
						Vendor: model.NVIDIA, ID: "0", Name: "NVIDIA H100 80GB HBM3", PCIAddress: "0000:18:00.0",
						Problems: []model.GPUCondition{{Name: model.ProblemXID}},
					},
					{Vendor: model.NVIDIA, ID: "1", PCIAddress: "0000:3b:00.0", Problems: []model.GPUCondition{
						{Name: model.ProblemXID, Active: true}, {Name: model.ProblemLost, Active: true},
					}},
					{Vendor: model.NVIDIA, ID: "2", PCIAddress: "0000:5d:00.0", Blocked: true},
					{Vendor: model.AMD, ID: "0", Name: "AMD Radeon Pro W6800", PCIAddress: "0000:c1:00.0", Suspended: true},
				},
				Hooks: []model.Hook{
					{Name: "ib_uverbs_ioctl", Tier: "kprobe", State: model.StateOK},
					{Name: "rdma_restrack_add", Tier: "kprobe", State: model.StateOK},
					{Name: "ib_umem_dmabuf_get", State: model.StateUnsupported, Reason: "this kernel has no function ib_umem_dmabuf_get"},
					{Name: "datapath_modify_qp", State: model.StateUnsupported, Reason: foreign.Error(), Err: foreign},
				},
				Maps: []model.Map{
					{Name: "verbs", Entries: 3, Capacity: 8192},
					{Name: "objects", Entries: 16, Capacity: 16},
					{Name: "datapath_contexts", Entries: 8, Capacity: 8},
				},
				DeviceStates: []model.DeviceState{
					{Source: "node", Device: "netdev", State: model.StateOK, Reason: `net/dev: the line "x" cannot be parsed and is left out`},
					{Source: "rdma", Device: "mlx5_9", State: model.StateQuarantined, Reason: "counters: invalid argument"},
					{Source: "nvidia", Device: "2", State: model.StateBlocked, Reason: "waits for GPU 1: a call into the driver for that GPU has not returned"},
				},
			},
			verdict: canRunPart,
		},
		"no_hca": {
			files: goodFiles, works: []string{"netlink", "fentry"},
			sources: append(states(model.StateOK, "", "cgroup", "probe"),
				append(states(model.StateAbsent, "no device", "rdma"),
					failing(model.WithReason(errors.New("libnvidia-ml.so.1: cannot open"), model.ErrLibrary), "nvidia")...)...),
			verdict: canRunLater,
		},
		"no_permission": {
			files: badFiles,
			sources: append(states(model.StateOK, "", "cgroup", "rdma"),
				failing(errors.Join(fmt.Errorf("BPF: %w", unix.EPERM), errors.New("second line")), "probe")...),
			verdict: cannotRun,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := diagnose(fakeHost(t, tt.files, tt.works...), tt.sources, tt.facts)
			if r.Verdict != tt.verdict {
				t.Errorf("verdict %q, want %q", r.Verdict, tt.verdict)
			}
			var got bytes.Buffer
			if err := r.print(&got); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(golden, "doctor_"+name+".txt")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil { //nolint:gosec // read by everyone
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
			encoded, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			var decoded Report
			if err := json.Unmarshal(encoded, &decoded); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(*r, decoded); diff != "" {
				t.Errorf("JSON loses something (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReasons checks that the report shows a reason without the state, and finds the cure by the error.
func TestReasons(t *testing.T) {
	const root, library = "run as root", "--gpu.nvml-library"
	for name, tt := range map[string]struct {
		source       string
		err          error
		reason, cure string // part of the cure; empty: no cure is shown
	}{
		"absent":               {"nvidia", fmt.Errorf("no NVIDIA driver is loaded: %w", model.ErrAbsent), "no NVIDIA driver is loaded", ""},
		"unsupported, first":   {"probe", fmt.Errorf("%w: BPF", model.ErrUnsupported), "BPF", ""},
		"several":              {"probe", errors.Join(fmt.Errorf("a: %w", model.ErrAbsent), errors.New("b")), "a\nb", ""},
		"permission":           {"probe", fmt.Errorf("BPF: %w", unix.EACCES), "BPF: permission denied", root},
		"permission of a hook": {"probe", hook.Failure(model.Hook{Name: "f", Reason: "fentry: x", Err: unix.EPERM}), "f: fentry: x", root},
		"the text only":        {"probe", errors.New("not permitted: permission denied"), "not permitted: permission denied", ""},
		"library":              {"nvidia", model.WithReason(errors.New("x"), model.ErrLibrary), "x", library},
		"initialization":       {"nvidia", model.WithReason(errors.New("x"), model.ErrLibraryInit), "x", "the library was found: load the driver that matches it, and make the device nodes of the GPUs visible"},
		"watches":              {"cgroup", fmt.Errorf("%w: the limit is 2048", cgroup.ErrWatches), "too many cgroups to watch: the limit is 2048", "max_user_watches"},
		"its name only":        {"nvidia", errors.New("libnvidia-ml"), "libnvidia-ml", ""},
	} {
		e := startEngine(t, engine.Options{}, engine.Registration{Source: unmade(tt.source), Err: tt.err})
		r := diagnose(fakeHost(t, goodFiles), e.Refresh().States, model.Snapshot{})
		got := r.Checks[0]
		if got.Reason != tt.reason || !strings.Contains(got.Cure, tt.cure) || (got.Cure == "") != (tt.cure == "") {
			t.Errorf("%s: %q → %q; want %q → %q", name, got.Reason, got.Cure, tt.reason, tt.cure)
		}
	}
}

// stuck are the states of a source whose device x does not answer.
func stuck(source string) []model.DeviceState {
	return []model.DeviceState{{Source: source, Device: "x", State: model.StateStuck, Reason: "no answer in time"}}
}

func TestVerdict(t *testing.T) {
	hca := []model.HCA{{Name: "mlx5_0"}}
	hook := func(name string, state model.State) model.Hook { return model.Hook{Name: name, State: state} }
	ok := states(model.StateOK, "", "cgroup", "rdma", "probe")
	tests := map[string]struct {
		sources []model.SourceState
		facts   model.Snapshot
		tiers   []string
		want    string
	}{
		"objects through netlink": {
			sources: ok, want: canRun,
			facts: model.Snapshot{
				HCAs: hca, Hooks: []model.Hook{hook("ib_uverbs_write", model.StateOK)}, Holdings: []model.Holding{},
			},
		},
		"objects not at all": {
			sources: ok, want: cannotRun,
			facts: model.Snapshot{HCAs: hca, Hooks: []model.Hook{hook("ib_uverbs_write", model.StateOK)}},
		},
		"verbs not at all": {
			sources: ok, want: cannotRun, tiers: []string{"fentry"},
			facts: model.Snapshot{HCAs: hca, Hooks: []model.Hook{
				hook("ib_uverbs_ioctl", model.StateFailed), hook("rdma_restrack_add", model.StateOK),
			}},
		},
		"a tier is enough without an HCA": {sources: ok, tiers: []string{"tracepoint"}, want: canRunLater},
		"no tier":                         {sources: ok, want: cannotRun},
		"no HCA answers":                  {sources: ok, tiers: []string{"fentry"}, want: cannotRun, facts: model.Snapshot{DeviceStates: stuck("rdma")}},
		"no HCA, and a GPU that does not answer": {
			sources: ok, tiers: []string{"fentry"}, want: canRunLater, facts: model.Snapshot{DeviceStates: stuck("nvidia")},
		},
		"one HCA does not answer": {
			sources: ok, want: canRunPart,
			facts: model.Snapshot{
				HCAs: hca, Hooks: []model.Hook{hook("ib_uverbs_write", model.StateOK)}, Holdings: []model.Holding{}, DeviceStates: stuck("rdma"),
			},
		},
		"HCAs are not read": {
			sources: append(states(model.StateOK, "", "cgroup", "probe"), states(model.StateFailed, "", "rdma")...),
			tiers:   []string{"fentry"}, want: cannotRun,
		},
		"no owners": {
			sources: append(states(model.StateOK, "", "rdma", "probe"), states(model.StateFailed, "", "cgroup")...),
			tiers:   []string{"fentry"}, want: cannotRun,
		},
		"probes switched off": {
			sources: states(model.StateOK, "", "cgroup", "rdma"), tiers: []string{"fentry"}, want: cannotRun,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tiers := map[string]bool{}
			for _, name := range tt.tiers {
				tiers[name] = true
			}
			var r Report
			r.judge(tt.sources, tt.facts, tiers)
			if r.Verdict != tt.want {
				t.Errorf("verdict %q (%q), want %q", r.Verdict, r.Reasons, tt.want)
			}
		})
	}
}

// A tier that works here but is not the requested one does not count.
func TestForcedTier(t *testing.T) {
	h := fakeHost(t, goodFiles, "kprobe", "tracepoint")
	h.tier = "fentry"
	if tiers := h.check(&Report{}); tiers["kprobe"] || tiers["tracepoint"] || tiers["fentry"] {
		t.Errorf("usable tiers %v, want none", tiers)
	}
}

// The use of a capability depends on the kernel, its settings and the other capabilities. The end-to-end tests check it
// on real kernels.
func TestCapabilities(t *testing.T) {
	const bpf, perfmon, admin, resource, search = 1 << 39, 1 << 38, 1 << 21, 1 << 24, 1 << 2
	tests := map[string]struct {
		set      uint64
		release  string
		uid      int
		paranoid string
		limit    string
		works    []string
		missing  string // the capabilities without which a function fails
	}{
		"least":             {set: bpf | perfmon, works: []string{"kprobe"}},
		"least, not root":   {set: bpf | perfmon, uid: 1000, works: []string{"kprobe"}},
		"no CAP_BPF":        {set: perfmon, missing: "CAP_BPF"},
		"no CAP_PERFMON":    {set: bpf, missing: "CAP_PERFMON"},
		"all in one":        {set: admin, paranoid: "3", works: []string{"fentry", "kprobe"}},
		"paranoid":          {set: bpf | perfmon, paranoid: "3", missing: "CAP_SYS_ADMIN"},
		"paranoid, in vain": {set: bpf | perfmon, paranoid: "3", works: []string{"kprobe"}},
		"5.10":              {set: bpf | perfmon, release: "5.10.0-46-amd64", limit: "65536", missing: "CAP_SYS_RESOURCE"},
		"5.10, least":       {set: bpf | perfmon | resource, release: "5.10.0", limit: "65536", works: []string{"kprobe"}},
		"5.10, no limit":    {set: bpf | perfmon, release: "5.10.0", limit: "unlimited", works: []string{"kprobe"}},
		"all":               {set: bpf | perfmon | admin | resource | search, uid: 1000, works: []string{"fentry"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := fakeHost(t, map[string]string{
				"proc/1/cgroup": "", "proc/self/status": fmt.Sprintf("CapEff:\t%016x\n", tt.set),
				"proc/sys/kernel/perf_event_paranoid": tt.paranoid + "\n",
				"proc/self/limits":                    "Max locked memory         65536  " + tt.limit + "  bytes\n",
			}, tt.works...)
			h.uid, h.release = tt.uid, "6.1.0"
			if tt.release != "" {
				h.release = tt.release
			}
			var r Report
			h.check(&r)
			var missing []string
			for _, c := range r.Checks {
				if c.Area == "permission" && c.State == model.StateFailed {
					missing = append(missing, c.Name)
				}
			}
			if got := strings.Join(missing, " "); got != tt.missing {
				t.Errorf("missing %q, want %q", got, tt.missing)
			}
		})
	}
}

// TestGPUVerdict says whether the use of GPUs is counted by workload.
func TestGPUVerdict(t *testing.T) {
	owners := states(model.StateOK, "", "cgroup")
	for _, tt := range []struct {
		name, want, reason string
		sources            []model.SourceState
		listed             error
		devices            []model.DeviceState
	}{
		{"all", canRun, "", append(states(model.StateOK, "", "nvidia", "amdgpu"), owners...), nil, stuck("rdma")},
		{"one GPU", canRunPart, "x is stuck", append(states(model.StateOK, "", "nvidia"), owners...), nil, stuck("nvidia")},
		{
			"one vendor", canRun, "",
			append(append(states(model.StateOK, "", "amdgpu"), states(model.StateAbsent, "", "nvidia", "intel")...), owners...), nil, nil,
		},
		{"no GPU", noGPU, "", append(states(model.StateAbsent, "", "nvidia", "amdgpu", "intel"), owners...), nil, nil},
		{"no library", cannotRun, "nvidia is failed", append(states(model.StateFailed, "x", "nvidia"), owners...), nil, nil},
		{"no owners", cannotRun, "owners", append(states(model.StateOK, "", "amdgpu"), states(model.StateFailed, "", "cgroup")...), nil, nil},
		{"switched off", cannotRun, "--no-collector.gpu", owners, nil, nil},
		{"other namespaces", cannotRun, "not listed: other", append(states(model.StateOK, "", "nvidia"), owners...), errors.New("other"), nil},
	} {
		var r Report
		if tt.listed != nil {
			r.add("gpu", "nvidia processes", model.StateUnsupported, tt.listed.Error(), "")
		}
		r.judgeGPUs(tt.sources, tt.devices)
		if r.GPUs.Verdict != tt.want || !strings.Contains(strings.Join(r.GPUs.Reasons, "\n"), tt.reason) {
			t.Errorf("%s: %+v; want %q because of %q", tt.name, r.GPUs, tt.want, tt.reason)
		}
	}
}

// TestNoGuess checks that no tier has a reason that nobody checked: the BPF library names RLIMIT_MEMLOCK whenever the kernel refuses.
func TestNoGuess(t *testing.T) {
	for _, tier := range tiers {
		if err := tryTier(tier.name); err != nil && strings.Contains(err.Error(), "MEMLOCK") {
			t.Errorf("%s: %v", tier.name, err)
		}
	}
}

// TestDoctorUnknownValues: doctor names the values of a GPU that cannot be, and memory whose owner is not known.
func TestDoctorUnknownValues(t *testing.T) {
	r := observed(nil, model.Snapshot{
		GPUs: []model.GPU{{Vendor: model.AMD, UUID: "a", ID: "3", Dropped: []model.DroppedValue{{Value: "power", Text: "4.29497e+06 W"}}}},
		GPUProcesses: []model.GPUProcess{
			{GPU: "a", PID: 1}, {GPU: "a", PID: 2, Memory: model.Some(1)}, {GPU: "a", PID: 3}, {GPU: "b", PID: 4},
		},
	}, func() error { return nil })
	const want = "left out because it cannot be: power 4.29497e+06 W, no memory known of 2 processes: that without an owner is not known"
	if len(r.Checks) != 1 || r.Checks[0].Reason != want {
		t.Errorf("%+v", r.Checks)
	}
}

// unmade is the name of a source that could not be made.
type unmade string

func (u unmade) Name() string { return string(u) }

func (u unmade) Read(context.Context) (model.Snapshot, error) { return model.Snapshot{}, nil }

func (u unmade) Close() error { return nil }
