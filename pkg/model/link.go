// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"time"
)

// Link is the link of a network interface behind a port of an HCA, as the driver reports it. Counters count from any
// time, usually the driver's load.
type Link struct {
	// Device and Port are the port of the HCA. They are empty and 0 for a physical function without an HCA whose
	// virtual functions have HCAs.
	Device string
	Port   int
	Netdev string
	Driver string // of the interface: mlx5_core; may be empty
	// Bond is the bond of this leg, or empty. Backup reports that the bond does not send on the leg. SpeedBits is the
	// leg's rate in bits per second, without a carrier the last known rate; 0: unknown.
	Bond      string
	Backup    bool
	SpeedBits float64
	// Read is when the driver last answered for all of the following, zero: never.
	Read time.Time

	DCB    *DCB
	Pause  []PauseCount // nil if the driver does not count pauses
	Storms []PauseStorm
	FEC    *FEC
	Phy    *Phy
	Stalls PCIeStalls
	// Discards are received packets without room in the HCA; nil if the driver does not count them.
	Discards []LinkDiscards
	Module   *LinkModule // nil if the driver cannot read one
	// Carrier is what the kernel itself counts, independent of the driver.
	Carrier *Carrier
}

// PortID is a port of an HCA.
type PortID struct {
	Device string
	Port   int
}

// BondRates returns the rates of ports on bonds in bits per second: the sum of the legs with a carrier on which the
// bond sends. A port with such a leg of unknown rate is left out.
func BondRates(links []Link) map[PortID]float64 {
	rates, unknown := map[PortID]float64{}, map[PortID]bool{}
	for i := range links {
		l := &links[i]
		if l.Bond == "" || l.Device == "" {
			continue
		}
		id := PortID{l.Device, l.Port}
		switch active := l.Carrier != nil && l.Carrier.Up && !l.Backup; {
		case l.Carrier == nil || active && l.SpeedBits <= 0:
			unknown[id] = true
		case active:
			rates[id] += l.SpeedBits
		default:
			rates[id] += 0 // the port has a rate, even if only other legs add to it
		}
	}
	maps.DeleteFunc(rates, func(id PortID, _ float64) bool { return unknown[id] })
	return rates
}

// DCB is the Data Center Bridging configuration of an interface.
type DCB struct {
	PFC [8]bool // priority flow control enabled, by priority
	ETS *ETS    // nil if the driver does not report it
	// Trust is "dscp" if a DSCP is mapped to a priority, otherwise "pcp". Empty if the driver does not report mappings.
	Trust string
}

// ETS is the enhanced transmission selection of an interface.
type ETS struct {
	Classes    [8]uint8 // traffic class of each priority
	Bandwidth  [8]uint8 // percent of each traffic class that is selected by ETS
	Algorithms [8]uint8 // IEEE_8021QAZ_TSA_*: 0 strict, 1 credit-based shaper, 2 ETS, 255 vendor
}

// Values of PauseCount.Priority that are not a priority. Traffic classes are tc0 to tc7.
const (
	GlobalPause  = "global" // pause of the whole link (IEEE 802.3x)
	UnknownPause = "any"    // PFC of any priority: the driver counts them together
)

// PauseCount counts the pause frames of one direction and priority.
type PauseCount struct {
	Transmit bool   // frames that this port sent, to stop the other end
	Priority string // 0 to 7 for priority flow control (PFC), or a constant
	Frames   *uint64
	Micros   *uint64 // time that the direction was paused, in microseconds
}

// PauseStorm counts events in which the port was paused, or paused the other end, for too long.
type PauseStorm struct {
	Type  string // a word of a closed list
	Count uint64
}

// PCIeStalls are the seconds in which an HCA could not read or write memory for more than 30 % of the time, for lack of
// PCIe credits. nil if the driver does not count them.
type PCIeStalls struct{ ReadSeconds, WriteSeconds *uint64 }

// LinkDiscards counts received packets that were dropped.
type LinkDiscards struct {
	Reason string // a word of a closed list: where there was no room
	Count  uint64
}

// FEC is the forward error correction of a link.
type FEC struct {
	Mode          string  // off, baser, rs or llrs; empty if the driver does not report it
	Corrected     *uint64 // blocks with errors that were corrected
	Uncorrectable *uint64 // blocks with errors that could not be corrected
	CorrectedBits *uint64
}

// Phy is the state of the physical link as the driver reports it.
type Phy struct {
	// Reason is why the link is down, Detail a closer reason: words of closed lists, empty if the driver does not
	// report them.
	Reason, Detail string
	Downs          *uint64 // losses of the physical link; nil if the driver does not count them
}

// Carrier is the carrier of an interface.
type Carrier struct {
	Up      bool
	Admin   bool   // administratively up: IFF_UP of the interface, and of the bond that its port follows
	SetDown string // the interface without IFF_UP; empty while Admin is true
	Changes uint64 // carrier_changes
	Downs   uint64 // carrier_down_count
	Flaps   uint64 // losses counted by LinkFlap since the sensor found the interface
	// Changed is when the sensor last noticed a change; zero: no change.
	Changed time.Time
}

// LinkFlap is one loss of the carrier, or several in short succession, that ended while the interface stayed
// administratively up.
type LinkFlap struct {
	ID     uint64 // in the order of time, from 1
	Device string
	Port   int
	Netdev string
	Losses uint64    // losses of the carrier
	Down   time.Time // when the first loss was noticed
	Up     time.Time // when the carrier was back
	// Reason and Detail are Phy's values while the link was down; empty if the link returned before the driver was
	// asked.
	Reason, Detail string
}
