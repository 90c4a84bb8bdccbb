// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"bytes"
	"cmp"
	"math"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// A Client is one open of a device node, as the kernel reports it in /proc/PID/fdinfo/FD with the keys of
// Documentation/gpu/drm-usage-stats.rst, which drivers of all vendors use. Descriptors that were duplicated, passed on or
// inherited are the same client.
type Client struct {
	Driver     string // drm-driver: amdgpu, i915, xe
	PCIAddress string // drm-pdev in lower case; may be empty
	ID         uint64 // drm-client-id, unique among the device's clients
	// Memory is the resident size of the client's buffers by memory region (vram, gtt), in bytes: drm-resident-REGION,
	// or drm-memory-REGION on kernels that lack it.
	Memory map[string]uint64
	// Engines are the engines that the client used, by the driver's names (gfx, compute, render).
	Engines map[string]Engine
}

// Engine is a client's use of an engine: in nanoseconds, or in cycles of a GPU clock.
type Engine struct {
	Busy     uint64 // nanoseconds, cumulative: drm-engine-NAME
	Cycles   uint64 // cumulative: drm-cycles-NAME
	Clock    uint64 // the clock of Cycles, at the same moment: drm-total-cycles-NAME; 0 if not reported
	Capacity uint64 // number of identical engines: drm-engine-capacity-NAME; 0 if not reported, which means 1
}

// Limits for a client: the driver decides how much it reports.
const (
	maxKeys     = 32 // memory regions, and engines
	maxName     = 32 // of a region or an engine
	maxCapacity = 1024
	maxCounter  = math.MaxInt64 // a larger value comes from a kernel that subtracted too much
	maxMemory   = 1 << 48       // more than any GPU has, and no sum overflows
)

// ParseFdinfo parses a file of fdinfo. It returns false if the file has no client id.
func ParseFdinfo(text []byte) (Client, bool) {
	c := Client{Engines: map[string]Engine{}}
	var older map[string]uint64 // drm-memory-REGION
	identified := false
	for line := range bytes.Lines(text) {
		k, v, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		key, value := string(bytes.TrimSpace(k)), string(bytes.TrimSpace(v))
		switch key {
		case "drm-driver":
			c.Driver = cmp.Or(value, c.Driver)
		case "drm-pdev":
			if address := strings.ToLower(value); model.IsPCIAddress(address) {
				c.PCIAddress = address
			}
		case "drm-client-id":
			if id, ok := parseUint(value); ok {
				c.ID, identified = id, true
			}
		default:
			if name, ok := strings.CutPrefix(key, "drm-resident-"); ok {
				c.Memory = addRegion(c.Memory, name, value)
			} else if name, ok := strings.CutPrefix(key, "drm-memory-"); ok {
				older = addRegion(older, name, value)
			} else if name, ok := strings.CutPrefix(key, "drm-engine-capacity-"); ok {
				c.addEngine(name, value, maxCapacity, func(e *Engine) *uint64 { return &e.Capacity })
			} else if name, ok := strings.CutPrefix(key, "drm-engine-"); ok {
				c.addEngine(name, strings.TrimSuffix(value, " ns"), maxCounter, func(e *Engine) *uint64 { return &e.Busy })
			} else if name, ok := strings.CutPrefix(key, "drm-cycles-"); ok {
				c.addEngine(name, value, maxCounter, func(e *Engine) *uint64 { return &e.Cycles })
			} else if name, ok := strings.CutPrefix(key, "drm-total-cycles-"); ok {
				c.addEngine(name, value, maxCounter, func(e *Engine) *uint64 { return &e.Clock })
			}
		}
	}
	for name, size := range older {
		if _, known := c.Memory[name]; !known {
			c.Memory = add(c.Memory, name, size)
		}
	}
	return c, c.Driver != "" && identified
}

func addRegion(m map[string]uint64, name, value string) map[string]uint64 {
	if size, ok := parseBytes(value); ok && isName(name) {
		return add(m, name, size)
	}
	return m
}

func add(m map[string]uint64, name string, size uint64) map[string]uint64 {
	if m == nil {
		m = map[string]uint64{}
	}
	if _, known := m[name]; known || len(m) < maxKeys {
		m[name] = size
	}
	return m
}

// addEngine sets a value of an engine, unless it exceeds limit.
func (c *Client) addEngine(name, value string, limit uint64, field func(*Engine) *uint64) {
	n, ok := parseUint(value)
	e, known := c.Engines[name]
	if !ok || n > limit || !isName(name) || !known && len(c.Engines) >= maxKeys {
		return
	}
	*field(&e) = n
	c.Engines[name] = e
}

// isName reports whether s can be a driver's name of a region or an engine.
func isName(s string) bool {
	return s != "" && len(s) <= maxName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

func parseUint(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}

var shifts = map[string]int{"": 0, "KiB": 10, "MiB": 20}

// parseBytes parses a size: 123 KiB, 4 MiB, or a number of bytes.
func parseBytes(s string) (uint64, bool) {
	number, unit, _ := strings.Cut(s, " ")
	n, ok := parseUint(number)
	shift, known := shifts[unit]
	if !ok || !known || n > maxMemory>>shift {
		return 0, false
	}
	return n << shift, true
}
