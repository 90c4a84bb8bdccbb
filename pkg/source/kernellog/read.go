// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// maxRecord is more than a record of /dev/kmsg has: CONSOLE_EXT_LOG_MAX is 8192.
	maxRecord = 16 << 10
	// maxRate limits the records that are read per second, so that a flood costs a few percent of a CPU at most. Other
	// records wait in the kernel; overwritten records are counted.
	maxRate = 20_000
	// maxCatchUp limits the time in which records count as older than the start, if the log never ends.
	maxCatchUp = 5 * time.Second
	// atEnd is the interval at which a file that is not /dev/kmsg is read again.
	atEnd = 200 * time.Millisecond
)

func (s *Source) run() {
	defer close(s.done)
	caught := func() {
		select {
		case <-s.caught:
		default:
			close(s.caught)
		}
	}
	defer caught()
	buf := make([]byte, maxRecord)
	began := time.Now()
	window, read := began, 0
	for {
		n, err := s.read(buf, caught)
		switch {
		case errors.Is(err, unix.EPIPE): // records were overwritten; the next record shows how many
			continue
		case err != nil && isClosed(s.closing):
			return
		case err != nil:
			s.fail(err)
			return
		case n == 0:
			caught()
			if !s.pause(atEnd) {
				return
			}
			continue
		}
		earlier := !isClosed(s.caught)
		s.take(buf[:n], earlier)
		if earlier {
			if time.Since(began) > maxCatchUp {
				caught()
			}
			continue
		}
		if read++; read >= s.o.rate {
			if !s.pause(time.Second - time.Since(window)) {
				return
			}
			window, read = time.Now(), 0
		} else if time.Since(window) >= time.Second {
			window, read = time.Now(), 0
		}
	}
}

// read reads a record. It calls caught when it has to wait.
func (s *Source) read(buf []byte, caught func()) (n int, err error) {
	waitErr := s.conn.Read(func(fd uintptr) bool {
		for {
			n, err = s.o.read(int(fd), buf)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				caught()
				return false
			}
			return true
		}
	})
	return n, errors.Join(waitErr, err)
}

// take adds the records in b. Records of user space count for the sequence only.
func (s *Source) take(b []byte, earlier bool) {
	c := now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for text := range records(b) {
		r, ok := parseRecord(text)
		s.follow(r.sequence, earlier)
		if ok {
			s.handle(&r, c, earlier)
		}
	}
}

// follow counts the records that are missing before a record. Records from before the start are not counted.
func (s *Source) follow(sequence uint64, earlier bool) {
	if sequence == 0 {
		return
	}
	if !earlier && s.next != 0 && sequence > s.next {
		s.overwritten += sequence - s.next
	}
	s.next = sequence + 1
}

func (s *Source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = fmt.Errorf("kernel log: %w", err)
	s.o.Logger.Warn("the kernel log is not read any more", zap.Error(err))
}

// pause waits. It returns false if the source is closed meanwhile.
func (s *Source) pause(d time.Duration) bool {
	timer := time.NewTimer(max(d, time.Millisecond))
	defer timer.Stop()
	select {
	case <-s.closing:
		return false
	case <-timer.C:
		return true
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
