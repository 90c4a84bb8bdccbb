// SPDX-License-Identifier: Apache-2.0

package model

// Usage is what one cgroup uses of the node, from its controllers.
type Usage struct {
	Cgroup uint64
}

// Namespace is one network namespace that containers are in.
type Namespace struct {
	// Inode is that of the namespace file, /proc/PID/ns/net.
	Inode uint64
	// PID is a process in it, and Cgroup that process's cgroup.
	PID    int
	Cgroup uint64
	// Host is the namespace of the node itself.
	Host bool
}
