// SPDX-License-Identifier: Apache-2.0

package container

import (
	"bytes"
	"math"
	"strconv"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// noLimit is the value from which a limit counts as unlimited: version 1 reports the highest page.
const noLimit = 1 << 62

func number(b []byte) (float64, bool) {
	v, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	return float64(v), err == nil
}

// limit parses the limit in b: infinite if unlimited.
func limit(b []byte) (float64, bool) {
	switch string(bytes.TrimSpace(b)) {
	case "max", "-1":
		return math.Inf(1), true
	}
	v, ok := number(b)
	if v >= noLimit {
		v = math.Inf(1)
	}
	return v, ok
}

// pairs calls f for the lines NAME NUMBER of b.
func pairs(b []byte, skipped *boundedfile.Skipped, f func(key []byte, v float64)) {
	for line := range bytes.Lines(b) {
		key, value, ok := bytes.Cut(line, []byte{' '})
		v, isNumber := number(value)
		if ok && isNumber {
			f(key, v)
		} else {
			skipped.Add(line)
		}
	}
}

// parsePressure parses the lines "some" and "full" of a pressure file. Their total is in microseconds.
func parsePressure(b []byte, skipped *boundedfile.Skipped, some, full *model.Optional) {
	for line := range bytes.Lines(b) {
		kind, rest, _ := bytes.Cut(line, []byte{' '})
		_, total, found := bytes.Cut(rest, []byte("total="))
		v, ok := number(total)
		switch {
		case !found || !ok:
			skipped.Add(line)
		case string(kind) == "some":
			*some = model.Some(v / 1e6)
		case string(kind) == "full":
			*full = model.Some(v / 1e6)
		}
	}
}

func parseDevice(b []byte) (major, minor uint32, ok bool) {
	left, right, ok := bytes.Cut(b, []byte{':'})
	if !ok {
		return 0, 0, false
	}
	x, err := strconv.ParseUint(string(left), 10, 32)
	y, err2 := strconv.ParseUint(string(right), 10, 32)
	return uint32(x), uint32(y), err == nil && err2 == nil
}

// parseIO parses io.stat: lines of a device and values NAME=NUMBER. Older kernels also list devices without values,
// before the next device (5.10) or on their own line. The kernel writes "(unknown)" for a removed device; these values
// are left out, because the line does not show the device.
func parseIO(b []byte, skipped *boundedfile.Skipped) []model.DeviceIO {
	devices := []model.DeviceIO{}
	for line := range bytes.Lines(b) {
		d, named, values, sound := model.DeviceIO{}, false, false, true
		for word := range bytes.SplitSeq(bytes.TrimSuffix(line, []byte{'\n'}), []byte{' '}) {
			name, value, ok := bytes.Cut(word, []byte{'='})
			if !ok {
				if len(word) > 0 { // the values belong to the last device
					d.Major, d.Minor, named = parseDevice(word)
					sound = sound && !values
				}
				continue
			}
			to := ioValue(&d, string(name))
			if to == nil { // of an I/O policy
				continue
			}
			v, err := strconv.ParseUint(string(value), 10, 64)
			if err != nil {
				sound = false
				continue
			}
			*to, values = model.Some(float64(v)), true
		}
		switch {
		case len(line) == 1: // a device without values, in some kernels
		case !sound || !named:
			skipped.Add(line)
		case values:
			devices = append(devices, d)
		}
	}
	return devices
}

func ioValue(d *model.DeviceIO, name string) *model.Optional {
	switch name {
	case "rbytes":
		return &d.ReadBytes
	case "wbytes":
		return &d.WriteBytes
	case "dbytes":
		return &d.DiscardBytes
	case "rios":
		return &d.Reads
	case "wios":
		return &d.Writes
	}
	return nil
}

// parseBlkio parses a file of the blkio controller: lines of a device, an operation and a value. The caller ignores the
// sums Sync, Async and Total.
func parseBlkio(b []byte, skipped *boundedfile.Skipped, f func(major, minor uint32, operation string, v float64)) {
	for line := range bytes.Lines(b) {
		device, rest, _ := bytes.Cut(line, []byte{' '})
		if string(device) == "Total" {
			continue
		}
		operation, value, _ := bytes.Cut(rest, []byte{' '})
		major, minor, ok := parseDevice(device)
		v, isNumber := number(value)
		if !ok || !isNumber {
			skipped.Add(line)
			continue
		}
		f(major, minor, string(operation), v)
	}
}

// maxInterfaces limits the interfaces of a namespace: a container with the capability can make any number.
const maxInterfaces = 32

// parseNetDev parses /proc/PID/net/dev without the interfaces that cAdvisor leaves out: the loopback, and interfaces of
// nested containers, whose traffic is counted at the outer interface. tooMany is the number of interfaces beyond the
// limit.
func parseNetDev(b []byte, skipped *boundedfile.Skipped) (list []model.Interface, tooMany uint64) {
	list = []model.Interface{}
	for headings := 2; len(b) > 0; {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		at := bytes.LastIndexByte(line, ':') // an alias may contain one, too
		if at < 0 && headings > 0 {
			headings--
			continue
		}
		if at < 0 {
			skipped.Add(line)
			continue
		}
		name := bytes.TrimSpace(line[:at])
		if ignored(name) {
			continue
		}
		if len(list) == maxInterfaces {
			tooMany++
			continue
		}
		i := model.Interface{Name: string(name)}
		fields := [...]*uint64{
			&i.ReceiveBytes, &i.ReceivePackets, &i.ReceiveErrors, &i.ReceiveDropped, nil, nil, nil, nil,
			&i.TransmitBytes, &i.TransmitPackets, &i.TransmitErrors, &i.TransmitDropped,
		}
		if parseFields(line[at+1:], fields[:]) {
			list = append(list, i)
		} else {
			skipped.Add(line)
		}
	}
	return list, tooMany
}

func ignored(name []byte) bool {
	return string(name) == "lo" || bytes.HasPrefix(name, []byte("veth")) || bytes.HasPrefix(name, []byte("docker"))
}

// parseFields parses the numbers in b and stores the numbers with a destination.
func parseFields(b []byte, to []*uint64) bool {
	for _, p := range to {
		b = bytes.TrimLeft(b, " ")
		var word []byte
		word, b, _ = bytes.Cut(b, []byte{' '})
		v, err := strconv.ParseUint(string(word), 10, 64)
		if err != nil {
			return false
		}
		if p != nil {
			*p = v
		}
	}
	return true
}

// parsePartitions parses /proc/partitions: a heading, an empty line, and lines of MAJOR, MINOR, blocks, name.
func parsePartitions(b []byte, skipped *boundedfile.Skipped) map[device]string {
	names := map[device]string{}
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 0 || string(f[0]) == "major" {
			continue
		}
		if len(f) != 4 {
			skipped.Add(line)
			continue
		}
		major, err := strconv.ParseUint(string(f[0]), 10, 32)
		minor, err2 := strconv.ParseUint(string(f[1]), 10, 32)
		if err != nil || err2 != nil {
			skipped.Add(line)
			continue
		}
		names[device{uint32(major), uint32(minor)}] = "/dev/" + string(f[3])
	}
	return names
}
