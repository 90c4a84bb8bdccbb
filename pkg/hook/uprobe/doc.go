// SPDX-License-Identifier: Apache-2.0

// Package uprobe is the one way to attach and detach uprobes.
//
// Both are the same call of the kernel, register_for_each_vma of kernel/events/uprobes.c. It takes dup_mmap_sem for writing, then
// the mmap_lock of each process that maps the file, one after the other, also for writing. Every fork of the node (clone without
// CLONE_VM) takes dup_mmap_sem for reading, so all of them wait meanwhile. A process of an ordinary user that holds its own
// mmap_lock, as in a page fault on its FUSE file system, or that has fifty thousand mappings of the file, holds all forks with
// that. No signal ends the wait.
//
// So a Gate does all of these calls, one at a time, in a goroutine of its own, and
//
//   - looks before each of them (look.go): how many mappings of the probed pages there are, and whether a process among those that
//     have them holds its mmap_lock. Too many: refused. One that holds it at each of several looks: deferred.
//   - refuses files on FUSE, also below an overlayfs, and overlays that a user namespace has mounted (filesystem.go).
//   - measures each call, and opens a breaker if one took too long (breaker.go): the file is not touched again.
//
// What a look cannot promise: a process may begin to hold its lock, or map the file, right after it. Then that one call waits for
// it, and with it the forks. The breaker bounds how often: once for each file, and a few times for each owner that brings files.
// The state of the processes is not asked. A task that is stopped, or sleeps in a driver, delays the call only if it holds the
// mmap_lock, which the look sees, whoever holds it and in whatever state.
//
// The end of the sensor. Links are files: at the latest, the kernel closes them when the process ends (do_exit, task work), and
// that is the same call in the same way: bpf_link_release frees the link in the thread that closes it (bpf_link_put_direct, since
// Linux 6.5; before, bpf_link_put did so outside of atomic context), and calls uprobe_unregister for each place. A perf event
// (before Linux 6.6) does the same in perf_uprobe_destroy, with event_mutex held. The last file in bpffs does it in a worker of
// the kernel. No path leaves the locks out. So Shutdown detaches by the same rules, and what it must leave, it pins in the bpffs of
// the node, if there is one: a pinned link stays attached, and its traps cost the processes that they hit what they cost before,
// but no fork waits. The next sensor removes them by the same rules (left.go). Without bpffs, the kernel closes them.
// A sensor that is killed has no choice: the kernel closes its links.
package uprobe
