// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// guide is deploy/README.md, whose table of permissions is verified here. A changed row must be measured again, so the
// texts of the rows are repeated below.
const guide = "guide.md"

// rows are the rows of the table: the text of each, by its first column.
var rows = map[string]string{
	"`CAP_BPF`": "all eBPF hooks, unless the sensor has `CAP_SYS_ADMIN`: verbs, short-lived RDMA objects, opens and open " +
		"handles of device nodes",
	"`CAP_PERFMON`": "the same as without `CAP_BPF`",
	"`CAP_SYS_ADMIN`": "all eBPF hooks if `kernel.perf_event_paranoid` is above 2, otherwise the fentry tier; HCAs that were moved " +
		"into pods; `rdma.datapath`; GPUs of Slurm jobs by their device program (cgroup v2)",
	"`CAP_SYS_PTRACE`": "processes on Intel GPUs, and on AMD GPUs except compute; HCAs that were moved into pods; " +
		"`container_network_*`; `rdma.datapath`, `gpu.allocation-failures`, `collector.collective`; owners of older RDMA " +
		"objects, if `/proc` hides processes and the sensor is not root; GPUs of Slurm jobs by their environment",
	"`CAP_DAC_READ_SEARCH`": "processes of other users than root: on Intel GPUs, on AMD GPUs except compute, `rdma.datapath` with a verbs " +
		"library in a private directory; the tracepoint tier, if the sensor is not root; names of new cgroups of " +
		"users and below containers: a workload may have no name for five minutes",
	"`CAP_SYS_RESOURCE`": "all eBPF hooks on kernel 5.10, unless `RLIMIT_MEMLOCK` is unlimited",
	"`hostPID`": "owners of older RDMA objects; open handles of device nodes; processes on NVIDIA's GPUs, their memory and " +
		"engines; `rdma.datapath`",
	"`/host-proc`": "all data of processes: owners of older RDMA objects, processes on GPUs, opens and open handles of device " +
		"nodes, `container_network_*`, `rdma.datapath`; `node_*`",
	"`/sys`": "all owners, unless the pod is privileged: the sensor sees only its own part of the cgroup tree; the " +
		"tracepoint tier",
	"`/hostrun`": "names from container runtimes: workloads are named by pod UID and container ID; devices of resource claims " +
		"(`/run/cdi`)",
	"`/hostrun/containerd`":            "the same as without `/hostrun`, if `/run/containerd` is a separate mount",
	"`/var/lib/kubelet/pod-resources`": "devices that the kubelet allocated to containers: `container_gpu_allocated`, VFs",
	"`/host`":                          "file systems of the node, user names, NVIDIA's library, CDI specifications in `/etc/cdi`",
	"`/run/accelscope`":                "`accelscope gpu release` and `accelscope inventory accept` outside of the pod",
	"`/var/lib/accelscope`": "the inventory across restarts: devices that vanish while the pod or the node is restarted, and links of GPUs" +
		" that were up before",
}

// A lack is a permission or mount of the overlay capabilities that this variant lacks.
type lack struct {
	caps     []string
	mounts   []string
	hidden   bool   // no hostPID
	paranoid string // kernel.perf_event_paranoid; Debian's is 3
	verdict  string
	lost     []string // the checks of doctor that are no longer ok
	later    bool     // source datapath may be lost, too: it fails at the first process, which may be after doctor ran
}

// Hooks of RDMA and of device nodes are lost together. tiers are the tiers that could be attached.
var (
	noHooks = []string{"hook cgroup_mkdir", "hooks of RDMA", "source probe", "tier fentry", "tier kprobe", "tier tracepoint", "permission CAP_SYS_ADMIN"}
	noPath  = []string{"hooks of the data path", "source datapath"}
	noBPF   = slices.Concat([]string{"hooks of devices", "source access"}, noPath, noHooks)
	lacks   = []lack{
		{caps: []string{"BPF"}, verdict: "yes"}, // CAP_SYS_ADMIN is enough
		{caps: []string{"PERFMON"}, verdict: "yes"},
		{caps: []string{"SYS_ADMIN"}, verdict: "no", lost: slices.Concat(noPath, noHooks)},
		{caps: []string{"SYS_ADMIN"}, paranoid: "2", verdict: "yes", lost: []string{"permission CAP_SYS_ADMIN", "tier fentry"}, later: true},
		{
			caps: []string{"SYS_ADMIN", "BPF"}, paranoid: "2", verdict: "no",
			lost: append([]string{"permission CAP_BPF"}, noBPF...),
		},
		{
			caps: []string{"SYS_ADMIN", "PERFMON"}, paranoid: "2", verdict: "no",
			lost: append([]string{"permission CAP_PERFMON"}, noBPF...),
		},
		{caps: []string{"SYS_PTRACE"}, verdict: "yes", lost: []string{"source container"}, later: true},
		{caps: []string{"DAC_READ_SEARCH"}, verdict: "yes"}, // TestPackage shows what it is needed for
		{caps: []string{"SYS_RESOURCE"}, verdict: "yes"},    // needed only on 5.10
		{hidden: true, verdict: "yes", lost: append([]string{"hooks of devices"}, noPath...)},
		{
			mounts: []string{"/host-proc"}, verdict: "yes",
			lost: []string{
				"hooks of devices", "hooks of the data path", "permission CAP_BPF", "permission CAP_PERFMON", "permission CAP_SYS_ADMIN", "source access",
				"source container", "source datapath", "source node",
			},
		},
		{mounts: []string{"/sys"}, verdict: "no", lost: []string{"kernel tracefs", "source cgroup"}},
		{mounts: []string{"/hostrun", "/hostrun/containerd"}, verdict: "yes", lost: []string{"source runtime"}},
		// doctor cannot report the effect of these in this guest: /hostrun also contains containerd's socket, and there
		// is no kubelet and no GPU.
		{mounts: []string{"/hostrun/containerd", "/var/lib/kubelet/pod-resources", "/host", "/run/accelscope", "/var/lib/accelscope"}, verdict: "yes"},
	}
)

// without removes one permission at a time, and checks that doctor in the pod reports the losses in the guide.
func (d *deploy) without(t *testing.T) {
	if n := d.node; n.kernel == "5.10" || n.cgroup != "" {
		t.Skip("measured on cgroup v2, with the hooks that kernels from 5.11 on have")
	}
	table := guideTable(t)
	for row, text := range rows {
		if table[row] != text {
			t.Errorf("%s of %s: %q, want %q: measure it again", row, guide, table[row], text)
		}
	}
	// Every permission that the overlay requests is in the guide, and is measured.
	c := d.pods["capabilities"].Spec.Containers[0]
	for _, name := range c.SecurityContext.Capabilities.Add {
		d.measured(t, "`CAP_"+string(name)+"`", func(l lack) bool { return slices.Contains(l.caps, string(name)) })
	}
	for _, m := range c.VolumeMounts {
		if m.Name != "config" {
			d.measured(t, "`"+m.MountPath+"`", func(l lack) bool { return slices.Contains(l.mounts, m.MountPath) })
		}
	}
	if !whole() {
		return // doctor takes 8 s in a guest
	}
	all := d.judge(t, lack{})
	if all.Verdict != "yes" {
		t.Fatalf("with everything: %q, %v", all.Verdict, all.Reasons)
	}
	for _, l := range lacks {
		r := d.judge(t, l)
		got := lost(all, r)
		if l.later {
			got = slices.DeleteFunc(got, func(name string) bool { return name == "source datapath" })
		}
		if r.Verdict != l.verdict || !slices.Equal(got, slices.Sorted(slices.Values(l.lost))) {
			t.Errorf("without %v%v (paranoid %s): %q, lost %q; want %q, %q", l.caps, l.mounts, l.paranoid, r.Verdict, got, l.verdict, l.lost)
			for _, c := range r.Checks {
				if c.State != "ok" {
					t.Logf("   %s %s %s %s", c.Area, c.Name, c.State, c.Reason)
				}
			}
		}
	}
}

func (d *deploy) measured(t *testing.T, row string, by func(lack) bool) {
	t.Helper()
	if rows[row] == "" || !slices.ContainsFunc(lacks, by) {
		t.Errorf("%s is not measured", row)
	}
}

// guideTable returns the guide's list of permissions: the effect by missing permission.
func guideTable(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(os.Getenv(manifestsVar), guide))
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(text), "<!-- permissions -->")
	part, _, _ = strings.Cut(part, "<!-- /permissions -->")
	rows := map[string]string{}
	for line := range strings.Lines(part) {
		if permission, effect, found := strings.Cut(strings.TrimPrefix(line, "- "), ": "); found {
			rows[permission] = strings.TrimSpace(effect)
		}
	}
	return rows
}

// rdmaHook matches the hooks of verbs and RDMA objects, and the programs that read objects from before the start.
var rdmaHook = regexp.MustCompile(`^(ib_|rdma_|restrack_ids$|uobjects_existing$)`)

// lost returns the checks that were ok before and are not ok now, in short form.
func lost(before, after diagnosis) []string {
	ok := map[string]bool{}
	for _, c := range after.Checks {
		ok[c.Area+c.Name] = c.State == "ok"
	}
	names := map[string]bool{}
	for _, c := range before.Checks {
		if c.State != "ok" || ok[c.Area+c.Name] || c.Area == "map" {
			continue
		}
		name := c.Area + " " + c.Name
		switch {
		case c.Area == "hook" && rdmaHook.MatchString(c.Name):
			name = "hooks of RDMA"
		case c.Area == "hook" && strings.HasPrefix(c.Name, "datapath_"):
			name = "hooks of the data path"
		case c.Area == "hook" && c.Name != "cgroup_mkdir":
			name = "hooks of devices"
		}
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// judge runs doctor like the container of the pod, in a sandbox that all variants share.
func (d *deploy) judge(t *testing.T, l lack) diagnosis {
	t.Helper()
	const sysctl = "/proc/sys/kernel/perf_event_paranoid"
	if l.paranoid != "" {
		was, err := os.ReadFile(sysctl)
		if err != nil {
			t.Fatal(err)
		}
		write(t, sysctl, l.paranoid)
		defer write(t, sysctl, string(was))
	}
	pod := d.pods["capabilities"]
	spec := pod.DeepCopy()
	spec.Spec.HostPID = !l.hidden
	c := &spec.Spec.Containers[0]
	c.Args = append([]string{"doctor", "--json", "--rdma.datapath=always"}, c.Args[1:]...)
	add := &c.SecurityContext.Capabilities.Add
	*add = slices.DeleteFunc(*add, func(x corev1.Capability) bool { return slices.Contains(l.caps, string(x)) })
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return slices.Contains(l.mounts, m.MountPath) })
	asked, err := d.kubelet.Translate("accelscope", "doctor", *spec)
	if err != nil {
		t.Fatal(err)
	}
	d.count++
	asked.Container.Metadata.Attempt = uint32(d.count)
	if d.doctors == nil {
		if d.doctors, err = d.cri.MakePod(t.Context(), asked); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	out, err := d.cri.RunToEnd(t.Context(), d.doctors, asked)
	var report diagnosis
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("doctor: %v\n%s", err, out)
	}
	if (report.Verdict == "yes") != (err == nil) {
		t.Errorf("doctor says %q and ends with %v", report.Verdict, err)
	}
	t.Logf("doctor without %v%v took %v", l.caps, l.mounts, time.Since(begin).Round(100*time.Millisecond))
	return report
}
