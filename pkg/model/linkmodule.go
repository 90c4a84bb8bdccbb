// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// LinkModule is the transceiver or cable in a port, by its EEPROM.
type LinkModule struct {
	// Problem is why the EEPROM, or part of it, could not be read: a constant below, or empty.
	Problem string
	Read    time.Time // when it was last read

	Type                                 string // "QSFP28"; empty if nothing could be read
	Vendor, PartNumber, Revision, Serial string
	Technology                           string   // "850 nm VCSEL", "copper, unequalized"; empty if unknown
	Length                               *float64 // in meters, of a cable; nil for transceivers with a connector

	Fault       *bool    // the module reports its failure; nil for SFF-8636, which has no such state
	Temperature *float64 // °C
	Voltage     *float64 // V
	Lanes       []LinkLane
	Checks      []ModuleCheck
	Thresholds  []ModuleThreshold
}

// Values of LinkModule.Problem.
const (
	ModuleForbidden  = "permission" // the sensor lacks CAP_NET_ADMIN
	ModuleUnreadable = "unreadable" // no module, or the driver cannot read it
	ModuleIncomplete = "incomplete" // some pages could not be read
)

// LinkLane is an optical lane. Values that the module does not report are nil.
type LinkLane struct {
	Bias                        *float64 // A
	ReceivePower, TransmitPower *float64 // W
}

// Values of a module that have thresholds.
const (
	ModuleTemperature   = "temperature"
	ModuleVoltage       = "voltage"
	ModuleBias          = "bias"
	ModuleReceivePower  = "receive_power"
	ModuleTransmitPower = "transmit_power"
)

// ModuleCheck compares a value, of all lanes, with the module's thresholds.
type ModuleCheck struct {
	Value  string   // a constant above
	Alarm  int      // of the worst lane: 0: no alarm, 1 above the warning threshold, 2 above the alarm threshold, negative below
	Margin *float64 // of the worst lane: distance to the nearer alarm threshold; 0.5 in the middle of the thresholds, negative outside
}

// ModuleThreshold is a threshold of a value.
type ModuleThreshold struct {
	Value     string // a constant above
	Threshold string // high_alarm, low_alarm, high_warning, low_warning
	At        float64
}
