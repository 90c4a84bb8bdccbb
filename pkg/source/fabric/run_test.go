// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// fakes makes a directory of scripts that stand for the tools, for failures that ibsim does not have.
func fakes(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for tool, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, tool), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// resetting returns the options of the real tool that reset or clear something.
func resetting(t *testing.T, tool string) []string {
	t.Helper()
	help, _ := child.Command(context.Background(), "/usr/sbin/"+tool, "--help").CombinedOutput() // exit status 255
	var found []string
	options := 0
	line := regexp.MustCompile(`^  (--[A-Za-z_-]+)?(?:, )?(-[A-Za-z])?[ ,]`)
	for text := range strings.Lines(string(help)) {
		m := line.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		options++
		if about := strings.ToLower(text); strings.Contains(about, "reset") || strings.Contains(about, "clear") {
			found = append(found, m[1], m[2])
		}
	}
	if options < 10 {
		t.Fatalf("%s --help lists %d options (Debian package infiniband-diags):\n%s", tool, options, help)
	}
	return found
}

// TestNeverReset: the command lines of this package have no option that resets a counter, according to the tools' help.
func TestNeverReset(t *testing.T) {
	var dangerous []string
	for tool := range options {
		dangerous = append(dangerous, resetting(t, tool)...)
	}
	for _, known := range []string{"-r", "-R", "--reset_after_read", "--Reset_only", "-k", "-K", "--clear-errors", "--clear-counts"} {
		if !slices.Contains(dangerous, known) {
			t.Fatalf("%s is not found among %q", known, dangerous)
		}
	}
	for tool, allowed := range options {
		for _, o := range allowed {
			if slices.Contains(dangerous, o) || !strings.HasPrefix(o, "--") {
				t.Errorf("%s may get %s", tool, o)
			}
			// getopt_long accepts an abbreviation of an option.
			for _, d := range dangerous {
				if strings.HasPrefix(d, o) {
					t.Errorf("%s may get %s, the beginning of %s", tool, o, d)
				}
			}
		}
		for _, d := range dangerous {
			for _, args := range [][]string{{d}, {"--load-cache=x", d}, {d + "=1"}, {"2", "1-40", d}} {
				if err := (command{tool, args}).check(); d != "" && err == nil {
					t.Errorf("%s %q is not refused", tool, args)
				}
			}
		}
	}
	for _, args := range [][]string{{"2", "1-40", "0xffff"}, {"2", "1-40", "1"}, {"-lr", "2", "1"}, {"--", "2"}, {"-"}, {""}, {"--loop_ports", "2 -r"}} {
		if (command{perfquery, args}).check() == nil {
			t.Errorf("perfquery %q is not refused", args)
		}
	}
	ran := filepath.Join(t.TempDir(), "ran")
	r, err := newRunner(Options{Tools: fakes(t, map[string]string{ibnetdiscover: "", perfquery: "touch " + ran})}, func(string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.output(t.Context(), command{perfquery, []string{"-R", "2", "1"}}); !errors.Is(err, errOption) {
		t.Errorf("perfquery -R: %v", err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("perfquery -R was started")
	}
	// All commands with any configured values are allowed, and a value stays one argument.
	file := filepath.Join(t.TempDir(), "-K -k=x")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{{}, {Port: "mlx5_0/1"}, {NodeNameMap: file, Port: "ibp0s1/12"}} {
		r, err := newRunner(o, func(string, string) {})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []command{
			r.sweep(file), r.list(file), r.owners(file), r.links(file), r.errors(file),
			r.counters(true, 2, []int{1, 2, 3}), r.counters(false, 65535, []int{1, 3, 40}), r.counters(true, 2, []int{7}),
		} {
			if err := c.check(); err != nil {
				t.Error(err)
			}
			for _, a := range c.args {
				if slices.Contains(dangerous, a) {
					t.Errorf("%s %q", c.tool, c.args)
				}
			}
		}
	}
	for _, port := range []string{"-K/1", "mlx5_0", "mlx5_0/", "mlx5_0/0", "mlx5_0/1 -K", "/1", "mlx5_0/1000", "a b/1"} {
		if _, err := newRunner(Options{Port: port}, nil); err == nil {
			t.Errorf("%q is taken for a port", port)
		}
	}
}

func TestRanges(t *testing.T) {
	for want, ports := range map[string][]int{"1-40": {1, 2, 40}, "7": {7}, "1,3": {1, 3}, "1-2": {1, 2}, "2,5,9": {2, 5, 9}, "": nil} {
		if want == "1-40" {
			ports = nil
			for p := range 40 {
				ports = append(ports, p+1)
			}
		}
		if got := ranges(ports); got != want {
			t.Errorf("%v: %s, want %s", ports, got, want)
		}
	}
}

// TestOutput runs a tool that prints 10 MiB, a tool that never stops printing, and a tool that never stops printing
// errors.
func TestOutput(t *testing.T) {
	zeros := "tr '\\0' x < /dev/zero"
	dir := fakes(t, map[string]string{
		ibnetdiscover: zeros + " | head -c 10485760",
		perfquery:     "exec " + zeros,
		ibqueryerrors: "(" + zeros + " | head -c 1000000) >&2; echo ibpanic: [12] oops; exit 255",
	})
	var results []string
	r, err := newRunner(Options{Tools: dir}, func(tool, result string) { results = append(results, tool+" "+result) })
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.output(t.Context(), r.list("x"))
	if len(out) != 10<<20 || err != nil {
		t.Errorf("%d bytes: %v", len(out), err)
	}
	if top := parseTopology(out, out, out); len(top.nodes) > 0 || top.unread != 2 {
		t.Errorf("%d nodes, %d lines not parsed", len(top.nodes), top.unread)
	}
	if out, err = r.output(t.Context(), r.counters(true, 1, []int{1})); len(out) > 0 || !errors.Is(err, errOutput) {
		t.Errorf("%d bytes without an end: %v", len(out), err)
	}
	_, err = r.output(t.Context(), r.errors("x"))
	if err == nil || len(err.Error()) > 2*maxName || strings.Contains(err.Error(), "[12]") {
		t.Errorf("error output: %v", err)
	}
	if want := []string{"ibnetdiscover ok", "perfquery error", "ibqueryerrors error"}; !slices.Equal(results, want) {
		t.Errorf("%q, want %q", results, want)
	}
}

// TestEnvironment: the tools do not inherit the environment.
func TestEnvironment(t *testing.T) {
	t.Setenv("LD_PRELOAD_OF_OURS", "x")
	dir := fakes(t, map[string]string{ibnetdiscover: "env; pwd", perfquery: ""})
	r, err := newRunner(Options{Tools: dir}, func(string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.output(t.Context(), r.list("x"))
	if err != nil || strings.Contains(string(out), "OURS") || !strings.Contains(string(out), "LC_ALL=C\n") || !strings.HasSuffix(string(out), "\n/\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestMissing checks the required and the optional tools.
func TestMissing(t *testing.T) {
	for _, tools := range []map[string]string{{}, {ibnetdiscover: ""}, {perfquery: ""}} {
		_, err := New(Options{Tools: fakes(t, tools)})
		if !errors.Is(err, model.ErrUnsupported) || !strings.Contains(err.Error(), "install infiniband-diags") {
			t.Errorf("with %v: %v", tools, err)
		}
	}
	if _, err := New(Options{Tools: fakes(t, map[string]string{ibnetdiscover: "", perfquery: ""})}); err != nil {
		t.Error(err)
	}
}

// TestReason checks the remedy if the real ibnetdiscover cannot open a port. This machine has no port; the other cases
// use made files.
func TestReason(t *testing.T) {
	s := source(t, Options{})
	put := func(path string) {
		path = filepath.Join(s.root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	s.root = t.TempDir()
	check := func(want string, state error) {
		t.Helper()
		got, err := s.Read(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || got.Fabric != nil {
			t.Errorf("%v, want %q", err, want)
		}
		if state != nil && !errors.Is(err, state) {
			t.Errorf("%v is not %v", err, state)
		}
	}
	check("this node has no HCA", model.ErrAbsent)
	put("sys/class/infiniband/mlx5_0/node_guid")
	check("modprobe ib_umad", model.ErrUnsupported)
	put("sys/class/infiniband_mad/abi_version")
	check("a container needs it mounted", model.ErrUnsupported)
	put("dev/infiniband/umad0")
	check("no InfiniBand port to read the fabric from", nil)
	if err := os.Symlink("nowhere", filepath.Join(s.root, "dev/infiniband/umad1")); err != nil { // root may open all existing files
		t.Fatal(err)
	}
	check("run as root", model.ErrUnsupported)
}

// fabricOf reads the fabric of the samples, printed by scripts. The arguments of perfquery are
// kept.
func fabricOf(t *testing.T, perf string) (s *Source, asked func() string, dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, file := range []string{"ports-hdr.out", "list-hdr.out", "owners-hdr.out", "perfquery.out", "perfquery-extended.out"} {
		if err := os.WriteFile(filepath.Join(dir, file), sample(t, file), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s = source(t, Options{Tools: fakes(t, map[string]string{
		ibnetdiscover: `cd ` + dir + `; case "$*" in *--ports*) cat ports-hdr.out;; *--list*) cat list-hdr.out;; *) cat owners-hdr.out;; esac`,
		// port N: the sample with another port number.
		perfquery: `cd ` + dir + `; echo "$*" >> asked; port() { sed "s/ port 1 / port $1 /" "$2"; }` + "\n" + perf,
	})})
	return s, func() string {
		text, _ := os.ReadFile(filepath.Join(dir, "asked"))
		_ = os.Remove(filepath.Join(dir, "asked"))
		return strings.TrimSpace(string(text))
	}, dir
}

func leafOf(t *testing.T, s *Source) model.FabricNode {
	t.Helper()
	for _, n := range read(t, s).Nodes {
		if n.GUID == leafGUID {
			return n
		}
	}
	t.Fatal("no leaf")
	return model.FabricNode{}
}

const each = "for p in $(seq 40); do port $p "

// TestOldSwitch reads a switch with 32-bit counters only.
func TestOldSwitch(t *testing.T) {
	s, _, _ := fabricOf(t, `case "$*" in *--extended*) echo "perfquery: iberror: failed: perfextquery"; exit 255;; esac
`+each+`perfquery.out; done | sed s/0x1300/0x1000/`)
	n := leafOf(t, s)
	if v, ok := counter(n.Ports[39], "PortXmitData"); v != 17640 || !ok || n.Error != "" || len(n.Ports[39].Counters) != 17 {
		t.Errorf("%d %v: %q, %v", v, ok, n.Error, n.Ports[39].Counters)
	}
	if n.Ports[0].Narrow != nil || n.Ports[0].Slow != nil {
		t.Error("the capabilities of links are known without iblinkinfo")
	}
}

// TestNewSwitch reads a switch with the errors in the extended counters, with one request.
func TestNewSwitch(t *testing.T) {
	s, asked, _ := fabricOf(t, each+`perfquery-extended.out; echo SymbolErrorCounter:..............5000000000; done`)
	n := leafOf(t, s)
	if v, _ := counter(n.Ports[0], "SymbolErrorCounter"); v != 5000000000 || n.Error != "" {
		t.Errorf("%d symbol errors: %s", v, n.Error)
	}
	if got := asked(); got != "--loop_ports --extended 2 1-40" {
		t.Errorf("perfquery %s", got)
	}
}

// TestFewerPorts has a switch that answers for some of its ports: ports with a link are read.
func TestFewerPorts(t *testing.T) {
	s, asked, dir := fabricOf(t, `file=perfquery.out; case "$*" in *--extended*) file=perfquery-extended.out;; esac
case "$*" in
*1-2) port 1 $file; port 2 $file;;
*) port 1 $file; port 2 $file; echo "perfquery: iberror: failed: perfextquery"; exit 255;;
esac`)
	for i, want := range []string{
		"--loop_ports --extended 2 1-40\n--loop_ports --extended 2 1-2\n--loop_ports 2 1-2",
		"--loop_ports --extended 2 1-2\n--loop_ports 2 1-2",
	} {
		n := leafOf(t, s)
		if got := asked(); got != want {
			t.Errorf("round %d: perfquery %s", i, got)
		}
		if len(n.Ports) != 40 || len(n.Ports[1].Counters) != 21 || n.Ports[2].Counters != nil || n.Error != "" {
			t.Errorf("round %d: %v, %v: %s", i, n.Ports[1].Counters, n.Ports[2].Counters, n.Error)
		}
	}
	// The subnet manager assigns another LID, then a host's LID, then no LID.
	ports := string(sample(t, "ports-hdr.out"))
	for lid, want := range map[string]string{"77": "", " 3": "another node has its LID 3", " 0": "no LID"} {
		text := regexp.MustCompile(`SW     2`).ReplaceAllString(ports, "SW    "+lid)
		if err := os.WriteFile(filepath.Join(dir, "ports-hdr.out"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		n := leafOf(t, s)
		if fmt.Sprint(n.LID) != strings.TrimSpace(lid) || (n.Error == "") != (want == "") || !strings.Contains(n.Error, want) {
			t.Errorf("LID %s: %d, %q", lid, n.LID, n.Error)
		}
		if got := asked(); want == "" && got != "--loop_ports --extended 77 1-2\n--loop_ports 77 1-2" || want != "" && got != "" {
			t.Errorf("LID %s: perfquery %s", lid, got)
		}
		if n.Queried.IsZero() || len(n.Ports[1].Counters) != 21 {
			t.Errorf("LID %s: the counters are gone", lid)
		}
	}
}

func TestIncompletePerfquery(t *testing.T) {
	s, _, _ := fabricOf(t, "port 1 perfquery-extended.out")
	n := leafOf(t, s)
	if n.Error == "" || !n.Queried.IsZero() || n.Ports[0].Counters != nil {
		t.Errorf("%q: %v", n.Error, n.Ports[0].Counters)
	}
}

// TestHosts checks the counters of the hosts for several outputs of ibqueryerrors. Without a subnet manager it prints
// nothing and exits with status 0.
func TestHosts(t *testing.T) {
	errs := "printf '   GUID 0xb8cef60300000101 port 1: [SymbolErrorCounter == 5]\n\n## Summary: 2 nodes checked\n"
	s, _, _ := fabricOf(t, "exit 1")
	for _, c := range []struct {
		script       string
		error1       string
		error2       string
		node1, node2 string
	}{
		{"true", "does not get to the end", "does not get to the end", "[]", "[]"},
		{errs + "'; exit 1", "", "", "[{SymbolErrorCounter 5}]", "[] and read"},
		{"exit 255", "exit status 255", "exit status 255", "[{SymbolErrorCounter 5}]", "[] and read"}, // as before
		// Without the LIDs of the silent hosts, node2 must be silent: the other host loses nothing.
		{errs + "##          2 PMA query failures\\n'; exit 1", "", "no answer", "[{SymbolErrorCounter 5}]", "[] and read"},
		{strings.ReplaceAll(errs, "300000101", "300000999") + "##          1 PMA query failures\\n'; " +
			"echo 'ibwarn: [7] print_errors: query failed on x, Lid 1 port 1, Lid 3 port 1' >&2", "", "no answer", "[] and read", "[] and read"},
	} {
		s.run.paths[ibqueryerrors] = filepath.Join(fakes(t, map[string]string{ibqueryerrors: c.script}), ibqueryerrors)
		for _, n := range read(t, s).Nodes {
			if n.Kind == model.FabricSwitch {
				continue
			}
			got := fmt.Sprint(n.Ports[0].Counters)
			if got == "[]" && n.Ports[0].Counters != nil {
				got += " and read"
			}
			want := map[string]string{node1GUID: c.node1, node2GUID: c.node2}[n.GUID]
			problem := map[string]string{node1GUID: c.error1, node2GUID: c.error2}[n.GUID]
			if got != want || (n.Error == "") != (problem == "") || !strings.Contains(n.Error, problem) {
				t.Errorf("%s: %s has %s, want %s; error %q", c.script, n.Name, got, want, n.Error)
			}
		}
	}
}

// TestSweepChanges: a link changed within a sweep, and the tool refuses to load what it wrote. The fabric is swept again.
func TestSweepChanges(t *testing.T) {
	for _, refused := range []string{"--list", "--load-cache"} {
		s, _, dir := fabricOf(t, "exit 1")
		script, err := os.ReadFile(s.run.paths[ibnetdiscover])
		if err != nil {
			t.Fatal(err)
		}
		for rounds, want := range []int{3, 0} { // with the sweeps that are refused: one, then both
			refuse := fmt.Sprintf(`cd %s; case "$*" in *--ports*) echo >> sweeps;; *%s*) if [ $(wc -l < sweeps) -le %d ]; then
echo 'ibnetdiscover: iberror: failed: loading cached fabric failed'; exit 255; fi;; esac`, dir, refused, rounds+1)
			s.found = nil
			_ = os.Remove(filepath.Join(dir, "sweeps"))
			text := strings.Replace(string(script), "\n", "\n"+refuse+"\n", 1)
			if err := os.WriteFile(s.run.paths[ibnetdiscover], []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			got, err := s.Read(t.Context())
			nodes := 0
			if got.Fabric != nil {
				nodes = len(got.Fabric.Nodes)
			}
			if nodes != want || (err == nil) != (want > 0) || err != nil && !strings.Contains(err.Error(), "cached fabric") {
				t.Errorf("%s refused in %d sweeps: %d nodes, want %d; %v", refused, rounds+1, nodes, want, err)
			}
			if text, _ := os.ReadFile(filepath.Join(dir, "sweeps")); len(text) != 2 {
				t.Errorf("%d sweeps, want 2", len(text))
			}
		}
	}
}

// TestSweepHangs: Read ends in time and keeps the known nodes.
func TestSweepHangs(t *testing.T) {
	t.Parallel()
	s, _, dir := fabricOf(t, each+`perfquery-extended.out; echo SymbolErrorCounter:..............1; done`)
	before := read(t, s)
	if err := os.Remove(filepath.Join(dir, "ports-hdr.out")); err != nil {
		t.Fatal(err)
	}
	if err := child.Command(context.Background(), "mkfifo", filepath.Join(dir, "ports-hdr.out")).Run(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	got, err := s.Read(ctx)
	if !errors.Is(err, errTimeout) || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
	if got.Fabric == nil || len(got.Fabric.Nodes) != 3 || !got.Fabric.Discovered.Equal(before.Discovered) {
		t.Errorf("%+v", got.Fabric)
	}
}

func TestSweepFilesRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s, _, _ := fabricOf(t, "exit 1")
	read(t, s)
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("%v: %v", left, err)
	}
	t.Setenv("TMPDIR", "/proc/nowhere") // as in a container in which only /dev/shm is writable
	read(t, s)
}

// TestDirectory gives a directory for the files of a round: under systemd other directories are not writable.
func TestDirectory(t *testing.T) {
	s, _, _ := fabricOf(t, "exit 1")
	s.dir = "/proc/nowhere"
	if _, err := s.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "/proc/nowhere") {
		t.Errorf("in a directory that does not exist: %v", err)
	}
	s.dir = t.TempDir()
	read(t, s)
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("%v: %v", left, err)
	}
}
