// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

var errNoLink = errors.New("the port that the fabric is read from has no link: look at ibstat, or choose another one with --fabric.port")

// reason adds the cause of a failed sweep and a remedy: the tools print the same message for a missing module, a
// missing device and a device without permission.
func (s *Source) reason(err error) error {
	var f *failure
	if !errors.As(err, &f) || !strings.Contains(f.message, "port (") { // can't open UMAD port (mlx5_0:1), or MAD port
		return err
	}
	if _, missing := os.Stat(filepath.Join(s.root, "sys/class/infiniband_mad/abi_version")); missing != nil {
		hcas, _ := filepath.Glob(filepath.Join(s.root, "sys/class/infiniband/*"))
		if len(hcas) == 0 {
			return fmt.Errorf("this node has no HCA, the fabric is read from one that has: %w (%w)", model.ErrAbsent, err)
		}
		return fmt.Errorf("the kernel module ib_umad is not loaded: modprobe ib_umad: %w (%w)", model.ErrUnsupported, err)
	}
	devices, _ := filepath.Glob(filepath.Join(s.root, "dev/infiniband/umad*"))
	if len(devices) == 0 {
		return fmt.Errorf("/dev/infiniband/umad* is not here: a container needs it mounted: %w (%w)", model.ErrUnsupported, err)
	}
	for _, device := range devices {
		if denied := unix.Access(device, unix.R_OK|unix.W_OK); denied != nil {
			return fmt.Errorf("%s: %w: run as root, in a container with this device allowed: %w (%w)",
				device, denied, model.ErrUnsupported, err)
		}
	}
	return fmt.Errorf("no InfiniBand port to read the fabric from: look at ibstat, or choose one with --fabric.port (%w)", err)
}
