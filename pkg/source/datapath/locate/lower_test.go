// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestKeepLower: the file of an image is found behind the file of a container, and no other file is mistaken for it.
func TestKeepLower(t *testing.T) {
	p := self(t)
	image := t.TempDir()
	for _, name := range []string{"same.so", "written.so", "touched.so"} {
		if err := os.WriteFile(filepath.Join(image, name), make([]byte, 8192), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := overlay(t, image)
	if err := os.WriteFile(filepath.Join(merged, "written.so"), bytes.Repeat([]byte{1}, 8192), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(merged, "touched.so"), time.Time{}, time.Now()); err != nil { // copied up
		t.Fatal(err)
	}
	for _, name := range []string{"written.so", "touched.so"} {
		if k, err := p.KeepLower("/", filepath.Join(merged, name)); !errors.Is(err, errNoLower) {
			t.Errorf("%s: %v, %v", name, k, err)
		}
	}
	if k, err := p.KeepLower("/", filepath.Join(image, "same.so")); !errors.Is(err, errNoLower) {
		t.Errorf("no overlay: %v, %v", k, err)
	}

	k, err := p.KeepLower("/", filepath.Join(merged, "same.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	lower, err := os.Stat(filepath.Join(image, "same.so"))
	if err != nil {
		t.Fatal(err)
	}
	if opened, err := k.file.Stat(); err != nil || !os.SameFile(lower, opened) {
		t.Errorf("%v is not the file of the image: %v", k.file.Name(), err)
	}
	if k.Changed() {
		t.Error("it did not change")
	}
	if err := os.RemoveAll(image); err != nil {
		t.Fatal(err)
	}
	if !k.Changed() {
		t.Error("it was removed with its image")
	}
}

// TestLowerOfAnother: an overlay whose lower directory names a file of the machine, in a mount namespace where that directory is
// another one, does not show the file of the machine.
func TestLowerOfAnother(t *testing.T) {
	p := self(t)
	images := []string{t.TempDir(), t.TempDir()}
	var files []*os.File
	for _, image := range images {
		path := filepath.Join(image, "lib.so")
		if err := os.WriteFile(path, make([]byte, 8192), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	f, err := os.Open(filepath.Join(overlay(t, images[0]), "lib.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, want := range []bool{true, false} {
		if same, err := isLower(p.procfs, f, files[i]); err != nil || same != want {
			t.Errorf("image %d: %v, %v", i, same, err)
		}
	}
}

const mounts = `23 28 0:22 / /sys rw,nosuid - sysfs sysfs rw
412 345 0:52 / / rw,relatime shared:1 master:2 - overlay overlay rw,lowerdir=/var/lib/l\0401/fs:/l2/fs,upperdir=/u,workdir=/w
413 412 0:52 /usr /opt/a\040b rw - overlay overlay rw,lowerdir+=/l1,lowerdir+=/l2,datadir+=/d
415 412 0:52 / / rw - overlay overlay rw,lowerdir=12/fs:3/fs,upperdir=/snapshots/13/fs,workdir=/snapshots/13/work
416 412 0:52 / / rw - overlay overlay rw,lowerdir=l/ABC:l/DEF,upperdir=13/diff,workdir=13/work
414 412 8:1 / /data rw - ext4 /dev/sda1 rw
`

func TestFindOverlay(t *testing.T) {
	for id, want := range map[uint64]overlayMount{
		412: {"/", "/", []string{"/var/lib/l 1/fs", "/l2/fs"}},
		413: {"/usr", "/opt/a b", []string{"/l1", "/l2"}},
		415: {"/", "/", []string{"/snapshots/12/fs", "/snapshots/3/fs"}},
		416: {"/", "/", nil}, // of Docker, for images with many layers
	} {
		if got, err := findOverlay(strings.NewReader(mounts), id); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d: %+v, %v", id, got, err)
		}
	}
	for _, id := range []uint64{23, 414, 1} {
		if got, err := findOverlay(strings.NewReader(mounts), id); !errors.Is(err, errNoLower) {
			t.Errorf("%d: %+v, %v", id, got, err)
		}
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add([]byte(mounts), uint64(412))
	f.Add([]byte("1 2 3:4 / /\\134 - overlay o lowerdir=:,lowerdir\n"), uint64(1))
	f.Fuzz(func(t *testing.T, text []byte, id uint64) {
		m, err := findOverlay(bytes.NewReader(text), id)
		if err != nil {
			return
		}
		for _, lower := range m.lowers {
			if !filepath.IsAbs(lower) {
				t.Errorf("%q is relative", lower)
			}
		}
	})
}

func FuzzHandle(f *testing.F) {
	f.Add(append([]byte{0, 0, 0, 0, 0xfb, 29, 0, 1}, make([]byte, 24)...), int32(1), make([]byte, 8))
	f.Fuzz(func(t *testing.T, overlay []byte, typ int32, lower []byte) {
		if containsHandle(overlay, typ, lower) && !bytes.HasSuffix(overlay, lower) {
			t.Errorf("%x does not contain %x", overlay, lower)
		}
	})
}
