// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// packets makes each write a record, which one read returns, as with /dev/kmsg.
func (n *node) packets() {
	n.t.Helper()
	if _, err := unix.FcntlInt(n.writer.Fd(), unix.F_SETFL, unix.O_DIRECT); err != nil {
		n.t.Fatal(err)
	}
}

func losses(s *model.Snapshot) map[string]uint64 {
	all := map[string]uint64{}
	for _, l := range s.Losses {
		all[l.Reason] = l.Count
	}
	return all
}

// TestFlood: a driver that floods the log takes no more than the permitted rate of the sensor, and a scrape does not
// wait for it. All records that the kernel kept are counted.
func TestFlood(t *testing.T) {
	const rate, flood = 500, 4 * 500
	n := newNode(t)
	n.options.rate = rate
	n.packets()
	n.start()
	began, written := time.Now(), make(chan struct{})
	go func() {
		defer close(written)
		for range flood {
			n.kernel(xid + "31, pid=71, name=python, Ch 00000010")
		}
	}()
	for {
		s, err := n.source.Read(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		totals, _ := counts(&s)
		// The first interval may have begun before the flood.
		elapsed := time.Since(began)
		if most := rate * (uint64(elapsed/time.Second) + 2); totals["31"] > most {
			t.Fatalf("%d records within %v, want at most %d", totals["31"], elapsed, most)
		}
		if totals["31"] == flood {
			if elapsed < 2*time.Second {
				t.Errorf("all of %d records within %v", flood, elapsed)
			}
			if got := losses(&s); got["kernel_log_overwritten"] != 0 || len(s.FaultHistory) != 1 || s.FaultHistory[0].Repeated != flood-1 {
				t.Errorf("%v, %+v", got, s.FaultHistory)
			}
			break
		}
		if elapsed > time.Minute {
			t.Fatalf("%d of %d records", totals["31"], flood)
		}
		time.Sleep(time.Millisecond)
	}
	<-written
}

// TestOverrun: the kernel answers EPIPE when it has overwritten unread records, and moves to the oldest. The records
// are real; the answer is simulated, because a pipe does not give it.
func TestOverrun(t *testing.T) {
	var overrun atomic.Int32
	n := newNode(t, xid+"43, early")
	n.options.read = func(fd int, b []byte) (int, error) {
		if overrun.Add(-1) >= 0 {
			return -1, unix.EPIPE
		}
		return unix.Read(fd, b)
	}
	overrun.Store(3)
	n.packets()
	n.start()
	s := n.until("not read", func(s *model.Snapshot) bool { return len(s.FaultHistory) == 1 })
	if got := losses(&s); got["kernel_log_overwritten"] != 0 {
		t.Errorf("records from before the start are lost: %v", got)
	}
	n.kernel(xid + "31, Ch 1")
	n.counted("31")
	for lost := 1; lost <= 3; lost++ {
		overrun.Store(1)
		n.sequence += 100
		n.kernel(xid + fmt.Sprint(100+lost) + ", x")
		s = n.counted(fmt.Sprint(100 + lost))
		if got := losses(&s); got["kernel_log_overwritten"] != uint64(100*lost) {
			t.Errorf("%v, want %d records that are overwritten", got, 100*lost)
		}
	}
}

// TestEndlessLog: if the log never ends, records count as older than the start for some seconds only.
func TestEndlessLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kmsg")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		began, end := time.Now(), make(chan struct{})
		s, err := New(Options{Path: path, Procfs: t.TempDir(), read: func(_ int, b []byte) (int, error) {
			select {
			case <-end:
				return 0, unix.EINVAL
			case <-time.After(time.Second):
				return copy(b, "4,1,1,-;x"), nil
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.caught:
			if took := time.Since(began); took < maxCatchUp || took > 2*maxCatchUp {
				t.Errorf("new records count after %v", took)
			}
		case <-time.After(time.Hour):
			t.Error("no record counts")
		}
		close(end)
		<-s.done // Close waits for a read, which synctest cannot see
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestHostileLog: whatever containers bring into the log, the source continues, and counts the kernel's own reports.
func TestHostileLog(t *testing.T) {
	n := newNode(t)
	n.packets()
	n.start()
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		for _, record := range hostile() {
			if record != "" { // 0 bytes are not a packet
				n.write(record)
			}
		}
		n.write("12,1,1,-;" + string(bytes.Repeat([]byte(xid), 200)) + "\n") // longer than any record
		noise := make([]byte, 1+random.IntN(4000))
		for i := range noise {
			noise[i] = byte(random.Uint32())
		}
		n.write(string(noise))
		n.kernel(xid + fmt.Sprintf("43, pid=71, name=%d \x1b[31m\xff", round))
	}
	n.kernel(last)
	s := n.counted("8")
	totals, owned := counts(&s)
	if totals["43"] != 20 || len(totals) != 1 || len(owned) != 0 {
		t.Errorf("%v, %v", totals, owned)
	}
	for _, f := range s.FaultHistory {
		if bytes.ContainsAny([]byte(f.Text+f.Process), "\x1b\xff") {
			t.Errorf("%q by %q", f.Text, f.Process)
		}
	}
}
