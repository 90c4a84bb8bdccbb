// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// Uverbs returns the HCAs of the uverbs character devices, by device number in the kernel's
// format (class/infiniband_verbs/uverbsN/{dev,ibdev}).
func Uverbs(sysfs string) (map[uint32]string, error) {
	dir := filepath.Join(sysfs, "class/infiniband_verbs")
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	names := map[uint32]string{}
	for _, e := range entries {
		// abi_version is a regular file in this directory, and a device may be removed
		// meanwhile.
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
		names[major<<20|minor] = strings.TrimSpace(string(ibdev))
	}
	return names, nil
}
