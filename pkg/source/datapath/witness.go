// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// witness is a mapping of probed code in the memory of the sensor, where nothing
// executes it. The kernel writes a breakpoint into all mappings of a file and removes
// it from all of them, while closing a probe takes several times as long. So the
// mapping shows until when detached probes cost processes time.
type witness struct {
	memory []byte
	places []int // in memory
	before []byte
}

const (
	// instruction is the largest size of a breakpoint instruction (arm64).
	instruction = 4
	// maxWitness bounds the mapping. Only its probed pages take memory.
	maxWitness = 16 << 20
)

// newWitness maps the sites of a file. They must not be probed yet.
func newWitness(path string, sites []locate.Site) (*witness, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	first, last := sites[0].Offset, sites[0].Offset
	for _, s := range sites {
		first, last = min(first, s.Offset), max(last, s.Offset)
	}
	first -= first % uint64(os.Getpagesize())
	if last-first > maxWitness {
		return nil, fmt.Errorf("%d bytes between the probed functions", last-first)
	}
	memory, err := unix.Mmap(int(f.Fd()), int64(first), int(last-first)+instruction, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	w := &witness{memory: memory}
	for _, s := range sites {
		w.places = append(w.places, int(s.Offset-first))
	}
	if w.before, err = w.read(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// read copies the instructions. The file may have been truncated: a system call
// returns an error where an access would end the sensor.
func (w *witness) read() ([]byte, error) {
	code := make([]byte, instruction*len(w.places))
	local := []unix.Iovec{{Base: &code[0]}}
	local[0].SetLen(len(code))
	remote := make([]unix.RemoteIovec, len(w.places))
	for i, at := range w.places {
		remote[i] = unix.RemoteIovec{Base: uintptr(unsafe.Pointer(&w.memory[at])), Len: instruction}
	}
	n, err := unix.ProcessVMReadv(os.Getpid(), local, remote, 0)
	if err == nil && n < len(code) {
		err = unix.EFAULT
	}
	if err != nil {
		return nil, fmt.Errorf("code of a provider: %w", err)
	}
	return code, nil
}

// unprobed reports whether no breakpoint is left.
func (w *witness) unprobed() bool {
	now, err := w.read()
	return err == nil && bytes.Equal(now, w.before)
}

// wait waits until no breakpoint is left, or the probes are closed, and unmaps the code.
func (w *witness) wait(closed <-chan struct{}) {
	defer w.close()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !w.unprobed() {
		select {
		case <-closed:
			return
		case <-look.C:
		}
	}
}

func (w *witness) close() { _ = unix.Munmap(w.memory) }
