// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
)

// Bounds of Options.MaxEntries and Options.MaxObjects if the node selects them.
const (
	minMaxEntries, maxMaxEntries = 8192, 32768
	minMaxObjects, maxMaxObjects = 65536, 131072
)

// Numbers per CPU and device. A workload with one CPU calls about 16 verbs, or has 16 types of objects. Each rank of a
// job has queue pairs to all other ranks.
const (
	entriesPerDevice = 16
	objectsPerDevice = 256
)

func (o Options) sized(cpus, devices int) Options {
	o.devices = devices
	if o.MaxEntries == 0 {
		o.MaxEntries = uint32(min(max(cpus*devices*entriesPerDevice, minMaxEntries), maxMaxEntries))
	}
	if o.MaxObjects == 0 {
		o.MaxObjects = uint32(min(max(cpus*devices*objectsPerDevice, minMaxObjects), maxMaxObjects))
	}
	return o
}

func (o Options) sizedForNode(devices int) Options { return o.sized(hook.CPUs(), devices) }

// objectsShare is the divisor for the objects and peers of an owner: half of the maximum, because one job may have most
// objects of a node.
const objectsShare = 2

// entriesShare returns the number of entries that an owner may have: a quarter, or up to a third if all verbs of all
// devices need it. The lost entries of an owner are counted as unattributed, which also has a share: both shares leave
// room for other owners.
func (o Options) entriesShare() uint32 {
	all := uint32(o.devices) * uint32(gen.VerbsVerbVERBS)
	return max(o.MaxEntries/4, min(o.MaxEntries/3, all))
}

// maxPeers returns the maximum number of connected queue pairs: a process with connections also has other objects.
func (o *Options) maxPeers() uint32 { return max(o.MaxObjects/2, 1) }

// specs are the compiled objects.
type specs struct{ verbs, objects, peers, cgroups hook.Spec }

func (s *specs) all() []*hook.Spec { return []*hook.Spec{&s.verbs, &s.objects, &s.peers, &s.cgroups} }

// specs returns how the objects are opened. The maps that grow with the load are limited.
func (o *Options) specs() specs {
	entries := o.entriesShare()
	c := specs{
		verbs: hook.Spec{
			Load:    gen.LoadVerbs,
			Entries: map[string]uint32{gen.VerbsMapVerbs: o.MaxEntries, gen.VerbsMapVerbErrors: o.MaxEntries},
			Shares:  []uint32{entries, entries},
			Report: hook.Report{
				Maps: []string{gen.VerbsMapVerbs, gen.VerbsMapVerbErrors}, Losses: gen.VerbsVarVerbLosses, Shares: verbShares[:],
			},
		},
		objects: hook.Spec{
			Load: gen.LoadObjects,
			Entries: map[string]uint32{
				gen.ObjectsMapHoldings: o.MaxEntries, gen.ObjectsMapObjects: o.MaxObjects, gen.ObjectsMapAdopted: o.MaxObjects,
			},
			Shares: []uint32{o.MaxObjects / objectsShare, entries},
			Report: hook.Report{
				Maps:   []string{gen.ObjectsMapHoldings, gen.ObjectsMapObjects, gen.ObjectsMapAdopted},
				Losses: gen.ObjectsVarObjectLosses, Shares: objectShares[:],
			},
		},
		peers: hook.Spec{
			Load:    gen.LoadPeers,
			Entries: map[string]uint32{gen.PeersMapPeers: o.maxPeers()},
			Shares:  []uint32{o.maxPeers() / objectsShare},
			Report:  hook.Report{Maps: []string{gen.PeersMapPeers}, Losses: gen.PeersVarPeerLosses, Shares: peerShares[:]},
		},
		cgroups: hook.Spec{Load: gen.LoadCgroups},
	}
	for _, s := range c.all() {
		s.BTFDir, s.Subsystem, s.Workloads = o.BTFDir, o.Subsystem, o.Workloads
		s.Growing, s.Report.Reasons = s.Report.Maps, lossNames[:gen.VerbsLossLOSSES]
	}
	return c
}
