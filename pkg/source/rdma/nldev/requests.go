// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// Devices lists the devices of the network namespace in which dial opens a socket (GET).
func Devices(dial Dialer, deadline time.Time) ([]Device, error) {
	return dump(dial, Request{Cmd: CmdGet}, deadline, parseDevice)
}

// Resources returns the number of objects of all devices (RES_GET).
func Resources(dial Dialer, deadline time.Time) ([]model.Resource, error) {
	return dump(dial, Request{Cmd: CmdResGet}, deadline, parseSummary)
}

// Resources returns the number of objects of a device (RES_GET). details includes queue pairs that only a driver knows.
// With an error it returns the objects that were read.
func (c *Conn) Resources(index uint32, details bool, deadline time.Time) (all []model.Resource, err error) {
	r := Request{Cmd: CmdResGet, Index: &index}
	if details {
		r.Attrs = allQueuePairs
	}
	err = c.Request(r, deadline, func(payload []byte) (err error) {
		all, err = parseSummary(all, payload)
		return err
	})
	return all, err
}

// Counters appends the hardware counters of a port (STAT_GET). For intern see parseStats.
func (c *Conn) Counters(
	index, port uint32, counters []model.Counter, intern func([]byte) (string, bool), deadline time.Time,
) ([]model.Counter, error) {
	err := c.Request(Request{Cmd: CmdStatGet, Index: &index, Port: port}, deadline, func(payload []byte) (err error) {
		counters, err = parseStats(counters, payload, intern)
		return err
	})
	return counters, err
}

// Shared reports whether all namespaces show all devices (SYS_GET). Kernels before
// 5.2 have no other mode.
func Shared(dial Dialer, deadline time.Time) (yes bool, err error) {
	c, err := dial()
	if err != nil {
		return false, err
	}
	defer c.Close()
	yes = true
	err = c.Request(Request{Cmd: CmdSysGet}, deadline, func(payload []byte) (err error) {
		yes, err = parseShared(payload)
		return err
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return true, nil
	}
	return yes, err
}
