// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// Uverbs returns the HCAs of the uverbs character devices, by device number in the kernel's format
// (class/infiniband_verbs/uverbsN/{dev,ibdev}).
func Uverbs(sysfs string) (map[uint32]string, error) {
	dir := filepath.Join(sysfs, "class/infiniband_verbs")
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	names := map[uint32]string{}
	for _, e := range entries {
		// abi_version is a regular file in this directory, and a device may be removed meanwhile.
		dev, err := boundedfile.ReadOnce(filepath.Join(dir, e.Name(), "dev"), make([]byte, 64))
		if err != nil {
			continue
		}
		ibdev, err := boundedfile.ReadOnce(filepath.Join(dir, e.Name(), "ibdev"), make([]byte, 128))
		if err != nil {
			continue
		}
		var major, minor uint32
		if _, err := fmt.Sscanf(string(dev), "%d:%d", &major, &minor); err != nil {
			continue
		}
		// the kernel's own dev_t: include/linux/kdev_t.h
		names[major<<20|minor] = strings.TrimSuffix(string(ibdev), "\n")
	}
	return names, nil
}

// SetUverbs passes the device numbers of uverbs devices to the programs of bpf/uverbs.h.
func SetUverbs(coll *ebpf.Collection, sysfs string) error {
	devices, err := Uverbs(sysfs)
	if err != nil {
		return fmt.Errorf("uverbs devices: %w", err)
	}
	first, last, err := ranges(slices.Collect(maps.Keys(devices)))
	if err != nil {
		return err
	}
	if err := errors.Join(coll.Variables["uverbs_first"].Set(first), coll.Variables["uverbs_last"].Set(last)); err != nil {
		return fmt.Errorf("uverbs devices: %w", err)
	}
	return nil
}

// ranges returns the lowest and the highest device number of each major, in the kernel's format (20 bits for the
// minor). The kernel gives uverbs devices the minors 192 to 223 of a shared major, and then a major of their own.
func ranges(numbers []uint32) (first, last [2]uint32, err error) {
	slices.Sort(numbers)
	n := 0
	for i, number := range numbers {
		if i > 0 && number>>20 == numbers[i-1]>>20 {
			last[n-1] = number
			continue
		}
		if n == len(first) {
			return first, last, fmt.Errorf("uverbs devices have more than %d majors", n)
		}
		first[n], last[n] = number, number
		n++
	}
	return first, last, nil
}
