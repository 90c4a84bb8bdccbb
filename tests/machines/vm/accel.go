// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// accelerator returns "kvm" if a guest boots with it, else "tcg". /dev/kvm alone is not enough, because nested KVM may
// be broken: a guest is booted once. The result is valid until the machine reboots.
func accelerator(ctx context.Context, kernel Kernel) string {
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		return "tcg"
	} else {
		f.Close()
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "tcg"
	}
	note := filepath.Join(filepath.Dir(kernel.Root), "accel-"+strings.TrimSpace(string(id)))
	unlock, err := Lock(note + ".lock")
	if err != nil {
		return "tcg"
	}
	defer unlock()
	if accel, err := os.ReadFile(note); err == nil {
		return string(accel)
	}

	share, err := os.MkdirTemp("", "kvm-")
	if err != nil {
		return "tcg"
	}
	defer os.RemoveAll(share)
	accel := "tcg"
	res, err := boot(ctx, kernel, "kvm", Options{Command: []string{"true"}, Share: share, Timeout: 15 * time.Second})
	if err == nil && res.Status == 0 {
		accel = "kvm"
	}
	if ctx.Err() == nil {
		os.WriteFile(note, []byte(accel), 0o644)
	}
	return accel
}
