// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
)

// table has the wanted names of `ethtool -S` of an interface, by their number.
type table struct {
	count  int // of all statistics
	wanted []statistic
}

// statistic is the number of a statistic in the list of the driver, and its meaning.
type statistic struct {
	index   int
	meaning meaning
	label   string // priority, type of a storm, or reason of discards
}

// parseNames finds the names in the table of a driver. Names are up to 32 bytes long, ended by NUL if shorter.
func parseNames(driver string, b []byte) table {
	t := table{count: len(b) / sizeName}
	for i := range t.count {
		name := string(text(b[i*sizeName : (i+1)*sizeName]))
		for _, p := range privateNames[driver] {
			if label, ok := p.match(name); ok {
				t.wanted = append(t.wanted, statistic{i, p.meaning, label})
				break
			}
		}
	}
	return t
}

// match returns the priority in a name, or the fixed label.
func (p *privateName) match(name string) (label string, ok bool) {
	before, after, numbered := strings.Cut(p.name, "%d")
	if !numbered {
		return p.label, name == p.name
	}
	digit, ok := strings.CutPrefix(name, before)
	if ok {
		digit, ok = strings.CutSuffix(digit, after)
	}
	n, err := strconv.ParseUint(digit, 10, 8)
	if !ok || err != nil || n > 7 || len(digit) != 1 {
		return "", false
	}
	return p.label + digit, true
}

type counted struct {
	pauses        map[pauseKey]*model.PauseCount
	storms        map[string]uint64
	downs         *uint64
	corrected     *uint64
	uncorrectable *uint64
	correctedBits *uint64
	stalls        model.PCIeStalls
	discards      map[string]uint64
}

type pauseKey struct {
	transmit bool
	priority string
}

// parseValues returns the wanted statistics. It returns an error if the number of statistics differs from the number of
// names.
func (t *table) parseValues(b []byte) (*counted, error) {
	if len(b) != 8*t.count {
		return nil, netlink.ErrMalformed
	}
	c := &counted{pauses: map[pauseKey]*model.PauseCount{}, storms: map[string]uint64{}, discards: map[string]uint64{}}
	for _, s := range t.wanted {
		value := native.Uint64(b[8*s.index:])
		switch s.meaning {
		case receivedFrames, sentFrames:
			c.pause(s.meaning == sentFrames, s.label).Frames = &value
		case receivedMicros, sentMicros:
			c.pause(s.meaning == sentMicros, s.label).Micros = &value
		case storms:
			c.storms[s.label] += value
		case physicalDowns:
			c.downs = &value
		case correctedBlocks:
			c.corrected = &value
		case uncorrectableBlocks:
			c.uncorrectable = &value
		case correctedBits:
			c.correctedBits = &value
		case readStalls:
			c.stalls.ReadSeconds = &value
		case writeStalls:
			c.stalls.WriteSeconds = &value
		case discards:
			c.discards[strings.TrimRight(s.label, "01234567")] += value
		}
	}
	return c, nil
}

func (c *counted) pause(transmit bool, priority string) *model.PauseCount {
	key := pauseKey{transmit, priority}
	p := c.pauses[key]
	if p == nil {
		p = &model.PauseCount{Transmit: transmit, Priority: priority}
		c.pauses[key] = p
	}
	return p
}

func text(b []byte) []byte {
	t, _, _ := bytes.Cut(b, []byte{0})
	return t
}
