// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"

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

func setShares(c specs, opts Options) error {
	entries := opts.entriesShare()
	return errors.Join(
		hook.SetShares(c.verbs, entries, entries),
		hook.SetShares(c.objects, opts.MaxObjects/objectsShare, entries),
		hook.SetShares(c.peers, maxPeers(opts)/objectsShare),
	)
}
