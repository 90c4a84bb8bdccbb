// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxInterfaces is how many network interfaces of one function are tried: in the
// switchdev mode each virtual function has a representor there.
const maxInterfaces = 16

// askInterfaces asks the network interfaces of a function (device/net/*) until one
// tells of its n virtual functions, and gives its name. The first is the one that
// told before, the next that of the HCA's port: neither a representor nor an IPoIB
// interface of another partition, whose names are longer, too.
func (s *Source) askInterfaces(r *reader, h *model.HCA, n int, before string, deadline time.Time,
) (link, string, error) {
	names := r.directory(filepath.Join(s.root, h.Name, "device/net"), validInterface)
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
		l, err := s.askInterface(name, n, deadline)
		switch {
		case errors.Is(err, unix.ENODEV): // renamed, or not in this network namespace
			continue
		case err != nil && !l.told:
			return link{}, "", fmt.Errorf("%s: %w", name, err)
		case l.told && l.count == n && (l.parent == "" || l.parent == h.PCIAddress):
			if err != nil {
				err = fmt.Errorf("%s tells of %d of %d: %w", name, l.known(), n, err)
			}
			return l, name, err
		}
	}
	return link{}, "", nil
}

// askInterface asks for what one network interface tells of virtual functions, n of
// which are expected.
func (s *Source) askInterface(name string, n int, deadline time.Time) (l link, err error) {
	c, err := s.dialLink()
	if err != nil {
		return l, err
	}
	defer c.close()
	c.buf = make([]byte, recvBuffer+512*n)
	err = c.ask(linkRequest(name, 1), unix.RTM_NEWLINK, deadline, func(payload []byte) (err error) {
		l, err = parseLink(payload)
		return err
	})
	if err != nil {
		err = fmt.Errorf("rtnetlink: %w", err)
	}
	return l, err
}

// dialLink opens a socket of rtnetlink.
func dialLink() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: %w", err)
	}
	return &conn{fd: fd}, nil
}

// validInterface accepts what the kernel does (dev_valid_name).
func validInterface(name string) bool {
	return len(name) > 0 && len(name) < unix.IFNAMSIZ && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n")
}
