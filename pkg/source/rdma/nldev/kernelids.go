// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
)

// KernelIDs lists the connection manager ids of kernel modules on a device (RES_CM_ID_GET), without a query of the
// firmware. After an error c cannot be used: the rest of the list may follow.
//
// They show the module and the queue pair of each connection. The queue pair's own entry names rdma_cm instead, which
// creates the queue pair for the module.
func (c *Conn) KernelIDs(index uint32, deadline time.Time) (all []model.KernelID, err error) {
	err = c.Request(Request{Cmd: CmdCMIDGet, dump: true, Index: &index}, deadline, func(payload []byte) (err error) {
		all, err = parseKernelIDs(all, payload)
		return err
	})
	return all, err
}

// parseKernelIDs adds the ids of modules in one message. The ids of processes are counted elsewhere.
func parseKernelIDs(all []model.KernelID, payload []byte) ([]model.KernelID, error) {
	err := walkTable(payload, AttrCMID, AttrCMID+1, func(b []byte) (err error) {
		var id model.KernelID
		a := netlink.Parse(b)
		for a.Next() {
			switch a.Type {
			case AttrPortIndex:
				id.Port = a.U32()
			case AttrLQPN:
				id.QPN = a.U32()
			case AttrQPType:
				id.QPType = a.U8()
			case AttrDstAddr:
				id.Remote = address(a.Data)
			case AttrKernName:
				id.Module = string(a.Text())
			}
		}
		if a.Err != nil || id.Module == "" {
			return a.Err
		}
		all, err = appendMax(all, id, maxObjects)
		return err
	})
	return all, err
}

// address returns the IP address in a struct sockaddr_storage. Addresses of other families are invalid.
func address(b []byte) netip.Addr {
	switch {
	case len(b) >= 8 && native.Uint16(b) == unix.AF_INET:
		return netip.AddrFrom4([4]byte(b[4:8]))
	case len(b) >= 24 && native.Uint16(b) == unix.AF_INET6:
		return netip.AddrFrom16([16]byte(b[8:24]))
	}
	return netip.Addr{}
}
