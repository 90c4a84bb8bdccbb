// SPDX-License-Identifier: Apache-2.0

package procfile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/accelscope/accelscope/pkg/procfile"
)

const rest = " S 1 2 3 4 5 262144 7 8 9 10 11 12 13 14 15 16 17 18 4711 0 0"

func TestParseStat(t *testing.T) {
	for in, name := range map[string]string{
		"7 (a) b) c)" + rest: "a) b) c", "7 (sh)" + rest: "sh", "7 ()" + rest: "", "7 (\n(x)" + rest: "\n(x",
	} {
		want := procfile.Stat{Name: name, State: "S", Flags: 262144, Start: 47110 * time.Millisecond, CPU: 230 * time.Millisecond, Threads: 17}
		if got, err := procfile.ParseStat([]byte(in)); err != nil || got != want {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{
		"", "7 sh" + rest, "7 )sh(" + rest, "7 (sh) S 1 2", "7 (sh)" + strings.Replace(rest, "4711", "99999999999999999999", 1),
		"7 (sh)" + strings.Replace(rest, "4711", "9223372036854775807", 1), "7 (sh)" + strings.Replace(rest, "4711", "-1", 1),
		"7 (sh)" + strings.Replace(rest, "4711", "315360000001", 1), // more than 100 years after the boot
		"7 (sh)" + strings.Replace(rest, "262144", "x", 1), "7 (sh)" + strings.Replace(rest, " 11", " x", 1),
		"7 (sh)" + strings.Replace(rest, " 12", " -1", 1), "7 (sh)" + strings.Replace(rest, " 17", " x", 1),
	} {
		if got, err := procfile.ParseStat([]byte(in)); !errors.Is(err, procfile.ErrFormat) {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
}

// TestLibrary compares this process with prometheus/procfs.
func TestLibrary(t *testing.T) {
	p, err := procfs.Self()
	if err != nil {
		t.Fatal(err)
	}
	want, err := p.Stat()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("/proc", fmt.Sprint(os.Getpid()))
	got, err := procfile.ReadStat(dir)
	if used := time.Duration(want.CPUTime() * float64(time.Second)); got.CPU < used || got.CPU > used+time.Minute || got.Threads == 0 {
		t.Errorf("%+v, want the CPU time %v", got, used)
	}
	if err != nil || got.Name != want.Comm || got.State != want.State || got.Start != time.Duration(want.Starttime)*10*time.Millisecond {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	status, err := p.NewStatus()
	if err != nil {
		t.Fatal(err)
	}
	if uid := procfile.RealUser(dir); uid != fmt.Sprint(status.UIDs[0]) {
		t.Errorf("user %q, want %v", uid, status.UIDs)
	}
	if uid := procfile.RealUser("/proc/nobody"); uid != "" {
		t.Errorf("no process: %q", uid)
	}
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("7 (sh)" + rest))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := procfile.ParseStat(text); err == nil && (s.Start < 0 || s.CPU < 0 || len(s.Name) > len(text)) {
			t.Errorf("%+v", s)
		}
	})
}
