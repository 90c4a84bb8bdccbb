// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
)

// The file of calls is a table: who was called, and how often.
const (
	callName = 56
	callSize = callName + 8
	callRoom = 4096
)

// Calls is how often each function was called for each device: "0:1 nvmlDeviceGetName",
// and "- nvmlDeviceGetCount_v2" where there is no device. Loading and unloading the
// library are "- dlopen" and "- dlclose", calls for a GPU while another one for it was
// blocked are "0 while another call was blocked" as well.
type Calls map[string]uint64

// Calls reads how often what was called until now, by all processes that use s.
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

// Blocked is how often a GPU was asked while another call for it was blocked.
func (c Calls) Blocked() uint64 { return c.Functions()["while another call was blocked"] }

// Since are the calls that were made after earlier.
func (c Calls) Since(earlier Calls) Calls {
	since := Calls{}
	for name, n := range c {
		if n > earlier[name] {
			since[name] = n - earlier[name]
		}
	}
	return since
}

// Functions are the calls of each function, for all devices.
func (c Calls) Functions() map[string]uint64 {
	sum := map[string]uint64{}
	for name, n := range c {
		_, function, _ := strings.Cut(name, " ")
		sum[function] += n
	}
	return sum
}

// Of is how often the functions that begin with prefix were called for a device.
func (c Calls) Of(device, prefix string) uint64 {
	var sum uint64
	for name, n := range c {
		if strings.HasPrefix(name, fmt.Sprint(device, " ", prefix)) {
			sum += n
		}
	}
	return sum
}
