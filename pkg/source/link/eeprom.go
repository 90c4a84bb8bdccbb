// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/link/module"
)

// This file reads the EEPROM of modules by ETHTOOL_MSG_MODULE_EEPROM_GET. A new module takes up to 8 requests for 230
// bytes in all, a known module up to 5 for 72 bytes. mlx5 makes one to three firmware commands per request.

const moduleInterval = 5 * time.Minute

// ModuleDetail selects what is read of modules and listed: by default everything except lanes and thresholds.
type ModuleDetail struct {
	Off        bool // modules are not read
	Lanes      bool // bias and optical power of each lane are listed
	Thresholds bool // thresholds are listed
}

const (
	cmdModule = 31 // ETHTOOL_MSG_MODULE_EEPROM_GET, since Linux 5.13. It needs CAP_NET_ADMIN

	moduleOffset     = 2 // ETHTOOL_A_MODULE_EEPROM_OFFSET: u32
	moduleLength     = 3 // ETHTOOL_A_MODULE_EEPROM_LENGTH: u32, at most 128
	modulePage       = 4 // ETHTOOL_A_MODULE_EEPROM_PAGE: u8
	moduleI2CAddress = 6 // ETHTOOL_A_MODULE_EEPROM_I2C_ADDRESS: u8
	moduleData       = 7 // ETHTOOL_A_MODULE_EEPROM_DATA: binary
)

// moduleRequest asks for a range of the module's memory. The kernel refuses the flag for statistics here.
func moduleRequest(index int, r module.Read) []byte {
	b := netlink.Append(nil, attrHeader|unix.NLA_F_NESTED, netlink.AppendU32(nil, headerIndex, uint32(index))...)
	b = netlink.AppendU32(b, moduleOffset, uint32(r.Offset))
	b = netlink.AppendU32(b, moduleLength, uint32(r.Length))
	i2c, page := r.Address()
	b = netlink.Append(b, modulePage, page)
	b = netlink.Append(b, moduleI2CAddress, i2c)
	return genericRequest(cmdModule, b)
}

func parseModule(b []byte) (data []byte, err error) {
	err = walk(b, func(a *netlink.Attrs) {
		if a.Type == moduleData {
			data = a.Data
		}
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

// errLate ends the reading of a slow module.
var errLate = errors.New("the module takes too long")

// readModule reads the module. If this fails, the interface has no error: there may be no module.
func (r *driverReader) readModule(k kernel, now time.Time) error {
	begin := time.Now()
	err := r.moduleMemory.Refresh(func(read module.Read) ([]byte, error) {
		if time.Since(begin) >= limit {
			return nil, errLate
		}
		b, err := k.module(r.index, read)
		if err != nil {
			return nil, err
		}
		return parseModule(b)
	})
	r.moduleFacts = nil
	if errors.Is(err, unix.EOPNOTSUPP) && !r.moduleMemory.Known() {
		return unix.EOPNOTSUPP
	}
	r.moduleFacts = &model.LinkModule{Read: now}
	if r.moduleMemory.Known() {
		r.moduleFacts = moduleFacts(r.moduleMemory.Decode(), r.moduleDetail)
		r.moduleFacts.Read = now
	}
	r.moduleFacts.Problem = moduleProblem(err, r.moduleMemory.Known())
	return nil
}

// moduleProblem returns the problem of a reading. known is whether the type of the module could be read.
func moduleProblem(err error, known bool) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.EPERM):
		return model.ModuleForbidden
	case known:
		return model.ModuleIncomplete
	}
	return model.ModuleUnreadable
}

func moduleFacts(d module.Module, detail ModuleDetail) *model.LinkModule {
	m := &model.LinkModule{
		Type: d.Type, Vendor: d.Vendor, PartNumber: d.PartNumber, Revision: d.Revision, Serial: d.Serial, Technology: d.Technology,
		Length: d.Length, Temperature: d.Temperature, Voltage: d.Voltage,
	}
	if d.State != module.StateUnknown {
		m.Fault = new(d.State == module.StateFault)
	}
	for _, a := range d.Assess() {
		m.Checks = append(m.Checks, model.ModuleCheck{Value: a.Value, Alarm: int(a.Severity), Margin: a.Margin})
	}
	if detail.Lanes {
		for _, lane := range d.Lanes {
			m.Lanes = append(m.Lanes, model.LinkLane{Bias: lane.Bias, ReceivePower: lane.ReceivePower, TransmitPower: lane.TransmitPower})
		}
	}
	if detail.Thresholds {
		m.Thresholds = moduleThresholds(d.Thresholds)
	}
	return m
}

func moduleThresholds(thresholds module.Thresholds) (list []model.ModuleThreshold) {
	add := func(value string, r *module.Range, kind string) {
		if r != nil {
			list = append(list,
				model.ModuleThreshold{Value: value, Threshold: "high_" + kind, At: r.High},
				model.ModuleThreshold{Value: value, Threshold: "low_" + kind, At: r.Low},
			)
		}
	}
	for _, l := range []struct {
		value string
		module.Threshold
	}{
		{model.ModuleTemperature, thresholds.Temperature},
		{model.ModuleVoltage, thresholds.Voltage},
		{model.ModuleBias, thresholds.Bias},
		{model.ModuleReceivePower, thresholds.ReceivePower},
		{model.ModuleTransmitPower, thresholds.TransmitPower},
	} {
		add(l.value, l.Alarm, "alarm")
		add(l.value, l.Warning, "warning")
	}
	return list
}
