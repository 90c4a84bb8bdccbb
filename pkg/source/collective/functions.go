// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"slices"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/pkg/source/library"
)

// The libraries, as in the label, and by their number in the programs.
const (
	nccl = iota
	rccl
	libraryCount
)

var libraryLabels = [libraryCount]string{"nccl", "rccl"}

// function is a public function of NCCL and RCCL, or a function that launches a graph.
type function struct {
	name      string
	kind      gen.CollectiveFunctionKind
	operation string // of a launch
	// Positions of arguments, from 1 on; 0: the function lacks the argument.
	communicator, count, typ uint32
}

// functions are from nccl.h of NCCL 2.28 and rccl.h of ROCm 7. Not probed: ncclGroupStart and ncclGroupEnd, because calls in a group
// count when they are made, and ncclCommRevoke, whose communicator may still be shrunk. Programs know a function by its index.
// Functions that make communicators are probed first: a communicator that is made before has no id.
var functions = []function{
	{name: "ncclCommInitRank", kind: gen.CollectiveFunctionKindKIND_MAKE_RANK},
	{name: "ncclCommInitRankConfig", kind: gen.CollectiveFunctionKindKIND_MAKE_RANK},
	{name: "ncclCommInitRankScalable", kind: gen.CollectiveFunctionKindKIND_MAKE_SCALABLE},
	{name: "ncclCommInitAll", kind: gen.CollectiveFunctionKindKIND_MAKE_ALL},
	{name: "ncclCommSplit", kind: gen.CollectiveFunctionKindKIND_SPLIT, communicator: 1},
	{name: "ncclCommShrink", kind: gen.CollectiveFunctionKindKIND_SHRINK, communicator: 1},
	{name: "ncclCommGrow", kind: gen.CollectiveFunctionKindKIND_GROW, communicator: 1},
	launch("ncclAllReduce", "all_reduce", 6, 3, 4),
	launch("ncclAllGather", "all_gather", 5, 3, 4),
	launch("ncclReduceScatter", "reduce_scatter", 6, 3, 4),
	launch(broadcast, "broadcast", 6, 3, 4),
	launch(bcast, "broadcast", 5, 2, 3),
	launch("ncclReduce", "reduce", 7, 3, 4),
	launch("ncclAlltoAll", "all_to_all", 5, 3, 4),
	launch("ncclAllToAll", "all_to_all", 5, 3, 4),    // of RCCL
	launch("ncclAllToAllv", "all_to_all_v", 8, 0, 0), // of RCCL; each peer has its own number of elements
	launch("ncclGather", "gather", 6, 3, 4),
	launch("ncclScatter", "scatter", 6, 3, 4),
	launch("ncclSend", "send", 5, 2, 3),
	launch("ncclRecv", "recv", 5, 2, 3),
	{name: "ncclCommFinalize", kind: gen.CollectiveFunctionKindKIND_END, communicator: 1},
	{name: "ncclCommDestroy", kind: gen.CollectiveFunctionKindKIND_END, communicator: 1},
	{name: "ncclCommAbort", kind: gen.CollectiveFunctionKindKIND_END, communicator: 1},
	{name: "cuGraphLaunch", kind: gen.CollectiveFunctionKindKIND_GRAPH},
	{name: "cuGraphLaunch_ptsz", kind: gen.CollectiveFunctionKindKIND_GRAPH},
	{name: "cudaGraphLaunch", kind: gen.CollectiveFunctionKindKIND_GRAPH},
	{name: "cudaGraphLaunch_ptsz", kind: gen.CollectiveFunctionKindKIND_GRAPH},
	{name: "hipGraphLaunch", kind: gen.CollectiveFunctionKindKIND_GRAPH},
}

// pairwise are the operations of two ranks. All ranks of a communicator launch the others, in the same order.
var pairwise = map[string]bool{"send": true, "recv": true}

const (
	broadcast = "ncclBroadcast"
	bcast     = "ncclBcast" // calls ncclBroadcast
)

func launch(name, operation string, communicator, count, typ uint32) function {
	return function{
		name: name, kind: gen.CollectiveFunctionKindKIND_LAUNCH, operation: operation, communicator: communicator, count: count, typ: typ,
	}
}

// operations are the operations of functions, each once. The programs count by index in this list.
var operations = func() (list []string) {
	for _, f := range functions {
		if f.kind == gen.CollectiveFunctionKindKIND_LAUNCH && !slices.Contains(list, f.operation) {
			list = append(list, f.operation)
		}
	}
	return list
}()

// fileName is a file in which functions are searched.
type fileName struct {
	locate.LibraryName
	library int
	graphs  bool // of the library that launches graphs
}

// program is the name of the files of processes that link NCCL or RCCL statically.
const program = "program"

// fileNames are the libraries, the libraries and programs that may contain one of them, and the libraries that launch graphs.
var fileNames = []fileName{
	{LibraryName: locate.LibraryName{Name: "libnccl.so"}, library: nccl},
	{LibraryName: locate.LibraryName{Name: "librccl.so"}, library: rccl},
	{LibraryName: locate.LibraryName{Name: "libtorch_cuda.so", Local: true}, library: nccl},
	{LibraryName: locate.LibraryName{Name: "libtorch_hip.so", Local: true}, library: rccl},
	{LibraryName: locate.LibraryName{Name: "libcuda.so"}, graphs: true},
	{LibraryName: locate.LibraryName{Name: "libcudart.so"}, graphs: true},
	{LibraryName: locate.LibraryName{Name: "libamdhip64.so"}, graphs: true},
	{LibraryName: locate.LibraryName{Name: program, Local: true, Program: true}, library: nccl},
}

// The texts before the version of NCCL, and of RCCL in its forms.
var versionTexts = []string{"NCCL version ", "RCCL version : ", "RCCL version "}

func libraryNames() []locate.LibraryName {
	names := make([]locate.LibraryName, len(fileNames))
	for i := range fileNames {
		n := &names[i]
		*n = fileNames[i].LibraryName
		if !fileNames[i].graphs {
			n.VersionAfter = versionTexts
		}
		for _, f := range functions {
			if (f.kind == gen.CollectiveFunctionKindKIND_GRAPH) == fileNames[i].graphs {
				n.Functions = append(n.Functions, f.name)
			}
		}
	}
	return names
}

func fileNameOf(name string) *fileName {
	return &fileNames[slices.IndexFunc(fileNames, func(f fileName) bool { return f.Name == name })]
}

// libraryOf returns the library in a file. A program may contain either.
func libraryOf(f *library.File) int {
	name := fileNameOf(f.Name)
	if name.Program && slices.ContainsFunc(f.Places, func(p library.Place) bool { return p.Name == "ncclAllToAllv" }) {
		return rccl // only RCCL has it
	}
	return name.library
}

// probed returns the functions for a Prober.
func probed() (all []library.Function) {
	for _, f := range functions {
		all = append(all, library.Function{Name: f.name, Optional: f.kind == gen.CollectiveFunctionKindKIND_GRAPH})
	}
	return all
}
