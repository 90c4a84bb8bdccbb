// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestUevents sends messages as the kernel does, to the group that it sends to.
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
