// SPDX-License-Identifier: Apache-2.0

package verdict

import "github.com/accelscope/accelscope/pkg/identity"

// Limits of what is kept.
const (
	maxPerOwner     = 8 // verdicts; twice as many counters, eight times as many idle devices
	maxPerNamespace = 64
	maxWorkloads    = 512 // verdicts of workloads
	maxDevices      = 512 // verdicts of devices and of the sensor
	maxCounters     = 16384
)

type ownerKey struct{ workload, containerID string }

// room limits how many entries owners have. An owner without a namespace has only its own limit.
type room struct {
	perOwner, perNamespace, all int

	taken      int
	owners     map[ownerKey]int
	namespaces map[string]int
}

// take takes the place of one entry, and reports whether there was room. Entries of devices have no owner.
func (r *room) take(o *identity.Owner) bool {
	if r.taken >= r.all {
		return false
	}
	if o == nil {
		r.taken++
		return true
	}
	owner := ownerKey{o.Workload, o.ContainerID}
	if r.owners[owner] >= r.perOwner || o.Namespace != "" && r.namespaces[o.Namespace] >= r.perNamespace {
		return false
	}
	if r.owners == nil {
		r.owners, r.namespaces = map[ownerKey]int{}, map[string]int{}
	}
	r.taken++
	r.owners[owner]++
	r.namespaces[o.Namespace]++
	return true
}
