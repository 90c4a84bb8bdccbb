// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
)

// TestWatch: devices are listed soon after the last of several announcements, otherwise every 2 s, and more often if
// announcements are unavailable. The class directory is a file, so each attempt to list devices fails and is logged.
func TestWatch(t *testing.T) {
	file := filepath.Join(t.TempDir(), "infiniband")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		s := &Source{opts: Options{Logger: zap.New(core)}, devices: newListing(file), uverbs: newListing(file)}
		began := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), 5200*time.Millisecond)
		defer stop()
		changed := make(chan struct{}, 1)
		go func() {
			time.Sleep(time.Second)
			for range 3 { // a driver adds one device after the other
				changed <- struct{}{}
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(time.Until(began.Add(4 * time.Second)))
			close(changed)
		}()
		s.watch(ctx, changed)
		var got []time.Duration
		for _, entry := range logs.All() {
			got = append(got, entry.Time.Sub(began).Round(time.Millisecond))
		}
		ms := time.Millisecond
		if want := []time.Duration{500 * ms, 1700 * ms, 3700 * ms, 4000 * ms, 4500 * ms, 5000 * ms}; !slices.Equal(got, want) {
			t.Errorf("listed after %v, want %v", got, want)
		}
	})
}

// TestUevents sends messages as the kernel does, to the kernel's group.
func TestUevents(t *testing.T) {
	u, err := openUevents()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const header = "add@/devices/pci0000:00/0000:00:03.0/infiniband/mlx5_0\x00ACTION=add\x00"
	message := header + "SUBSYSTEM=infiniband\x00NAME=mlx5_0\x00SEQNUM=1234\x00"
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: ueventGroup}
	for range 2 {
		if err := unix.Sendto(fd, []byte(message), 0, to); err != nil {
			t.Fatal(err) // needs CAP_NET_ADMIN
		}
		select {
		case <-u.changed:
		case <-time.After(10 * time.Second):
			t.Fatal("a new device is not announced")
		}
	}
	u.close()
	for range u.changed { // until it is closed
	}
	for name, c := range map[string]struct {
		message string
		want    bool
	}{
		"HCA":           {message, true},
		"uverbs device": {header + "SUBSYSTEM=infiniband_verbs\x00", true},
		"interface":     {"add@/devices/virtual/net/SUBSYSTEM=infiniband\x00ACTION=add\x00SUBSYSTEM=net\x00", false},
		"empty":         {"", false},
	} {
		if got := isRDMA([]byte(c.message)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
