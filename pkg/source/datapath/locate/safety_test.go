// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestReturnProbesSafe(t *testing.T) {
	syscall := map[string]bool{"__x64_sys_uretprobe": true}
	for release, safe := range map[string]bool{
		"6.11.0":               false,
		"6.11.0-29-generic":    false,
		"6.11.11":              false,
		"6.12.0-55.el10":       false, // may have the fix
		"6.12.13":              false,
		"6.12.14":              true,
		"6.12.107+deb13-amd64": true,
		"6.13.2-1-default":     false,
		"6.13.3":               true,
		"6.14.0-rc2":           false,
		"6.14.0-15-generic":    true,
		"6.15":                 true,
		"6.18.44":              true,
		"7.2.12+deb14-amd64":   true,
		"7.0.0-rc1":            true,
		"":                     false,
		"linux":                false,
		"6":                    false,
		"6.":                   false,
		"6..12":                false,
	} {
		if err := returnProbesSafe(syscall, release); (err == nil) != safe || (!safe && !errors.Is(err, model.ErrUnsupported)) {
			t.Errorf("%q: %v, want safe %v", release, err, safe)
		}
		if err := returnProbesSafe(map[string]bool{"__x64_sys_read": true}, release); err != nil {
			t.Errorf("%q without the system call: %v", release, err)
		}
	}
}

func TestShadowStacksSafe(t *testing.T) {
	cpuinfo := filepath.Join(t.TempDir(), "cpuinfo")
	for flags, want := range map[string]bool{
		"flags\t\t: fpu shstk ibt": true, "flags\t\t: fpu shstk user_shstk": false, "Features\t: fp gcs sve": false,
	} {
		if err := os.WriteFile(cpuinfo, []byte(flags+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := shadowStacksSafe(map[string]bool{}, cpuinfo)
		if want != (err == nil) || err != nil && !errors.Is(err, model.ErrUnsupported) {
			t.Errorf("%q: %v", flags, err)
		}
		if err := shadowStacksSafe(map[string]bool{"__x64_sys_uretprobe": true}, cpuinfo); err != nil {
			t.Errorf("%q, on a kernel with the system call uretprobe: %v", flags, err)
		}
	}
	if shadowStacksSafe(nil, cpuinfo+"x") == nil {
		t.Error("safe without information")
	}
}

func TestStackOfCPU(t *testing.T) {
	// The first instructions of a program with a per-CPU stack: poll_cq_return on 6.18 without its tail call.
	code := []byte("\x0f\x1f\x44\x00\x00\x0f\x1f\x00\x55\x48\x89\xe5\x53\x41\x55\x41\x56\x41\x57" +
		"\x49\xb9\xf8\x1c\x50\x5b\x79\x60\x00\x00\x65\x4c\x03\x0c\x25\x28\xe0\xb0\x83\x49\x89\xfe")
	if !stackOfCPU(code) || stackOfCPU(code[:30]) || stackOfCPU(nil) {
		t.Error("a stack of the CPU is not recognized")
	}
}
