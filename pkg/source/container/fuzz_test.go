// SPDX-License-Identifier: Apache-2.0

package container

import (
	"math"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// FuzzParse passes the same bytes to all parsers: they do not panic, and return no value for an invalid number.
func FuzzParse(f *testing.F) {
	for _, text := range fakeV2() {
		f.Add([]byte(text))
	}
	for _, text := range fakeV1("") {
		f.Add([]byte(text))
	}
	for _, text := range []string{netDev, partitions, "max 100000\n", "-1\n", "8:0\n", "8:0 rbytes=\n", "some total=x\n", ":\n", "="} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		lines := strings.Count(string(b), "\n") + 1
		sound := func(values ...model.Optional) {
			for _, v := range values {
				if math.IsNaN(v.Value) || v.Value < 0 || !v.Known && v.Value != 0 {
					t.Errorf("%v", v)
				}
			}
		}
		if v, ok := limit(b); ok {
			sound(model.Some(v))
		}
		var skipped boundedfile.Skipped
		n := 0
		pairs(b, &skipped, func(key []byte, v float64) {
			n++
			sound(model.Some(v))
			if strings.ContainsAny(string(key), " \n") {
				t.Errorf("key %q", key)
			}
		})
		var some, full model.Optional
		parsePressure(b, &skipped, &some, &full)
		sound(some, full)
		devices := parseIO(b, &skipped)
		for _, d := range devices {
			sound(d.ReadBytes, d.WriteBytes, d.DiscardBytes, d.Reads, d.Writes)
		}
		operations := 0
		parseBlkio(b, &skipped, func(_, _ uint32, _ string, v float64) {
			operations++
			sound(model.Some(v))
		})
		interfaces, tooMany := parseNetDev(b, &skipped)
		for _, i := range interfaces {
			if ignored([]byte(i.Name)) {
				t.Errorf("interface %q", i.Name)
			}
		}
		if len(interfaces) > maxInterfaces || max(n, len(devices), operations, len(interfaces)+int(tooMany)) > lines {
			t.Errorf("more than %d lines", lines)
		}
		for _, name := range parsePartitions(b, &skipped) {
			if !strings.HasPrefix(name, "/dev/") {
				t.Errorf("disk %q", name)
			}
		}
	})
}
