/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#ifndef ACCELSCOPE_CGROUP_H
#define ACCELSCOPE_CGROUP_H

#include "kernel.h"

/*
 * The cgroup v1 hierarchy of containers, as index of css_set.subsys; negative: cgroup v2. User space sets it from
 * the kernel's enum cgroup_subsys_id, whose values depend on the configuration.
 */
const volatile int cgroup_subsys = -1;

static __always_inline struct cgroup *task_cgroup(struct task_struct *task)
{
	struct cgroup_subsys_state *css;
	struct css_set *set;
	void *slot;

	set = BPF_CORE_READ(task, cgroups);
	if (cgroup_subsys < 0)
		return BPF_CORE_READ(set, dfl_cgrp);
	slot = (void *)set + bpf_core_field_offset(struct css_set, subsys) + cgroup_subsys * sizeof(void *);
	if (bpf_probe_read_kernel(&css, sizeof(css), slot))
		return 0;
	return BPF_CORE_READ(css, cgroup);
}

/* The id of a task's cgroup: the inode number of its directory. */
static __always_inline __u64 cgroup_of(struct task_struct *task)
{
	return BPF_CORE_READ(task_cgroup(task), kn, id);
}

static __always_inline __u64 current_cgroup(void)
{
	if (cgroup_subsys < 0)
		return bpf_get_current_cgroup_id();
	return cgroup_of((struct task_struct *)bpf_get_current_task());
}

#endif
