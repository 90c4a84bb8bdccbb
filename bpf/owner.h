/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Finds the workload that a cgroup belongs to, and limits the entries of each owner in the maps of a program file, so that one
 * workload cannot take the room of the others.
 *
 * The entries that programs and user space made are in two maps, because user space cannot add to a number that programs
 * change. The number of entries of an owner is the sum of both.
 */
#ifndef ACCELSCOPE_OWNER_H
#define ACCELSCOPE_OWNER_H

#include "cgroup.h"

/* What user space knows of a cgroup and those below it. */
enum marked {
	MARKED_WORKLOAD = 1, /* they are one workload, and are counted together */
	MARKED_SHARE,        /* they are counted each, and have one share */
};

/* The cgroups that user space has marked: those of containers and jobs, of units and users. User space makes this map. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u32);
} marked_cgroups SEC(".maps");

/* The workloads of cgroups below theirs. A workload stays marked as long as its cgroup exists. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u64);
} workload_of SEC(".maps");

/* For whom something is counted: the cgroup of the workload, and the cgroup in whose share the entries are. */
struct owner {
	__u64 cgroup;
	__u64 share;
};

/* More levels than the cgroups of containers, jobs, units and users have above them. */
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

/* A program file with tail calls defines it as inline: with calls of functions in them, Linux 5.10 hangs. */
#ifndef OWNER_FUNCTION
#define OWNER_FUNCTION static __noinline
#endif

/* Finds the marked cgroup that is next above one, from the root on: a process can create any number of levels below its own. */
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

/* The owner of a cgroup of a task. A cgroup without a mark above it is its own. */
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

/* The number of maps of a program file whose entries are limited by owner. Each file has an enum of them. */
#define SHARED_MAPS 2

/* What the programs did for the cgroup of a share, by map. */
struct owner_entries {
	__s64 made[SHARED_MAPS];    /* entries made less entries removed */
	__u64 refused[SHARED_MAPS]; /* entries that were not made, because the owner has its share */
};

/* What user space did for the cgroup of a share, by map. */
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

/* The limits of the number of entries of an owner. User space sets them. */
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

/* Reports whether an owner has all the entries of a map that it may have, or there is no room to count them. */
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

/* Counts entries as made, or (n < 0) as removed. An owner that has ended has no number of entries any more. */
static __always_inline void count_entries(__u64 owner, __u32 map, __s64 n)
{
	struct owner_entries *entries = n > 0 ? entries_of(owner) : bpf_map_lookup_elem(&owner_entries, &owner);

	if (entries)
		__sync_fetch_and_add(&entries->made[map], n);
}

/* Counts an entry that was not made. Returns whether the reason is the share of the owner; otherwise a map is full. */
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
