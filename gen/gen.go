// SPDX-License-Identifier: Apache-2.0

// Package gen holds what a machine wrote: the BPF programs of bpf/ compiled for
// amd64 and arm64 with the Go types of their maps, and the metric reference.
// "make generate" writes it again; "make check" fails when that changes it.
package gen

//go:generate go tool bpf2go -target amd64,arm64 -type verb -type loss Verbs ../bpf/verbs.bpf.c
//go:generate go tool bpf2go -target amd64,arm64 -type object_type -type memory Objects ../bpf/objects.bpf.c
//go:generate go tool bpf2go -target amd64,arm64 Cgroups ../bpf/cgroups.bpf.c
//go:generate go tool bpf2go -target amd64,arm64 Peers ../bpf/peers.bpf.c
//go:generate go tool bpf2go -target amd64,arm64 -type opcode -type calls -type completed -type path_loss -type order -type control_args -type path_event Datapath ../bpf/datapath.bpf.c -- -mcpu=v3
