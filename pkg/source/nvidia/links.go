// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxLinks bounds the number of links that the library reports; nvml.h has 18.
const maxLinks = 64

// The fields of one link, in the order of the request: bytes first.
const (
	linkTransmit  = iota // payload, KiB
	linkReceive          // payload, KiB
	linkTransmit5        // all bytes, NVLink 5
	linkReceive5
	linkErrors // first error field
)

var linkFields = []struct {
	field uint32
	name  string
}{
	{field: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX},
	{field: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX},
	{field: nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES},
	{field: nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES},
	{nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY, "replay"},
	{nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY, "recovery"},
	{nvml.FI_DEV_NVLINK_ERROR_DL_CRC, "crc"},
	{nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, "malformed_packet"},
	{nvml.FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, "buffer_overrun"},
	{nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS, "receive"},
	{nvml.FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, "receive_remote"},
	{nvml.FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, "receive_general"},
	{nvml.FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, "local_link_integrity"},
	{nvml.FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, "transmit_discard"},
	{nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS, "link_recovery_successful"},
	{nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, "link_recovery_failed"},
	{nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, "effective"},
	{nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, "symbol"},
}

// linkCounters are the error counters of drivers without the fields above.
var linkCounters = []struct {
	counter nvml.NvLinkErrorCounter
	name    string
}{
	{nvml.NVLINK_ERROR_DL_REPLAY, "replay"},
	{nvml.NVLINK_ERROR_DL_RECOVERY, "recovery"},
	{nvml.NVLINK_ERROR_DL_CRC_FLIT, "crc_flit"},
	{nvml.NVLINK_ERROR_DL_CRC_DATA, "crc_data"},
	{nvml.NVLINK_ERROR_DL_ECC_DATA, "ecc_data"},
}

// links reads the NVLinks of the GPU: state (nvmlDeviceGetNvLinkState), remote end, bytes and
// errors. A link without a state does not exist. It makes three calls per link, and five more
// on drivers that do not report errors as fields. It returns nil if the driver does not
// support NVLink.
func readLinks(d nvml.Device) []model.GPULink {
	count := uint64(nvml.NVLINK_MAX_LINKS)
	n := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_LINK_COUNT}}
	if d.GetFieldValues(n) == nvml.SUCCESS {
		if reported, ok := unsigned(n[0]); ok {
			count = min(reported, maxLinks)
		}
	}
	var links []model.GPULink
	for i := range int(count) {
		state, ret := d.GetNvLinkState(i)
		if ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_FUNCTION_NOT_FOUND {
			break
		}
		if ret != nvml.SUCCESS {
			continue
		}
		link := model.GPULink{Kind: model.NVLink, Number: i, Up: model.Some(0), Remote: remote(d, i)}
		if state == nvml.FEATURE_ENABLED {
			link.Up.Value = 1
		}
		linkTraffic(d, &link)
		links = append(links, link)
	}
	return links
}

// linkTraffic reads the fields of a link in one call. Bytes are payload
// (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*, in KiB); on chips that count only all bytes they
// include the protocol overhead (NVML_FI_DEV_NVLINK_COUNT_*_BYTES).
func linkTraffic(d nvml.Device, link *model.GPULink) {
	values := make([]nvml.FieldValue, len(linkFields))
	for i, f := range linkFields {
		values[i].FieldId, values[i].ScopeId = f.field, uint32(link.Number)
	}
	if d.GetFieldValues(values) == nvml.SUCCESS {
		link.Transmit = bytes(values[linkTransmit], values[linkTransmit5])
		link.Receive = bytes(values[linkReceive], values[linkReceive5])
		for i, f := range linkFields[linkErrors:] {
			if n, ok := unsigned(values[linkErrors+i]); ok {
				link.Errors = append(link.Errors, model.Counter{Name: f.name, Value: n})
			}
		}
	}
	if len(link.Errors) > 0 {
		return
	}
	for _, c := range linkCounters {
		if n, ret := d.GetNvLinkErrorCounter(link.Number, c.counter); ret == nvml.SUCCESS && n != math.MaxUint64 {
			link.Errors = append(link.Errors, model.Counter{Name: c.name, Value: n})
		}
	}
}

// remote returns the PCI address of the remote end (nvmlDeviceGetNvLinkRemotePciInfo) in the
// format of sysfs, or "" if it is not reported.
func remote(d nvml.Device, link int) string {
	info, ret := d.GetNvLinkRemotePciInfo(link)
	if ret != nvml.SUCCESS {
		return ""
	}
	var address []byte
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		address = append(address, byte(c))
	}
	name := strings.ToLower(string(address))
	if len(name) == len("00000000:c1:00.0") { // a domain of eight digits
		name = name[4:]
	}
	return name
}

func bytes(kib, all nvml.FieldValue) model.Optional {
	if n, ok := unsigned(kib); ok {
		return model.Some(float64(n) * 1024)
	}
	if n, ok := unsigned(all); ok {
		return model.Some(float64(n))
	}
	return model.Optional{}
}

// unsigned returns the value of a counter field, if it was reported.
func unsigned(v nvml.FieldValue) (uint64, bool) {
	if nvml.Return(v.NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	return integer(nvml.ValueType(v.ValueType), v.Value)
}

// integer returns a number from the union nvmlValue_t. It rejects unavailable (all ones) and
// negative values.
func integer(kind nvml.ValueType, v [8]byte) (uint64, bool) {
	n := binary.NativeEndian.Uint64(v[:])
	switch kind {
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return n, n != math.MaxUint64
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		u := binary.NativeEndian.Uint32(v[:4])
		return uint64(u), u != math.MaxUint32
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return uint64(binary.NativeEndian.Uint16(v[:2])), true
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return n, int64(n) >= 0
	case nvml.VALUE_TYPE_SIGNED_INT:
		i := int32(binary.NativeEndian.Uint32(v[:4]))
		return uint64(max(i, 0)), i >= 0
	case nvml.VALUE_TYPE_DOUBLE:
		f := math.Float64frombits(n)
		return uint64(max(0, min(f, math.MaxInt64))), f >= 0 && f < math.MaxInt64
	}
	return 0, false
}
