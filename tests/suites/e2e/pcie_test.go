// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// pciHCAVar names the kernel module of tests/machines/vm/driver/pcihca.c.
const pciHCAVar = "ACCELSCOPE_PCIHCA"

// TestPCIe tests errors and places, which depend on the tree of PCIe bridges, in a guest with bridges and functions
// emulated by QEMU. The kernel's own code drives them. Adapters stand for HCAs, display controllers for GPUs. `make
// test-kernels` runs it.
func TestPCIe(t *testing.T) {
	if !whole() {
		t.Skip("runs in make test-kernels")
	}
	n := node{kernel: "6.1"}
	opts := n.options(t)
	opts.PCIe, opts.Devices = true, 0
	if os.Getenv(binaryVar) == "" {
		opts.Env = append(opts.Env, n.buildModule(t, pciHCAVar, "../../machines/vm/driver/pcihca.c"))
	}
	if !guest.Enter(t, opts) {
		return
	}
	tree := readPCITree(t)
	sh(t, "modprobe", "ib_uverbs")
	sh(t, "insmod", os.Getenv(pciHCAVar), "functions="+strings.Join(tree.hcas(), ","))
	t.Run("topology", tree.topology)
	t.Run("errors", tree.errors)
	touched(t, n, "link AER", "placement of functions")
}

// pciFunction is a function as its registers describe it.
type pciFunction struct {
	address, id    string   // 0000:41:00.0, 8086:10d3
	secondary      int      // of a bridge: the bus below it
	rootBus        int      // the bus of its host bridge
	bridges        []string // the bridges above it, from the host bridge on
	bus, dev, fn   int
	switchUpstream string // the upstream port of the switch above it
}

// pciTree is the tree of functions by address. It comes from the registers of the bridges, not from sysfs, which the
// sensor reads.
type pciTree map[string]*pciFunction

const (
	adapterID, displayID, upstreamID = "8086:10d3", "1002:5046", "104c:8232" // of QEMU's e1000e, ati-vga, x3130-upstream
	farBus                           = 0x80                                  // of the host bridge of NUMA node 1
)

func readPCITree(t *testing.T) pciTree {
	t.Helper()
	files, err := filepath.Glob("/proc/bus/pci/*/*.*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no PCI: %v", err)
	}
	tree, above := pciTree{}, map[int]*pciFunction{}
	for _, file := range files {
		config, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f := &pciFunction{address: "0000:" + filepath.Base(filepath.Dir(file)) + ":" + filepath.Base(file)}
		if _, err := fmt.Sscanf(f.address, "0000:%02x:%02x.%x", &f.bus, &f.dev, &f.fn); err != nil {
			t.Fatal(err)
		}
		f.id = fmt.Sprintf("%04x:%04x", binary.LittleEndian.Uint16(config), binary.LittleEndian.Uint16(config[2:]))
		const headerType, secondaryBus = 0x0e, 0x19
		if config[headerType]&0x7f == 1 {
			f.secondary = int(config[secondaryBus])
			above[f.secondary] = f
		}
		tree[f.address] = f
	}
	for _, f := range tree {
		f.rootBus = f.bus
		for b := above[f.bus]; b != nil; b = above[b.bus] {
			f.bridges, f.rootBus = append([]string{b.address}, f.bridges...), b.bus
			if b.id == upstreamID {
				f.switchUpstream = b.address
			}
		}
	}
	return tree
}

// with returns the functions with an ID, by address.
func (tree pciTree) with(id string) (found []*pciFunction) {
	for _, address := range slices.Sorted(maps.Keys(tree)) {
		if tree[address].id == id {
			found = append(found, tree[address])
		}
	}
	return found
}

func (tree pciTree) hcas() (addresses []string) {
	for _, f := range tree.with(adapterID) {
		addresses = append(addresses, f.address)
	}
	return addresses
}

// relation is the relation of two functions by their bridges.
func relation(a, b *pciFunction) string {
	switch {
	case a == b:
		return "X"
	case a.rootBus != b.rootBus:
		return "SYS"
	case a.switchUpstream != "" && a.switchUpstream == b.switchUpstream:
		return "PIX"
	}
	return "PHB"
}

// topology compares `accelscope topo` with the registers of the bridges, and the registers with QEMU's options.
func (tree pciTree) topology(t *testing.T) {
	devices, names := tree.with(displayID), []string{}
	for i := range devices {
		names = append(names, fmt.Sprint("GPU", i))
	}
	for i, f := range tree.with(adapterID) {
		devices, names = append(devices, f), append(names, fmt.Sprint("pcihca", i))
	}
	want, relations := [][]string{append(append([]string{""}, names...), "NUMA")}, map[string]int{}
	for i, a := range devices {
		row := []string{names[i]}
		for _, b := range devices {
			row = append(row, relation(a, b))
			relations[relation(a, b)]++
		}
		numa := "0"
		if a.rootBus >= farBus {
			numa = "1"
		}
		want = append(want, append(row, numa))
	}
	if made := map[string]int{"X": 5, "PIX": 2, "PHB": 6, "SYS": 12}; !maps.Equal(relations, made) {
		t.Errorf("the guest has %v, want %v", relations, made)
	}
	out := sh(t, os.Getenv(binaryVar), "topo")
	var got [][]string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(got) == 0 {
			fields = append([]string{""}, fields...)
		}
		if len(fields) < len(want[0]) || len(got) == len(want) {
			break
		}
		got = append(got, fields[:len(want[0])])
	}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("topo prints\n%s\nwant %q", out, want)
	}
	t.Logf("\n%s", out)
}

// errors injects PCIe errors into a function and the root port above it, and expects that the sensor counts exactly
// these.
func (tree pciTree) errors(t *testing.T) {
	sh(t, "modprobe", "aer_inject", "aer_mask_override=1")
	s := start(t, "--no-collector.probe", "--no-collector.node", "--no-collector.container", "--no-collector.runtime", "--no-collector.kubelet",
		"--no-collector.access", "--no-collector.gpu", "--no-collector.kernellog", "--no-collector.link")
	hcas := tree.with(adapterID)
	target := slices.IndexFunc(hcas, func(f *pciFunction) bool { return len(f.bridges) == 1 }) // the port above it is the root port
	const badTLP, badDLLP = 1 << 6, 1 << 7
	for range 3 {
		tree.inject(t, hcas[target], badTLP)
	}
	for range 2 {
		tree.inject(t, tree[hcas[target].bridges[0]], badDLLP)
	}
	tree.inject(t, hcas[target], badTLP|badDLLP) // one message with two types, which the kernel's total counts once
	eventually(t, 3*time.Minute, func() error {
		m := s.scrape()
		for i := range hcas {
			want := 0.0
			if i == target {
				want = 3 + 2 + 1
			}
			got := m.by("rdma_device_pcie_aer_errors_total", "severity", "device", fmt.Sprint("pcihca", i))
			if !maps.Equal(got, map[string]float64{"correctable": want, "nonfatal": 0, "fatal": 0}) {
				return fmt.Errorf("pcihca%d: %v, want %v correctable ones", i, got, want)
			}
		}
		byType := map[string]float64{}
		for _, end := range []string{"device", "port"} {
			for name, value := range m.by("rdma_device_pcie_aer_errors_by_type_total", "type", "end", end, "severity", "correctable") {
				byType[end+" "+name] = value
			}
		}
		if want := map[string]float64{"device BadTLP": 4, "device BadDLLP": 1, "port BadDLLP": 2}; !maps.Equal(byType, want) {
			return fmt.Errorf("by type %v, want %v", byType, want)
		}
		return nil
	})
}

// inject injects correctable errors with the kernel's module aer_inject, and waits until the kernel has handled the
// interrupt.
func (tree pciTree) inject(t *testing.T, f *pciFunction, status uint32) {
	t.Helper()
	handled := func() string {
		text, err := os.ReadFile("/sys/bus/pci/devices/" + f.address + "/aer_dev_correctable")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := handled()
	// struct aer_error_inj: bus, device, function, padding, uncorrectable and correctable status, four words of the header, domain.
	message := make([]byte, 32)
	message[0], message[1], message[2] = byte(f.bus), byte(f.dev), byte(f.fn)
	binary.NativeEndian.PutUint32(message[8:], status)
	if err := os.WriteFile("/dev/aer_inject", message, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		if handled() == before {
			return fmt.Errorf("%s: the kernel has not counted the error", f.address)
		}
		return nil
	})
}
