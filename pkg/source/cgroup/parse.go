// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"path"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/cgroup/slurm"
)

// parse returns the workload of the cgroup at path, from the path alone: the pod and container as placed by containerd,
// CRI-O, Docker and Podman with either cgroup driver, the job of a scheduler and its step, the LXC container, the
// systemd unit, or else the path itself. A cgroup below the cgroup of a workload belongs to the workload.
//
// A process that may create cgroups below its own (in a container, a guest or a user session) must not take the name of
// another workload. So the outermost directory of another manager closes everything below it: a pattern is matched only
// if systemd, a runtime, the kubelet or a scheduler makes every directory above as root. Below a directory with an
// unknown manager no id is matched, and a cgroup with the name of a container owns what is below it.
//
// It also returns the part of path that is the cgroup of the workload, and whether all cgroups below path belong to the
// workload or to one user.
func parse(path string) (e model.Cgroup, top string, closed bool) {
	p := parser{segs: strings.FieldsFunc(path, func(r rune) bool { return r == '/' }), slices: true}
	e, n := p.run()
	top = "/" + strings.Join(p.segs[:n], "/")
	closed = p.closed(&e, len(p.segs)-n)
	if e.Workload == "" {
		e.Workload = "cgroup:" + top
	}
	e.Workload = clean(e.Workload, maxLabel)
	e.ContainerID = clean(e.ContainerID, maxLabel)
	e.PodUID = clean(e.PodUID, maxLabel)
	e.User = clean(e.User, maxLabel)
	e.Step = clean(e.Step, maxLabel)
	e.Path = model.CgroupPath(clean(top, maxPath))
	return e, top, closed
}

// closed reports whether all cgroups below the path belong to its workload, whose cgroup is a number of levels above,
// or to one user.
func (p *parser) closed(e *model.Cgroup, levels int) bool {
	if p.user && p.segs[len(p.segs)-1] != "user.slice" {
		return true // the slice of a user and everything below
	}
	switch {
	case e.Runtime == "systemd":
		return levels > 0 && !p.runtime && !p.jobs // Podman may put a container directly below
	case e.Runtime == runtimeSlurm: // job_N/step_S/user/task_T
		return levels > 2
	case e.Runtime == runtimeLXC, isScheduler(e.Runtime):
		return true
	}
	return e.ContainerID != "" || p.unnamed
}

// parser walks a path from the root. Its fields hold the state of the segments passed.
type parser struct {
	segs   []string
	slices bool // only systemd slices passed: the tree of systemd
	user   bool // inside user.slice
	// foreign: a directory with an unknown manager, or the unit of a guest, was passed.
	foreign bool
	// unnamed: the cgroup belongs to a container that only its runtime can name.
	unnamed bool

	unit    string // a user unit includes its manager
	unitEnd int
	manager bool // the unit is a user manager; its units follow
	runtime bool // the unit is the service of a container runtime or the kubelet
	jobs    bool // the unit has the cgroups of jobs below it
}

// run returns the workload and the number of segments of its cgroup. The result has no workload if no pattern matches.
func (p *parser) run() (model.Cgroup, int) {
	for i, seg := range p.segs {
		if e, n := p.container(i, seg); n > 0 {
			return e, n
		}
		if p.isUnnamed(i, seg) {
			p.unnamed = true
			return model.Cgroup{}, i + 1
		}
		p.pass(i, seg)
	}
	if p.unit != "" {
		return model.Cgroup{Workload: "unit:" + p.unit, Runtime: "systemd"}, p.unitEnd
	}
	return model.Cgroup{}, len(p.segs)
}

func (p *parser) pass(i int, seg string) {
	slice := strings.HasSuffix(seg, ".slice")
	switch {
	case p.unit != "" && !p.manager, !p.slices && !p.manager:
		p.foreign = p.foreign || p.open() && !isParent(seg) && !p.isPodmanPod(i)
	case slice:
		p.user = p.user || seg == "user.slice"
	case !isUnit(seg):
		p.manager = false
		p.foreign = p.open() && !isParent(seg) && !p.isPodmanPod(i)
	case p.manager:
		p.unit += "/" + unescape(seg)
		p.unitEnd = i + 1
		p.manager = false
	default:
		p.unit = unescape(seg)
		p.unitEnd = i + 1
		p.manager = p.user && strings.HasPrefix(seg, "user@")
		p.runtime = !p.user && isRuntimeUnit(seg)
		p.jobs = !p.user && isJobUnit(seg)
		p.foreign = !p.user && p.segs[0] == "machine.slice" // a guest of systemd-nspawn or libvirt
	}
	p.slices = p.slices && slice
}

// open reports whether only root makes cgroups at this place.
func (p *parser) open() bool { return !p.user && (p.unit == "" || p.runtime) }

// isUnnamed reports whether segment i is the cgroup of a container at a place where any runtime could have made it.
func (p *parser) isUnnamed(i int, seg string) bool {
	if !p.open() || p.isPodmanPod(i) {
		return false
	}
	_, id := scope(seg)
	return isID(seg) || isID(id)
}

// isPodmanPod reports whether segment i is the cgroup that Podman's cgroupfs driver makes for a pod.
func (p *parser) isPodmanPod(i int) bool {
	return !p.foreign && i > 0 && p.segs[i-1] == podmanParent && isID(p.segs[i])
}

// container matches segment i and the following against all patterns except systemd units.
func (p *parser) container(i int, seg string) (model.Cgroup, int) {
	if p.foreign {
		return model.Cgroup{}, 0
	}
	if runtime, id := scope(seg); runtime.Rootless && isID(id) {
		return model.Cgroup{
			Workload: runtime.Name + ":" + id[:12], ContainerID: id, Runtime: runtime.Name, Claimed: p.user || p.unit != "",
		}, i + 1
	}
	if !p.open() {
		return model.Cgroup{}, 0
	}
	if uid, n := pod(p.segs[i:]); n > 0 {
		return podContainer(uid, p.segs, i+n)
	}
	if uid, id, runtime, ok := podColon(seg); ok {
		return podEntity(uid, id, runtime), i + 1
	}
	if e, n := slurmPath(p.segs[i:], p.slices); n > 0 {
		return e, i + n
	}
	if p.slices {
		if e, n := jobOf(p.segs[i:]); n > 0 {
			return e, i + n
		}
		if name, n := lxc(p.segs[i:]); n > 0 {
			return model.Cgroup{Workload: "lxc:" + name, Runtime: runtimeLXC}, i + n
		}
	}
	if p.slices || p.runtime {
		if runtime, id := scope(seg); runtime.Name != "" && isID(id) {
			return model.Cgroup{Workload: runtime.Name + ":" + id[:12], ContainerID: id, Runtime: runtime.Name}, i + 1
		}
	}
	if i+1 < len(p.segs) && isID(p.segs[i+1]) {
		if runtime := runtimeOf(seg); runtime != "" {
			id := p.segs[i+1]
			return model.Cgroup{Workload: runtime + ":" + id[:12], ContainerID: id, Runtime: runtime}, i + 2
		}
	}
	return model.Cgroup{}, 0
}

// lxc matches lxc/NAME (before LXC 3.1), lxc.payload/NAME (3.1 and 3.2) and lxc.payload.NAME at the start of segs. It
// returns the name and the number of segments.
func lxc(segs []string) (name string, n int) {
	if name, ok := strings.CutPrefix(segs[0], "lxc.payload."); ok && name != "" {
		return name, 1
	}
	if len(segs) > 1 && (segs[0] == "lxc" || segs[0] == "lxc.payload") {
		return segs[1], 2
	}
	return "", 0
}

// pod matches the cgroup of a pod at the start of segs. It returns the UID and the number of segments.
func pod(segs []string) (uid string, n int) {
	if uid, ok := podSlice(segs[0]); ok {
		return uid, 1
	}
	if segs[0] != "kubepods" {
		return "", 0
	}
	n = 1
	if n < len(segs) && (segs[n] == "burstable" || segs[n] == "besteffort") {
		n++
	}
	if n < len(segs) {
		if uid, ok := strings.CutPrefix(segs[n], "pod"); ok && uid != "" {
			return uid, n + 1
		}
	}
	return "", 0
}

// podSlice matches [PREFIX-]kubepods[-QOS]-podUID.slice.
func podSlice(seg string) (uid string, ok bool) {
	name, ok := strings.CutSuffix(seg, ".slice")
	if !ok {
		return "", false
	}
	if _, after, found := strings.Cut("-"+name, "-kubepods-"); found {
		after = strings.TrimPrefix(after, "burstable-")
		after = strings.TrimPrefix(after, "besteffort-")
		if uid, ok := strings.CutPrefix(after, "pod"); ok && uid != "" {
			return strings.ReplaceAll(uid, "_", "-"), true
		}
	}
	return "", false
}

// podColon matches SLICE:PREFIX:ID, which runc creates from a systemd path with the cgroupfs driver.
func podColon(seg string) (uid, id, runtime string, ok bool) {
	part := strings.Split(seg, ":")
	if len(part) != 3 || part[2] == "" {
		return "", "", "", false
	}
	if uid, ok = podSlice(part[0]); !ok {
		return "", "", "", false
	}
	r, _ := scope(part[1] + "-")
	return uid, part[2], r.Name, true
}

// podContainer returns the container of segs[n:], below the cgroup of a pod. Only the runtime creates cgroups there, so
// any name is a container, except monitor processes, which belong to the pod.
func podContainer(uid string, segs []string, n int) (model.Cgroup, int) {
	if n == len(segs) || strings.Contains(segs[n], "-conmon-") {
		return model.Cgroup{Workload: "pod:" + uid, PodUID: uid}, n
	}
	runtime, id := scope(segs[n])
	if id == "" {
		id = strings.TrimSuffix(segs[n], ".scope")
	}
	return podEntity(uid, id, runtime.Name), n + 1
}

func podEntity(uid, id, runtime string) model.Cgroup {
	short := id
	if isID(id) {
		short = id[:12]
	}
	return model.Cgroup{Workload: "pod:" + uid + "/" + short, ContainerID: id, PodUID: uid, Runtime: runtime}
}

// slurmPath matches slurm[_NODE]/uid_N/job_N[/step_S] of cgroup v1 and, in the tree of systemd,
// [NODE_]slurmstepd.scope/job_N[/step_S] of v2. From Slurm 26.05 on, a SLUID may replace job_N (CgroupJobIdPaths).
func slurmPath(segs []string, slices bool) (model.Cgroup, int) {
	n, user := 0, ""
	switch {
	case segs[0] == "slurm", strings.HasPrefix(segs[0], "slurm_"):
		if len(segs) < 2 {
			return model.Cgroup{}, 0
		}
		if user = number(segs[1], "uid_"); user == "" {
			return model.Cgroup{}, 0
		}
		n = 2
	case slices && isSlurmScope(segs[0]):
		n = 1
	default:
		return model.Cgroup{}, 0
	}
	if n == len(segs) {
		return model.Cgroup{}, 0
	}
	job := number(segs[n], "job_")
	if job == "" && user == "" && slurm.IsSLUID(segs[n]) {
		job = segs[n]
	}
	if job == "" {
		return model.Cgroup{}, 0
	}
	e := model.Cgroup{Workload: "slurm:" + job, Runtime: runtimeSlurm, User: user}
	if n+1 < len(segs) {
		if step, ok := strings.CutPrefix(segs[n+1], "step_"); ok {
			e.Step = step
		}
	}
	return e, n + 1
}

// isSlurmScope reports whether the cgroups of jobs are below a unit on cgroup v2.
func isSlurmScope(unit string) bool {
	return unit == "slurmstepd.scope" || strings.HasSuffix(unit, "_slurmstepd.scope")
}

// number returns the digits after prefix, or "" if other characters follow.
func number(seg, prefix string) string {
	digits, ok := strings.CutPrefix(seg, prefix)
	if !ok || strings.Trim(digits, "0123456789") != "" {
		return ""
	}
	return digits
}

// isID reports whether s is a container id: 64 hexadecimal digits.
func isID(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

func isUnit(seg string) bool {
	suffix := path.Ext(seg)
	return suffix != seg && slices.Contains([]string{".service", ".scope", ".socket", ".mount", ".swap"}, suffix)
}

// unescape removes the underscore with which systemd prefixes unit names that look like cgroup files.
func unescape(unit string) string { return strings.TrimPrefix(unit, "_") }
