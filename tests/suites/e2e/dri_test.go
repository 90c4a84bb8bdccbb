// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// driDevice is an entry of /driMapping.
type driDevice struct {
	Card       string `json:"card"`
	Render     string `json:"render"`
	PCIAddress string `json:"pci_addr"`
	CardID     int    `json:"card_id"`
}

// driMapping requests /driMapping of the sensor. A response without cards is not an error.
func (s *sensor) driMapping() (map[string]driDevice, error) {
	res, err := http.Get(s.url + "/driMapping")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var envelope struct {
		Code    *int                 `json:"code"`
		Data    map[string]driDevice `json:"data"`
		Message string               `json:"message"`
	}
	if err := json.NewDecoder(res.Body).Decode(&envelope); err != nil {
		return nil, fmt.Errorf("/driMapping: %s: %w", res.Status, err)
	}
	if res.StatusCode != http.StatusOK || envelope.Code == nil || *envelope.Code != 0 {
		return nil, fmt.Errorf("/driMapping: %s: %+v", res.Status, envelope)
	}
	return envelope.Data, nil
}

// dri: /driMapping equals the content of /dev/dri and udev's links, and follows when the driver is loaded and unloaded.
func (n node) dri(t *testing.T) {
	s := start(t)
	want := func(devices map[string]driDevice) {
		t.Helper()
		took := eventually(t, 20*time.Second, func() error {
			got, err := s.driMapping()
			if err != nil {
				return err
			}
			if !maps.Equal(got, devices) {
				return fmt.Errorf("/driMapping is %+v, /dev/dri is %+v", got, devices)
			}
			return nil
		})
		t.Logf("%d cards after %v", len(devices), took.Round(time.Millisecond))
	}
	unload := func() { sh(t, "modprobe", "-r", "virtio_gpu") }
	unload() // an earlier scenario may have left the driver loaded
	want(nil)
	sh(t, "modprobe", "virtio_gpu")
	t.Cleanup(func() { _ = child.Command(context.Background(), "modprobe", "-r", "virtio_gpu").Run() })
	devices := byPath(t)
	if len(devices) == 0 {
		t.Fatal("virtio_gpu has made no card: is there no virtio-gpu-pci in the guest?")
	}
	for name, d := range devices {
		if d.Card == "" || d.Render == "" {
			t.Errorf("%s: %+v: virtio-gpu has a card and a render node", name, d)
		}
	}
	want(devices)
	unload()
	want(nil)
	sh(t, "modprobe", "virtio_gpu")
	want(devices)
	s.stop()
}

// byPath is the ground truth: the links that udev makes in /dev/dri/by-path, whose targets are the kernel's character
// devices. Before this scenario the guest has no udev.
func byPath(t *testing.T) map[string]driDevice {
	t.Helper()
	udev := child.Command(context.Background(), "/lib/systemd/systemd-udevd")
	if err := udev.Start(); err != nil {
		t.Fatalf("apt-get install udev, which makes /dev/dri/by-path: %v", err)
	}
	defer func() {
		_ = udev.Process.Kill()
		_ = udev.Wait()
	}()
	eventually(t, 30*time.Second, func() error { return child.Command(context.Background(), "udevadm", "control", "--ping").Run() })
	sh(t, "udevadm", "trigger", "--action=add", "--subsystem-match=drm")
	sh(t, "udevadm", "settle", "--timeout=30")

	links, err := filepath.Glob("/dev/dri/by-path/pci-*")
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]driDevice{} // by PCI address
	pattern := regexp.MustCompile(`/pci-([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])-(card|render)$`)
	for _, link := range links {
		m := pattern.FindStringSubmatch(link)
		if m == nil {
			continue
		}
		target, err := filepath.EvalSymlinks(link)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(target, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != 226 {
			t.Fatalf("%s is no device of DRM: %+v, %v", target, st, err)
		}
		d := functions[m[1]]
		d.PCIAddress = m[1]
		if m[2] == "card" {
			d.Card, d.CardID = target, int(unix.Minor(st.Rdev))
		} else {
			d.Render = target
			if want := "/dev/dri/renderD" + strconv.Itoa(int(unix.Minor(st.Rdev))); target != want {
				t.Errorf("the device %d is %s, not %s", unix.Minor(st.Rdev), target, want)
			}
		}
		functions[m[1]] = d
	}
	devices := map[string]driDevice{}
	for _, d := range functions {
		devices[d.Card] = d
	}
	cards, err := filepath.Glob("/dev/dri/card*")
	if err != nil {
		t.Fatal(err)
	}
	if len(cards) != len(devices) {
		entries, _ := os.ReadDir("/dev/dri/by-path")
		t.Fatalf("/dev/dri has %v, by-path has %v", cards, entries)
	}
	return devices
}
