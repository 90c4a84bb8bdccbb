// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// query asks nvidia-smi for values of the first GPU.
func query(t *testing.T, names ...string) map[string]string {
	t.Helper()
	out := run(t, "nvidia-smi", "--id=0", "--query-gpu="+strings.Join(names, ","), "--format=csv,noheader,nounits")
	fields := strings.Split(strings.TrimSpace(out), ", ")
	if len(fields) != len(names) {
		t.Fatalf("nvidia-smi: %q", out)
	}
	values := map[string]string{}
	for i, name := range names {
		values[name] = fields[i]
	}
	return values
}

// memoryByPID returns bytes; nvidia-smi prints MiB.
func memoryByPID(t *testing.T) map[int]float64 {
	t.Helper()
	found := map[int]float64{}
	out := run(t, "nvidia-smi", "--id=0", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
	for line := range strings.Lines(out) {
		pid, mib, _ := strings.Cut(strings.TrimSpace(line), ", ")
		p, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatalf("nvidia-smi: %q: %v", out, err)
		}
		found[p] = number(t, mib) * (1 << 20)
	}
	return found
}

// startPmon measures the use of multiprocessors by process for some seconds. The result is the mean, between 0 and 1.
func startPmon(t *testing.T, seconds int) (wait func() map[int]float64) {
	t.Helper()
	var out bytes.Buffer
	pmon := child.Command(t.Context(), "nvidia-smi", "pmon", "--id", "0", "--select", "u", "--count", strconv.Itoa(seconds))
	pmon.Stdout = &out
	if err := pmon.Start(); err != nil {
		t.Fatal(err)
	}
	return func() map[int]float64 {
		t.Helper()
		if err := pmon.Wait(); err != nil {
			t.Fatal(err)
		}
		found := map[int]float64{}
		for line := range strings.Lines(out.String()) {
			f := strings.Fields(line)
			if len(f) < 4 || f[0] == "#" || f[3] == "-" {
				continue
			}
			if pid, err := strconv.Atoi(f[1]); err == nil {
				found[pid] += number(t, f[3]) / 100 / float64(seconds)
			}
		}
		return found
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Errorf("nvidia-smi: %v", err)
	}
	return v
}
