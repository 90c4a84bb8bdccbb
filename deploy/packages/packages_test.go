// SPDX-License-Identifier: Apache-2.0

// Package packages tests the deb, the rpm and the systemd unit without booting anything; their life on a node is
// TestPackage of tests/suites/e2e.
package packages

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// output runs a command and returns what it prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := child.Command(t.Context(), name, args...).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("%s %s: %v: %s%s", name, strings.Join(args, " "), err, out, exit.Stderr)
		}
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// TestVersions: dpkg and rpm order the versions made from git describe correctly.
func TestVersions(t *testing.T) {
	ordered := []string{}
	for _, tt := range [][2]string{
		{"v0.1.0-rc1", "0.1.0~rc1"},
		{"v0.1.0-rc1-3-gabc1234", "0.1.0~rc1+3.gabc1234"},
		{"v0.1.0-rc2", "0.1.0~rc2"},
		{"v0.1.0", "0.1.0"},
		{"v0.1.0-5-gabc1234", "0.1.0+5.gabc1234"},
		{"v0.1.0-5-gabc1234-dirty", "0.1.0+5.gabc1234.dirty"},
		{"v0.1.0-12-g0123456", "0.1.0+12.g0123456"},
		{"v0.1.1", "0.1.1"},
		{"v0.10.0", "0.10.0"},
	} {
		got := output(t, "./version.sh", tt[0])
		if got != tt[1] {
			t.Errorf("%s becomes %s, want %s", tt[0], got, tt[1])
		}
		ordered = append(ordered, got)
	}
	for i, b := range ordered[1:] {
		a := ordered[i]
		if err := child.Command(t.Context(), "dpkg", "--compare-versions", a, "lt", b).Run(); err != nil {
			t.Errorf("dpkg: %s is not before %s", a, b)
		}
		if got := output(t, "rpm", "--eval", `%{lua:print(rpm.vercmp("`+a+`","`+b+`"))}`); got != "-1" {
			t.Errorf("rpm: %s and %s compare as %s", a, b, got)
		}
	}
	for _, describe := range []string{"54ac036", "54ac036-dirty"} {
		if got := output(t, "./version.sh", describe); !regexp.MustCompile(`^0\.0\.0\+\d+\.g54ac036(\.dirty)?$`).MatchString(got) {
			t.Errorf("%s becomes %s", describe, got)
		}
	}
	for _, bad := range []string{"unknown", "v1", "nightly-1", "1.2.3; rm"} {
		if out, err := child.Command(t.Context(), "./version.sh", bad).Output(); err == nil {
			t.Errorf("%s becomes %s", bad, out)
		}
	}
}

// TestUnit: systemd understands every line of the unit, and its exposure level stays low. A test in the guest shows that
// the sensor works with it.
func TestUnit(t *testing.T) {
	text, err := os.ReadFile("../systemd/accelscope.service")
	if err != nil {
		t.Fatal(err)
	}
	// The program is not installed here.
	unit := filepath.Join(t.TempDir(), "accelscope.service")
	if !strings.Contains(string(text), "ExecStart=/usr/bin/accelscope ") {
		t.Fatal("the unit does not run /usr/bin/accelscope")
	}
	here := strings.Replace(string(text), "ExecStart=/usr/bin/accelscope ", "ExecStart=/bin/true ", 1)
	if err := os.WriteFile(unit, []byte(here), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := child.Command(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "accelscope.service") { // and not a unit of this machine
			t.Error(line)
		}
	}
	if err != nil {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}
	drops, err := filepath.Glob("../systemd/drop-ins/*.conf")
	if err != nil || len(drops) < 3 {
		t.Fatalf("drop-ins: %v, %v", drops, err)
	}
	for _, drop := range append(drops, "") {
		dir := unit + ".d"
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
		if drop != "" {
			output(t, "cp", drop, dir)
			if out, err := child.Command(t.Context(), "systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil ||
				strings.Contains(string(out), filepath.Base(drop)) {
				t.Errorf("%s: %v: %s", drop, err, out)
			}
			continue
		}
		const most = "41" // tenths
		out, err := child.Command(t.Context(), "systemd-analyze", "security", "--offline=true", "--no-pager",
			"--threshold="+most, unit).Output()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Log(lines[len(lines)-1])
		if err != nil {
			t.Errorf("more than %s tenths: %v\n%s", most, err, out)
		}
	}
}

// TestTasks: the unit permits as many threads as calls may hang, and survives if another thread cannot be created.
func TestTasks(t *testing.T) {
	text, err := os.ReadFile("../systemd/accelscope.service")
	if err != nil {
		t.Fatal(err)
	}
	var limit int
	if found := regexp.MustCompile(`(?m)^TasksMax=(\d+)$`).FindSubmatch(text); found != nil {
		limit, err = strconv.Atoi(string(found[1]))
	}
	if limit == 0 || err != nil {
		t.Fatal("the unit has no TasksMax", err)
	}
	const (
		devices  = 2*138 + 128 // HCAs with virtual functions: the states of their ports, and the rest; those for their objects
		children = 3 * 24
		runtime  = 32
	)
	hanging := devices + children + runtime
	field := regexp.MustCompile(`(?m)^\s+(\w+(?:, \w+)*)\s+hang\.(Group|Call)\[`)
	sources := 0
	err = filepath.WalkDir("../../pkg/source", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		for _, f := range field.FindAllSubmatch(code, -1) {
			sources++
			calls := strings.Count(string(f[1]), ",") + 1
			if string(f[2]) == "Group" {
				calls *= hang.MaxHanging
			}
			hanging += calls
		}
		return err
	})
	if err != nil || sources < 10 {
		t.Fatalf("%d places with calls that may hang: %v", sources, err)
	}
	t.Logf("%d threads may hang, the unit permits %d", hanging, limit)
	if hanging > limit {
		t.Errorf("%d threads may hang, and the unit permits %d", hanging, limit)
	}
}

// files are required in a package.
var files = []string{
	"/etc/accelscope/accelscope.yaml", "/etc/accelscope/web.yaml", "/etc/default/accelscope", "/usr/bin/accelscope", "/usr/bin/accelscope-tool",
	"/usr/lib/systemd/system/accelscope.service", "/usr/lib/systemd/system/accelscope-fleet.service", "/usr/share/accelscope/systemd/fabric.conf",
	"/usr/libexec/accelscope/slurm-health", "/usr/share/doc/accelscope/README.md", "/usr/share/doc/accelscope/docs/limits.md", "/usr/share/doc/accelscope/metrics.md",
}

// TestPackages builds the deb and the rpm and checks their contents.
func TestPackages(t *testing.T) {
	dir := t.TempDir()
	for version, compression := range map[string]string{"v1.2.3": "xz", "v1.2.4": "gzip"} { // xz: as released
		output(t, "make", "-C", "../..", "packages", "VERSION="+version, "PACKAGES="+dir, "COMPRESSION="+compression)
	}
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[output(t, "dpkg", "--print-architecture")]
	t.Run("deb", func(t *testing.T) {
		deb := filepath.Join(dir, "accelscope_1.2.3_"+output(t, "dpkg", "--print-architecture")+".deb")
		root := t.TempDir()
		output(t, "dpkg-deb", "-x", deb, root)
		wanted(t, strings.Fields(output(t, "find", root, "-type", "f", "-printf", "/%P\n")))
		libc(t, filepath.Join(root, "usr/bin/accelscope"), output(t, "dpkg-deb", "-f", deb, "Depends"), "libc6 (>= %)")
		if got := output(t, "dpkg-deb", "-I", deb, "conffiles"); got != strings.Join(files[:3], "\n") {
			t.Errorf("conffiles: %s", got)
		}
		for field, want := range map[string]string{"Version": "1.2.3", "Recommends": "infiniband-diags"} {
			if got := output(t, "dpkg-deb", "-f", deb, field); got != want {
				t.Errorf("%s: %s, want %s", field, got, want)
			}
		}
		if got := output(t, filepath.Join(root, "usr/bin/accelscope"), "version"); !strings.HasPrefix(got, "accelscope v1.2.3 ") {
			t.Errorf("the program says %s", got)
		}
	})
	t.Run("rpm", func(t *testing.T) {
		rpms := []string{"accelscope-1.2.3-1." + machine + ".rpm", "accelscope-1.2.4-1." + machine + ".rpm"}
		for i := range rpms {
			rpms[i] = filepath.Join(dir, rpms[i])
		}
		wanted(t, strings.Fields(output(t, "rpm", "-qpl", rpms[0])))
		if got := output(t, "rpm", "-qpc", rpms[0]); got != strings.Join(files[:3], "\n") {
			t.Errorf("configuration: %s", got)
		}
		if got := output(t, "rpm", "-qp", "--recommends", rpms[0]); got != "infiniband-diags" {
			t.Errorf("recommends %s", got)
		}
		root := newRoot(t)
		rpm := func(args ...string) string {
			t.Helper()
			return output(t, "rpm", append([]string{"--root", root, "--nodeps"}, args...)...)
		}
		rpm("-i", rpms[0])
		libc(t, filepath.Join(root, "usr/bin/accelscope"), output(t, "rpm", "-qp", "--requires", rpms[0]), "libc.so.6(GLIBC_%)(64bit)")
		called(t, root, "--no-reload preset accelscope.service", "daemon-reload")
		rpm("-V", "accelscope")

		config := filepath.Join(root, files[0])
		if err := os.WriteFile(config, []byte("grace: 7m\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := child.Command(t.Context(), "rpm", "--root", root, "-V", "accelscope").Output(); err == nil ||
			!strings.Contains(string(out), files[0]) {
			t.Errorf("rpm -V sees no change: %s", out)
		}
		rpm("-U", rpms[1])
		called(t, root, "daemon-reload", "daemon-reload", "try-restart accelscope.service accelscope-fleet.service")
		if text, err := os.ReadFile(config); string(text) != "grace: 7m\n" {
			t.Errorf("after the upgrade the configuration is %q: %v", text, err)
		}
		rpm("-e", "accelscope")
		called(t, root, "--no-reload disable --now accelscope.service accelscope-fleet.service", "daemon-reload")
		left := strings.Fields(output(t, "find", root, "-path", "*accelscope*", "-type", "f", "-printf", "/%P\n"))
		if !slices.Equal(left, []string{files[0] + ".rpmsave"}) {
			t.Errorf("left: %v", left)
		}
	})
}

// newRoot is a root directory for scripts of rpms: a shell, and a fake systemctl that records its calls.
func newRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"bin", "usr/bin", "run/systemd/system", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	output(t, "cp", busybox, filepath.Join(root, "bin/sh"))
	output(t, "mknod", "-m", "666", filepath.Join(root, "dev/null"), "c", "1", "3")
	const fake = "#!/bin/sh\necho \"$@\" >>/calls\n"
	if err := os.WriteFile(filepath.Join(root, "usr/bin/systemctl"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

// called compares the calls of systemctl since the last time.
func called(t *testing.T, root string, want ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Split(strings.TrimSpace(string(text)), "\n"); !slices.Equal(got, want) {
		t.Errorf("systemctl was called with %q, want %q", got, want)
	}
	if err := os.Remove(filepath.Join(root, "calls")); err != nil {
		t.Fatal(err)
	}
}

func wanted(t *testing.T, got []string) {
	t.Helper()
	for _, file := range files {
		if !slices.Contains(got, file) {
			t.Errorf("it lacks %s: %v", file, got)
		}
	}
	// The package has the files of the tree for Prometheus and Grafana.
	for pattern, dir := range map[string]string{
		"../prometheus/rules/*.yaml": "rules", "../grafana/*.json": "dashboards", "../prometheus/runbooks/*.md": "runbooks",
	} {
		in, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range in {
			if want := "/usr/share/accelscope/" + dir + "/" + filepath.Base(file); !slices.Contains(got, want) {
				t.Errorf("it lacks %s", want)
			}
		}
	}
}

// libc checks that the dependency is the newest version of a libc symbol that the sensor and its tool need, as objdump lists them.
func libc(t *testing.T, program, depends, pattern string) {
	t.Helper()
	newest := ""
	for _, v := range regexp.MustCompile(`GLIBC_([0-9.]+)`).FindAllStringSubmatch(output(t, "objdump", "-T", program, program+"-tool"), -1) {
		if err := child.Command(t.Context(), "dpkg", "--compare-versions", v[1], "gt", newest).Run(); err == nil {
			newest = v[1]
		}
	}
	if want := strings.Replace(pattern, "%", newest, 1); newest == "" || !strings.Contains(depends, want) {
		t.Errorf("it depends on %s, want %s", depends, want)
	}
}
