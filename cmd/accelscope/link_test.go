// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestLinks runs the program on a fake node. Its sysfs is a copy, so drivers are not asked: this machine's drivers would answer. Carriers
// come from the copy, for the interfaces of physical functions only.
func TestLinks(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	m, args := fakeNode(t)
	args = slices.DeleteFunc(args, func(arg string) bool { return arg == "--no-collector.link" })
	url, stop := start(t, build(t), args...)
	flaps := func(value int) []string {
		var want []string
		for _, h := range m.HCAs {
			if h.Netdev != "" && h.PhysicalFn == "" {
				want = append(want, fmt.Sprintf(`rdma_port_link_flaps_total{device=%q,netdev=%q,port="1"} %d`, h.Name, h.Netdev, value))
			}
		}
		return want
	}
	got := scrape(t, url)
	want := flaps(0)
	if n := strings.Count(got.body, "\nrdma_port_link_flaps_total{"); n != len(want) || n == 0 {
		t.Errorf("%d links, want %d", n, len(want))
	}
	for _, series := range want {
		if !strings.Contains(got.body, series) {
			t.Errorf("no %s", series)
		}
	}
	if state := got.states("accelscope_source_state")["link"]; state != "unsupported" {
		t.Errorf("the source is %s", state)
	}
	if strings.Contains(got.body, "rdma_port_fec") || strings.Contains(got.body, "rdma_port_link_read") {
		t.Error("a driver of this machine was asked")
	}
	for _, h := range m.HCAs {
		if h.Netdev == "" || h.PhysicalFn != "" {
			continue
		}
		// A loss and the end of it. The changes are last, as the losses are read after them.
		for _, file := range [][2]string{{"carrier_down_count", "1\n"}, {"carrier_changes", "3\n"}} {
			if err := os.WriteFile(filepath.Join(m.SysFS(), "class/net", h.Netdev, file[0]), []byte(file[1]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for end := time.Now().Add(quickly); ; time.Sleep(1100 * time.Millisecond) {
		body := scrape(t, url).body
		if !slices.ContainsFunc(flaps(1), func(series string) bool { return !strings.Contains(body, series) }) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("flaps are not counted:\n%s", body)
		}
	}
	ends(t, stop)
}
