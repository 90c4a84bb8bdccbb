// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
)

// maxModules bounds the kernel modules with protection domains on one device.
const maxModules = 64

// Domains counts the protection domains of a device by their users (RES_PD_GET). After an error c cannot be used: the
// rest of the list may follow.
//
// Protection domains show the users of the device in the kernel better than queue pairs do, because the kernel lists
// all of them. The kernel makes a varying number of queue pairs for management datagrams and memory registrations
// (mlx5: one for each P_Key or port of a bond). It does not list all queue pairs of processes: DCT of mlx5 never, DCI
// only with RDMA_NLDEV_ATTR_DRIVER_DETAILS. And it queries the firmware for each queue pair that it lists.
func (c *Conn) Domains(index uint32, deadline time.Time) ([]model.Domains, error) {
	all := []model.Domains{{}}
	err := c.Request(Request{Cmd: CmdPDGet, dump: true, Index: &index}, deadline, func(payload []byte) (err error) {
		all, err = parseDomains(all, payload)
		return err
	})
	return all, err
}

// parseDomains adds the protection domains of one message to the counts.
func parseDomains(counts []model.Domains, payload []byte) ([]model.Domains, error) {
	err := walkTable(payload, AttrPD, AttrPD+1, func(b []byte) error {
		var module []byte
		var used uint64
		a := netlink.Parse(b)
		for a.Next() {
			switch a.Type {
			case AttrKernName:
				module = a.Text()
			case AttrUseCount:
				used = a.U64()
			}
		}
		if a.Err != nil {
			return a.Err
		}
		i := slices.IndexFunc(counts, func(c model.Domains) bool { return c.Module == string(module) })
		if i < 0 {
			var err error
			if counts, err = appendMax(counts, model.Domains{Module: string(module)}, maxModules); err != nil {
				return err
			}
			i = len(counts) - 1
		}
		counts[i].Count++
		if used > 0 {
			counts[i].Used++
		}
		return nil
	})
	return counts, err
}
