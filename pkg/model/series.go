// SPDX-License-Identifier: Apache-2.0

package model

// Cumulative is implemented by pointers to values that only grow.
type Cumulative[V any] interface {
	*V
	Add(v *V)
	// Subtract subtracts the counts of v, modulo 2^64.
	Subtract(v *V)
	// Fell reports whether any part is smaller than in last, because the counter was reset.
	Fell(last *V) bool
}

// Series is a cumulative value of a cgroup and key. A source may list a key twice (two device numbers of one name): the
// values add up.
type Series[K comparable, V any] struct {
	Cgroup CgroupID
	Key    K
	Value  V
	// Resting: the value is exact and does not grow at present, because data path calls are counted in surveys only.
	Resting bool
}

// Keys of series.
type (
	// VerbKey is a control-path verb on an HCA.
	VerbKey struct{ Device, Verb string }
	// VerbErrorKey is a verb on an HCA and the errno that the verb returned: ENOMEM.
	VerbErrorKey struct{ Device, Verb, Errno string }
	// ObjectKey is the RDMA objects of a type on an HCA.
	ObjectKey struct {
		Device string
		Type   ObjectType
	}
	// OpenKey is a device node.
	OpenKey struct {
		Device string // see DeviceHandles
		Class  DeviceClass
	}
	// WorkRequestKey is an opcode of ibv_wr_opcode posted to an HCA: rdma_write, send_with_imm, …; recv for receives.
	WorkRequestKey struct{ Device, Opcode string }
	// CompletionErrorKey is a status of ibv_wc_status polled from an HCA: retry_exceeded, wr_flush_error and so on.
	CompletionErrorKey struct{ Device, Status string }
	// CompletionKey is a kind of opcode completed on an HCA: write, read, send or atomic.
	CompletionKey struct{ Device, Opcode string }
	// DeviceKey is an HCA.
	DeviceKey struct{ Device string }
	// AllocationKey is an API that allocates GPU memory, by its documented name.
	AllocationKey struct {
		Vendor Vendor
		API    string
	}
	// CollectiveKey is an operation of NCCL or RCCL in LateCommunicators or OtherCommunicators.
	CollectiveKey struct{ Library, Communicator, Operation string }
	// LossKey is why a probe did not record an event.
	LossKey struct{ Reason string }
	// SpentKey is the key of a value without further keys.
	SpentKey struct{}
)

// Count is a number of events.
type Count uint64

// Add adds v.
func (c *Count) Add(v *Count) { *c += *v }

// Subtract subtracts v.
func (c *Count) Subtract(v *Count) { *c -= *v }

// Fell reports whether the count is smaller than last.
func (c *Count) Fell(last *Count) bool { return *c < *last }

// CPUTime is CPU time in nanoseconds.
type CPUTime uint64

// Add adds v.
func (t *CPUTime) Add(v *CPUTime) { *t += *v }

// Subtract subtracts v.
func (t *CPUTime) Subtract(v *CPUTime) { *t -= *v }

// Fell reports whether the time is shorter than last.
func (t *CPUTime) Fell(last *CPUTime) bool { return *t < *last }

// WaitTime is a time in nanoseconds in which something waited.
type WaitTime uint64

// Add adds v.
func (t *WaitTime) Add(v *WaitTime) { *t += *v }

// Subtract subtracts v.
func (t *WaitTime) Subtract(v *WaitTime) { *t -= *v }

// Fell reports whether the time is shorter than last.
func (t *WaitTime) Fell(last *WaitTime) bool { return *t < *last }

// Opens counts the opens of a device node, and the opens that the device cgroup denied.
type Opens struct{ Allowed, Denied uint64 }

// Add adds v.
func (o *Opens) Add(v *Opens) { o.Allowed, o.Denied = o.Allowed+v.Allowed, o.Denied+v.Denied }

// Subtract subtracts v.
func (o *Opens) Subtract(v *Opens) { o.Allowed, o.Denied = o.Allowed-v.Allowed, o.Denied-v.Denied }

// Fell reports whether a count is smaller than in last.
func (o *Opens) Fell(last *Opens) bool { return o.Allowed < last.Allowed || o.Denied < last.Denied }

// Allocations is a number of allocations, and the bytes that they requested.
type Allocations struct{ Count, Bytes uint64 }

// Add adds v.
func (a *Allocations) Add(v *Allocations) { a.Count, a.Bytes = a.Count+v.Count, a.Bytes+v.Bytes }

// Subtract subtracts v.
func (a *Allocations) Subtract(v *Allocations) { a.Count, a.Bytes = a.Count-v.Count, a.Bytes-v.Bytes }

// Fell reports whether a count is smaller than in last.
func (a *Allocations) Fell(last *Allocations) bool {
	return a.Count < last.Count || a.Bytes < last.Bytes
}

// Requests is a number of work requests and the bytes of their scatter/gather lists. Receives have no bytes:
// completions have their length.
type Requests struct{ Count, Bytes uint64 }

// Add adds v.
func (r *Requests) Add(v *Requests) { r.Count, r.Bytes = r.Count+v.Count, r.Bytes+v.Bytes }

// Subtract subtracts v.
func (r *Requests) Subtract(v *Requests) { r.Count, r.Bytes = r.Count-v.Count, r.Bytes-v.Bytes }

// Fell reports whether a count is smaller than in last.
func (r *Requests) Fell(last *Requests) bool { return r.Count < last.Count || r.Bytes < last.Bytes }
