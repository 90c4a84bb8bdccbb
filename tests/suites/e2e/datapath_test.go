// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// datapathHooks runs the tests of the data path source that need an RDMA device.
func (n node) datapathHooks(t *testing.T) {
	n.packageTests(t, datapathTestVar, "../../../pkg/source/datapath", "^(TestLoad|TestTiers|TestQuotaOfHooks)$",
		"TestLoad", "TestTiers", "TestQuotaOfHooks")
	n.packageTests(t, returnTestVar, "../../../pkg/source/datapath/returnprobe", "^(TestExperiments|TestChildren)$",
		"TestExperiments", "TestChildren")
}

// unsupported: an old kernel is reported as unsupported, and nothing else fails.
func (n node) unsupported(t *testing.T) {
	s := start(t, n.args("--rdma.datapath=always")...)
	m := s.fresh()
	if m.sum("accelscope_source_state", "source", "datapath", "state", "unsupported") != 1 {
		t.Errorf("state %v", m.all("accelscope_source_state", "source", "datapath"))
	}
	c := enter(t, "on a kernel without probes", "posts", "-d", "rxe0", "-n", "1", "-k")
	c.line(t, "done")
	s.covered(map[*container]map[string]float64{c: gap("refused")})
	c.rest(t)
	s.stop()
}

// watched starts a sensor, and a process that keeps the provider probed until the test ends: so other processes are
// traced from their first call on.
func (n node) watched(t *testing.T, args ...string) (*sensor, *container) {
	t.Helper()
	s := start(t, n.args(args...)...)
	keeper := enter(t, "keeper of "+t.Name(), "posts", "-d", "rxe0", "-x", "-o", "send", "-n", "1", "-k")
	keeper.line(t, "done")
	probes := -1.0
	eventually(t, 30*time.Second, func() error {
		before := probes
		m := s.fresh()
		probes = m.sum("accelscope_datapath_probes")
		if probes < 3 || probes != before {
			return fmt.Errorf("%v probes, before %v; %v", probes, before, m.all("accelscope_source_state", "source", "datapath"))
		}
		return nil
	})
	t.Logf("%v probes", probes)
	return s, keeper
}

// moved is the traffic of a container on the data path, by opcode if it has one.
type moved map[string]float64

func (m metrics) moved(id string) moved { return m.movedOf("container_id", id) }

// movedOf is moved of the series with one label.
func (m metrics) movedOf(name, value string) moved {
	out := moved{}
	for _, direction := range []string{"transmit", "receive"} {
		out[direction] = m.sum("container_rdma_"+direction+"_bytes_total", name, value)
	}
	maps.Copy(out, m.by("container_rdma_work_requests_total", "opcode", name, value))
	for opcode, bytes := range m.by("container_rdma_work_request_bytes_total", "opcode", name, value) {
		out[opcode+" bytes"] = bytes
	}
	for _, x := range m.all("container_rdma_completion_duration_seconds", name, value) {
		out[label(x, "opcode")+" durations"] += float64(x.GetHistogram().GetSampleCount())
	}
	return out
}

// differs returns an error that describes the difference from the program's output. Bytes are compared only if the
// program printed them.
func (m moved) differs(got moved) error {
	for _, direction := range []string{"transmit", "receive"} {
		if got[direction] != m[direction] {
			return fmt.Errorf("%s %v bytes, want %v: %v", direction, got[direction], m[direction], got)
		}
	}
	for key, want := range m {
		if got[key] != want {
			return fmt.Errorf("%s %v, want %v: %v", key, got[key], want, got)
		}
	}
	return nil
}

// add counts requests of one opcode.
func (m moved) add(opcode string, count, bytes float64) {
	direction := "transmit"
	if strings.HasPrefix(opcode, "atomic_") || opcode == "rdma_read" {
		direction = "receive"
	}
	m[direction] += count * bytes
	m[opcode] += count
	m[opcode+" bytes"] += count * bytes
}

// opcodes are the operations of posts, and the histogram with their durations.
var opcodes = map[string][2]string{
	"write": {"rdma_write", "write"}, "write_imm": {"rdma_write_with_imm", "write"}, "read": {"rdma_read", "read"},
	"send": {"send", "send"}, "send_imm": {"send_with_imm", "send"}, "ud": {"send", "send"},
	"fetch_add": {"atomic_fetch_and_add", "atomic"}, "cmp_swap": {"atomic_cmp_and_swp", "atomic"},
}

// posted returns the counts that posts printed. The last request of each chain was signaled.
func posted(t *testing.T, operation string, chains float64, lines []string) moved {
	t.Helper()
	want := moved{}
	var count, bytes, receives, received, receivedBytes float64
	for _, line := range lines {
		if n, _ := fmt.Sscanf(line, "posted %f %f", &count, &bytes); n == 2 && count > 0 {
			want.add(opcodes[operation][0], count, bytes/count)
		}
		if n, _ := fmt.Sscanf(line, "receives %f %f %f", &receives, &received, &receivedBytes); n == 3 && receives > 0 {
			want["receive"] += receivedBytes
			want["recv"] = receives
		}
	}
	if len(want) == 0 {
		t.Errorf("posts printed nothing: %q", lines)
	}
	want[opcodes[operation][1]+" durations"] = chains
	return want
}

// trial is a program in one or two containers, and the traffic of its two ends.
type trial struct {
	name           string
	argv           []string
	opcode         string // the opcode of the requests that the client posts
	duplex, answer bool   // the server does the same; it only receives what was sent
}

// trials run perftest and the examples of rdma-core, which (with -N) use ibv_wr_*.
func trials() []trial {
	tool := func(name string, more ...string) []string {
		return append([]string{name, "-F", "-d", "rxe0", "-x", "1", "-n", "500"}, more...)
	}
	pingpong := func(name string, more ...string) trial {
		return trial{
			strings.Join(append([]string{name}, more...), " "),
			append([]string{name, "-d", "rxe0", "-g", "1", "-n", "300", "-s", "1000"}, more...), "send", true, true,
		}
	}
	return []trial{
		{"write", tool("ib_write_bw", "-s", "4096", "-q", "3", "-l", "5"), "rdma_write", false, false},
		{"old write", tool("ib_write_bw", "-s", "4096", "--use_old_post_send"), "rdma_write", false, false},
		{"write both ways", tool("ib_write_bw", "-s", "4096", "-b"), "rdma_write", true, false},
		{"read", tool("ib_read_bw", "-s", "8192", "-q", "2"), "rdma_read", false, false},
		{"send", tool("ib_send_bw", "-s", "4096", "-l", "4", "-q", "2"), "send", false, true},
		{"send UD", tool("ib_send_bw", "-s", "1000", "-c", "UD"), "send", false, true},
		{"fetch and add", tool("ib_atomic_bw", "-A", "FETCH_AND_ADD"), "atomic_fetch_and_add", false, false},
		{"compare and swap", tool("ib_atomic_bw", "-A", "CMP_AND_SWAP", "-l", "5"), "atomic_cmp_and_swp", false, false},
		pingpong("ibv_rc_pingpong"), pingpong("ibv_rc_pingpong", "-N"), pingpong("ibv_srq_pingpong", "-q", "1"),
		pingpong("ibv_ud_pingpong"),
	}
}

// printed returns the number of requests and their size that the tool printed.
func printed(t *testing.T, lines []string) (count, bytes float64) {
	t.Helper()
	for i, line := range lines {
		if strings.HasPrefix(line, " #bytes") && i+1 < len(lines) {
			if n, _ := fmt.Sscan(lines[i+1], &bytes, &count); n == 2 {
				return count, bytes
			}
		}
		var both, exchanges float64
		if n, _ := fmt.Sscanf(line, "%f bytes in", &both); n == 1 && i+1 < len(lines) {
			if n, _ := fmt.Sscanf(lines[i+1], "%f iters", &exchanges); n == 1 {
				return exchanges, both / exchanges / 2
			}
		}
	}
	t.Errorf("the tool did not print what it did: %q", lines)
	return 0, 0
}

// wants returns the traffic that the containers of a trial should have.
func (x trial) wants(t *testing.T, client []string) (server, of moved) {
	t.Helper()
	count, bytes := printed(t, client)
	server, of = moved{}, moved{}
	of.add(x.opcode, count, bytes)
	if x.duplex {
		server.add(x.opcode, count, bytes)
	}
	if x.answer {
		server["receive"] += count * bytes
		if x.duplex {
			of["receive"] += count * bytes
		}
	}
	return server, of
}

var nextPort = 20000

// ends starts a trial: the client once the server listens.
func (x trial) ends(t *testing.T) (server, client *container) {
	t.Helper()
	nextPort++
	argv := append(append([]string{}, x.argv...), "-p", strconv.Itoa(nextPort))
	server = enter(t, x.name+" server", argv...)
	listening(t, nextPort)
	return server, enter(t, x.name+" client", append(argv, "10.70.0.1")...)
}

func listening(t *testing.T, port int) {
	t.Helper()
	suffix := fmt.Sprintf(":%04X", port)
	eventually(t, 30*time.Second, func() error {
		for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], suffix) && f[3] == "0A" {
					return nil
				}
			}
		}
		return fmt.Errorf("no process listens on port %d", port)
	})
}

// equal waits until all containers have the values that their programs printed.
func (s *sensor) equal(want map[*container]moved) {
	s.t.Helper()
	eventually(s.t, 30*time.Second, func() error {
		m := s.fresh()
		for c, w := range want {
			if err := w.differs(m.moved(c.id)); err != nil {
				return fmt.Errorf("%v: %w; objects %v, lost: %v", c.cmd.Args[4:], err,
					m.by("container_rdma_objects_created_total", "type", "container_id", c.id), m.losses())
			}
		}
		return nil
	})
}

func (m metrics) losses() map[string]float64 {
	lost := m.by("accelscope_probe_lost_total", "reason")
	maps.DeleteFunc(lost, func(_ string, n float64) bool { return n == 0 })
	return lost
}

// exact: bytes and requests equal the programs' output, to the byte.
func (n node) exact(t *testing.T) {
	s, keeper := n.watched(t, "--rdma.datapath=always")
	want := map[*container]moved{}

	// Many containers at once, with one process each. Our program also prints how many requests it signaled, how many
	// were refused and how many it aborted.
	type own struct {
		operation string
		chains    float64
	}
	running := map[*container]own{}
	for operation := range opcodes {
		size := "1000"
		if strings.HasPrefix(opcodes[operation][0], "atomic") {
			size = "8"
		}
		for _, more := range [][]string{nil, {"-x"}} {
			argv := append([]string{"posts", "-d", "rxe0", "-o", operation, "-s", size, "-n", "50", "-l", "4", "-q", "3"}, more...)
			running[enter(t, fmt.Sprint(argv), argv...)] = own{operation, 150}
		}
	}
	for _, argv := range [][]string{
		{"-o", "write", "-s", "1001", "-g", "3"},
		{"-o", "write", "-s", "1001", "-g", "3", "-x"},
		{"-o", "send", "-s", "64", "-i"},
		{"-o", "send", "-s", "64", "-S"},
		{"-o", "send", "-s", "64", "-i", "-x", "-g", "2"},
		{"-o", "read", "-s", "64", "-r"},
		{"-o", "write", "-s", "64", "-r"},
	} {
		argv = append([]string{"posts", "-d", "rxe0", "-n", "50"}, argv...)
		running[enter(t, fmt.Sprint(argv), argv...)] = own{argv[6], 50}
	}
	for c, is := range running {
		want[c] = posted(t, is.operation, is.chains, c.rest(t))
		if n.preempts() { // a skipped hook of a queue pair costs its first durations
			delete(want[c], opcodes[is.operation][1]+" durations")
		}
	}
	s.equal(want)

	for _, x := range trials() {
		server, client := x.ends(t)
		lines := client.rest(t)
		server.rest(t)
		want[server], want[client] = x.wants(t, lines)
	}
	s.equal(want)

	// Two containers with three processes each, and two such pairs at once.
	x := trials()[0]
	three := fmt.Sprintf(`for p in 1 2 3; do %s -p $(($2+p)) $1 & pids="$pids $!"; done; for p in $pids; do wait $p || exit; done`,
		strings.Join(x.argv, " "))
	var servers, clients []*container
	for i := range 2 {
		base := 21000 + 10*i
		servers = append(servers, enter(t, fmt.Sprint("three servers ", i), "sh", "-c", three, "sh", "", strconv.Itoa(base)))
		for p := 1; p <= 3; p++ {
			listening(t, base+p)
		}
	}
	for i := range 2 {
		clients = append(clients, enter(t, fmt.Sprint("three clients ", i), "sh", "-c", three, "sh", "10.70.0.1", strconv.Itoa(21000+10*i)))
	}
	for i := range 2 {
		want[clients[i]] = moved{}
		for lines := clients[i].rest(t); len(lines) > 0; lines = lines[1:] {
			if strings.HasPrefix(lines[0], " #bytes") {
				count, bytes := printed(t, lines)
				want[clients[i]].add(x.opcode, count, bytes)
			}
		}
		if want[clients[i]][x.opcode] != 3*1500 {
			t.Errorf("three clients posted %v", want[clients[i]])
		}
		servers[i].rest(t)
		want[servers[i]] = moved{}
	}
	s.equal(want)

	m := s.fresh()
	for _, direction := range []string{"transmit", "receive"} {
		for c := range want { // the keeper uses the device, too: even if the port counts bytes, they are not the containers'
			methods := m.by("container_rdma_"+direction+"_bytes_total", "method", "container_id", c.id)
			if delete(methods, "uprobe"); len(methods) > 0 {
				t.Errorf("%v: %s bytes by another method: %v", c.cmd.Args[4:], direction, methods)
			}
		}
	}
	if lost := n.avoidable(t, m.losses()); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	// At most the process that keeps the provider probed may be late, because it was the first.
	if late := m.sum("accelscope_datapath_late_total"); late > 1 {
		t.Errorf("%v contexts were late", late)
	}
	keeper.rest(t)
	s.stop()
}
