// SPDX-License-Identifier: Apache-2.0

package vf

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// maxInterfaces bounds the network interfaces tried per physical function: in switchdev mode each virtual function has
// a representor there.
const maxInterfaces = 16

// askInterfaces asks the network interfaces of a function (device/net/*) until one reports its n virtual functions, and
// returns the name of that interface. It starts with the interface that reported them last time, then tries the
// interface of the HCA's port, then shorter names before longer ones: representors and the IPoIB interfaces of other
// partitions have longer names.
func (f *Functions) askInterfaces(r *sysfs.Reader, h *model.HCA, n int, before string, deadline time.Time,
) (link, string, error) {
	names := r.Directory(unix.AT_FDCWD, filepath.Join(f.class, h.Name, "device/net"), sysfs.ValidInterface)
	rank := func(name string) int {
		switch {
		case name == before:
			return 0
		case slices.ContainsFunc(h.Ports, func(p model.Port) bool { return p.Netdev == name }):
			return 1
		}
		return 1 + len(name)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	for _, name := range names[:min(len(names), maxInterfaces)] {
		l, err := f.askInterface(name, n, deadline)
		switch {
		case errors.Is(err, unix.ENODEV): // renamed, or not in this network namespace
			continue
		case err != nil && !l.listed:
			return link{}, "", fmt.Errorf("%s: %w", name, err)
		case l.listed && l.count == n && (l.parent == "" || l.parent == h.PCIAddress):
			if err != nil {
				err = fmt.Errorf("%s reports %d of %d: %w", name, l.known(), n, err)
			}
			return l, name, err
		}
	}
	return link{}, "", nil
}

// askInterface requests the virtual functions of one network interface; it expects n. The buffer grows with n:
// nl.NetlinkSocket.Receive (netlink v1.3.1) has 64 KiB and fails with EINVAL on a longer reply, which some 200
// functions need.
func (f *Functions) askInterface(name string, n int, deadline time.Time) (l link, err error) {
	c, err := f.dial()
	if err != nil {
		return l, err
	}
	defer c.Close()
	c.Buffer = make([]byte, netlink.BufferSize+512*n)
	err = c.Ask(linkRequest(name), unix.RTM_NEWLINK, deadline, func(payload []byte) (err error) {
		l, err = parseLink(payload)
		return err
	})
	if err != nil {
		err = fmt.Errorf("rtnetlink: %w", err)
	}
	return l, err
}

// dial opens an rtnetlink socket.
func dial() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	return c, nil
}
