// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"time"
)

// Link is the link of a network interface behind a port of an HCA, as its driver reports it. Counters count from whenever
// the driver began, usually when it was loaded.
type Link struct {
	// Device and Port are the port of the HCA. They are empty and 0 for the interface of a physical function that has no
	// HCA itself but virtual functions that have one.
	Device string
	Port   int
	Netdev string
	Driver string // of the interface: mlx5_core; empty if it has none
	// Bond is the bond of which the interface is a leg, empty if it is none. Backup reports that the bond does not send on the leg.
	// SpeedBits is the rate of a leg in bits per second, the last known one while it has no carrier; 0: not known.
	Bond      string
	Backup    bool
	SpeedBits float64
	// Read is when the driver was last asked for all of the following, zero if it never answered.
	Read time.Time

	DCB    *DCB
	Pause  []PauseCount // nil if the driver counts none
	Storms []PauseStorm
	FEC    *FEC
	Phy    *Phy
	Stalls PCIeStalls
	// Discards are received packets that the HCA had no room for; nil if the driver counts none.
	Discards []LinkDiscards
	Module   *LinkModule // nil if the driver cannot read one
	// Carrier is what the kernel itself counts, whatever the driver does.
	Carrier *Carrier
}

// PortID is a port of an HCA.
type PortID struct {
	Device string
	Port   int
}

// BondRates returns the rates of the ports on bonds in bits per second: the sum of the legs that have a carrier and on which the bond
// sends. A port with such a leg of unknown rate is left out.
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
			rates[id] += 0 // the port has a rate, if only of its other legs
		}
	}
	maps.DeleteFunc(rates, func(id PortID, _ float64) bool { return unknown[id] })
	return rates
}

// DCB is the Data Center Bridging configuration of an interface.
type DCB struct {
	PFC [8]bool // priority flow control enabled, by priority
	ETS *ETS    // nil if the driver reports none
	// Trust is "dscp" if a DSCP is mapped to a priority, otherwise "pcp". Empty if the driver reports no mappings.
	Trust string
}

// ETS is the enhanced transmission selection of an interface.
type ETS struct {
	Classes    [8]uint8 // traffic class of each priority
	Bandwidth  [8]uint8 // percent of each traffic class that is selected by ETS
	Algorithms [8]uint8 // IEEE_8021QAZ_TSA_*: 0 strict, 1 credit-based shaper, 2 ETS, 255 vendor
}

// Values of PauseCount.Priority that are no priority. The name of a traffic class is tc0 to tc7.
const (
	GlobalPause  = "global" // pause of the whole link (IEEE 802.3x)
	UnknownPause = "any"    // PFC, whatever the priority: the driver counts them together
)

// PauseCount counts the pause frames of one direction and priority.
type PauseCount struct {
	Transmit bool   // frames that this port sent, to stop the other end
	Priority string // 0 to 7 for priority flow control (PFC), or one of the constants
	Frames   *uint64
	Micros   *uint64 // time that the direction was paused, in microseconds
}

// PauseStorm counts events in which the port was paused, or paused the other end, for too long.
type PauseStorm struct {
	Type  string // a word of a closed list
	Count uint64
}

// PCIeStalls are the seconds in which an HCA could not read or write memory for more than 30 % of the time, for lack of credits of
// PCIe. Each is nil if the driver does not count it.
type PCIeStalls struct{ ReadSeconds, WriteSeconds *uint64 }

// LinkDiscards counts received packets that were dropped.
type LinkDiscards struct {
	Reason string // where they found no room: a word of a closed list
	Count  uint64
}

// FEC is the forward error correction of a link.
type FEC struct {
	Mode          string  // off, baser, rs or llrs; empty if the driver reports none
	Corrected     *uint64 // blocks with errors that were corrected
	Uncorrectable *uint64 // blocks with errors that could not be corrected
	CorrectedBits *uint64
}

// Phy is the state of the link as the driver reports it.
type Phy struct {
	// Reason is why the link is down, Detail a closer reason: words of closed lists, empty if the driver reports none.
	Reason, Detail string
	Downs          *uint64 // times that the physical link went down; nil if the driver does not count them
}

// Carrier is the carrier of an interface.
type Carrier struct {
	Up      bool
	Admin   bool   // administratively up: IFF_UP of the interface, and of the bond that its port follows
	SetDown string // the interface that is not; empty while Admin is true
	Changes uint64 // carrier_changes
	Downs   uint64 // carrier_down_count
	Flaps   uint64 // losses that LinkFlap counts, since the sensor found the interface
	// Changed is when the sensor last noticed a change; zero if it noticed none.
	Changed time.Time
}

// LinkFlap is a loss of the carrier, or several in short succession, that ended, while the interface stayed administratively up.
type LinkFlap struct {
	ID     uint64 // in the order of time, from 1
	Device string
	Port   int
	Netdev string
	Losses uint64    // losses of the carrier
	Down   time.Time // when the first loss was noticed
	Up     time.Time // when the carrier was back
	// Reason and Detail are those of Phy while the link was down; empty if it was not down for long enough to ask.
	Reason, Detail string
}
