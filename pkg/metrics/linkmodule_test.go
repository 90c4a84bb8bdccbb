// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

// fullModule returns an optical module with all default values.
func fullModule() *model.LinkModule {
	p := func(v float64) *float64 { return &v }
	fault := false
	m := &model.LinkModule{
		Read: time.Unix(1700000000, 0), Type: "QSFP-DD", Vendor: "Constructed", PartNumber: "QDD-SR8", Revision: "01", Serial: "CMIS-4711",
		Technology: "850 nm VCSEL", Fault: &fault, Temperature: p(58.25), Voltage: p(3.31),
	}
	for i, value := range []string{
		model.ModuleTemperature, model.ModuleVoltage, model.ModuleBias, model.ModuleReceivePower, model.ModuleTransmitPower,
	} {
		m.Checks = append(m.Checks, model.ModuleCheck{Value: value, Alarm: i - 2, Margin: p(float64(i) / 10)})
	}
	return m
}

// moduleFacts returns a module with all details, a passive cable, and a module that cannot be read.
func moduleFacts() model.Snapshot {
	p := func(v float64) *float64 { return &v }
	detailed := fullModule()
	detailed.Lanes = []model.LinkLane{{Bias: p(7e-3), ReceivePower: p(0.9e-3), TransmitPower: p(1e-3)}, {ReceivePower: p(0)}}
	for i, c := range detailed.Checks {
		detailed.Thresholds = append(detailed.Thresholds, model.ModuleThreshold{Value: c.Value, Threshold: "high_alarm", At: float64(i + 1)})
	}
	cable := &model.LinkModule{
		Read: time.Unix(1700000000, 0), Type: "QSFP28", Vendor: "A \"vendor\"",
		Technology: "copper, unequalized", Length: p(0.5),
	}
	return model.Snapshot{
		LinkFlaps: []model.LinkFlap{},
		Links: []model.Link{
			{Device: "mlx5_0", Port: 1, Netdev: "eth0", Module: detailed},
			{Device: "mlx5_1", Port: 1, Netdev: "eth1", Module: cable},
			{Device: "mlx5_2", Port: 1, Netdev: "eth2", Module: &model.LinkModule{Problem: model.ModuleForbidden, Read: time.Unix(1700000000, 0)}},
		},
	}
}

// TestModuleBudget: an optical module has at most 15 series by default.
func TestModuleBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		series := func(module *model.LinkModule) int {
			facts := model.Snapshot{LinkFlaps: []model.LinkFlap{}, Links: []model.Link{{Device: "mlx5_0", Port: 1, Netdev: "eth0", Module: module}}}
			c := newCollector(setup{Sources: []engine.Registration{{Source: &fake{name: "link", facts: facts}}}})
			defer c.Close() //nolint:errcheck // nothing to lose
			_, all, _ := seriesOf(t, c)
			return all
		}
		if n := series(fullModule()) - series(nil); n > 15 || n < 10 {
			t.Errorf("%d series for a module, want at most 15", n)
		} else {
			t.Logf("%d series for a module", n)
		}
	})
}
