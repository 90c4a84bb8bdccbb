// SPDX-License-Identifier: Apache-2.0

// Package doctor examines what the sensor can do on a node: the states of its sources, what the kernel and the permissions allow, and the
// cures. It judges whether the use of HCAs and of GPUs is counted by workload.
package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/cgroup"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// Report is the output of doctor.
type Report struct {
	Verdict string   `json:"verdict"`           // of HCAs
	Reasons []string `json:"reasons,omitempty"` // why the verdict is no, or not of all
	GPUs    answer   `json:"gpus"`
	Checks  []check  `json:"checks"`
	// Verdicts are the conditions that hold at this moment. Verdicts on the sensor are checks.
	Verdicts []api.Verdict `json:"verdicts"`
}

// check is the state of one thing that the sensor uses.
type check = api.Check

func (r *Report) add(area, name string, state model.State, reason, cure string) {
	r.Checks = append(r.Checks, check{Area: area, Name: name, State: state, Reason: model.WithoutState(reason, state), Cure: cure})
}

// Examine reads all sources, as the sensor would, and reports their states, and what the host allows.
func Examine(ctx context.Context, f config.SensorFlags, e *engine.Engine) *Report {
	if f.Fabric {
		awaitFabric(ctx, e)
	}
	now := e.Refresh()
	r := diagnose(thisHost(f), now.States, now.Facts)
	r.addVerdicts(now.Verdicts)
	return r
}

// Observed returns the states of the sources and of what they read, with cures.
func Observed(sources []model.SourceState, facts model.Snapshot) []api.Check {
	return observed(sources, facts, func() error { return nil }).Checks
}

// CannotRun reports whether the use of HCAs is not counted by workload.
func (r *Report) CannotRun() bool { return r.Verdict == cannotRun }

// Write writes the report as a table, or as JSON.
func (r *Report) Write(out io.Writer, asJSON bool) error {
	if !asJSON {
		return r.print(out)
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// AddCgroups adds how cgroups are read. namespace is the cgroup that is the root of our cgroup namespace; empty for the host's.
func (r *Report) AddCgroups(h cgroup.Hierarchy, namespace string) {
	if h.Mount == "" {
		return
	}
	where := strings.TrimSpace(fmt.Sprintf("%s, %s %s", h.Mode, h.Mount, h.Controller))
	if namespace != "" {
		where += ", seen from a cgroup namespace at " + namespace
	}
	r.add("kernel", "cgroups", model.StateOK, where, "")
}

// diagnose reports the states of the sources and what the host allows.
func diagnose(h host, sources []model.SourceState, facts model.Snapshot) *Report {
	r := observed(sources, facts, h.gpuProcesses)
	tiers := h.check(r)
	r.judge(sources, facts, tiers)
	r.judgeGPUs(sources, facts.DeviceStates)
	return r
}

// observed reports the states of the sources and of what they read. gpuProcesses returns why the processes of NVIDIA's GPUs cannot be
// listed.
func observed(sources []model.SourceState, facts model.Snapshot, gpuProcesses func() error) *Report {
	r := &Report{}
	for _, s := range sources {
		r.add("source", s.Source, s.State, s.Reason, sourceCure(s))
	}
	for i := range facts.HCAs {
		d := &facts.HCAs[i]
		ports := make([]string, 0, len(d.Ports))
		for _, p := range d.Ports {
			ports = append(ports, fmt.Sprintf("port %d %s %s", p.Number, cmp.Or(p.State, "of unknown state"), p.LinkLayer))
		}
		r.add("device", d.Name, model.StateOK, strings.Join(ports, ", "), "")
		r.withoutBytes(d)
	}
	unknown := map[string]int{} // processes without memory, by GPU
	for i := range facts.GPUProcesses {
		if p := &facts.GPUProcesses[i]; !p.Memory.Known {
			unknown[p.GPU]++
		}
	}
	for i := range facts.GPUs {
		state, reason := conditionOf(&facts.GPUs[i])
		if n := unknown[facts.GPUs[i].UUID]; n > 0 {
			reason += fmt.Sprintf(", no memory known of %d processes: that without an owner is not known", n)
		}
		r.add("gpu", string(facts.GPUs[i].Vendor)+" "+facts.GPUs[i].ID, state, reason, "")
	}
	if slices.ContainsFunc(facts.GPUs, func(g model.GPU) bool { return g.Vendor == model.NVIDIA }) {
		if err := gpuProcesses(); err != nil {
			cure := "share the node's process namespace (hostPID, or --pid=host)"
			if errors.Is(err, wire.ErrWSL) {
				cure = ""
			}
			r.add("gpu", "nvidia processes", stateOf(err), err.Error(), cure)
		}
	}
	for _, d := range facts.DeviceStates {
		if d.State != model.StateOK || d.Reason != "" {
			r.add("device", d.Device, d.State, d.Source+": "+d.Reason, deviceCure(d))
		}
	}
	r.missing(facts.Missing)
	r.fabric(facts.Fabric)
	for _, h := range facts.Hooks {
		reason := h.Reason
		if h.State == model.StateOK {
			reason = "attached by " + h.Tier
		}
		r.add("hook", h.Name, h.State, reason, hookCure(h))
	}
	for _, m := range facts.Maps {
		state, cure := model.StateOK, ""
		if m.Entries >= m.Capacity {
			state, cure = model.StateFailed, mapCure(m.Name)
		}
		r.add("map", m.Name, state, fmt.Sprintf("%d of %d entries", m.Entries, m.Capacity), cure)
	}
	return r
}

// withoutBytes reports ports whose bytes are not known, and why: they have no rate and no utilization.
func (r *Report) withoutBytes(h *model.HCA) {
	for i := range h.Ports {
		p := &h.Ports[i]
		if reason := h.WithoutBytes(p, h.PortCounters(nil, p)); reason != "" {
			r.add("device", fmt.Sprintf("%s/%d bytes", h.Name, p.Number), model.StateUnsupported, reason, "")
		}
	}
}

// conditionOf returns the state of a GPU, its name, its PCI address and its problems with their names in gpu_problem.
func conditionOf(g *model.GPU) (state model.State, reason string) {
	about := []string{}
	for _, text := range []string{g.Name, g.Profile, g.PCIAddress} {
		if text != "" {
			about = append(about, text)
		}
	}
	state = model.StateOK
	switch {
	case g.Suspended:
		about = append(about, "suspended")
	case g.Blocked:
		state = model.StateBlocked
	}
	for _, d := range g.Dropped {
		about = append(about, "left out because it cannot be: "+d.Value+" "+d.Text)
	}
	if problems := g.ActiveProblems(); len(problems) > 0 {
		state, about = model.StateFailed, append(about, problems...)
	}
	return state, strings.Join(about, ", ")
}

func (r *Report) print(w io.Writer) error {
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "AREA\tNAME\tSTATE\tREASON")
	for _, c := range r.Checks {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", c.Area, format.Line(c.Name), c.State, format.Line(c.Reason))
		if c.Cure != "" {
			fmt.Fprintf(tw, "\t\t\t→ %s\n", format.Line(c.Cure))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	var out strings.Builder
	for line := range strings.Lines(table.String()) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	out.WriteString("\n")
	for _, a := range []struct {
		what string
		answer
	}{{"HCAs", answer{r.Verdict, r.Reasons}}, {"GPUs", r.GPUs}} {
		fmt.Fprintf(&out, "Is the use of %s counted by workload: %s\n", a.what, a.Verdict)
		for _, reason := range a.Reasons {
			fmt.Fprintf(&out, "  because %s\n", format.Line(reason))
		}
	}
	r.printVerdicts(&out)
	_, err := io.WriteString(w, out.String())
	return err
}
