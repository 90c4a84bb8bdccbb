// SPDX-License-Identifier: Apache-2.0

package drm

// Key identifies a counter of a client or of a process. A key without an engine records that the client was read.
type Key struct {
	GPU     string
	ID      uint64
	Process bool // ID is a PID, else it is the number of a client
	Engine  string
}

// Counters are the counters of the last listing and of the one in progress. The zero value is ready to use.
type Counters struct{ before, after map[Key]reading }

// reading is a counter, and the clock at which it was read: of the GPU, or of the sensor.
type reading struct {
	Counter
	clock uint64
}

// Begin begins a listing.
func (c *Counters) Begin() { c.before, c.after = c.after, map[Key]reading{} }

// Has reports whether a key was recorded in this listing.
func (c *Counters) Has(k Key) bool {
	_, has := c.after[k]
	return has
}

// Record records that a client was read, and reports whether the last listing recorded it.
func (c *Counters) Record(k Key, clock uint64) bool {
	_, seen := c.before[k]
	c.after[k] = reading{clock: clock}
	return seen
}

// Grow records the reading of a counter. It returns the growth since the last listing, and how far the clock went; false at
// the first reading, and after the clock started again, which suspending a GPU may cause.
func (c *Counters) Grow(k Key, value, clock uint64) (grown, elapsed uint64, ok bool) {
	old, known := c.before[k]
	if !known || clock < old.clock {
		c.after[k] = reading{Counter{Value: value}, clock}
		return 0, 0, false
	}
	next, grown := old.Next(value)
	c.after[k] = reading{next, clock}
	return grown, clock - old.clock, clock > old.clock
}

// GrowUnlisted is Grow for drivers that do not list an engine that was never used: it was 0 when the last listing recorded its
// client.
func (c *Counters) GrowUnlisted(k Key, value, clock uint64) (grown, elapsed uint64, ok bool) {
	client := k
	client.Engine = ""
	first, read := c.before[client]
	if _, known := c.before[k]; read && !known {
		c.before[k] = reading{clock: first.clock}
	}
	return c.Grow(k, value, clock)
}
