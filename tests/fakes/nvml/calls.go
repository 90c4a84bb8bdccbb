// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
)

// The call file is a table of function names and counts.
const (
	callName = 56
	callSize = callName + 8
	callRoom = 4096
)

// Calls counts the calls of each function for each device: "0:1 nvmlDeviceGetName", or "- nvmlDeviceGetCount_v2"
// without a device. "- dlopen" and "- dlclose" load and unload the library. A call for a GPU with a blocked call also
// counts as "0 while another call was blocked".
type Calls map[string]uint64

// Calls returns the calls of all processes that use s.
func (s *Scenario) Calls() (Calls, error) {
	table, err := os.ReadFile(s.calls)
	if err != nil {
		return nil, err
	}
	c := Calls{}
	for ; len(table) >= callSize; table = table[callSize:] {
		name, _, _ := bytes.Cut(table[:callName], []byte{0})
		if len(name) > 0 {
			c[string(name)] = binary.NativeEndian.Uint64(table[callName:callSize])
		}
	}
	return c, nil
}

// Blocked returns the number of calls for a GPU with a blocked call.
func (c Calls) Blocked() uint64 { return c.Functions()["while another call was blocked"] }

// Since returns the calls after earlier.
func (c Calls) Since(earlier Calls) Calls {
	since := Calls{}
	for name, n := range c {
		if n > earlier[name] {
			since[name] = n - earlier[name]
		}
	}
	return since
}

// Functions returns the calls of each function, for all devices.
func (c Calls) Functions() map[string]uint64 {
	sum := map[string]uint64{}
	for name, n := range c {
		_, function, _ := strings.Cut(name, " ")
		sum[function] += n
	}
	return sum
}

// Of returns the number of calls for a device of functions with a prefix.
func (c Calls) Of(device, prefix string) uint64 {
	var sum uint64
	for name, n := range c {
		if strings.HasPrefix(name, fmt.Sprint(device, " ", prefix)) {
			sum += n
		}
	}
	return sum
}
