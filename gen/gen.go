// SPDX-License-Identifier: Apache-2.0

// Package gen holds what a machine wrote: the BPF programs of bpf/ compiled for
// amd64 and arm64 with the Go types of their maps, and the metric reference.
// "make generate" writes it again; "make check" fails when that changes it.
package gen

//go:generate -command bpf go tool bpf2go -target amd64,arm64
//go:generate bpf -type verb -type loss -type verb_map Verbs ../bpf/verbs.bpf.c
//go:generate bpf -type object_type -type memory -type object_map Objects ../bpf/objects.bpf.c
//go:generate bpf Cgroups ../bpf/cgroups.bpf.c
//go:generate bpf -type peer_map Peers ../bpf/peers.bpf.c
//go:generate bpf -type watch -type access_loss -type open_file -type access_map Devices ../bpf/devices.bpf.c
//go:generate bpf -type driver_loss -type driver_map GPUDriver ../bpf/gpudriver.bpf.c
//go:generate -command enums go tool bpf2go -target amd64,arm64 -type opcode -type calls -type completed -type path_loss -type path_map
//go:generate enums -type order -type control_args -type path_event -type outstanding Datapath ../bpf/datapath.bpf.c -- -mcpu=v3
//go:generate bpf -type allocation_loss -type allocation_map GPUMemory ../bpf/gpumemory.bpf.c
//go:generate bpf -type mappings_limit Mappings ../bpf/mappings.bpf.c
//go:generate -command collective go tool bpf2go -target amd64,arm64 -type function_kind -type collective_flag -type collective_loss
//go:generate collective -type collective_map -type kept_launches Collective ../bpf/collective.bpf.c
