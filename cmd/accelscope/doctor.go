// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/cgroup"
	"github.com/accelscope/accelscope/pkg/source/kernellog"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

type doctorCmd struct {
	sensorFlags
	controlFlags
	healthFlags
	JSON bool `name:"json" xor:"answer" help:"Print one JSON object instead of a table."`
}

// run makes and reads all sources once, as the sensor would, and prints their states. It detaches what it attached.
func (c *doctorCmd) run(ctx context.Context, stdout io.Writer, log *zap.Logger) error {
	if c.Health {
		return c.check(ctx)
	}
	c.Strict = false // the report shows what does not work
	if c.QPCounters == "manage" {
		c.QPCounters = "use" // doctor changes nothing on the node
	}
	c.released, c.readOnly = released(ctx, c.Socket), true
	s, err := newSensor(c.sensorFlags, eventFlags{}, metricsFlags{}, zap.NewNop())
	if err != nil {
		return err
	}
	defer closeWithin(closeTimeout, s, log)
	if c.Fabric {
		awaitFabric(ctx, s.engine)
	}
	now := s.engine.Refresh()
	r := diagnose(thisHost(c.sensorFlags), now.States, now.Facts)
	r.addVerdicts(now.Verdicts)
	if c.NodeLabels {
		r.nodeLabels(ctx, ownNode(c.NodeName))
	}
	if s.hierarchy.Mount != "" {
		where := strings.TrimSpace(fmt.Sprintf("%s, %s %s", s.hierarchy.Mode, s.hierarchy.Mount, s.hierarchy.Controller))
		if s.namespace != "" {
			where += ", seen from a cgroup namespace at " + s.namespace
		}
		r.add("kernel", "cgroups", model.StateOK, where, "")
	}
	if c.JSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = r.print(stdout)
	}
	if err == nil && r.Verdict == cannotRun {
		return errCannotRun
	}
	return err
}

// report is the output of doctor.
type report struct {
	Verdict string   `json:"verdict"`           // of HCAs
	Reasons []string `json:"reasons,omitempty"` // why the verdict is no
	GPUs    answer   `json:"gpus"`
	Checks  []check  `json:"checks"`
	// Verdicts are the conditions that hold at this moment. Those of the sensor are checks.
	Verdicts []api.Verdict `json:"verdicts"`
}

// check is the state of one thing that the sensor uses.
type check = api.Check

func (r *report) add(area, name string, state model.State, reason, cure string) {
	r.Checks = append(r.Checks, check{Area: area, Name: name, State: state, Reason: withoutState(reason, state), Cure: cure})
}

// withoutState removes the state from the ends of each line of a reason that is shown next to the state: errors that wrap
// model.ErrAbsent or model.ErrUnsupported have the text of that error there.
func withoutState(reason string, state model.State) string {
	lines := strings.Split(reason, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimSuffix(line, ": "+string(state)), string(state)+": ")
	}
	return strings.Join(lines, "\n")
}

// diagnose reports the states of the sources and what the host allows.
func diagnose(h host, sources []model.SourceState, facts model.Snapshot) *report {
	r := observed(sources, facts, h.gpuProcesses)
	tiers := h.check(r)
	r.judge(sources, facts, tiers)
	r.judgeGPUs(sources)
	return r
}

// observed reports the states of the sources and of what they read. gpuProcesses returns why the processes of NVIDIA's GPUs cannot be
// listed.
func observed(sources []model.SourceState, facts model.Snapshot, gpuProcesses func() error) *report {
	r := &report{}
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
func (r *report) withoutBytes(h *model.HCA) {
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

func (r *report) print(w io.Writer) error {
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "AREA\tNAME\tSTATE\tREASON")
	for _, c := range r.Checks {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", c.Area, printable(c.Name), c.State, printable(c.Reason))
		if c.Cure != "" {
			fmt.Fprintf(tw, "\t\t\t→ %s\n", printable(c.Cure))
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
			fmt.Fprintf(&out, "  because %s\n", printable(reason))
		}
	}
	r.printVerdicts(&out)
	_, err := io.WriteString(w, out.String())
	return err
}

// printable keeps a text in its cell: a joined error has several lines, and a container can choose the characters of a
// path.
func printable(s string) string {
	s = strings.ReplaceAll(s, "\n", "; ")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// sourceCure returns a cure for a source that is not ok, or "" if none is known.
func sourceCure(s model.SourceState) string {
	switch {
	case s.State == model.StateOK:
		return ""
	case s.State == model.StateReleased:
		return "accelscope gpu resume ends the release"
	case s.Source == "rdma" && s.State == model.StateAbsent:
		return "load the driver of the HCA (mlx5_ib, irdma, …); `make demo` shows a node with Soft-RoCE"
	case errors.Is(s.Err, model.ErrLibraryInit):
		return "the library was found: load the driver that matches it, and make the device nodes of the GPUs visible"
	case errors.Is(s.Err, model.ErrLibrary):
		if v := model.FindGPUVendor(func(v *model.GPUVendor) bool { return v.Source == s.Source }); v != nil {
			return v.LibraryCure
		}
	case errors.Is(s.Err, cgroup.ErrWatches):
		return "raise fs.inotify.max_user_watches: the sensor takes at most a quarter of it, and at most 8192"
	case s.Source == "cgroup" && s.State == model.StateAbsent:
		return "mount the host's cgroup tree and name it with --path.cgroup"
	case s.State == model.StateStuck && s.Source != "runtime" && s.Source != "kubelet" && s.Source != "fabric":
		return "look for processes in state D and for messages of the driver in dmesg"
	case s.Source == "kernellog" && errors.Is(s.Err, os.ErrPermission):
		return "add CAP_SYSLOG, and in a container the device /dev/kmsg (privileged)"
	case s.Source == "kernellog" && errors.Is(s.Err, kernellog.ErrForeignPIDs):
		return "share the PID namespace of the host (hostPID)"
	case s.Source == "gpudriver" && s.State == model.StateUnsupported:
		return "use a kernel with CONFIG_KPROBE_EVENTS and CONFIG_DEBUG_INFO_BTF, as those of the distributions"
	case errors.Is(s.Err, os.ErrPermission):
		return "run as root, or privileged in a container; the permissions below say what is missing"
	}
	return ""
}

// hookCure returns a cure for a hook that lacks type information, or "".
func hookCure(h model.Hook) string {
	if errors.Is(h.Err, hook.ErrTypes) {
		return "make type information and name its directory with --probe.btf-dir: deploy/README.md, Out-of-tree RDMA modules"
	}
	return ""
}

func mapCure(name string) string {
	if name == "driver_calls" {
		return "look for tasks that hang in a driver: /api/v1/gpu-driver-tasks"
	}
	if strings.HasPrefix(name, "datapath_") {
		return "raise --rdma.datapath-max-contexts"
	}
	return "raise --probe.map-entries or --probe.max-objects"
}

func deviceCure(d model.DeviceState) string {
	switch {
	case d.Source == "link" && d.State == model.StateUnsupported:
		return "share the network namespace of the node (hostNetwork)"
	case d.State == model.StateStuck && d.Source == "rdma",
		d.Source == "link" && (d.State == model.StateStuck || d.State == model.StateQuarantined):
		return "look for processes in state D and for messages of the driver in dmesg"
	case d.State == model.StateQuarantined:
		return fmt.Sprintf("leave it out for good: --collector.rdma.device-exclude=%s", d.Device)
	}
	return ""
}
