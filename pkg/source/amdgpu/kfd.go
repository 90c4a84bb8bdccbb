// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/drm"
)

// kfdNode is one GPU, or one partition of a GPU, in the topology of KFD (the part of amdgpu
// that runs compute): /sys/class/kfd/kfd/topology/nodes/N, files gpu_id and properties.
type kfdNode struct {
	gpuID uint32 // in the file names of its processes; changes when the driver is reloaded
	// renderMinor is the minor number of its render node; noMinor if the kernel does not
	// report it. It distinguishes partitions, which share the PCI address.
	renderMinor int
	address     string // PCI: 0000:c1:00.0
	uniqueID    uint64 // of the ASIC, on newer kernels of the partition; 0 if unknown
	units       uint64 // compute units
	sdma        uint64 // SDMA engines, including those for XGMI
	memory      uint64 // in which its processes allocate: mem_banks/N/properties, in bytes; 0 if unknown
}

const noMinor = -1

// kfd reads the topology, and reads it again when its generation changes.
type kfd struct {
	root       string // /sys/class/kfd/kfd
	generation string
	nodes      []kfdNode
}

func newKFD(sysfs string) *kfd { return &kfd{root: filepath.Join(sysfs, "class/kfd/kfd")} }

// Limits for hostile or broken input.
const (
	maxNodes     = 1024
	maxProcesses = 1 << 15
	maxContexts  = 64 // secondary contexts of one process
	maxAttribute = 4 << 10
	maxEngines   = 64 // of one GPU: larger numbers are ignored
	maxUnits     = 1 << 16
	maxBanks     = 64 // of one GPU
)

// topology returns the GPUs of KFD: none, without an error, if there is no KFD. Nodes without
// a gpu_id are CPUs. The kernel restricts a node to users of its render node (EPERM): an
// unreadable node is skipped and reported as an error.
func (k *kfd) topology() ([]kfdNode, error) {
	generation, err := readSome(filepath.Join(k.root, "topology/generation_id"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		k.generation, k.nodes = "", nil
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the topology of KFD: %w", err)
	case k.nodes != nil && string(generation) == k.generation:
		return k.nodes, nil
	}
	dir := filepath.Join(k.root, "topology/nodes")
	names, err := drm.ReadNames(dir, maxNodes)
	if err != nil {
		return nil, fmt.Errorf("reading the topology of KFD: %w", err)
	}
	nodes := []kfdNode{}
	var problems []error
	for _, name := range names {
		n, err := readNode(filepath.Join(dir, name))
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("reading node %s of KFD: %w", name, err))
		case n.gpuID != 0:
			nodes = append(nodes, n)
		}
	}
	k.nodes, k.generation = nodes, string(generation)
	if len(problems) > 0 {
		k.nodes = nil // it may become readable
	}
	return nodes, errors.Join(problems...)
}

func readNode(dir string) (kfdNode, error) {
	id, err := readUint(filepath.Join(dir, "gpu_id"), 32)
	if err != nil || id == 0 {
		return kfdNode{}, err
	}
	text, err := readSome(filepath.Join(dir, "properties"))
	if err != nil {
		return kfdNode{}, err
	}
	node := parseProperties(text)
	node.gpuID = uint32(id)
	banks := filepath.Join(dir, "mem_banks")
	names, _ := drm.ReadNames(banks, maxBanks) // their sum is unknown without them
	for _, name := range names {
		if text, err := readSome(filepath.Join(banks, name, "properties")); err == nil {
			node.memory = min(node.memory+parseBank(text), maxMemory)
		}
	}
	return node, nil
}

// parseBank returns the size of a bank of GPU memory in bytes: heap_type is 1 or 2, public or private; 0 is memory of a CPU.
func parseBank(text []byte) (size uint64) {
	ofGPU := false
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		v, err := strconv.ParseUint(string(value), 10, 64)
		switch {
		case err != nil:
		case string(name) == "heap_type":
			ofGPU = v == 1 || v == 2
		case string(name) == "size_in_bytes":
			size = min(v, maxMemory)
		}
	}
	if !ofGPU {
		return 0
	}
	return size
}

// readUint reads a file with one decimal number.
func readUint(name string, bits int) (uint64, error) {
	text, err := readSome(name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(bytes.TrimSpace(text)), 10, bits)
}

// parseProperties parses lines of a name and a decimal number.
func parseProperties(text []byte) kfdNode {
	n := kfdNode{renderMinor: noMinor}
	var location, domain, simds, perUnit uint64
	for line := range bytes.Lines(text) {
		name, value, ok := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if !ok {
			continue
		}
		v, err := strconv.ParseUint(string(value), 10, 64)
		if err != nil {
			continue
		}
		switch string(name) {
		case "drm_render_minor":
			if v > 0 && v < 1<<20 { // a minor number has 20 bits, and 0 is a card
				n.renderMinor = int(v)
			}
		case "location_id": // bus, device and function
			location = v
		case "domain":
			domain = v
		case "unique_id":
			n.uniqueID = v
		case "simd_count":
			simds = v
		case "simd_per_cu":
			perUnit = v
		case "num_sdma_engines", "num_sdma_xgmi_engines":
			n.sdma = min(n.sdma+min(v, maxEngines), maxEngines)
		}
	}
	if location != 0 && domain <= 0xffffffff {
		n.address = fmt.Sprintf("%04x:%02x:%02x.%d", domain, location>>8&0xff, location>>3&0x1f, location&7)
	}
	if perUnit > 0 {
		n.units = min(simds/perUnit, maxUnits)
	}
	return n
}

// processes returns the PIDs, in the initial PID namespace, of the processes that have KFD
// open: the directories of /sys/class/kfd/kfd/proc.
func (k *kfd) processes() ([]int, error) {
	names, err := drm.ReadNames(filepath.Join(k.root, "proc"), maxProcesses)
	if errors.Is(err, os.ErrNotExist) { // before 5.8, or no KFD
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the processes of KFD: %w", err)
	}
	return drm.Numbers(names), nil
}

// contexts returns the directories of a process: one for its first context, and since 6.19 one
// below it for each further context.
func (k *kfd) contexts(pid int) []string {
	dir := filepath.Join(k.root, "proc", strconv.Itoa(pid))
	dirs := []string{dir}
	names, err := drm.ReadNames(dir, maxNodes*4) // four files for each GPU
	if err != nil {
		return nil
	}
	for _, name := range names {
		if strings.HasPrefix(name, "context_") && len(dirs) <= maxContexts {
			dirs = append(dirs, filepath.Join(dir, name))
		}
	}
	return dirs
}

// computeUse is the usage of one GPU by one process, as KFD reports it.
type computeUse struct {
	kfdNode
	gpu      string // UUID
	asleep   bool
	contexts []string
	// memory is the GPU memory that it allocated, in bytes: vram_GPUID. A process has this
	// file for every GPU of the node, used or not.
	memory uint64
	// copied is the time for which its SDMA queues were busy, in microseconds, cumulative:
	// sdma_GPUID. The kernel reads the counters from the memory of the process, which may
	// block for ever: see lister.measure.
	copied      uint64
	copiedKnown bool
	// occupied is the number of compute units that its waves occupy at this moment:
	// stats_GPUID/cu_occupancy, which not all generations have.
	occupied      uint64
	occupiedKnown bool
}

// uses reads the values that the kernel has in its own memory.
func (k *kfd) uses(pid int, nodes []kfdNode, at places) []computeUse {
	contexts := k.contexts(pid)
	var list []computeUse
	for _, n := range nodes {
		gpu, ok := at.gpu(n.renderMinor, n.address)
		if !ok {
			continue
		}
		c := computeUse{kfdNode: n, gpu: gpu, asleep: at.asleep[gpu], contexts: contexts}
		if c.memory, ok = c.sum("vram_%d"); ok {
			c.memory = min(c.memory, maxMemory)
			list = append(list, c)
		}
	}
	return list
}

// measure reads the other values, which may hang. Occupancy is read from the GPU.
func (c *computeUse) measure() {
	c.copied, c.copiedKnown = c.sum("sdma_%d")
	if !c.asleep {
		c.occupied, c.occupiedKnown = c.sum("stats_%d/cu_occupancy")
	}
}

// sum adds the files with that name and the GPU's ID over all contexts; missing files are
// ignored.
func (c *computeUse) sum(format string) (total uint64, known bool) {
	name := fmt.Sprintf(format, c.gpuID)
	for _, dir := range c.contexts {
		if v, err := readUint(filepath.Join(dir, name), 64); err == nil && v <= 1<<62/maxContexts {
			total, known = total+v, true
		}
	}
	return total, known
}

// readSome returns the start of a kernel file.
func readSome(name string) ([]byte, error) {
	var buffer [maxAttribute]byte // on the stack: most files are a number
	b, err := boundedfile.ReadFile(name, buffer[:], len(buffer))
	return bytes.Clone(b), err
}
