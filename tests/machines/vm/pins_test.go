// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPins: the committed file is the output of make raise-kernels, and has everything that a kernel needs.
func TestPins(t *testing.T) {
	if diff := cmp.Diff(pinsText, formatPins(pins)); diff != "" {
		t.Error(diff)
	}
	var kernels []string
	for _, p := range pins {
		kernels = append(kernels, p.kernel)
		for _, name := range []string{"linux-image-", "linux-headers-", "linux-source-"} {
			if !slices.ContainsFunc(p.debs, func(d deb) bool { return strings.HasPrefix(d.file, name) }) {
				t.Errorf("%s has no %s", p.kernel, name)
			}
		}
		if len(p.installed()) != len(p.debs)-2 {
			t.Errorf("%s: %q of %q", p.kernel, p.installed(), p.debs)
		}
	}
	if want := []string{"5.10", "6.1", "6.12", "7"}; !slices.Equal(kernels, want) {
		t.Errorf("kernels %q, want %q", kernels, want)
	}
}

// mirror is a Debian mirror in a directory, with one suite.
type mirror struct {
	t     *testing.T
	dir   string
	index bytes.Buffer
}

const mirrorSuite = "aSuite"

// add adds a package with a file, and returns it as it is pinned.
func (m *mirror) add(name, version, depends, file string) deb {
	m.t.Helper()
	root := m.t.TempDir()
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: a test\nDescription: a test\n", name, version)
	if depends != "" {
		control += "Depends: " + depends + "\n"
	}
	m.write(filepath.Join(root, "DEBIAN/control"), control)
	if file != "" {
		m.write(filepath.Join(root, file), version)
	}
	d := deb{file: name + "_" + version + "_all.deb"}
	path := filepath.Join(m.dir, d.file)
	if _, err := output(m.t.Context(), root, "dpkg-deb", "--root-owner-group", "-b", root, path); err != nil {
		m.t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		m.t.Fatal(err)
	}
	d.sum = fmt.Sprintf("%x", sha256.Sum256(text))
	fmt.Fprintf(&m.index, "%sFilename: ./%s\nSize: %d\nSHA256: %s\n\n", control, d.file, len(text), d.sum)
	return d
}

func (m *mirror) kernel(release, version string) pin {
	modules := "usr/lib/modules/" + release
	return pin{kernel: "6.1", suite: mirrorSuite, debs: []deb{
		m.add("linux-headers-"+release, version, "", ""),
		m.add("linux-image-"+release, version, "linux-base, linux-modules-"+release, "boot/vmlinuz-"+release),
		m.add("linux-modules-"+release, version, "", modules+"/modules.order"),
		m.add("linux-source-6.1", version, "", ""),
	}}
}

func (m *mirror) write(path, text string) {
	m.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		m.t.Fatal(err)
	}
}

// without removes a version of a package from the lists.
func (m *mirror) without(d deb) {
	entries := strings.SplitAfter(m.index.String(), "\n\n")
	entries = slices.DeleteFunc(entries, func(e string) bool { return strings.Contains(e, "./"+d.file+"\n") })
	m.index.Reset()
	m.index.WriteString(strings.Join(entries, ""))
}

func (m *mirror) sources() map[string]string {
	m.t.Helper()
	dist := filepath.Join(m.dir, "dists", mirrorSuite)
	m.write(dist+"/main/binary-amd64/Packages", m.index.String())
	m.write(dist+"/Release", fmt.Sprintf("Suite: %s\nCodename: %[1]s\nArchitectures: amd64\nComponents: main\nSHA256:\n %x %d main/binary-amd64/Packages\n",
		mirrorSuite, sha256.Sum256(m.index.Bytes()), m.index.Len()))
	return map[string]string{"a.list": "deb [trusted=yes arch=amd64] file:" + m.dir + " " + mirrorSuite + " main\n"}
}

// newMirror returns a mirror with two kernels, and their pins.
func newMirror(t *testing.T) (m *mirror, older, newer pin) {
	t.Helper()
	m = &mirror{t: t, dir: t.TempDir()}
	older, newer = m.kernel("6.1.0-1-amd64", "6.1.10-1"), m.kernel("6.1.0-2-amd64", "6.1.20-1")
	m.add("linux-image-amd64", "6.1.20-1", "linux-image-6.1.0-2-amd64", "")
	m.add("linux-source", "6.1.20-1", "linux-source-6.1", "")
	return m, older, newer
}

// install installs a pinned kernel from a mirror, and returns it and the messages.
func (m *mirror) install(p pin) (k Kernel, said string, err error) {
	m.t.Helper()
	cache := m.t.TempDir()
	r, err := openSources(m.t.Context(), cache, m.sources())
	if err != nil {
		m.t.Fatal(err)
	}
	defer r.close()
	dir := filepath.Join(cache, "kernel")
	if err := r.install(m.t.Context(), dir, p); err != nil {
		return Kernel{}, "", err
	}
	var out bytes.Buffer
	for range 2 {
		if err := warn(&out, dir, p); err != nil {
			m.t.Fatal(err)
		}
	}
	k, err = unpacked(dir, p)
	return k, out.String(), err
}

// TestPinned: the pinned kernel is installed although there is a newer kernel. If it is incomplete, the newest is
// installed, with one message.
func TestPinned(t *testing.T) {
	const instead = "stage: kernel 6.1 is 6.1.20-1, not the pinned 6.1.10-1, which the mirror no longer has: make raise-kernels\n"
	for name, c := range map[string]struct {
		gone          string // package
		release, said string
	}{
		"all":        {"", "6.1.0-1-amd64", ""},
		"no image":   {"linux-image-", "6.1.0-2-amd64", instead},
		"no modules": {"linux-modules-", "6.1.0-2-amd64", instead},
		"no headers": {"linux-headers-", "6.1.0-2-amd64", instead},
		"no source":  {"linux-source-", "6.1.0-2-amd64", instead},
	} {
		t.Run(name, func(t *testing.T) {
			m, older, _ := newMirror(t)
			for _, d := range older.debs {
				if c.gone != "" && strings.HasPrefix(d.file, c.gone) {
					m.without(d)
				}
			}
			k, said, err := m.install(older)
			if err != nil || k.Release != c.release || said != c.said {
				t.Errorf("%+v, said %q: %v", k, said, err)
			}
		})
	}
}

// TestRaised: the newest kernel with all its packages.
func TestRaised(t *testing.T) {
	m, _, newer := newMirror(t)
	r, err := openSources(t.Context(), t.TempDir(), m.sources())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	debs, err := r.newest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(newer.debs, debs, cmp.AllowUnexported(deb{})); diff != "" {
		t.Error(diff)
	}
}

// TestChanged: a package that differs from the pinned package of the same version is not unpacked.
func TestChanged(t *testing.T) {
	m, older, _ := newMirror(t)
	defer func(before []pin) { pins = before }(pins)
	older.debs[1].sum = strings.Repeat("0", 64)
	pins = []pin{older}
	if k, _, err := m.install(older); err == nil || !strings.Contains(err.Error(), older.debs[1].file+": sha256") {
		t.Errorf("%+v: %v", k, err)
	}
}

// TestArchive: a suite that the first place lacks comes from the next place that has it.
func TestArchive(t *testing.T) {
	m, older, _ := newMirror(t)
	empty := map[string]string{"debian.list": "deb [trusted=yes] file:" + t.TempDir() + " " + mirrorSuite + " main\n"}
	r, err := openSources(t.Context(), t.TempDir(), empty, m.sources())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if got, err := r.choose(t.Context(), older); err != nil || got.version() != older.version() {
		t.Errorf("%+v: %v", got, err)
	}
	if _, err := openSources(t.Context(), t.TempDir(), empty, empty); err == nil {
		t.Error("no place has the suite, and nothing failed")
	}
}

// TestArchivedRelease: a suite whose security updates are still on the mirror.
func TestArchivedRelease(t *testing.T) {
	security := "Types: deb\nURIs: http://mirror/security\nSuites: bullseye-security\nComponents: main\n"
	for file, text := range map[string]string{
		"debian.sources": "Types: deb\nURIs: http://mirror/debian\nSuites: bullseye bullseye-updates\nComponents: main\n\n" + security,
		"security.list":  "deb http://mirror/debian bullseye main\ndeb http://mirror/security bullseye-security main\n",
		"other.list":     "deb http://mirror/debian bullseye main\n",
	} {
		want := map[string]string{
			"archive.sources": "Types: deb\nURIs: http://archive.debian.org/debian\nSuites: bullseye\nComponents: main\n" +
				"Check-Valid-Until: no\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n",
		}
		switch file {
		case "debian.sources":
			want[file] = security + "\n"
		case "security.list":
			want[file] = "deb http://mirror/security bullseye-security main\n"
		}
		if diff := cmp.Diff(want, archivedRelease(map[string]string{file: text}, "bullseye")); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
}
