// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/model"
)

// children counts how the children ended.
type children struct {
	mu    sync.Mutex
	begun bool              // there was a driver
	ends  map[string]uint64 // unexpected ends, by reason
	stuck []*child.Process  // killed and not ended
}

// maxStuck is the number of stuck children at which no further child is started.
const maxStuck = 4

// abandon leaves a killed child that has not ended.
func (c *children) abandon(p *child.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stuck = append(c.stuck, p)
}

// remaining returns the stuck children that have not ended yet.
func (c *children) remaining() []*child.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stuck = slices.DeleteFunc(c.stuck, func(p *child.Process) bool {
		select {
		case <-p.Ended():
			return true
		default:
			return false
		}
	})
	return slices.Clone(c.stuck)
}

// begin notes that a child is about to be started.
func (c *children) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = true
}

// facts returns the counts, nil before the first child.
func (c *children) facts() []model.ChildProcesses {
	facts := model.ChildProcesses{Source: "nvidia", Stuck: uint64(len(c.remaining()))}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		return nil
	}
	for _, reason := range []string{endedByCrash, endedByHang} {
		facts.Ends = append(facts.Ends, model.Loss{Reason: reason, Count: c.ends[reason]})
	}
	return []model.ChildProcesses{facts}
}

// The reasons of unexpected ends.
const (
	endedByCrash = "crash"
	endedByHang  = "hang"
)

func (c *children) ended(why error) {
	reason := ""
	switch {
	case errors.Is(why, errHung):
		reason = endedByHang
	case errors.Is(why, errEnded):
		reason = endedByCrash
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends[reason]++
}

// outputLog logs the output of a child: text of the library, and stacks after a crash.
type outputLog struct {
	log   *zap.Logger
	line  []byte
	lines int
}

// Limits of the output of a child: bytes of a line, and lines.
const (
	maxLine  = 1024
	maxLines = 20
)

// Write logs the complete lines, up to maxLines.
func (o *outputLog) Write(p []byte) (int, error) {
	if o.lines >= maxLines {
		return len(p), nil
	}
	for _, b := range p {
		switch {
		case b != '\n':
			o.line = append(o.line, b)
			if len(o.line) < maxLine {
				continue
			}
		case len(o.line) == 0:
			continue
		}
		o.log.Warn("output of the process that reads NVML", zap.ByteString("line", o.line))
		o.line = o.line[:0]
		if o.lines++; o.lines >= maxLines {
			break
		}
	}
	return len(p), nil
}
