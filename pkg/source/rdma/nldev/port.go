// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"fmt"
	"time"

	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// The words of the files state and phys_state for enum ib_port_state and enum ib_port_phys_state (state_show and
// phys_state_show in drivers/infiniband/core/sysfs.c).
var (
	portStates = []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	physStates = []string{
		"", "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test",
	}
)

// Port reads the state and the LIDs of a port (PORT_GET), for which the kernel queries the port once (ib_query_port in
// fill_port_info). The kernel answers with the type of GET (nldev_port_get_doit). It also acknowledges, so that an answer
// with another type is not awaited.
func (c *Conn) Port(index, port uint32, deadline time.Time) (s sysfs.PortState, err error) {
	r := Request{Cmd: CmdPortGet, Acknowledge: true, Index: &index, Port: port}
	answered := false
	err = c.Ask(r.encode(), MessageType(CmdGet), deadline, func(payload []byte) (err error) {
		answered = true
		s, err = parsePort(payload)
		return err
	})
	if err == nil && !answered {
		err = netlink.ErrMalformed
	}
	if err != nil {
		return sysfs.PortState{}, fmt.Errorf("RDMA netlink: PORT_GET: %w", err)
	}
	return s, nil
}

func parsePort(payload []byte) (s sysfs.PortState, err error) {
	present := 0
	a := netlink.Parse(payload)
	for a.Next() {
		switch a.Type {
		case AttrPortState:
			s.State = word(portStates, a.U8(), "UNKNOWN")
			present++
		case AttrPortPhys:
			s.PhysState = word(physStates, a.U8(), "<unknown>")
			present++
		case AttrLID:
			s.LID = fmt.Sprintf("%#x", a.U32())
		case AttrSMLID:
			s.SMLID = fmt.Sprintf("%#x", a.U32())
		}
	}
	if a.Err == nil && present != 2 {
		a.Err = fmt.Errorf("%w: no state of a port", netlink.ErrMalformed)
	}
	return s, a.Err
}

func word(words []string, i uint8, unknown string) string {
	if int(i) < len(words) && words[i] != "" {
		return words[i]
	}
	return unknown
}
