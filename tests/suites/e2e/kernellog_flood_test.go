// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// Records of the flood. The kernel keeps at most one per 32 bytes of its log (PRB_AVGBITS), whose size is
// CONFIG_LOG_BUF_SHIFT: 17 in Debian's kernels, and at most 18.
const (
	floodRecords   = 45_000
	stoppedRecords = 20_000
	mostKept       = 1 << 18 / 32
	// floodRate is the number of records per second that the sensor reads at most: maxRate of package kernellog. An
	// emulated CPU does not reach it.
	floodRate = 20_000
)

// flood lets the driver flood the kernel log while the sensor reads it, and while the sensor is stopped, so that the
// kernel overwrites records. Each record is either a fault or lost. The sensor answers meanwhile.
func (d *stubDriver) flood(s *sensor) {
	t := d.t
	first, lost := d.sequence(), s.scrape().overwritten()
	begin, logged := time.Now(), make(chan struct{})
	go func() {
		defer close(logged)
		d.logTimes(floodRecords, d.xid("13, Graphics Exception"))
		// A process chooses its name. The kernel writes \x1b as four characters.
		d.kernelLogs(d.xid("45, pid=1, name=\x1b]0;x\x07\x01\xff NVRM: Xid (PCI:0000:00:00): 79"))
	}()
	m := s.after(t, "45", func(m metrics) {
		s.healthy()
		elapsed := time.Since(begin)
		if got, most := m.sum("gpu_faults_total", "code", "13"), floodRate*float64(elapsed/time.Second+2); got > most {
			t.Errorf("%v records within %v, want at most %v", got, elapsed, most)
		}
	})
	<-logged
	t.Logf("%d records: %v are counted, %v overwritten after %v", floodRecords, m.sum("gpu_faults_total", "code", "13"),
		m.overwritten()-lost, time.Since(begin).Round(time.Millisecond))
	before := m.overwritten()

	s.paused(func() { d.logTimes(stoppedRecords, d.xid("13, Graphics Exception")) })
	d.kernelLogs(d.xid("46, GPU stopped processing"))
	m = s.after(t, "46", func(metrics) { s.healthy() })
	counted, overwritten, records := m.sum("gpu_faults_total", "code", "13"), m.overwritten()-lost, float64(d.sequence()-first)
	t.Logf("%d more while the sensor is stopped: %v are counted, %v overwritten, of %v records", stoppedRecords, counted, overwritten, records)
	if got := m.overwritten() - before; got < stoppedRecords-mostKept {
		t.Errorf("%v records are overwritten while the sensor is stopped, want at least %d", got, stoppedRecords-mostKept)
	}
	const written = floodRecords + stoppedRecords
	if counted > written || counted+overwritten < written || counted+overwritten > records {
		t.Errorf("%v faults and %v overwritten records, of %d faults in %v records", counted, overwritten, written, records)
	}
	if got := m.by("accelscope_source_state", "state", "source", "kernellog"); got["ok"] != 1 {
		t.Errorf("state %v", got)
	}
	if got := m.sum("gpu_faults_total", "code", "79"); got != 0 {
		t.Errorf("%v faults from the name of a process", got)
	}
	s.printable(t, "45")
}

// logTimes makes the kernel log a text many times in a row.
func (d *stubDriver) logTimes(n int, text string) {
	d.t.Helper()
	const times = "/sys/module/nvidia/parameters/times"
	d.write(times, strconv.Itoa(n))
	d.kernelLogs(text)
	d.write(times, "1")
}

// sequence returns the sequence number of the next record of the kernel log. If no record follows, it writes one.
func (d *stubDriver) sequence() uint64 {
	d.t.Helper()
	f, err := os.OpenFile("/dev/kmsg", os.O_RDWR, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		d.t.Fatal(err)
	}
	if _, err := f.WriteString("<7>accelscope: a record of the test\n"); err != nil {
		d.t.Fatal(err)
	}
	record := make([]byte, 16<<10)
	n, err := f.Read(record)
	if err != nil {
		d.t.Fatal(err)
	}
	fields := strings.SplitN(string(record[:n]), ",", 3)
	sequence, err := strconv.ParseUint(fields[min(1, len(fields)-1)], 10, 64)
	if err != nil {
		d.t.Fatalf("%q: %v", record[:n], err)
	}
	return sequence
}

// after scrapes until a fault with a code is counted, and all records before it, and calls check after each scrape.
func (s *sensor) after(t *testing.T, code string, check func(metrics)) (m metrics) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		m = s.scrape()
		check(m)
		if m.sum("gpu_faults_total", "code", code) != 1 {
			return fmt.Errorf("no fault %s: %v", code, m.by("gpu_faults_total", "code"))
		}
		return nil
	})
	return m
}

// paused calls f while the sensor is stopped.
func (s *sensor) paused(f func()) {
	s.t.Helper()
	pid := s.cmd.Process.Pid
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil); err != nil { // all of its threads
		s.t.Fatal(err)
	}
	f()
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sensor) healthy() {
	s.t.Helper()
	res, err := (&http.Client{Timeout: time.Minute}).Get(s.url + "/healthz")
	if err != nil {
		s.t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		s.t.Errorf("/healthz: %s", res.Status)
	}
}

// printable checks that the sensor shows and logs faults without control characters, and that the fault with this code
// is shown.
func (s *sensor) printable(t *testing.T, code string) {
	t.Helper()
	res, err := http.Get(s.url + "/api/v1/faults")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var envelope struct {
		Data []struct{ Code, Process, Text string }
	}
	if err := json.NewDecoder(res.Body).Decode(&envelope); err != nil {
		t.Fatal(err)
	}
	shown := false
	for _, f := range envelope.Data {
		if strings.ContainsFunc(f.Process+f.Text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q by %q", f.Text, f.Process)
		}
		shown = shown || f.Code == code && strings.Contains(f.Text, `\x1b]0;x\x07`)
	}
	if !shown || bytes.ContainsAny([]byte(s.log.String()), "\x1b\x07\x01") {
		t.Errorf("faults %+v; log:\n%q", envelope.Data, s.log)
	}
}

// overwritten returns the number of records that the kernel has overwritten before the sensor has read them.
func (m metrics) overwritten() float64 {
	return m.sum("accelscope_probe_lost_total", "reason", "kernel_log_overwritten")
}
