// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// TestSplitSensor compares names of files with the matches of node_exporter's expression.
func TestSplitSensor(t *testing.T) {
	for file, want := range map[string]string{
		"temp1_input": "temp 1 input", "temp10_crit_alarm": "temp 10 crit_alarm", "pwm2": "pwm 2 ", "in0_input": "in 0 input",
		"beep_enable": "beep_enable 0 ", "power1_average_interval_max": "power 1 average_interval_max",
		"pwm1_auto_point2_pwm": "pwm 1 auto_point2_pwm", "in_odd1x": "in 0 odd1x", "name": "name 0 ",
		"fan9_": "", "fan1foo": "", "1_input": "", "temp99999999999999999999_x": "", "_1x": "",
	} {
		typ, number, property, ok := splitSensor(file)
		got := fmt.Sprint(typ, " ", number, " ", property)
		if !ok {
			got = ""
		}
		if got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}

func TestBelowRoot(t *testing.T) {
	for _, c := range [][3]string{
		{"/host/var", "/host", "/var"},
		{"/host", "/host", "/"},
		{"/hostile", "/host", "/hostile"},
		{"/var", "/host", "/var"},
		{"/var", "/", "/var"},
	} {
		if got := belowRoot(c[0], c[1]); got != c[2] {
			t.Errorf("%s below %s: %s, want %s", c[0], c[1], got, c[2])
		}
	}
}

func TestParseUint(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "18446744073709551615": math.MaxUint64, "007": 7} {
		if got, ok := parseUint([]byte(text)); !ok || got != want {
			t.Errorf("%s: %d, %t", text, got, ok)
		}
	}
	for _, text := range []string{"", "-1", "18446744073709551616", "99999999999999999999", "1.0", " 1", "x"} {
		if got, ok := parseUint([]byte(text)); ok {
			t.Errorf("%q: %d", text, got)
		}
	}
}

// FuzzParse: no content of the files causes a panic or exceeds a limit.
// TestManyLines: of a file with more lines than a node has, the first are parsed.
func TestManyLines(t *testing.T) {
	lines := func(format string, most int) []byte {
		var b strings.Builder
		for i := range most + 1 {
			fmt.Fprintf(&b, format, i)
		}
		return []byte(b.String())
	}
	var skipped boundedfile.Skipped
	numbers := strings.Repeat(" 1", 17)
	for what, n := range map[string]int{
		"interfaces": maxDevices - len(parseNetDevs(lines("eth%d:"+numbers+"\n", maxDevices), &skipped)),
		"disks":      maxDisks - len(parseDisks(lines("8 %d sda"+numbers+"\n", maxDisks), &skipped)),
		"figures":    maxFigures - len(parseMemory(lines("A%d: 1 kB\n", maxFigures), &skipped)),
	} {
		if n != 0 {
			t.Errorf("%s: %d more have room", what, n)
		}
	}
	if r := parseOSRelease(string(lines("A%d=1\n", maxFigures)) + "NAME=late\n"); r.Name != "" {
		t.Errorf("%+v", r)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"cpu0 1 2 3\nintr 5\n", "MemTotal: 5 kB\nActive(file): 1 kB\n(:\n", "a\nb\n eth0: 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6\n",
		"TcpExt: A B\nTcpExt: 1 2\n", "20 1 259:2 / / rw shared:1 - ext4 /dev/nvme0n1p2 rw", "\x00\n \n:\n", "cpu\ncpu0\nbtime -1\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, p := range lineParsers {
			if got := p.Parse(b); len(got) > maxMounts {
				t.Errorf("%d values of %s", len(got), p.Name)
			}
		}
		_, _ = parseMount(b)
		_, _, _, _ = splitSensor(string(b))
	})
}

// TestManySensorFiles: of a directory with very many files, the first by name are read.
func TestManySensorFiles(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ others, want int }{{maxSensorFiles - 1, 1}, {maxSensorFiles, 0}} {
		files := map[string]string{"temp1_input": "1\n"}
		for i := range c.others {
			files[fmt.Sprintf("a%d", i)] = ""
		}
		write(t, dir, files)
		var found chip
		if found.scan(dir, map[string]*sensor{}); len(found.sensors) != c.want {
			t.Errorf("beside %d files: %d sensors, want %d", c.others, len(found.sensors), c.want)
		}
	}
}
