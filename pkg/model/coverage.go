// SPDX-License-Identifier: Apache-2.0

package model

import "slices"

// DataPathSource is the source that counts with probes on the data path.
const DataPathSource = "datapath"

// Gap is a reason why not all bytes that a workload moves over an HCA are counted.
type Gap string

// The gaps, most of them by the mode and the life of the probes.
const (
	GapOff                 Gap = "off"                  // --rdma.datapath=off
	GapRefused             Gap = "refused"              // the kernel or a missing right prevents probes
	GapNotSelected         Gap = "not_selected"         // --rdma.datapath-select does not match the workload
	GapLate                Gap = "late"                 // an open context could send before its functions were probed
	GapSurvey              Gap = "survey"               // calls are counted in surveys only
	GapExtendedPoll        Gap = "extended_poll"        // completions of ibv_start_poll whose length was not read
	GapProviderUnsupported Gap = "provider_unsupported" // the functions of the provider were not found
	GapDirectWQE           Gap = "direct_wqe"           // no call for long: idle, or the queues are written directly
	GapDEVX                Gap = "devx"                 // DEVX objects, which may be queue pairs
	GapFull                Gap = "full"                 // no room for more verbs contexts
	GapLost                Gap = "lost"                 // calls that could not be followed or read
	GapNotSeen             Gap = "not_seen"             // queue pairs that the hooks have not seen
	GapKernel              Gap = "kernel"               // queue pairs of the kernel, which posts without a call that is probed
	GapUnattributed        Gap = "unattributed"         // only earlier bytes: the device moved bytes while their owner was unknown
)

// Gaps are all gaps, in display order.
var Gaps = []Gap{
	GapOff, GapRefused, GapNotSelected, GapLate, GapSurvey, GapExtendedPoll, GapProviderUnsupported, GapDirectWQE, GapDEVX,
	GapFull, GapLost, GapNotSeen, GapKernel, GapUnattributed,
}

// Uncounted reports whether a gap affects the bytes of now: rates are then lower bounds.
func Uncounted(gaps []Gap) bool {
	return slices.ContainsFunc(gaps, func(g Gap) bool { return g != GapUnattributed })
}

// Coverage is a gap in the counts of a cgroup's verbs contexts on an HCA. A cgroup and HCA without gaps have one row
// with an empty gap.
type Coverage struct {
	Cgroup CgroupID
	Device string
	Gap    Gap
}
