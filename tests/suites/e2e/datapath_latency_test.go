// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// native returns a histogram with all its buckets, which only protobuf contains.
func (s *sensor) native(name string, labels ...string) *dto.Histogram {
	s.t.Helper()
	s.fresh()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+"/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	for decoder := expfmt.NewDecoder(res.Body, expfmt.ResponseFormat(res.Header)); ; {
		var f dto.MetricFamily
		if err := decoder.Decode(&f); errors.Is(err, io.EOF) {
			s.t.Fatalf("no histogram %s %v", name, labels)
		} else if err != nil {
			s.t.Fatal(err)
		}
		if all := (metrics{name: &f}).all(name, labels...); f.GetName() == name && len(all) == 1 {
			return all[0].GetHistogram()
		}
	}
}

// median returns the median of a native histogram, by geometric interpolation within its bucket.
func median(h *dto.Histogram) float64 {
	base := math.Exp2(math.Exp2(-float64(h.GetSchema())))
	index, delta, count, below := 0, 0, int64(0), 0.0
	half := float64(h.GetSampleCount()) / 2
	for _, span := range h.PositiveSpan {
		index += int(span.GetOffset())
		for range span.GetLength() {
			count += h.PositiveDelta[delta]
			if below+float64(count) >= half && count > 0 {
				return math.Pow(base, float64(index-1)+(half-below)/float64(count))
			}
			below += float64(count)
			index++
			delta++
		}
	}
	return math.NaN()
}

// latency: the median from post to completion equals the programs' own measurement within 20 %. Other work on the
// machine delays both. An emulator that waits for its CPUs may miss the limit once, but not three times.
func (n node) latency(t *testing.T) {
	s, keeper := n.watched(t, "--rdma.datapath=always")
	// check compares the medians with the results of run: the container and the median that its program measured.
	check := func(what, opcode string, run func(try int) (c *container, want float64)) {
		t.Helper()
		for try := 1; ; try++ {
			c, want := run(try)
			h := s.native("container_rdma_completion_duration_seconds", "container_id", c.id, "opcode", opcode)
			got := median(h)
			t.Logf("%s: %.2f µs of %d completions, the tool says %.2f µs (%+.1f %%)", what, got*1e6, h.GetSampleCount(),
				want*1e6, 100*(got/want-1))
			if math.Abs(got/want-1) <= 0.2 {
				return
			}
			if try == 3 {
				t.Errorf("%s: median %v s, want %v s", what, got, want)
				return
			}
		}
	}
	// The messages are large enough to take a while: the tools' clocks also measure the probes, which are ten times as
	// slow on an emulated CPU as on a real CPU.
	const size = "65536"
	// A program that reads the clock before each post and after it polled the completion.
	for _, operation := range []string{"write", "read", "send"} {
		check("posts "+operation, opcodes[operation][1], func(try int) (*container, float64) {
			c := enter(t, fmt.Sprint("latency of ", operation, try), "posts", "-d", "rxe0", "-o", operation, "-s", size, "-n", "200")
			var want float64
			for _, line := range c.rest(t) {
				_, _ = fmt.Sscanf(line, "median %f", &want)
			}
			return c, want
		})
	}
	// The read latency that the tools print is the full duration. The write latency is half of the time between two
	// writes. Each waits for a write of the remote end: the acknowledgment arrives not before that write, but
	// before the next one.
	figures := func(x trial) (client *container, table []float64) {
		server, client := x.ends(t)
		lines := client.rest(t)
		server.rest(t)
		for i, line := range lines {
			if strings.HasPrefix(line, " #bytes") && i+1 < len(lines) {
				for f := range strings.FieldsSeq(lines[i+1]) {
					// If the tool does not trust the clock, the column may hold a warning. It is not compared.
					figure, err := strconv.ParseFloat(strings.Replace(f, "-nan", "nan", 1), 64)
					if err != nil {
						t.Fatal(err)
					}
					table = append(table, figure)
				}
			}
		}
		if len(table) < 5 {
			t.Fatalf("%v printed %q", x.argv, lines)
		}
		return client, table
	}
	for _, more := range [][]string{{"-n", "200", "-s", size}, {"-n", "500", "-s", "8"}} {
		argv := append([]string{"ib_read_lat", "-F", "-d", "rxe0", "-x", "1"}, more...)
		check(strings.Join(argv, " "), "read", func(try int) (*container, float64) {
			client, table := figures(trial{name: fmt.Sprint(argv, try), argv: argv})
			return client, table[4] / 1e6 // t_typical
		})
	}
	// Each end writes after the remote end's write has arrived, so the acknowledgment arrives before the next answer,
	// however late it is.
	argv := []string{"ib_write_lat", "-F", "-d", "rxe0", "-x", "1", "-n", "200", "-s", size}
	client, table := figures(trial{name: fmt.Sprint(argv), argv: argv})
	got := median(s.native("container_rdma_completion_duration_seconds", "container_id", client.id, "opcode", "write")) * 1e6
	t.Logf("ib_write_lat: %.2f µs, half of an exchange takes %.2f µs (%+.1f %%)", got, table[4], 100*(got/table[4]-1))
	if got <= 0 || got > 1.2*2*table[4] {
		t.Errorf("ib_write_lat: median %.2f µs, want at most twice %.2f", got, table[4])
	}
	// One write at a time and nothing else: the sum of all durations is most of the tool's time, and not more. The tool
	// prints bytes and MiB per second.
	argv = []string{"ib_write_bw", "-F", "-d", "rxe0", "-x", "1", "-n", "200", "-s", size, "-t", "1"}
	client, table = figures(trial{name: fmt.Sprint(argv), argv: argv})
	total := 200 * table[0] / (table[3] * (1 << 20))
	h := s.native("container_rdma_completion_duration_seconds", "container_id", client.id, "opcode", "write")
	t.Logf("ib_write_bw: %d writes of %.4f s together, the tool takes %.4f s", h.GetSampleCount(), h.GetSampleSum(), total)
	if h.GetSampleCount() != 200 || h.GetSampleSum() > 1.05*total || h.GetSampleSum() < 0.4*total {
		t.Errorf("ib_write_bw: %d writes took %v s, want 200 and most of %v s", h.GetSampleCount(), h.GetSampleSum(), total)
	}
	keeper.rest(t)
	s.stop()
}

// completionErrors: unanswered work requests fail with the expected status, and count for their container.
func (n node) completionErrors(t *testing.T) {
	s, keeper := n.watched(t, "--rdma.datapath=always")
	c := enter(t, "alone", "posts", "-d", "rxe0", "-e", "-l", "4", "-s", "100")
	want := map[string]float64{}
	for _, line := range c.rest(t) {
		var status string
		var count float64
		if n, _ := fmt.Sscan(line, &status, &count); n == 2 && status != "posted" {
			want[status] = count
		}
	}
	if want["retry_exceeded"] != 1 || want["wr_flush_error"] != 3 {
		t.Fatalf("the program printed %v", want)
	}
	m := s.fresh()
	if diff := cmp.Diff(want, m.by("container_rdma_completion_errors_total", "status", "container_id", c.id)); diff != "" {
		t.Errorf("completions with an error (-program +sensor):\n%s", diff)
	}
	if diff := cmp.Diff(want, m.by("container_rdma_completion_errors_total", "status")); diff != "" {
		t.Errorf("of all containers together (-program +sensor):\n%s", diff)
	}
	if got := m.moved(c.id); got["rdma_write"] != 4 || got["write durations"] != 0 {
		t.Errorf("it posted 4 writes, none of which completed: %v", got)
	}
	keeper.rest(t)
	s.stop()
}
