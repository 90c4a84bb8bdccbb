// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"unicode"

	"github.com/accelscope/accelscope/pkg/model"
)

var errGarbage = errors.New("malformed content")

// maxValue is the maximum length of a counter file.
const maxValue = 64

// parseCounter parses a file of counters/ or hw_counters/. ok is false for a file without a
// value: "N/A (no PMA)".
func parseCounter(b []byte) (v uint64, ok bool, err error) {
	if len(b) > maxValue {
		return 0, false, errGarbage
	}
	b = bytes.TrimSpace(b)
	if bytes.HasPrefix(b, []byte("N/A")) {
		return 0, false, nil
	}
	if v, err = strconv.ParseUint(string(b), 10, 64); err != nil {
		return 0, false, errGarbage
	}
	return v, true, nil
}

// ParseLine parses an attribute of one line, in any language: the name of a device and the description of a node may
// have any letters. It returns "" for anything that is not text. Unlike boundedfile.Line it never returns a part of the
// text: a part of a GUID, board or LID would be another identity.
func ParseLine(b []byte) string {
	b = bytes.TrimSpace(b)
	if len(b) > 256 || bytes.ContainsFunc(b, unicode.IsControl) {
		return ""
	}
	return string(b)
}

// parseNumbered parses "4: ACTIVE", the form of state, phys_state and node_type.
func parseNumbered(s string) string {
	number, name, ok := strings.Cut(s, ": ")
	if _, err := strconv.ParseUint(number, 10, 8); !ok || err != nil || len(name) > maxValue {
		return ""
	}
	return name
}

// parseRate parses "200 Gb/sec (4X HDR)": bits per second, lanes and the name of the speed,
// which old kernels omit.
func parseRate(s string) (bits float64, width int, speed string, ok bool) {
	value, rest, ok := strings.Cut(s, " Gb/sec (")
	if !ok {
		return 0, 0, "", false
	}
	lanes, speed, ok := strings.Cut(rest, "X")
	speed, closed := strings.CutSuffix(speed, ")")
	if !ok || !closed {
		return 0, 0, "", false
	}
	speed = strings.TrimPrefix(speed, " ")
	g, err := strconv.ParseFloat(value, 64)
	if err != nil || g < 0 || g > 1e6 || g != g || !onlyWord(value, ".") {
		return 0, 0, "", false
	}
	w, err := strconv.ParseUint(lanes, 10, 8)
	if err != nil || !onlyWord(speed, "") || len(speed) > 8 {
		return 0, 0, "", false
	}
	return g * 1e9, int(w), speed, true
}

// parsePortGUID returns the lower half of a GID as written in gids/0, or "" if the entry is empty.
func parsePortGUID(gid string) string {
	const half = len("0000:0000:0000:0000")
	if len(gid) != 2*half+1 || gid[half] != ':' {
		return ""
	}
	guid := gid[half+1:]
	if strings.Count(guid, ":") != 3 {
		return ""
	}
	return parseGUID(guid)
}

// parseGUID parses a GUID in groups of one or two bytes, as the kernel and the files of sriov/ write it, and returns it
// in the format of model.FormatGUID. It returns "" for an invalid or zero GUID.
func parseGUID(s string) string {
	groups := strings.Split(s, ":")
	if len(groups) != 4 && len(groups) != 8 {
		return ""
	}
	var guid uint64
	for _, g := range groups {
		v, err := strconv.ParseUint(g, 16, 64/len(groups))
		if err != nil {
			return ""
		}
		guid = guid<<(64/len(groups)) | v
	}
	return GUIDText(guid)
}

// GUIDText formats a GUID. It returns "" for 0, which means that the GUID is not set.
func GUIDText(guid uint64) string {
	if guid == 0 {
		return ""
	}
	return model.FormatGUID(guid)
}

// PCIAddress returns the last element of a path that is a PCI address: "0000:18:00.0".
func PCIAddress(path string) string {
	address := ""
	for e := range strings.SplitSeq(path, "/") {
		domain, rest, _ := strings.Cut(e, ":")
		bus, slot, _ := strings.Cut(rest, ":")
		device, function, ok := strings.Cut(slot, ".")
		if ok && isHex(domain, 4, 8) && isHex(bus, 2, 2) && isHex(device, 2, 2) && isHex(function, 1, 1) {
			address = e
		}
	}
	return address
}

func isHex(s string, shortest, longest int) bool {
	_, err := strconv.ParseUint(s, 16, 64)
	return err == nil && len(s) >= shortest && len(s) <= longest
}

func onlyWord(s, also string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune(also, r)
	})
}
