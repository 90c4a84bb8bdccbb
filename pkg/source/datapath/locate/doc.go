// SPDX-License-Identifier: Apache-2.0

// Package locate finds the functions of verbs providers in running processes, and
// where in their files they can be probed safely.
//
// A process has the addresses of its provider's functions in its struct ibv_context
// and struct ibv_qp_ex (locate.go). /proc/PID/maps shows which file is mapped at an
// address (maps.go), and the file is opened and identified so that a process cannot
// pass off another one (identity.go). For a container, the file of its image is found,
// which other containers map, too (lower.go). Nothing in the file is trusted: it must be
// a provider (provider.go), and a function must begin at the address (unwind.go). The
// probe is put where it costs least (site.go). safety.go recognizes kernels, and
// shadowstack.go processes, that return probes can kill.
package locate
