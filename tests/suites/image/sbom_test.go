// SPDX-License-Identifier: Apache-2.0

//go:build image

package image

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/tools/child"
)

type component struct {
	Name, Version, PURL string
	Hashes              []struct{ Alg, Content string }
	Licenses            []struct{ Expression string }
}

func readSBOM(t *testing.T, path string) map[string]component {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		BOMFormat  string
		Components []component
	}
	if err := json.Unmarshal(data, &bill); err != nil || bill.BOMFormat != "CycloneDX" {
		t.Fatalf("%s: %v, format %q", path, err, bill.BOMFormat)
	}
	components := map[string]component{}
	for _, c := range bill.Components {
		components[c.Name] = c
	}
	return components
}

// The SBOM lists exactly the Go modules of `go version -m` of both programs, with versions and hashes.
func TestSBOM(t *testing.T) {
	for _, tt := range images {
		t.Run(tt.name, func(t *testing.T) {
			m := unpack(t, tt.archive)
			inside := filepath.Join(m.root, "usr/share/sbom/accelscope.cdx.json")
			components := readSBOM(t, inside)
			one, _ := os.ReadFile(inside)
			if two, err := os.ReadFile(strings.TrimSuffix(tt.archive, ".tar") + ".cdx.json"); err != nil || string(one) != string(two) {
				t.Errorf("beside the archive is another bill, or none: %v", err)
			}
			want := map[string]string{}
			out, err := child.Command(t.Context(), "go", "version", "-m", m.root+sensor, m.root+sensor+"-tool").Output()
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(out)) {
				if f := strings.Fields(line); len(f) >= 3 && f[0] == "dep" {
					want[f[1]] = f[2]
				}
			}
			info, err := buildinfo.ReadFile(m.root + sensor)
			if err != nil {
				t.Fatal(err)
			}
			want["stdlib"] = strings.TrimPrefix(info.GoVersion, "go")
			sums := map[string]string{}
			for _, d := range info.Deps {
				sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(d.Sum, "h1:"))
				if err != nil {
					t.Fatal(err)
				}
				sums[d.Path] = hex.EncodeToString(sum)
			}
			got, packages := map[string]string{}, []string{}
			for name, c := range components {
				if len(c.Licenses) == 0 || c.Licenses[0].Expression == "" {
					t.Errorf("%s: no license", name)
				}
				if name, ok := strings.CutPrefix(c.PURL, "pkg:deb/debian/"); ok {
					packages = append(packages, name[:strings.Index(name, "@")])
					continue
				}
				got[name] = c.Version
				if sums[name] != "" && (len(c.Hashes) != 1 || c.Hashes[0].Content != sums[name]) {
					t.Errorf("%s: hashes %v, want %s", name, c.Hashes, sums[name])
				}
			}
			if len(want) < 10 || !maps.Equal(got, want) {
				t.Errorf("modules %v, want %v", got, want)
			}
			checkPackages(t, m, tt.triplet, packages, components)
		})
	}
}

// checkPackages compares the SBOM's Debian packages with the copyright files in the image, and its glibc version with
// glibc's own.
func checkPackages(t *testing.T, m *image, triplet string, packages []string, components map[string]component) {
	t.Helper()
	var want []string
	for name := range m.files {
		if pkg, ok := strings.CutPrefix(name, "usr/share/doc/"); ok && filepath.Base(pkg) == "copyright" {
			want = append(want, filepath.Dir(pkg))
		}
	}
	slices.Sort(want)
	slices.Sort(packages)
	if !slices.Equal(packages, want) {
		t.Errorf("packages %v, want %v", packages, want)
	}
	libc, err := os.ReadFile(filepath.Join(m.root, "usr/lib", triplet, "libc.so.6"))
	if err != nil {
		t.Fatal(err)
	}
	version := components["libc6"].Version
	if version == "" || !strings.Contains(string(libc), "GLIBC "+version+")") {
		t.Errorf("glibc is not %q", version)
	}
	notices, err := os.ReadFile(filepath.Join(m.root, "usr/share/doc/accelscope/THIRD-PARTY-NOTICES"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range components {
		if strings.HasPrefix(c.PURL, "pkg:golang/") && !strings.Contains(string(notices), "\n"+name+" "+c.Version+": ") {
			t.Errorf("no text of the license of %s", name)
		}
	}
}
