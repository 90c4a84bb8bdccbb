// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* Records the path of every cgroup when it is created, for cgroups that end before user space lists them. */
#include "maps.h"
#include "cgroup.h"

char LICENSE[] SEC("license") = "GPL";

/* The newest cgroups: user space asks for a path within seconds or never. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct cgroup_path);
} paths SEC(".maps");

/* A path does not fit the stack of a program. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cgroup_path);
} scratch SEC(".maps");

/* Returns whether a cgroup is in the hierarchy of current_cgroup(): ids are unique within a hierarchy only. */
static __always_inline bool watched(struct cgroup *cgroup)
{
	struct cgroup_subsys_state *css;
	void *slot;

	if (cgroup_subsys < 0)
		return BPF_CORE_READ(cgroup, root, hierarchy_id) == 0;
	slot = (void *)cgroup + bpf_core_field_offset(struct cgroup, subsys) + cgroup_subsys * sizeof(void *);
	return bpf_probe_read_kernel(&css, sizeof(css), slot) == 0 && css;
}

SEC("raw_tracepoint/cgroup_mkdir")
int cgroup_made(struct bpf_raw_tracepoint_args *ctx)
{
	struct cgroup *cgroup = (struct cgroup *)ctx->args[0];
	struct cgroup_path *path;
	__u32 zero = 0;
	__u64 id;
	long n;

	if (!watched(cgroup))
		return 0;
	path = bpf_map_lookup_elem(&scratch, &zero);
	if (!path)
		return 0;
	n = bpf_probe_read_kernel_str(path->path, sizeof(path->path), (const char *)ctx->args[1]);
	/* A truncated path could be the path of another cgroup. */
	if (n < 2 || n == sizeof(path->path))
		return 0;
	id = BPF_CORE_READ(cgroup, kn, id);
	bpf_map_update_elem(&paths, &id, path, BPF_ANY);
	return 0;
}
