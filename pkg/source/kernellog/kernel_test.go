// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestKernelLog reads the log of this machine. Records of user space in /dev/kmsg have another facility than the
// kernel's, and are not faults.
func TestKernelLog(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	other, err := os.OpenFile("/dev/kmsg", os.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		t.Skipf("a sandbox without the kernel log, which the guests have: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	<-s.caught
	defer other.Close()
	if _, err := other.Seek(0, 2); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("NVRM: Xid (PCI:0000:c1:00): 79, test of accelscope %d", time.Now().UnixNano())
	for _, priority := range []string{"<0>", "<7>", ""} {
		if _, err := other.WriteString(priority + text + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	// The records are in the log, and would be faults of the kernel.
	buf, seen, last := make([]byte, maxRecord), 0, uint64(0)
	for deadline := time.Now().Add(10 * time.Second); seen < 3 && time.Now().Before(deadline); {
		n, err := other.Read(buf)
		if err != nil || !bytes.Contains(buf[:n], []byte(text)) {
			continue
		}
		seen++
		r, ok := parseRecord(buf[:n])
		if ok {
			t.Errorf("%s is a record of the kernel", buf[:n])
		}
		last = r.sequence
		_, rest, _ := bytes.Cut(buf[:n], []byte(","))
		if meaning("4,"+string(rest)) == "" {
			t.Errorf("%s is no fault with facility 0", buf[:n])
		}
	}
	next := func() uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.next
	}
	for deadline := time.Now().Add(10 * time.Second); next() <= last && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if seen < 3 || next() <= last {
		t.Fatalf("%d of 3 records are in the log, and the source has read up to %d of %d", seen, next(), last)
	}
	facts, err := s.Read(context.Background())
	for _, f := range facts.FaultTotals {
		if f.PCIAddress == gpuAddress {
			t.Errorf("%+v", f)
		}
	}
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d faults in the log of this machine", len(facts.FaultHistory))
}
