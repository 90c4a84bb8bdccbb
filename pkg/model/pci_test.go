// SPDX-License-Identifier: Apache-2.0

package model

import (
	"reflect"
	"testing"
)

// TestPossible: both ends of a link limit its speed and width, unless an end does not report them.
func TestPossible(t *testing.T) {
	for _, c := range []struct {
		own, up PCILink
		speed   float64
		width   int
	}{
		{PCILink{MaxSpeed: 32, MaxWidth: 16}, PCILink{MaxSpeed: 16, MaxWidth: 8}, 16, 8},
		{PCILink{MaxSpeed: 16, MaxWidth: 8}, PCILink{MaxSpeed: 32, MaxWidth: 16}, 16, 8},
		{PCILink{MaxSpeed: 32, MaxWidth: 16}, PCILink{}, 32, 16},
		{PCILink{}, PCILink{MaxSpeed: 32, MaxWidth: 16}, 0, 0},
	} {
		f := PCIFunction{PCIEnd: PCIEnd{Link: c.own}}
		f.Upstream.Link = c.up
		if speed, width := f.Possible(); speed != c.speed || width != c.width {
			t.Errorf("%+v and %+v: %v, %d, want %v, %d", c.own, c.up, speed, width, c.speed, c.width)
		}
	}
}

func TestErrors(t *testing.T) {
	var f PCIFunction
	if got := f.Errors(nil); len(got) != 0 {
		t.Errorf("without AER: %v", got)
	}
	f.AER = []AERErrors{{Severity: "correctable", Total: 3}, {Severity: "fatal", Total: 1}}
	f.Upstream.AER = []AERErrors{{Severity: "nonfatal", Total: 5}, {Severity: "correctable", Total: 4}}
	want := []Counter{{Name: "correctable", Value: 7}, {Name: "fatal", Value: 1}, {Name: "nonfatal", Value: 5}}
	if got := f.Errors(nil); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestIsDataDirect has the numbers of pci.ids.
func TestIsDataDirect(t *testing.T) {
	for id, want := range map[string]bool{"15b3:2100": true, "15b3:1023": false, "": false} {
		if f := (PCIFunction{ID: id}); f.IsDataDirect() != want {
			t.Errorf("%q: %t, want %t", id, !want, want)
		}
	}
}
