// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"math"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxLinks bounds the number of links that the library reports; nvml.h has 18.
const maxLinks = 64

const bytesPerKiB = 1 << 10

// linkErrors are the error fields of a link. On chips with NVLink 5 they are also fields of the sum over all links.
var linkErrors = []struct {
	field uint32
	name  string
}{
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

// linkTotals are fields without a scope: sums over all links that the driver reports.
var linkTotals = []struct {
	field uint32
	name  string
}{
	{nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "crc_flit"},
	{nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, "crc_data"},
	{nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "replay"},
	{nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "recovery"},
}

// A linkCounter is an error counter of drivers without the fields above. These drivers have fields for the links 0 to
// 11. The numbers are consecutive for the links 0 to 5, and for the links 6 to 11.
type linkCounter struct {
	name         string
	first, sixth uint32 // fields of links 0 and 6
	counter      nvml.NvLinkErrorCounter
}

var linkCounters = []linkCounter{
	{"replay", nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6, nvml.NVLINK_ERROR_DL_REPLAY},
	{"recovery", nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6, nvml.NVLINK_ERROR_DL_RECOVERY},
	{"crc_flit", nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6, nvml.NVLINK_ERROR_DL_CRC_FLIT},
	{"crc_data", nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6, nvml.NVLINK_ERROR_DL_CRC_DATA},
	{"ecc_data", nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L6, nvml.NVLINK_ERROR_DL_ECC_DATA},
}

// field returns the field of a link. Chips with more than 12 links have no fields for the last links.
func (c linkCounter) field(link uint32) (f field, ok bool) {
	if link < 6 {
		return field{id: c.first + link}, true
	}
	return field{id: c.sixth + link - 6}, link < 12
}

// linkReader reads the NVLinks of a device from the fields of a round: state and bytes in every round, errors in slow
// rounds. It calls functions for each link only to find the other ends, once. If the driver lacks the fields of states
// or errors, slow rounds call functions for them too.
type linkReader struct {
	count   int // links that may exist
	remotes map[int]string
	states  map[int]uint64
	errors  map[uint32][]model.Counter // by number of the link, or allLinks
	totals  []model.Counter

	payload uint64 // sum of the previous round over all links and both directions, in KiB
	at      time.Time
}

func (l *linkReader) fields(d nvml.Device, slow bool) (fields []field) {
	if slow {
		l.count = nvml.NVLINK_MAX_LINKS
		if n, ok := new(fieldReader).read(d, []field{{id: nvml.FI_DEV_NVLINK_LINK_COUNT}}).count(nvml.FI_DEV_NVLINK_LINK_COUNT, 0); ok {
			l.count = int(min(n, maxLinks))
		}
		for _, t := range linkTotals {
			fields = append(fields, field{id: t.field})
		}
	}
	if l.count == 0 {
		return nil
	}
	scope := func(link uint32) {
		fields = append(fields,
			field{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, link}, field{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, link},
			field{nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, link}, field{nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, link})
		for _, e := range linkErrors {
			if slow {
				fields = append(fields, field{e.field, link})
			}
		}
	}
	for link := range uint32(l.count) {
		fields = append(fields, field{nvml.FI_DEV_NVLINK_GET_STATE, link})
		scope(link)
	}
	scope(allLinks)
	return fields
}

// read returns the links. A link without a state does not exist. An additional link, model.AllLinks, has the values
// that the driver reports only as a sum over the links.
func (l *linkReader) read(d nvml.Device, values fieldValues, slow bool) []model.GPULink {
	if slow {
		l.states, l.totals = make(map[int]uint64), nil
		for _, t := range linkTotals {
			if n, ok := values.count(t.field, 0); ok {
				l.totals = append(l.totals, model.Counter{Name: t.name, Value: n})
			}
		}
	}
	var links []model.GPULink
	sum := model.GPULink{Kind: model.NVLink, Number: model.AllLinks}
	sum.Transmit, sum.Receive = linkBytes(values, allLinks)
	for i := range l.count {
		up, exists := l.up(d, i, values, slow)
		if !exists {
			continue
		}
		link := model.GPULink{Kind: model.NVLink, Number: i, Up: model.Some(up), Remote: l.remote(d, i, slow)}
		link.Transmit, link.Receive = linkBytes(values, uint32(i))
		links = append(links, link)
		if link.Transmit.Known || link.Receive.Known {
			sum.Transmit, sum.Receive = model.Optional{}, model.Optional{}
		}
	}
	if slow {
		l.readErrors(d, links, values)
	}
	sum.Errors = l.errors[allLinks]
	for i := range links {
		if links[i].Errors = l.errors[uint32(links[i].Number)]; links[i].Errors != nil {
			sum.Errors = nil
		}
	}
	if len(links) > 0 && (sum.Transmit.Known || sum.Receive.Known || sum.Errors != nil) {
		links = append(links, sum)
	}
	return links
}

// up returns whether a link is up (1) or not (0), and whether it exists.
func (l *linkReader) up(d nvml.Device, link int, values fieldValues, slow bool) (float64, bool) {
	state, known := values.count(nvml.FI_DEV_NVLINK_GET_STATE, uint32(link))
	switch {
	case known:
	case slow:
		s, ret := d.GetNvLinkState(link)
		if ret != nvml.SUCCESS {
			return 0, false
		}
		state, l.states[link] = uint64(s), uint64(s)
	default:
		if state, known = l.states[link]; !known {
			return 0, false
		}
	}
	return float64(min(state, 1)), true // 2 means that the link sleeps
}

// readErrors keeps the errors of all links: from the fields of the round, else from the older fields (one call for all
// links), else from a function.
func (l *linkReader) readErrors(d nvml.Device, links []model.GPULink, values fieldValues) {
	sum := linkErrorsOf(values, allLinks)
	l.errors = map[uint32][]model.Counter{allLinks: sum}
	var missing []uint32
	var wanted []field
	for _, link := range links {
		number := uint32(link.Number)
		l.errors[number] = linkErrorsOf(values, number)
		if l.errors[number] != nil || sum != nil {
			continue
		}
		missing = append(missing, number)
		for _, c := range linkCounters {
			if f, ok := c.field(number); ok {
				wanted = append(wanted, f)
			}
		}
	}
	older := new(fieldReader).read(d, wanted)
	for _, number := range missing {
		l.errors[number] = olderErrors(d, number, older)
	}
}

func olderErrors(d nvml.Device, link uint32, values fieldValues) (errors []model.Counter) {
	for _, c := range linkCounters {
		if f, ok := c.field(link); ok {
			if n, ok := values.count(f.id, 0); ok {
				errors = append(errors, model.Counter{Name: c.name, Value: n})
			}
		}
	}
	if errors != nil {
		return errors
	}
	for _, c := range linkCounters {
		if n, ret := d.GetNvLinkErrorCounter(int(link), c.counter); ret == nvml.SUCCESS && n != math.MaxUint64 {
			errors = append(errors, model.Counter{Name: c.name, Value: n})
		}
	}
	return errors
}

// rate returns the payload of all links in both directions since the previous call, in bytes per second. It is unknown
// at the first call, and after a counter has fallen.
func (l *linkReader) rate(values fieldValues, now time.Time) model.Optional {
	sent, ok := values.count(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks)
	received, both := values.count(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, allLinks)
	if !ok || !both {
		l.at = time.Time{}
		return model.Optional{}
	}
	payload, before, since := sent+received, l.payload, now.Sub(l.at).Seconds()
	known := !l.at.IsZero() && payload >= before && since > 0
	l.payload, l.at = payload, now
	if !known {
		return model.Optional{}
	}
	return model.Some(float64(payload-before) * bytesPerKiB / since)
}

// remote returns the PCI address of the remote end (nvmlDeviceGetNvLinkRemotePciInfo) in the
// format of sysfs, or "" if it is not reported.
func (l *linkReader) remote(d nvml.Device, link int, slow bool) string {
	if l.remotes[link] != "" || !slow {
		return l.remotes[link]
	}
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
	if len(name) == len("00000000:c1:00.0") { // NVML uses a domain of eight digits
		name = name[4:]
	}
	if l.remotes == nil {
		l.remotes = make(map[int]string)
	}
	l.remotes[link] = name
	return name
}

func linkErrorsOf(values fieldValues, scope uint32) (errors []model.Counter) {
	for _, e := range linkErrors {
		if n, ok := values.count(e.field, scope); ok {
			errors = append(errors, model.Counter{Name: e.name, Value: n})
		}
	}
	return errors
}

// linkBytes returns the bytes of a link, or of all links. They are payload (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*, in
// KiB). Chips without these fields report bytes with protocol overhead (NVML_FI_DEV_NVLINK_COUNT_*_BYTES).
func linkBytes(values fieldValues, scope uint32) (transmit, receive model.Optional) {
	of := func(payload, all uint32) model.Optional {
		if kib := values.scaled(payload, scope, 1.0/bytesPerKiB); kib.Known {
			return kib
		}
		return values.scaled(all, scope, 1)
	}
	return of(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES),
		of(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES)
}
