// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// python starts extended.py, which sends 50 times 1000 bytes.
func python(t *testing.T, name, mode string) *container {
	t.Helper()
	return enter(t, name, "sh", "-c", `exec /usr/bin/python3 "$(dirname "$(command -v posts)")/extended.py" rxe0 50 1000 `+mode)
}

// extended starts the first process that polls an extended completion queue, which may be late, and waits until its
// functions are probed.
func (s *sensor) extended(t *testing.T) *container {
	t.Helper()
	before := s.fresh().sum("accelscope_datapath_probes")
	// Its verbs context is known from a queue pair with an ordinary CQ.
	first := enter(t, "first extended", "posts", "-d", "rxe0", "-c", "+olq", "-o", "send", "-n", "1", "-k")
	first.line(t, "done")
	eventually(t, 30*time.Second, func() error {
		if probes := s.fresh().sum("accelscope_datapath_probes"); probes != before+5 {
			return fmt.Errorf("%v probes, before %v: want those of start_poll, next_poll and three parts of a completion", probes, before)
		}
		return nil
	})
	return first
}

// extended: completions that a program polls with ibv_start_poll and ibv_next_poll are counted like completions of ibv_poll_cq, as
// far as the program reads them. The others are counted as unread.
func (n node) extended(t *testing.T) {
	s, keeper := n.watched(t, "--rdma.datapath=always")
	first := s.extended(t)

	type poller struct {
		parts, operation string
		pairs            float64
	}
	const chains = 50
	running, want, unread := map[*container]poller{}, map[*container]moved{}, map[*container]float64{}
	for _, argv := range [][]string{
		{"-c", "olq", "-o", "send"},
		{"-c", "olq", "-o", "send", "-l", "4", "-q", "3"},
		{"-c", "olq", "-o", "send_imm", "-S", "-x"},
		{"-c", "olq", "-o", "write_imm"},
		{"-c", "olq", "-o", "ud"},
		{"-c", "ol", "-o", "send"},
		{"-c", "oq", "-o", "write"},
		{"-c", "oq", "-o", "read", "-x"},
		{"-c", "o", "-o", "send"},
		{"-c", "lq", "-o", "send"},
		{"-c", "-", "-o", "send"},
	} {
		p := poller{argv[1], argv[3], 1}
		if strings.HasSuffix(argv[len(argv)-1], "3") {
			p.pairs = 3
		}
		argv = append([]string{"posts", "-d", "rxe0", "-s", "1000", "-n", fmt.Sprint(chains)}, argv...)
		running[enter(t, fmt.Sprint(argv), argv...)] = p
	}
	for c, p := range running {
		sends := chains * p.pairs
		want[c] = posted(t, p.operation, sends, c.rest(t))
		if !strings.Contains(p.parts, "o") || !strings.Contains(p.parts, "q") {
			want[c][opcodes[p.operation][1]+" durations"] = 0
		}
		if received := want[c]["recv"]; received > 0 && (!strings.Contains(p.parts, "o") || !strings.Contains(p.parts, "l")) {
			want[c]["receive"] = 0
			unread[c] = received
		}
		if !strings.Contains(p.parts, "o") {
			unread[c] += sends // these may be receives
		}
	}
	// pyverbs is the Python binding of libibverbs. Its cq.CQEX is an extended completion queue.
	pyverbs := python(t, "pyverbs", "")
	want[pyverbs] = posted(t, "send", chains, pyverbs.rest(t))
	s.equal(want)
	m := s.fresh()
	for c := range running {
		if got := m.sum("container_rdma_unread_completions_total", "container_id", c.id); got != unread[c] {
			t.Errorf("%v: %v completions unread, want %v", c.cmd.Args[4:], got, unread[c])
		}
	}

	failing := enter(t, "alone, extended", "posts", "-d", "rxe0", "-c", "-", "-e", "-l", "4", "-s", "100")
	failed := map[string]float64{}
	for _, line := range failing.rest(t) {
		var status string
		var count float64
		if n, _ := fmt.Sscan(line, &status, &count); n == 2 && status != "posted" {
			failed[status] = count
		}
	}
	eventually(t, 30*time.Second, func() error {
		got := s.fresh().by("container_rdma_completion_errors_total", "status", "container_id", failing.id)
		if got["retry_exceeded"] != failed["retry_exceeded"] || got["wr_flush_error"] != failed["wr_flush_error"] || failed["retry_exceeded"] != 1 {
			return fmt.Errorf("errors %v, want %v", got, failed)
		}
		return nil
	})
	if lost := n.avoidable(t, s.fresh().losses()); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	first.rest(t)
	keeper.rest(t)
	s.stop()
}
