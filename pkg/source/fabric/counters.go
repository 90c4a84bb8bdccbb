// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// names lists the counters of PortCounters and PortCountersExtended in the order of the result. If both attributes have
// a counter, the 64-bit counter is used.
var names = []string{
	"PortXmitData", "PortRcvData", "PortXmitPkts", "PortRcvPkts",
	"PortUnicastXmitPkts", "PortUnicastRcvPkts", "PortMulticastXmitPkts", "PortMulticastRcvPkts",
	"PortXmitWait", "SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter",
	"PortRcvErrors", "PortRcvRemotePhysicalErrors", "PortRcvSwitchRelayErrors",
	"PortXmitDiscards", "PortXmitConstraintErrors", "PortRcvConstraintErrors",
	"LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors", "QP1Dropped", "VL15Dropped",
}

type counterValues map[string]uint64

// list returns the counters in the order of names; never nil.
func (f counterValues) list() []model.Counter {
	list := make([]model.Counter, 0, len(f))
	for _, name := range names {
		if v, ok := f[name]; ok {
			list = append(list, model.Counter{Name: name, Value: v})
		}
	}
	return list
}

// Bits of CapabilityMask in ClassPortInfo.
const (
	hasExtended   = 1<<9 | 1<<10 // PortCountersExtended, the second without unicast and multicast
	hasXmitWait   = 1 << 12
	hasQP1Dropped = 1 << 15
)

// perfHeader matches the line of perfquery with the port and the capability mask.
var perfHeader = lazily(`^# Port (?:extended )?counters: Lid [0-9]+ port ([0-9]+) \(CapMask: 0x([0-9A-Fa-f]{1,4})`)

// parsePerfquery parses the counters of each port and the capability mask. perfquery prints counters that the switch
// lacks as zeros: they are left out.
//
// # Port counters: Lid 2 port 1 (CapMask: 0x1300)
//
//	SymbolErrorCounter:..............5
func parsePerfquery(text []byte) (ports map[int]counterValues, mask uint64) {
	ports = map[int]counterValues{}
	var at counterValues
	for line := range lines(text) {
		if m := perfHeader().FindSubmatch(line); m != nil {
			number, _ := strconv.Atoi(string(m[1]))
			mask, _ = strconv.ParseUint(string(m[2]), 16, 16)
			if at = nil; number <= maxPort {
				at = counterValues{}
				ports[number] = at
			}
			continue
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if at == nil || !ok || !slices.Contains(names, string(name)) {
			continue
		}
		if v, err := strconv.ParseUint(strings.TrimLeft(string(value), "."), 10, 64); err == nil {
			at[string(name)] = v
		}
	}
	for _, f := range ports {
		if mask&hasXmitWait == 0 {
			delete(f, "PortXmitWait")
		}
		if mask&hasQP1Dropped == 0 {
			delete(f, "QP1Dropped")
		}
	}
	return ports, mask
}

// Lines of ibqueryerrors: a port (but not the sum of all ports), a counter with its value, which may be repeated in
// another unit, the number of failures, and a port without an answer.
var (
	errorLine  = lazily(`^   GUID 0x([0-9a-f]{1,16}) port ([0-9]+):(.*)$`)
	errorEntry = lazily(`\[([A-Za-z0-9]+) == ([0-9]+)(?: \([^)]*\))?\]`)
	failures   = lazily(`(?m)^## +([0-9]+) PMA query failures$`)
	unanswered = lazily(`^ibwarn: .* query failed on .*, Lid ([0-9]+) port [0-9]+$`)
)

// parseErrors parses the output of ibqueryerrors. It returns the nonzero counters of ports with errors, the LIDs
// without an answer, and the number of further unanswered requests, which the tool does not list when its warnings are
// cut off. complete is false without a summary: the tool did not finish, or printed nothing. In a warning the name of a
// node precedes the LID.
//
//	GUID 0x100002 port 1: [SymbolErrorCounter == 5] [PortXmitData == 80928 (316.125KB)]
func parseErrors(text []byte) (ports map[end]counterValues, silent map[uint32]bool, unknown int, complete bool) {
	ports, silent = map[end]counterValues{}, map[uint32]bool{}
	for line := range lines(text) {
		if m := unanswered().FindSubmatch(line); m != nil {
			lid, _ := strconv.ParseUint(string(m[1]), 10, 32)
			silent[uint32(lid)] = true
			unknown--
		}
		complete = complete || bytes.HasPrefix(line, []byte("## Summary: "))
		m := errorLine().FindSubmatch(line)
		if m == nil {
			continue
		}
		number, err := strconv.Atoi(string(m[2]))
		if err != nil || number > maxPort {
			continue
		}
		f := counterValues{}
		for _, entry := range errorEntry().FindAllSubmatch(m[3], -1) {
			v, err := strconv.ParseUint(string(entry[2]), 10, 64)
			if err == nil && slices.Contains(names, string(entry[1])) {
				f[string(entry[1])] = v
			}
		}
		ports[end{parseGUID(string(m[1])), number}] = f
	}
	if m := failures().FindSubmatch(text); m != nil {
		failed, _ := strconv.Atoi(string(m[1]))
		unknown += failed
	}
	return ports, silent, max(unknown, 0), complete
}
