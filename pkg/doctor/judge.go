// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// Verdicts: whether the sensor can count the use of HCAs, or of GPUs, by workload.
const (
	canRun      = "yes"
	canRunLater = "yes, when an HCA appears"
	cannotRun   = "no"
	noGPU       = "this node has no GPU"
)

// judge sets the verdict. To count the use of HCAs by workload needs the owners of cgroups, a hook on
// verbs, and either a hook on objects or RDMA netlink. Without an HCA no hook
// can be attached yet: then the tiers decide that kernel and permissions allow.
func (r *Report) judge(sources []model.SourceState, facts model.Snapshot, tiers map[string]bool) {
	no := func(format string, args ...any) { r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...)) }
	states := map[string]model.State{}
	for _, s := range sources {
		states[s.Source] = s.State
	}
	for _, name := range []string{"cgroup", "probe", "rdma"} {
		if states[name] == "" {
			no("%s is switched off (--no-collector.%s)", name, name)
		}
	}
	if s := states["cgroup"]; s != "" && s != model.StateOK {
		no("owners are not known: the cgroup source is %s", s)
	}
	if states["probe"] != "" {
		verbs, objects := tiers["fentry"] || tiers["kprobe"] || tiers["tracepoint"], true
		if len(facts.HCAs) > 0 {
			verbs, objects = false, facts.Holdings != nil
			for _, h := range facts.Hooks {
				attached := h.State == model.StateOK
				verbs = verbs || attached && strings.HasPrefix(h.Name, "ib_uverbs_")
				objects = objects || attached && h.Name == "rdma_restrack_add"
			}
		}
		if !verbs {
			no("verbs are not seen: no hook on them can be attached")
		}
		if !objects {
			no("objects are not seen: neither by a hook nor through RDMA netlink")
		}
	}
	switch {
	case len(r.Reasons) > 0:
		r.Verdict = cannotRun
	case len(facts.HCAs) == 0:
		r.Verdict = canRunLater
	default:
		r.Verdict = canRun
	}
}

// answer is whether something works.
type answer struct {
	Verdict string   `json:"verdict"`
	Reasons []string `json:"reasons,omitempty"` // why the verdict is no
}

// judgeGPUs sets the verdict of GPUs. It is no if the GPUs of a vendor, their processes, or the owners of these are not known.
func (r *Report) judgeGPUs(sources []model.SourceState) {
	no := func(format string, args ...any) {
		r.GPUs.Reasons = append(r.GPUs.Reasons, fmt.Sprintf(format, args...))
	}
	read, found, owners := false, false, false
	for _, s := range sources {
		owners = owners || s.Source == "cgroup" && s.State == model.StateOK
		if !slices.ContainsFunc(model.GPUVendors, func(v model.GPUVendor) bool { return v.Source == s.Source }) {
			continue
		}
		read = true
		found = found || s.State != model.StateAbsent
		if s.State != model.StateOK && s.State != model.StateAbsent {
			no("the source %s is %s", s.Source, s.State)
		}
	}
	for _, c := range r.Checks {
		if c.Area == "gpu" && c.Name == "nvidia processes" {
			no("the processes on NVIDIA's GPUs are not listed: %s", c.Reason)
		}
	}
	switch {
	case !read:
		no("no GPU is read (--no-collector.gpu)")
	case found && !owners:
		no("the owners of processes are not known: the source cgroup is not ok")
	}
	switch {
	case r.GPUs.Reasons != nil:
		r.GPUs.Verdict = cannotRun
	case !found:
		r.GPUs.Verdict = noGPU
	default:
		r.GPUs.Verdict = canRun
	}
}
