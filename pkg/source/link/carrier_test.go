// SPDX-License-Identifier: Apache-2.0

package link

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestFlaps goes through readings of an interface, 5 s apart.
func TestFlaps(t *testing.T) {
	type reading struct {
		admin, up bool
		downs     uint64
	}
	up := func(downs uint64) reading { return reading{true, true, downs} }
	down := func(downs uint64) reading { return reading{true, false, downs} }
	off := func(downs uint64) reading { return reading{false, false, downs} }
	for name, c := range map[string]struct {
		readings []reading
		flaps    uint64   // at the end
		lasted   []uint64 // seconds that each flap lasted
	}{
		"steady":                         {[]reading{up(7), up(7), up(7)}, 0, nil},
		"down at the start":              {[]reading{down(7), down(7), up(7)}, 0, nil},
		"down for 10 s":                  {[]reading{up(0), down(1), down(1), up(1)}, 1, []uint64{10}},
		"shorter than the interval":      {[]reading{up(0), up(1), up(1)}, 1, []uint64{0}},
		"three times within an interval": {[]reading{up(0), up(3), up(3)}, 3, []uint64{0}},
		"still down":                     {[]reading{up(0), down(1), down(1)}, 0, nil},
		"twice before it is up":          {[]reading{up(0), down(1), down(2), up(2), up(2)}, 2, []uint64{10}},
		"set down and up":                {[]reading{up(0), off(1), off(1), up(1), up(1)}, 0, nil},
		"lost, then set down":            {[]reading{up(0), down(1), off(1), down(1), up(1)}, 0, nil},
		"set up without a carrier":       {[]reading{off(1), down(1), up(1), up(2)}, 1, []uint64{0}},
	} {
		w := &carrierWatch{last: carrierReading{c.readings[0].admin, c.readings[0].up, 0, c.readings[0].downs}}
		now := time.Unix(1000, 0)
		var lasted []uint64
		for _, r := range c.readings[1:] {
			now = now.Add(5 * time.Second)
			if f, ended := w.observe(carrierReading{r.admin, r.up, 0, r.downs}, now); ended {
				lasted = append(lasted, uint64(f.Up.Sub(f.Down)/time.Second))
			}
		}
		if w.flaps != c.flaps || !cmp.Equal(lasted, c.lasted) {
			t.Errorf("%s: %d flaps of %v s, want %d of %v s", name, w.flaps, lasted, c.flaps, c.lasted)
		}
	}
}

// TestReason: a flap has the reason that the driver reported while the link was down, and no earlier reason.
func TestReason(t *testing.T) {
	w := &carrierWatch{last: carrierReading{admin: true, up: true}}
	now := time.Unix(1000, 0)
	w.explain(&model.Phy{Reason: "no_cable"}) // up
	w.observe(carrierReading{true, false, 1, 1}, now)
	w.explain(&model.Phy{Reason: "link_training_failure", Detail: "remote_fault"})
	w.explain(&model.Phy{})
	f, ended := w.observe(carrierReading{true, true, 2, 1}, now)
	if !ended || f.Reason != "link_training_failure" || f.Detail != "remote_fault" {
		t.Errorf("%+v", f)
	}
	if f, _ = w.observe(carrierReading{true, true, 4, 2}, now); f.Losses != 1 || f.Reason != "" {
		t.Errorf("the next: %+v", f)
	}
	if w.changed != now {
		t.Errorf("changed at %v", w.changed)
	}
}

// TestSteadyCarrier: if the carrier is unchanged, only the state and the changes are read. A loss is known before the
// state.
func TestSteadyCarrier(t *testing.T) {
	dir := t.TempDir()
	write := func(name, value string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("flags", "0x1003")
	write("operstate", "up")
	write("carrier_changes", "3")
	write("carrier_down_count", "1")
	buf := make([]byte, 64)
	last := carrierReading{}
	for _, c := range []struct {
		file, value string
		want        carrierReading
	}{
		{"operstate", "up", carrierReading{true, true, 3, 1}},
		{"carrier_down_count", "2", carrierReading{true, true, 3, 1}}, // cannot be
		{"carrier_changes", "5", carrierReading{true, true, 5, 2}},
		{"carrier_down_count", "3", carrierReading{true, true, 5, 2}},
		{"carrier_changes", "6", carrierReading{true, false, 6, 3}}, // lost, and operstate is late
		{"operstate", "down", carrierReading{true, false, 6, 3}},
		{"flags", "0x1002", carrierReading{false, false, 6, 3}},
		{"operstate", "up", carrierReading{false, true, 6, 3}},
	} {
		write(c.file, c.value)
		got, ok := readCarrier(dir, buf, last)
		if last = got; !ok || got != c.want {
			t.Errorf("%s is %s: %+v, %v", c.file, c.value, got, ok)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, ok := readCarrier(dir, buf, carrierReading{true, true, 6, 3}); ok {
		t.Error("an interface that is gone")
	}
}

func TestParseCarrier(t *testing.T) {
	for state, up := range map[string]bool{
		"up": true, "unknown": true, "dormant": true, "testing": true, "down": false, "lowerlayerdown": false, "notpresent": false, "": false,
	} {
		if r, ok := parseCarrier("0x1003", state, "9", "4"); !ok || r != (carrierReading{true, up, 9, 4}) {
			t.Errorf("%q: %+v, %v", state, r, ok)
		}
	}
	if r, ok := parseCarrier("0x1002", "down", "9", "4"); !ok || r.admin {
		t.Errorf("set down: %+v, %v", r, ok)
	}
	if _, ok := parseCarrier("", "up", "", ""); ok {
		t.Error("an interface that is gone")
	}
}
