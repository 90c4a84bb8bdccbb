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
	canRunPart  = "yes, but not of all"
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
	if s := states["rdma"]; s != "" && s != model.StateOK && s != model.StateAbsent {
		no("HCAs are not read: the rdma source is %s", s)
	}
	silent := silentDevices(slices.DeleteFunc(slices.Clone(facts.DeviceStates), func(d model.DeviceState) bool { // only its counters
		return slices.ContainsFunc(facts.HCAs, func(h model.HCA) bool { return h.Name == d.Device })
	}), "rdma")
	switch {
	case len(r.Reasons) > 0:
		r.Verdict = cannotRun
	case len(facts.HCAs) == 0 && silent != nil:
		r.Verdict, r.Reasons = cannotRun, silent
	case len(facts.HCAs) == 0:
		r.Verdict = canRunLater
	case silent != nil:
		r.Verdict, r.Reasons = canRunPart, silent
	default:
		r.Verdict = canRun
	}
}

// silentDevices returns a reason for each device of a source that exists and is not read now.
func silentDevices(states []model.DeviceState, source string) (reasons []string) {
	for _, d := range states {
		silent := d.State == model.StateStuck || d.State == model.StateQuarantined || d.State == model.StateBlocked
		if d.Source == source && silent {
			reasons = append(reasons, fmt.Sprintf("%s is %s: %s", d.Device, d.State, d.Reason))
		}
	}
	return reasons
}

// answer is whether something works.
type answer struct {
	Verdict string   `json:"verdict"`
	Reasons []string `json:"reasons,omitempty"` // why the verdict is no, or not of all
}

// judgeGPUs sets the verdict of GPUs. It is no if the GPUs of a vendor, their processes, or the owners of these are not known.
func (r *Report) judgeGPUs(sources []model.SourceState, devices []model.DeviceState) {
	no := func(format string, args ...any) {
		r.GPUs.Reasons = append(r.GPUs.Reasons, fmt.Sprintf(format, args...))
	}
	read, found, owners, silent := false, false, false, []string{}
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
		silent = append(silent, silentDevices(devices, s.Source)...)
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
	case len(silent) > 0:
		r.GPUs = answer{canRunPart, silent}
	default:
		r.GPUs.Verdict = canRun
	}
}
