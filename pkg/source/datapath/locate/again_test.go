// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestAgain: what may be of a queue pair that was destroyed meanwhile is not final, and what is of the provider is.
func TestAgain(t *testing.T) {
	path := library(t, "libibverbs/librxe-rdmav34.so")
	offsets, _ := operationsOf(t, path)
	v := start(t, compile(t, "qp", "-ldl", "-libverbs"), append([]string{path}, offsets...)...)
	l := New("/proc")
	contextOf := func(name string) uint64 {
		var pointer [8]byte
		if err := v.Read(v.qps[name], pointer[:]); err != nil {
			t.Fatal(err)
		}
		return binary.LittleEndian.Uint64(pointer[:])
	}
	plain := contextOf("plain")
	for _, context := range []uint64{0, plain} {
		if found, err := l.Find(v.Process, v.qps["plain"], context); err != nil || found.Context != plain {
			t.Errorf("context %#x: %+v, %v", context, found, err)
		}
	}
	for _, name := range []string{"anonymous", "data", "nowhere", "badcontext", "badqp", "unaligned", "oddqp"} {
		if _, err := l.Find(v.Process, v.qps[name], 0); !errors.Is(err, ErrAgain) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"libc", "libibverbs", "middle"} {
		if _, err := l.Find(v.Process, v.qps[name], contextOf(name)); err == nil || errors.Is(err, ErrAgain) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.Find(v.Process, v.qps["empty"], 0); !errors.Is(err, ErrNotReady) {
		t.Errorf("not filled in yet: %v", err)
	}
	for _, name := range []string{"plain", "libc", "empty"} { // announced of a context that the memory does not have now
		if found, err := l.Find(v.Process, v.qps[name], 8); !errors.Is(err, ErrAgain) || errors.Is(err, ErrNotReady) || found.Sites != nil {
			t.Errorf("%s of another context: %+v, %v", name, found, err)
		}
	}
	gone := &Process{pid: 1 << 22, procfs: "/proc", pidfd: -1}
	if _, err := l.Find(gone, 8, 8); !errors.Is(err, model.ErrAbsent) || errors.Is(err, ErrAgain) {
		t.Errorf("no process: %v", err)
	}
}

// TestUnreadableFile: a file that could not be read is read again.
func TestUnreadableFile(t *testing.T) {
	dir, err := os.Open(t.TempDir()) // reads fail
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close() //nolint:errcheck // only read
	l := New("/proc")
	if _, _, err := l.cached(dir, &mapping{}); err == nil || isFinal(err) || len(l.files) != 0 {
		t.Errorf("%v, %d files are known", err, len(l.files))
	}
	known := &cachedFile{points: map[uint64]point{}}
	if at := l.point(known, dir, 0); at.err == nil || isFinal(at.err) || len(known.points) != 0 {
		t.Errorf("%+v, %d places are known", at, len(known.points))
	}
}
