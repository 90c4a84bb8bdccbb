/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Finds the workload of a cgroup, and limits the entries of each owner in the maps of a program file, so that a
 * workload cannot take the room of the others.
 *
 * Entries made by programs and entries made by user space are counted in two maps, because user space cannot add to
 * a number that programs change. An owner's number of entries is the sum of both.
 */
#ifndef ACCELSCOPE_OWNER_H
#define ACCELSCOPE_OWNER_H

#include "cgroup.h"

/* What user space knows of a cgroup and the cgroups below it. */
enum marked {
	MARKED_WORKLOAD = 1, /* they are a workload, and are counted together */
	MARKED_SHARE,        /* they are counted separately, and share one limit */
};

/* The cgroups that user space marked: containers, jobs, units and users. User space makes this map. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u32);
} marked_cgroups SEC(".maps");

/* The workloads of cgroups below a workload's cgroup. A workload stays marked as long as its cgroup exists. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} workload_of SEC(".maps");

/* For whom something is counted: the cgroup of the workload, and the cgroup whose share the entries take. */
struct owner {
	__u64 cgroup;
	__u64 share;
};

/* More levels than there are above the cgroups of containers, jobs, units and users. */
#define MAX_LEVELS 16

static __always_inline __u64 ancestor_id(struct cgroup *cgroup, int level)
{
	struct cgroup *ancestor;
	__u64 id = 0;

	if (bpf_core_field_exists(cgroup->ancestors)) {
		void *slot = (void *)cgroup + bpf_core_field_offset(struct cgroup, ancestors);

		if (bpf_probe_read_kernel(&ancestor, sizeof(ancestor), slot + level * sizeof(ancestor)))
			return 0;
		return BPF_CORE_READ(ancestor, kn, id);
	}
	if (bpf_core_field_exists(cgroup->ancestor_ids)) {
		void *slot = (void *)cgroup + bpf_core_field_offset(struct cgroup, ancestor_ids);

		bpf_probe_read_kernel(&id, sizeof(id), slot + level * sizeof(id));
	}
	return id;
}

/*
 * Program files with tail calls define it as inline: Linux 5.10 hangs on calls of functions in programs with tail
 * calls.
 */
#ifndef OWNER_FUNCTION
#define OWNER_FUNCTION static __noinline
#endif

/*
 * Finds the nearest marked cgroup above, from the root on: a process can create any number of levels below its own
 * cgroup.
 */
OWNER_FUNCTION int find_owner(struct cgroup *cgroup, struct owner *owner)
{
	__u64 leaf = owner->cgroup;
	int levels = BPF_CORE_READ(cgroup, level);

	for (int level = 1; level < MAX_LEVELS; level++) {
		__u64 id;
		__u32 *marked;

		if (level >= levels)
			return 0;
		id = ancestor_id(cgroup, level);
		marked = bpf_map_lookup_elem(&marked_cgroups, &id);
		if (!marked)
			continue;
		owner->share = id;
		if (*marked == MARKED_WORKLOAD) {
			owner->cgroup = id;
			bpf_map_update_elem(&workload_of, &leaf, &id, BPF_ANY);
			return 0;
		}
	}
	return 0;
}

/* The owner of a task's cgroup. Without a mark above it, a cgroup is its own owner. */
static __always_inline void owner_of(struct task_struct *task, __u64 cgroup, struct owner *owner)
{
	__u64 *workload;

	owner->cgroup = owner->share = cgroup;
	if (bpf_map_lookup_elem(&marked_cgroups, &cgroup))
		return;
	workload = bpf_map_lookup_elem(&workload_of, &cgroup);
	if (workload)
		owner->cgroup = owner->share = *workload;
	else
		find_owner(task_cgroup(task), owner);
}

static __always_inline void current_owner(struct owner *owner)
{
	owner_of((struct task_struct *)bpf_get_current_task(), current_cgroup(), owner);
}

/* The number of maps per program file whose entries are limited by owner. Each file has an enum of them. */
#define SHARED_MAPS 2

struct owner_entries {
	__s64 made[SHARED_MAPS];    /* entries made minus entries removed */
	__u64 refused[SHARED_MAPS]; /* entries not made, because the owner used up its share */
};

struct user_entries {
	__s64 made[SHARED_MAPS];
};

/* By owner, from its first entry until its cgroup has ended. An owner that does not fit gets no entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__type(key, __u64);
	__type(value, struct owner_entries);
} owner_entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__type(key, __u64);
	__type(value, struct user_entries);
} user_entries SEC(".maps");

/* The maximum number of entries of an owner. User space sets it. */
const volatile __s64 shares[SHARED_MAPS] = {1024, 1024};

static const struct owner_entries no_entries;

static __always_inline struct owner_entries *entries_of(__u64 owner)
{
	struct owner_entries *entries = bpf_map_lookup_elem(&owner_entries, &owner);

	if (entries)
		return entries;
	bpf_map_update_elem(&owner_entries, &owner, &no_entries, BPF_NOEXIST);
	return bpf_map_lookup_elem(&owner_entries, &owner);
}

/* Reports whether an owner used up its share of a map, or there is no room to count its entries. */
static __always_inline bool has_share(__u64 owner, __u32 map)
{
	struct owner_entries *entries = entries_of(owner);
	struct user_entries *user;
	__s64 n;

	if (!entries)
		return true;
	n = entries->made[map];
	user = bpf_map_lookup_elem(&user_entries, &owner);
	if (user)
		n += user->made[map];
	return n >= shares[map];
}

/* Counts entries as made, or (n < 0) as removed. An ended owner is not counted any more. */
static __always_inline void count_entries(__u64 owner, __u32 map, __s64 n)
{
	struct owner_entries *entries = n > 0 ? entries_of(owner) : bpf_map_lookup_elem(&owner_entries, &owner);

	if (entries)
		__sync_fetch_and_add(&entries->made[map], n);
}

/* Counts an entry that was not made. Returns whether the owner used up its share; otherwise a map is full. */
static __always_inline bool lost_by_share(__u64 owner, __u32 map)
{
	struct owner_entries *entries;

	if (!has_share(owner, map))
		return false;
	entries = bpf_map_lookup_elem(&owner_entries, &owner);
	if (!entries)
		return false;
	__sync_fetch_and_add(&entries->refused[map], 1);
	return true;
}

#endif
