// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts what processes post to and poll from their queue pairs and completion
 * queues, by uprobes on the functions of their providers.
 */
#include "datapath.h"
#include "cgroup.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct context_key);
	__type(value, struct context_stat);
} contexts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct latency_key);
	__type(value, struct latency);
} latencies SEC(".maps");

__u64 path_losses[PATH_LOSSES];

/* So that the types reach user space. */
const enum opcode *unused_opcode __attribute__((unused));
const enum calls *unused_calls __attribute__((unused));
const enum completed *unused_completed __attribute__((unused));
const enum path_loss *unused_path_loss __attribute__((unused));
