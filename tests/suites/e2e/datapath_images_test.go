// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// layers has the images: a tmpfs, because the root of the guest is on 9p, which gives no file handles and looks each
// name up again.
const layers = "/layers"

// image makes an image with copies of the verbs providers, and returns its directory.
func image(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(layers, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	sh(t, "cp", "-r", providers(t)+"/.", dir)
	return dir
}

func providers(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/*/libibverbs")
	if err != nil || len(found) != 1 {
		t.Fatalf("directories of providers: %v, %v", found, err)
	}
	return found[0]
}

// enterImage starts posts as the first process of a container: in its own mount namespace, with the providers of an
// image through its own overlay.
func enterImage(t *testing.T, image, name string, argv ...string) *container {
	t.Helper()
	own := filepath.Join(layers, digest(name))
	for _, dir := range []string{"upper", "work"} {
		if err := os.MkdirAll(filepath.Join(own, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const program = `mount -t overlay -o lowerdir="$0",upperdir="$1/upper",workdir="$1/work" overlay "$2" && shift 2 && exec posts "$@"`
	return enter(t, name, append([]string{"unshare", "-m", "sh", "-c", program, image, own, providers(t)}, argv...)...)
}

// images: containers run one after the other, each with one process, which posts at once and ends. The provider is a
// file of their image. Only the first container of an image, which lives until its functions are probed, can be late.
func (n node) images(t *testing.T) {
	const writes, containers = 100, 4
	sh(t, "mkdir", "-p", layers)
	sh(t, "mount", "-t", "tmpfs", "tmpfs", layers)
	s := start(t, n.args("--rdma.datapath=always")...)
	probes := 0.0
	for _, name := range []string{"one", "of the same build"} {
		image := image(t, name)
		first := enterImage(t, image, "first of image "+name, "-d", "rxe0", "-n", strconv.Itoa(writes), "-k")
		first.line(t, "done")
		before := probes
		eventually(t, 30*time.Second, func() error {
			last := probes
			if probes = s.fresh().sum("accelscope_datapath_probes"); probes < before+3 || probes != last {
				return fmt.Errorf("%v probes, before %v and %v", probes, last, before)
			}
			return nil
		})
		m := s.fresh()
		late := m.sum("accelscope_datapath_late_total")
		t.Logf("image %q, first container: %v of %v writes counted; all: %v late, %v probes", name, m.moved(first.id)["rdma_write"], writes, late, probes)
		first.rest(t)
		for i := range containers {
			// Nothing of the container before is left.
			eventually(t, 30*time.Second, func() error {
				if n := s.fresh().sum("accelscope_datapath_processes"); n > 0 {
					return fmt.Errorf("%v processes", n)
				}
				return nil
			})
			c := enterImage(t, image, fmt.Sprint("image ", name, " ", i), "-d", "rxe0", "-n", strconv.Itoa(writes), "-s", "64")
			want := posted(t, "write", writes, c.rest(t))
			s.equal(map[*container]moved{c: want})
		}
		m = s.fresh()
		if got := m.sum("accelscope_datapath_late_total"); got != late {
			t.Errorf("image %q: %v contexts were late after the first container", name, got-late)
		}
		if got := m.sum("accelscope_datapath_probes"); got != probes {
			t.Errorf("image %q: %v probes, %v with the first container", name, got, probes)
		}
	}
	sh(t, "rm", "-r", filepath.Join(layers, "one"))
	eventually(t, 30*time.Second, func() error {
		if got := s.fresh().sum("accelscope_datapath_probes"); got != probes/2 {
			return fmt.Errorf("%v probes of %v, after one of two images was removed", got, probes)
		}
		return nil
	})
	s.stop()
	sh(t, "umount", layers) // not in use any more
}
