// SPDX-License-Identifier: Apache-2.0

//go:build image

package image

import (
	"archive/tar"
	"debug/elf"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// maxSize limits the size of an archive, so that an unneeded library or tool is noticed.
const maxSize = 60 << 20

// files are all files of an image except directories; TRIPLET and LOADER depend on the architecture.
var files = strings.Fields(`
	bin lib lib64 sbin usr/LOADER
	etc/group etc/nsswitch.conf etc/passwd etc/ssl/certs/ca-certificates.crt
	usr/bin/accelscope usr/bin/accelscope-health usr/bin/accelscope-tool
	usr/lib/TRIPLET/LD usr/lib/TRIPLET/libc.so.6 usr/lib/TRIPLET/libdl.so.2 usr/lib/TRIPLET/libm.so.6
	usr/lib/TRIPLET/libnss_dns.so.2 usr/lib/TRIPLET/libnss_files.so.2 usr/lib/TRIPLET/libpthread.so.0
	usr/lib/TRIPLET/libresolv.so.2 usr/lib/TRIPLET/librt.so.1
	usr/share/doc/accelscope/LICENSE usr/share/doc/accelscope/THIRD-PARTY-NOTICES
	usr/share/doc/ca-certificates/copyright usr/share/doc/libc6/copyright
	usr/share/sbom/accelscope.cdx.json`)

// fabricFiles are the files of the image for the fabric in addition to files.
var fabricFiles = strings.Fields(`
	etc/infiniband-diags/error_thresholds etc/infiniband-diags/ibdiag.conf
	usr/lib/TRIPLET/libibmad.so.5 usr/lib/TRIPLET/libibnetdisc.so.5 usr/lib/TRIPLET/libibumad.so.3
	usr/sbin/iblinkinfo usr/sbin/ibnetdiscover usr/sbin/ibqueryerrors usr/sbin/perfquery usr/sbin/sminfo
	usr/share/doc/infiniband-diags/copyright usr/share/doc/libibmad5/copyright usr/share/doc/libibnetdisc5/copyright
	usr/share/doc/libibumad3/copyright`)

var images = []struct {
	name, archive, architecture, triplet, loader, suffix string
	machine                                              elf.Machine
	files                                                []string
}{
	{"amd64", native, "amd64", "x86_64-linux-gnu", "lib64/ld-linux-x86-64.so.2", "", elf.EM_X86_64, files},
	{"arm64", arm64, "arm64", "aarch64-linux-gnu", "lib/ld-linux-aarch64.so.1", "", elf.EM_AARCH64, files},
	{
		"fabric", fabric, "amd64", "x86_64-linux-gnu", "lib64/ld-linux-x86-64.so.2", "-fabric", elf.EM_X86_64,
		slices.Concat(files, fabricFiles),
	},
}

func TestContents(t *testing.T) {
	for _, tt := range images {
		t.Run(tt.name, func(t *testing.T) {
			m := unpack(t, tt.archive)
			t.Logf("%s: %.1f MiB", filepath.Base(tt.archive), float64(m.size)/(1<<20))
			if m.size > maxSize {
				t.Errorf("%d bytes, more than %d", m.size, maxSize)
			}
			names := strings.NewReplacer("TRIPLET", tt.triplet, "LOADER", tt.loader, "LD", filepath.Base(tt.loader))
			want := map[string]bool{}
			for _, name := range tt.files {
				want[names.Replace(name)] = true
			}
			for _, name := range slices.Sorted(maps.Keys(m.files)) {
				h := m.files[name]
				mode := h.FileInfo().Mode()
				switch {
				case h.Typeflag == tar.TypeDir:
				case !want[name]:
					t.Errorf("%s: nobody asked for it", name)
				default:
					delete(want, name)
				}
				if mode&(os.ModeSetuid|os.ModeSetgid|os.ModeSticky) != 0 {
					t.Errorf("%s: mode %v", name, mode)
				}
				if h.Typeflag != tar.TypeSymlink && mode.Perm()&0o022 != 0 {
					t.Errorf("%s: mode %v lets others write", name, mode)
				}
				if h.Uid != 0 || h.Gid != 0 || h.PAXRecords["SCHILY.xattr.security.capability"] != "" {
					t.Errorf("%s: belongs to %d:%d, or has capabilities", name, h.Uid, h.Gid)
				}
				if !h.ModTime.Equal(m.config.Created) {
					t.Errorf("%s: time %v is not that of the source, %v", name, h.ModTime, m.config.Created)
				}
			}
			if len(want) > 0 {
				t.Errorf("missing: %v", slices.Sorted(maps.Keys(want)))
			}
			checkPrograms(t, m, tt.triplet, tt.machine)
		})
	}
}

// checkPrograms checks that all programs and libraries are for one architecture, and that needed libraries exist.
func checkPrograms(t *testing.T, m *image, triplet string, machine elf.Machine) {
	t.Helper()
	programs := 0
	for name, h := range m.files {
		if h.Typeflag != tar.TypeReg || h.Mode&0o111 == 0 {
			continue
		}
		f, err := elf.Open(filepath.Join(m.root, name))
		if err != nil {
			t.Errorf("%s is executable, and no program: %v", name, err)
			continue
		}
		programs++
		if f.Machine != machine {
			t.Errorf("%s is for %v", name, f.Machine)
		}
		libraries, err := f.ImportedLibraries()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, library := range libraries {
			if m.files["usr/lib/"+triplet+"/"+library] == nil {
				t.Errorf("%s needs %s", name, library)
			}
		}
		for _, p := range f.Progs {
			if p.Type != elf.PT_INTERP {
				continue
			}
			text := make([]byte, p.Filesz-1)
			if _, err := p.ReadAt(text, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(m.root, string(text))); err != nil {
				t.Errorf("%s is loaded by %s: %v", name, text, err)
			}
		}
		f.Close()
	}
	if programs < 10 {
		t.Errorf("looked at %d programs and libraries", programs)
	}
}

func TestConfig(t *testing.T) {
	for _, tt := range images {
		t.Run(tt.name, func(t *testing.T) {
			m := unpack(t, tt.archive)
			c := m.config.Config
			if m.config.Architecture != tt.architecture || m.config.OS != "linux" {
				t.Errorf("for %s/%s", m.config.OS, m.config.Architecture)
			}
			if !slices.Equal(c.Entrypoint, []string{"/usr/bin/accelscope"}) || len(c.Cmd) > 0 || len(c.Volumes) > 0 {
				t.Errorf("entry point %q, arguments %q, volumes %v", c.Entrypoint, c.Cmd, c.Volumes)
			}
			if want := []string{"CMD", "accelscope-health"}; !slices.Equal(c.Healthcheck.Test, want) {
				t.Errorf("health check %q", c.Healthcheck.Test)
			}
			if _, ok := c.ExposedPorts["9847/tcp"]; !ok || len(c.ExposedPorts) != 1 {
				t.Errorf("ports %v", c.ExposedPorts)
			}
			if c.User != "0:0" || !slices.Equal(c.Env, []string{"PATH=/usr/sbin:/usr/bin"}) {
				t.Errorf("user %q, environment %q", c.User, c.Env)
			}
			const prefix = "org.opencontainers.image."
			for name, value := range map[string]string{
				"title": "accelscope", "licenses": "Apache-2.0", "source": "https://github.com/accelscope/accelscope",
				"created": m.config.Created.UTC().Format("2006-01-02T15:04:05Z"),
			} {
				if got := c.Labels[prefix+name]; got != value {
					t.Errorf("label %s: %q, want %q", name, got, value)
				}
			}
			for _, name := range []string{"description", "version", "revision"} {
				if c.Labels[prefix+name] == "" {
					t.Errorf("no label %s", name)
				}
			}
			want := []string{"accelscope:" + c.Labels[prefix+"version"] + tt.suffix}
			if name := "accelscope:" + manifestVersion(t) + tt.suffix; name != want[0] {
				want = append(want, name)
			}
			if !slices.Equal(m.tags, want) {
				t.Errorf("tags %q, want %q", m.tags, want)
			}
		})
	}
}

// manifestVersion returns the tag that the manifests name.
func manifestVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/helm/accelscope/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var chart struct {
		Version string `yaml:"appVersion"`
	}
	if err := yaml.Unmarshal(text, &chart); err != nil || chart.Version == "" {
		t.Fatalf("version %q: %v", chart.Version, err)
	}
	return chart.Version
}

// Two builds of the same sources, in separate containers, have the same first layer, where differences would be: the
// binary, the C library, the licenses.
func TestReproducible(t *testing.T) {
	one, two := unpack(t, native), unpack(t, fabric)
	if one.layers[0] != two.layers[0] {
		t.Errorf("first layers %s and %s", one.layers[0], two.layers[0])
	}
}
