// SPDX-License-Identifier: Apache-2.0

// Package uprobe attaches and detaches all uprobes.
//
// A source searches processes for functions (Searches), and has a File with the probes of each file that processes map. Its
// Manager has the probes changed by the Gate, which all sources share.
//
// Attaching and detaching use the same function of the kernel, register_for_each_vma of kernel/events/uprobes.c. It takes dup_mmap_sem for
// writing, then the mmap_lock of each process that maps the file, one after the other, also for writing. Every fork of
// the node (clone without CLONE_VM) takes dup_mmap_sem for reading, so all forks wait meanwhile. An ordinary user's
// process can delay all forks: it holds its own mmap_lock, for example in a page fault on its FUSE file system, or it
// has fifty thousand mappings of the file. No signal ends the wait.
//
// So a Gate makes all of these calls, one at a time, in its own goroutine, and
//
//   - looks before each call (look.go): how many mappings of the probed pages exist, and whether a process with such a mapping holds
//     its mmap_lock. Too many mappings: refused. A process that holds the lock at several looks: deferred.
//   - refuses files on FUSE, also below an overlayfs, and overlays that a user namespace has mounted (filesystem.go).
//   - measures each call, and opens a breaker if it took too long (breaker.go): the file is not touched again.
//
// A look cannot exclude that a process takes its lock, or maps the file, right after it. Then that call waits for the
// process, and all forks wait with it. The breaker bounds how often: once per file, and a few times per owner that
// brings files. A task that is stopped, or sleeps in a driver, delays the call only if it holds the mmap_lock, and the
// look sees this.
//
// The end of the sensor. Links are files, and the kernel closes them when the process ends (do_exit, task work), with
// the same call: bpf_link_release frees the link in the thread that closes it (bpf_link_put_direct, since Linux 6.5;
// before, bpf_link_put did so outside of atomic context), and calls uprobe_unregister for each place. A perf event
// (before Linux 6.6) does the same in perf_uprobe_destroy, with event_mutex held. The last file in bpffs does it in a
// kernel worker. Every path takes the locks.
//
// So Shutdown detaches by the same rules, and pins the remaining links in the node's bpffs, if there is one: a pinned
// link stays attached, and its traps still cost the processes that hit them, but no fork waits. The next sensor removes
// these links by the same rules (left.go). Without bpffs, or if the sensor is killed, the kernel closes the links.
package uprobe
