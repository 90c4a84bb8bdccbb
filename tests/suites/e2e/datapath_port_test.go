// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// do runs a command in a container that runs a shell, and returns its output up to "done".
func (c *container) do(t *testing.T, command string) []string {
	t.Helper()
	if _, err := fmt.Fprintln(c.stdin, command); err != nil {
		t.Fatal(err)
	}
	var out []string
	for {
		line := c.line(t, "")
		if line == "done" {
			return out
		}
		out = append(out, line)
	}
}

// words reads a counter of a port, which counts words of four bytes.
func words(t *testing.T, device, counter string) float64 {
	t.Helper()
	text, err := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/counters/" + counter)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil {
		t.Fatal(err)
	}
	return 4 * n
}

// port: the bytes of a device with one exclusive owner come from the counters of its port, including headers; the bytes
// of a shared device come from the posts of each container. Every scrape checks that the shares add up to the counters.
func (n node) port(t *testing.T) {
	const write = "posts -d rxe1 -o write -s 4096 -n 200"
	methods := func(m metrics, c *container, direction string) map[string]float64 {
		return m.by("container_rdma_"+direction+"_bytes_total", "method", "container_id", c.id, "device", "rxe1")
	}
	s, keeper := n.watched(t, "--rdma.datapath=always") // the processes are too short to be found on a busy machine
	c := enter(t, "alone on rxe1", "sh")
	s.fresh()
	alone := func(times int) {
		t.Helper()
		before, sent, received := s.fresh(), words(t, "rxe1", "port_xmit_data"), words(t, "rxe1", "port_rcv_data")
		for range times {
			want := posted(t, "write", 200, c.do(t, write))
			if grew := words(t, "rxe1", "port_xmit_data") - sent; grew <= want["transmit"] {
				t.Fatalf("the port has sent %v bytes of %v", grew, want["transmit"])
			}
			s.fresh()
		}
		m := s.fresh()
		for direction, want := range map[string]float64{
			"transmit": words(t, "rxe1", "port_xmit_data") - sent, "receive": words(t, "rxe1", "port_rcv_data") - received,
		} {
			was, is := methods(before, c, direction), methods(m, c, direction)
			if got := is["port"] - was["port"]; got != want || is["uprobe"] != was["uprobe"] {
				t.Errorf("%s: the port counted %v bytes, the container's grew from %v to %v", direction, want, was, is)
			}
		}
	}
	alone(2)
	t.Logf("alone: %v sent", methods(s.fresh(), c, "transmit"))

	idle := enter(t, "moves nothing over rxe1", "verbs", "-d", "rxe1", "-c", "1", "-m", "4096")
	idle.line(t, "device")
	alone(1)
	idle.rest(t)
	alone(1)

	other := enter(t, "other on rxe1", "posts", "-d", "rxe1", "-n", "1", "-k")
	other.line(t, "done")
	before := s.fresh()
	want := posted(t, "write", 200, c.do(t, write))
	m := s.fresh()
	was, is := methods(before, c, "transmit"), methods(m, c, "transmit")
	if is["port"] != was["port"] || is["uprobe"]-was["uprobe"] != want["transmit"] {
		t.Errorf("shared: posted %v bytes, the container's grew from %v to %v", want["transmit"], was, is)
	}
	t.Logf("shared: %v sent, unattributed %v", is, m.by("container_rdma_transmit_bytes_total", "method", "workload", "", "device", "rxe1"))
	other.rest(t)

	s.fresh() // the first interval without the other container begins here
	alone(1)
	c.rest(t)
	keeper.rest(t)
	s.stop()
}
