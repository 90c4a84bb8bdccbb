// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
)

// estimated is the method that splits a device's bytes by an estimate.
const estimated = "survey"

func jobName(s sample) JobName {
	return JobName{label(s, "namespace"), label(s, "job_kind"), label(s, "job_name")}
}

// jobsOf lists the jobs: jobs with the slowest outlier first, then jobs with the most idle GPUs.
func jobsOf(a *answers) []Job {
	vector, ok := a.vectors["job_members"]
	if !ok {
		return nil
	}
	jobs := map[JobName]*Job{}
	for _, one := range vector {
		jobs[jobName(one)] = &Job{JobName: jobName(one), Members: int(one.value)}
	}
	each := func(name string, set func(*Job, sample)) {
		for _, one := range a.vectors[name] {
			if j := jobs[jobName(one)]; j != nil {
				set(j, one)
			}
		}
	}
	figure := func(name string, of func(*Job) **float64) {
		each(name, func(j *Job, one sample) {
			*of(j) = sum(*of(j), new(one.value))
		})
	}
	each("job_nodes", func(j *Job, one sample) { j.Nodes = int(one.value) })
	figure("job_gpus", func(j *Job) **float64 { return &j.GPUs })
	figure("job_idle", func(j *Job) **float64 { return &j.Idle })
	figure("job_idle_hours", func(j *Job) **float64 { return &j.IdleHours })
	figure("job_errors", func(j *Job) **float64 { return &j.Errors })
	figure("job_completion_errors", func(j *Job) **float64 { return &j.Errors })
	figure("job_verbs_p99", func(j *Job) **float64 { return &j.VerbsP99 })
	figure("job_completion_p99", func(j *Job) **float64 { return &j.CompletionP99 })
	each("job_transmit", func(j *Job, one sample) { j.Transmit = j.Transmit.add(one) })
	each("job_receive", func(j *Job, one sample) { j.Receive = j.Receive.add(one) })
	each("job_outlier", func(j *Job, one sample) {
		j.Outlier, j.OutlierNode, j.Slower = label(one, "workload"), label(one, "instance"), new(one.value)
	})
	out := make([]Job, 0, len(jobs))
	for _, j := range jobs {
		out = append(out, *j)
	}
	slices.SortFunc(out, func(a, b Job) int {
		return cmp.Or(descending(a.Slower, b.Slower), descending(a.Idle, b.Idle), descending(a.IdleHours, b.IdleHours),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

func (r *Rate) add(s sample) *Rate {
	out := Rate{PerSecond: s.value}
	out.Estimate = label(s, "method") == estimated && out.PerSecond > 0
	if r != nil {
		out.PerSecond, out.Estimate = out.PerSecond+r.PerSecond, out.Estimate || r.Estimate
	}
	return &out
}

// descending compares figures: the largest first, unknown last.
func descending(a, b *float64) int {
	value := func(v *float64) float64 {
		if v == nil {
			return math.Inf(-1)
		}
		return *v
	}
	return cmp.Compare(value(b), value(a))
}

// maxMembers bounds the listed members of a job.
const maxMembers = 5000

// jobQueries are the queries of a job, the most important first.
var jobQueries = []string{
	"members", "members_lost", "member_gpus", "member_gpus_used", "member_transmit", "member_receive", "member_p99", "member_ratio",
	"member_behind", "member_last_launch", "member_partial",
	"energy_gpus", "energy_gpus_idle", "energy_cpus", "energy_cost", "energy_carbon",
}

// Job reports about a job of a state; nil if its members are unknown. The caller has called Enter.
func (r *Reader) Job(ctx context.Context, s *State, name JobName) (report *JobReport, problems []string) {
	return r.jobs.get(ctx, name, r.now, func() (*JobReport, []string, int) {
		ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
		defer cancel()
		now := r.now()
		values := map[string]string{
			"namespace": name.Namespace, "kind": name.Kind, "name": name.Name, "alerts": strings.Join(alertNames, "|"),
		}
		a := r.ask(ctx, now, maxQuestion-maxPast, queriesAtOnce, values, jobQueries...)
		members, omitted := membersOf(a)
		if members == nil {
			return nil, a.problems, a.charged
		}
		report := reportOf(s, name, members, omitted, a, now)
		values["nodes"] = anyOf(report.firstNodes())
		past := r.ask(ctx, now, maxPast, queriesAtOnce, values, pastQueries...)
		report.addPast(past, now)
		report.cite(values)
		report.Problems = append(append([]string{}, a.problems...), past.problems...)
		return report, report.Problems, a.charged + past.charged + joinedBytes["alerts"]*len(report.Alerts)
	})
}

// membersOf returns the members, and the number of members that are too many; nil if the members are unknown.
func membersOf(a *answers) (list []Member, omitted int) {
	type key struct{ instance, workload, id string }
	of := func(s sample) key {
		return key{label(s, "instance"), label(s, "workload"), label(s, "container_id")}
	}
	if _, ok := a.vectors["members"]; !ok {
		return nil, 0
	}
	members := map[key]*Member{}
	for _, name := range []string{"members", "members_lost"} {
		for _, one := range a.vectors[name] {
			k := of(one)
			if members[k] == nil && len(members) == maxMembers {
				omitted++
				continue
			}
			members[k] = &Member{
				Workload: label(one, "workload"), Pod: label(one, "pod"), Container: label(one, "container"),
				ContainerID: label(one, "container_id"), Node: label(one, "instance"), Lost: name == "members_lost",
			}
		}
	}
	each := func(name string, set func(*Member, sample, float64)) {
		for _, one := range a.vectors[name] {
			if m := members[of(one)]; m != nil {
				set(m, one, one.value)
			}
		}
	}
	each("member_gpus", func(m *Member, _ sample, v float64) { m.GPUs = &v })
	each("member_gpus_used", func(m *Member, _ sample, v float64) { m.Used = &v })
	each("member_transmit", func(m *Member, s sample, _ float64) { m.Transmit = m.Transmit.add(s) })
	each("member_receive", func(m *Member, s sample, _ float64) { m.Receive = m.Receive.add(s) })
	each("member_p99", func(m *Member, _ sample, v float64) { m.P99 = &v })
	each("member_ratio", func(m *Member, _ sample, v float64) { m.Slower = &v })
	each("member_behind", func(m *Member, _ sample, v float64) { m.Behind = &v })
	each("member_last_launch", func(m *Member, _ sample, v float64) { m.LastLaunch = &v })
	each("member_partial", func(m *Member, _ sample, _ float64) { m.Partial = true })
	list = make([]Member, 0, len(members))
	for _, k := range slices.SortedFunc(maps.Keys(members), func(a, b key) int {
		return cmp.Or(strings.Compare(a.workload, b.workload), strings.Compare(a.instance, b.instance), strings.Compare(a.id, b.id))
	}) {
		list = append(list, *members[k])
	}
	return list, omitted
}

func (m *Member) idle() *float64 {
	if m.GPUs == nil || m.Used == nil {
		return nil
	}
	return new(max(0, *m.GPUs-*m.Used))
}
