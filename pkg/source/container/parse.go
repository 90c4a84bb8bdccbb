// SPDX-License-Identifier: Apache-2.0

package container

import (
	"bytes"
	"math"
	"strconv"

	"github.com/accelscope/accelscope/pkg/model"
)

// noLimit is above every limit: version 1 writes the highest page as one.
const noLimit = 1 << 62

// number returns the one number in b.
func number(b []byte) (float64, bool) {
	v, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	return float64(v), err == nil
}

// limit returns the one limit in b: infinite when there is none.
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

// pairs hands over the lines NAME NUMBER of b, and says whether all were
// understood.
func pairs(b []byte, f func(key []byte, v float64)) bool {
	all := true
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		key, value, ok := bytes.Cut(line, []byte{' '})
		v, isNumber := number(value)
		if ok && isNumber {
			f(key, v)
		} else {
			all = false
		}
	}
	return all
}

// parsePressure reads the lines "some" and "full" of a pressure file, whose total
// is in microseconds.
func parsePressure(b []byte, some, full *model.Optional) bool {
	all := true
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		kind, rest, _ := bytes.Cut(line, []byte{' '})
		_, total, ok := bytes.Cut(rest, []byte("total="))
		v, err := strconv.ParseUint(string(total), 10, 64)
		switch {
		case !ok || err != nil:
			all = false
		case string(kind) == "some":
			*some = model.Some(float64(v) / 1e6)
		case string(kind) == "full":
			*full = model.Some(float64(v) / 1e6)
		}
	}
	return all
}

// parseDevice reads MAJOR:MINOR.
func parseDevice(b []byte) (major, minor uint32, ok bool) {
	left, right, ok := bytes.Cut(b, []byte{':'})
	if !ok {
		return 0, 0, false
	}
	x, err := strconv.ParseUint(string(left), 10, 32)
	y, err2 := strconv.ParseUint(string(right), 10, 32)
	return uint32(x), uint32(y), err == nil && err2 == nil
}

// parseIO reads io.stat: lines of a device and figures NAME=NUMBER. Older
// kernels also name devices without any, in front of the next one (5.10) or on a line
// of their own.
func parseIO(b []byte) ([]model.DeviceIO, bool) {
	devices, all := []model.DeviceIO{}, true
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		d, named, figures := model.DeviceIO{}, false, false
		for len(line) > 0 {
			var word []byte
			word, line, _ = bytes.Cut(line, []byte{' '})
			name, value, ok := bytes.Cut(word, []byte{'='})
			if !ok {
				if major, minor, ok := parseDevice(word); ok {
					d.Major, d.Minor, named = major, minor, true
				} else if len(word) > 0 {
					all = false
				}
				continue
			}
			to := ioFigure(&d, string(name))
			if to == nil { // of a policy
				continue
			}
			v, err := strconv.ParseUint(string(value), 10, 64)
			if err != nil {
				all = false
				continue
			}
			*to, figures = model.Some(float64(v)), true
		}
		if named && figures {
			devices = append(devices, d)
		}
	}
	return devices, all
}

func ioFigure(d *model.DeviceIO, name string) *model.Optional {
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

// parseBlkio reads a file of the blkio controller: lines of a device, what it
// did, and how much of that. Sync, Async and Total are the same again.
func parseBlkio(b []byte, f func(major, minor uint32, operation string, v float64)) bool {
	all := true
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		device, rest, _ := bytes.Cut(line, []byte{' '})
		if string(device) == "Total" {
			continue
		}
		operation, value, _ := bytes.Cut(rest, []byte{' '})
		major, minor, ok := parseDevice(device)
		v, err := strconv.ParseUint(string(value), 10, 64)
		if !ok || err != nil {
			all = false
			continue
		}
		f(major, minor, string(operation), float64(v))
	}
	return all
}

// maxInterfaces is how many interfaces of a namespace are read: a container
// that may make some may make any number.
const maxInterfaces = 32

// parseNetDev reads /proc/PID/net/dev without the interfaces that are of no
// interest, which are those that cAdvisor leaves out: the loopback, and what is
// there for containers inside of the container, whose traffic is counted on
// the way out. It says how many there was no place for.
func parseNetDev(b []byte) (list []model.Interface, tooMany uint64, ok bool) {
	list, ok = []model.Interface{}, true
	for n := 0; len(b) > 0; n++ {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte{'\n'})
		if n < 2 { // head
			continue
		}
		at := bytes.LastIndexByte(line, ':') // an alias may have one, too
		if at < 0 {
			ok = false
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
			ok = false
		}
	}
	return list, tooMany, ok
}

func ignored(name []byte) bool {
	return string(name) == "lo" || bytes.HasPrefix(name, []byte("veth")) || bytes.HasPrefix(name, []byte("docker"))
}

// parseFields reads the numbers in b, those that have a place.
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

// parsePartitions reads /proc/partitions: lines of MAJOR, MINOR, blocks, name.
func parsePartitions(b []byte) map[device]string {
	names := map[device]string{}
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) != 4 {
			continue
		}
		major, err := strconv.ParseUint(string(f[0]), 10, 32)
		minor, err2 := strconv.ParseUint(string(f[1]), 10, 32)
		if err == nil && err2 == nil {
			names[device{uint32(major), uint32(minor)}] = "/dev/" + string(f[3])
		}
	}
	return names
}
