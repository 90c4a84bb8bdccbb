// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// opcodeNames are the names of enum opcode in bpf/datapath.h: enum ibv_wr_opcode in lower case.
var opcodeNames = [gen.DatapathOpcodeOPCODES]string{
	"rdma_write", "rdma_write_with_imm", "send", "send_with_imm", "rdma_read", "atomic_cmp_and_swp",
	"atomic_fetch_and_add", "local_inv", "bind_mw", "send_with_inv", "tso", "other", "recv",
}

// statusNames are the names of enum ibv_wc_status, 0 to 23.
var statusNames = [statuses]string{
	"success", "local_length_error", "local_qp_operation_error", "local_eec_operation_error",
	"local_protection_error", "wr_flush_error", "mw_bind_error", "bad_response_error", "local_access_error",
	"remote_invalid_request_error", "remote_access_error", "remote_operation_error", "retry_exceeded",
	"rnr_retry_exceeded", "local_rdd_violation_error", "remote_invalid_rd_request", "remote_aborted_error",
	"invalid_eec_number", "invalid_eec_state", "fatal_error", "response_timeout_error", "general_error",
	"tag_matching_error", "tag_matching_rendezvous_incomplete",
}

// completedNames are the names of enum completed in bpf/datapath.h.
var completedNames = [gen.DatapathCompletedCOMPLETED]string{"write", "read", "send", "atomic"}

// Indexes of a context's counters in one array.
const (
	opcodes  = int(gen.DatapathOpcodeOPCODES)
	statuses = len(gen.DatapathContextStat{}.Errors)

	countRequests = 0
	countBytes    = countRequests + opcodes
	countReceived = countBytes + opcodes // bytes of completed receives
	countErrors   = countReceived + 1
	counters      = countErrors + statuses
)

// flatten puts the counters of a context into one array.
func flatten(s *gen.DatapathContextStat) (n [counters]uint64) {
	copy(n[countRequests:], s.Posted[:])
	copy(n[countBytes:], s.Bytes[:])
	n[countReceived] = s.ReceivedBytes
	copy(n[countErrors:], s.Errors[:])
	return n
}

// groupOfCounter returns the group of calls of a counter.
func groupOfCounter(i int) int {
	if i >= countReceived {
		return polls
	}
	return posts
}

// directionOf returns the direction of the bytes of a counter, empty for other counters. Reads and atomics are counted when they are
// posted, but receive their bytes.
func directionOf(i int) model.Direction {
	switch {
	case i == countReceived:
		return model.Receive
	case i < countBytes || i > countReceived:
		return ""
	}
	switch gen.DatapathOpcode(i - countBytes) {
	case gen.DatapathOpcodeOPCODE_RDMA_READ, gen.DatapathOpcodeOPCODE_ATOMIC_CMP_AND_SWP,
		gen.DatapathOpcodeOPCODE_ATOMIC_FETCH_AND_ADD:
		return model.Receive
	case gen.DatapathOpcodeOPCODE_RDMA_WRITE, gen.DatapathOpcodeOPCODE_RDMA_WRITE_WITH_IMM,
		gen.DatapathOpcodeOPCODE_SEND, gen.DatapathOpcodeOPCODE_SEND_WITH_IMM,
		gen.DatapathOpcodeOPCODE_SEND_WITH_INV, gen.DatapathOpcodeOPCODE_TSO:
		return model.Transmit
	}
	return "" // A bind or an invalidation moves no bytes; the direction of other opcodes is unknown.
}

// durations is a histogram of counts.
type durations struct {
	buckets [model.FineBuckets]uint64
	sum     uint64 // in nanoseconds
}

// add adds the increase of l since last, and updates last.
func (d *durations) add(last, l *gen.DatapathLatency) {
	d.sum += increase(&last.SumNs, l.SumNs)
	for i, n := range l.Buckets {
		d.buckets[i] += increase(&last.Buckets[i], n)
	}
}

func (d *durations) histogram() model.FineHistogram {
	h := model.FineHistogram{Sum: d.sum, Buckets: d.buckets}
	for _, n := range d.buckets {
		h.Count += n
	}
	return h
}

// increase returns the increase of a counter since its last value, and updates the last value. Lower values are ignored: a scrape may
// read the counters between a step's read and its count.
func increase(last *uint64, n uint64) uint64 {
	by := max(n, *last) - *last
	*last += by
	return by
}

func toInt[T int | uint8 | uint64](b bool) T {
	if b {
		return 1
	}
	return 0
}
