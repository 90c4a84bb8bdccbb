// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// drivers is a /proc/devices with all watched drivers: two majors of uverbs, and NVIDIA's three names of one major.
const drivers = `Character devices:
  1 mem
  4 /dev/vc/0
  4 tty
 10 misc
195 nvidia
195 nvidia-modeset
195 nvidiactl
226 drm
231 infiniband_verbs
234 nvidia-nvswitch
235 nvidia-uvm
236 nvidia-caps
240 kfd
241 infiniband_verbs
511 infiniband_mad

Block devices:
226 nvidia
259 blkext
`

func TestList(t *testing.T) {
	f := newTree(t)
	if err := os.WriteFile(filepath.Join(f.dir, "proc/devices"), []byte(drivers), 0o644); err != nil {
		t.Fatal(err)
	}
	sysfs := filepath.Join(f.dir, "sys")
	for number, name := range map[string]string{
		"4:64": "ttyS0", "10:58": "rdma_cm", "10:229": "fuse", "226:0": "card0", "226:128": "renderD128", "240:0": "kfd",
		"231:192": "uverbs0", "241:0": "uverbs32", "511:1": "issm0",
	} {
		f.name(t, number, name)
	}
	f.misc(t, "10:58")
	for _, gpu := range []string{"0000:18:00.0", "0000:2a:00.0"} {
		if err := os.MkdirAll(filepath.Join(sysfs, "bus/pci/drivers/nvidia", gpu), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n, err := list(filepath.Join(f.dir, "proc"), sysfs)
	if err != nil {
		t.Fatal(err)
	}
	rdma, nvidia, amd, dri := model.ClassRDMA, model.ClassNVIDIA, model.ClassAMDGPU, model.ClassDRI
	want := map[uint32]node{
		10<<20 | 58: {"rdma_cm", rdma}, 226 << 20: {"card0", dri}, 226<<20 | 128: {"renderD128", dri}, 240 << 20: {"kfd", amd},
		231<<20 | 192: {"uverbs0", rdma}, 241 << 20: {"uverbs32", rdma}, 511<<20 | 1: {"issm0", rdma},
		195 << 20: {"nvidia0", nvidia}, 195<<20 | 1: {"nvidia1", nvidia}, 195<<20 | 254: {"nvidia-modeset", nvidia},
		195<<20 | 255: {"nvidiactl", nvidia}, 235 << 20: {"nvidia-uvm", nvidia}, 235<<20 | 1: {"nvidia-uvm-tools", nvidia},
	}
	if !maps.Equal(n.named, want) {
		t.Errorf("named %v\n want %v", n.named, want)
	}
	for major, how := range n.majors {
		want := gen.DevicesWatchWATCH_NONE
		switch major {
		case 10:
			want = gen.DevicesWatchWATCH_NODES
		case 195, 226, 231, 234, 235, 236, 240, 241, 511:
			want = gen.DevicesWatchWATCH_ALL
		}
		if how != uint8(want) {
			t.Errorf("major %d is watched %d, want %d", major, how, want)
		}
	}
	// Numbers without a file.
	for rdev, want := range map[uint32]node{
		195<<20 | 7: {"nvidia7", nvidia}, 236<<20 | 21: {"nvidia-cap21", nvidia}, 234<<20 | 255: {"nvidia-nvswitchctl", nvidia},
		226<<20 | 5: {"226:5", dri}, 226<<20 | minorMask: {others, dri}, 4 << 20: {"4:0", ""},
	} {
		if got := n.of(rdev); got != want {
			t.Errorf("%d:%d is %v, want %v", rdev>>minorBits, rdev&minorMask, got, want)
		}
	}

	if _, err := list(filepath.Join(f.dir, "none"), sysfs); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without /proc/devices: %v", err)
	}
}

// TestNothing: without a driver, no directory is read.
func TestNothing(t *testing.T) {
	f := newTree(t, "1 mem")
	n, err := list(filepath.Join(f.dir, "proc"), filepath.Join(f.dir, "none"))
	if err != nil || n.any() {
		t.Errorf("%+v, %v", n, err)
	}
}

func FuzzMajorsOf(f *testing.F) {
	f.Add([]byte(drivers))
	f.Add([]byte("Character devices:\n99999 drm\n-1 drm\n\n 4096 drm\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for major, driver := range majorsOf(text) {
			if major >= numMajors || strings.ContainsAny(driver, "\n") {
				t.Errorf("%d %q", major, driver)
			}
		}
	})
}

// records are the records of the iterator, with pauses.
type records struct{ reads []any }

func (r *records) Read(p []byte) (int, error) {
	if len(r.reads) == 0 {
		return 0, io.EOF
	}
	next := r.reads[0]
	r.reads = r.reads[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	return copy(p, next.([]byte)), nil
}

func record(files ...gen.DevicesOpenFile) []byte {
	var b bytes.Buffer
	for _, f := range files {
		_ = binary.Write(&b, binary.NativeEndian, []uint64{f.File, f.Cgroup})
		_ = binary.Write(&b, binary.NativeEndian, []uint32{f.Rdev, f.Tgid})
	}
	return b.Bytes()
}

func TestReadFiles(t *testing.T) {
	file := func(file, cgroup uint64, rdev, tgid uint32) gen.DevicesOpenFile {
		return gen.DevicesOpenFile{File: file, Cgroup: cgroup, Rdev: rdev, Tgid: tgid}
	}
	text := record(file(1, 7, 5, 100), file(1, 7, 5, 101), file(1, 8, 5, 102), file(2, 7, 5, 100), file(3, 7, 6, 100), file(4, 7, 6, 103))
	isGPU := func(rdev uint32) bool { return rdev == 5 }
	// A record is split by a pause of the kernel.
	r := again{&records{[]any{unix.EAGAIN, text[:30], unix.EAGAIN, text[30:]}}, time.Now().Add(time.Minute)}
	got, err := readFiles(r, isGPU, 3*ofCgroup)
	want := map[handle]uint64{{7, 5}: 2, {8, 5}: 1, {7, 6}: 1}
	if err != nil || !maps.Equal(got.counts, want) || got.lost != 1 {
		t.Errorf("%+v, %v; want %v and one lost", got, err, want)
	}
	if want := map[int]bool{100: true, 101: true, 102: true, 103: false}; !maps.Equal(got.pids, want) {
		t.Errorf("processes %v, want %v", got.pids, want)
	}
	if _, err := readFiles(&records{[]any{text[:30]}}, isGPU, 4); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut: %v", err)
	}

	// One cgroup exceeds its limit: the others keep theirs.
	var many []gen.DevicesOpenFile
	for i := range uint64(100) {
		many = append(many, file(i, 7, 5, 100))
	}
	got, err = readFiles(&records{[]any{record(many...), record(file(1000, 8, 5, 101))}}, isGPU, 3*ofCgroup)
	if want := (map[handle]uint64{{7, 5}: 3, {8, 5}: 1}); err != nil || !maps.Equal(got.counts, want) || got.lost != 97 {
		t.Errorf("%+v, %v; want %v and 97 lost", got, err, want)
	}
	// The kernel pauses forever.
	endless := again{readerFunc(func([]byte) (int, error) { return 0, unix.EAGAIN }), time.Now().Add(10 * time.Millisecond)}
	if _, err := readFiles(endless, isGPU, 4); !errors.Is(err, errTooMany) {
		t.Errorf("endless: %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestIncompleteListing: if files of a process were not counted, it is not reported as having no open device.
func TestIncompleteListing(t *testing.T) {
	s := &Source{listed: true, nodes: newNodes()}
	for lost, want := range []int{1, 0} {
		s.open.lost = uint64(lost)
		var snap model.Snapshot
		s.addHandles(&snap, map[handle]bool{{7, 5}: true})
		if len(snap.DeviceHandles) != want {
			t.Errorf("%d lost: %+v", lost, snap.DeviceHandles)
		}
	}
}

// TestSizes: the limit grows with the node, within bounds, and an option is kept.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		cpus, nodes  int
		option, want uint32
	}{
		{2, 4, 0, minMaxEntries},
		{256, 0, 0, minMaxEntries},
		{256, 54, 0, 13824}, // 10 HCAs with 3 nodes each, 8 GPUs
		{256, 414, 0, maxMaxEntries},
		{256, 414, 100, 100},
	} {
		if got := (Options{MaxEntries: c.option}).sized(c.cpus, c.nodes).MaxEntries; got != c.want {
			t.Errorf("%+v: %d entries", c, got)
		}
	}
}
