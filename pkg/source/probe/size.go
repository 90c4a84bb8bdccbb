// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
)

// Bounds of Options.MaxEntries and Options.MaxObjects if they are selected by the node.
const (
	minMaxEntries, maxMaxEntries = 8192, 32768
	minMaxObjects, maxMaxObjects = 65536, 131072
)

// The numbers for each CPU and device: a workload that has a CPU of its own calls about as many verbs, and has as many types of
// objects; each rank of a job has queue pairs to all other ranks.
const (
	entriesPerDevice = 16
	objectsPerDevice = 256
)

// sized returns the options with the limits for a number of CPUs and devices.
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

// sizedForNode returns the options with the limits for this node.
func (o Options) sizedForNode(devices int) Options { return o.sized(hook.CPUs(), devices) }

// objectsShare is the part of the objects and peers that an owner may have: half, as a single job may have most objects of a node.
const objectsShare = 2

// entriesShare returns the number of entries that an owner may have: a quarter, or up to a third for all verbs of all devices. What
// was lost of an owner is counted as unattributed, which also has a share: both leave room for others.
func (o Options) entriesShare() uint32 {
	all := uint32(o.devices) * uint32(gen.VerbsVerbVERBS)
	return max(o.MaxEntries/4, min(o.MaxEntries/3, all))
}

// setShares sets the shares of owners.
func setShares(c specs, opts Options) error {
	entries := opts.entriesShare()
	return errors.Join(
		hook.SetShares(c.verbs, entries, entries),
		hook.SetShares(c.objects, opts.MaxObjects/objectsShare, entries),
		hook.SetShares(c.peers, maxPeers(opts)/objectsShare),
	)
}
