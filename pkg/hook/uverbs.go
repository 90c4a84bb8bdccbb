// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// Uverbs reads which HCA the uverbs character devices belong to, by their device
// numbers as programs see them (class/infiniband_verbs/uverbsN/{dev,ibdev}).
func Uverbs(sysfs string) (map[uint32]string, error) {
	dir := filepath.Join(sysfs, "class/infiniband_verbs")
	entries, err := readDirNames(dir)
	if err != nil {
		return nil, err
	}
	names := map[uint32]string{}
	for _, e := range entries {
		// abi_version is a file beside the devices, and a device may go meanwhile.
		dev, err := boundedfile.ReadOnce(filepath.Join(dir, e, "dev"), make([]byte, 64))
		if err != nil {
			continue
		}
		ibdev, err := boundedfile.ReadOnce(filepath.Join(dir, e, "ibdev"), make([]byte, 128))
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

// readDirNames lists a directory; one that is not there is empty.
func readDirNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	return f.Readdirnames(-1)
}
