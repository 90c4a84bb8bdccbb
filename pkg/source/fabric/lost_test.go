// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/machines/ibsim"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestSilentHost stops the performance manager of a host and of a switch. The other nodes are complete, and the host
// keeps its counters. The error of the switch contains the last message of the real perfquery.
func TestSilentHost(t *testing.T) {
	t.Parallel()
	net := ibsim.FatTree(2, 4, 1)
	f := simulate(t, net)
	s := source(t, Options{Tools: f.Tools})
	silent, other := net.Nodes[net.Find("host5 mlx5_0")], net.Nodes[net.Find("host2 mlx5_0")]
	console(t, f, "PerformanceSet %q[1] PortCounters.PortRcvErrors=5", silent.ID())
	well, _ := readBut(t, s)
	was := find(t, well, silent)
	console(t, f, "Error %q[1] 100 1", silent.ID())
	console(t, f, "Error %q[0] 100 1", net.Nodes[1].ID())
	got, _ := readBut(t, s, silent, net.Nodes[1])
	if n := find(t, got, other); n.Ports[0].Counters == nil || n.Error != "" || !n.Queried.After(was.Queried) {
		t.Errorf("a host that answers: %v of %v, error %q", n.Ports[0].Counters, n.Queried, n.Error)
	}
	n := find(t, got, silent)
	if v, _ := counter(n.Ports[0], "PortRcvErrors"); v != 5 || n.Error == "" || !n.Queried.Equal(was.Queried) {
		t.Errorf("a host that does not: %v of %v, error %q", n.Ports[0].Counters, n.Queried, n.Error)
	}
	if n := find(t, got, net.Nodes[1]); !strings.Contains(n.Error, "classportinfo") || strings.Contains(n.Error, "/usr/sbin") {
		t.Errorf("a switch that does not: %q", n.Error)
	}
}

// TestTwoPorts: the LID of a host with two ports is the first port's.
func TestTwoPorts(t *testing.T) {
	t.Parallel()
	net := ibsim.FatTree(1, 2, 1)
	host := net.Find("host1 mlx5_0")
	net.Nodes[host].Ports = 2
	net.Links = append(net.Links, ibsim.Link{A: ibsim.End{Node: 0, Port: 20}, B: ibsim.End{Node: host, Port: 2}, Width: 12, Speed: "HDR"})
	f := simulate(t, net)
	out, err := child.Command(context.Background(), filepath.Join(f.Tools, ibnetdiscover), "-p").Output()
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^CA +([0-9]+)  1 0x%016x`, net.Nodes[host].PortGUID(1)))
	m := line.FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n := find(t, read(t, source(t, Options{Tools: f.Tools})), net.Nodes[host]); fmt.Sprint(n.LID) != string(m[1]) {
		t.Errorf("LID %d, want %s", n.LID, m[1])
	}
}

// TestLostRequest loses one request for a port, once. The counters of all ports stay, and are read in the next round.
func TestLostRequest(t *testing.T) {
	s, _, dir := fabricOf(t, `file=perfquery.out; case "$*" in *--extended*) file=perfquery-extended.out;; esac
case "$*" in
*1-40) for p in $(seq 40); do
  if [ $p = 20 ] && [ -e lost ]; then rm lost; echo "perfquery: iberror: failed: perfextquery"; exit 255; fi
  port $p $file; done;;
*) port 1 $file; port 2 $file;;
esac`)
	first := leafOf(t, s)
	if err := os.WriteFile(filepath.Join(dir, "lost"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n := leafOf(t, s)
	if n.Error == "" || n.Ports[9].Counters == nil {
		t.Errorf("%v, error %q", n.Ports[9].Counters, n.Error)
	}
	if n = leafOf(t, s); n.Error != "" || n.Ports[9].Counters == nil || !n.Queried.After(first.Queried) {
		t.Errorf("after that: %v, error %q", n.Ports[9].Counters, n.Error)
	}
}

// TestFewerPortsLink has a switch that answers for some of its ports. A port that has answered loses its link: its
// counters are still read.
func TestFewerPortsLink(t *testing.T) {
	s, _, dir := fabricOf(t, `file=perfquery.out; case "$*" in *--extended*) file=perfquery-extended.out;; esac
port 1 $file
case "$*" in *" 1") exit;; esac
port 2 $file
case "$*" in *1-40) echo "perfquery: iberror: failed: perfextquery"; exit 255;; esac`)
	leafOf(t, s)
	link := regexp.MustCompile(`(?m)^(SW     2  2 0x[0-9a-f]+) 4x HDR - CA .*$`)
	text := link.ReplaceAllString(string(sample(t, "ports-hdr.out")), "$1 4x SDR                                    'x'")
	if err := os.WriteFile(filepath.Join(dir, "ports-hdr.out"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if n := leafOf(t, s); n.Ports[1].Peer != nil || n.Ports[1].Counters == nil || n.Error != "" {
		t.Errorf("peer %v, counters %v, error %q", n.Ports[1].Peer, n.Ports[1].Counters, n.Error)
	}
}

// TestNoSweep checks the errors of unread nodes without a sweep, and that old LIDs are not used.
func TestNoSweep(t *testing.T) {
	s, asked, dir := fabricOf(t, each+`perfquery-extended.out; echo SymbolErrorCounter:..............1; done`)
	script := "printf '## Summary: 2 nodes checked\n'"
	s.run.paths[ibqueryerrors] = filepath.Join(fakes(t, map[string]string{ibqueryerrors: script}), ibqueryerrors)
	read(t, s)
	if err := os.Remove(filepath.Join(dir, "ports-hdr.out")); err != nil {
		t.Fatal(err)
	}
	asked()
	for _, old := range []bool{false, true} {
		if old {
			s.discovered = time.Now().Add(-time.Hour)
		}
		got, err := s.Read(t.Context())
		if err == nil || got.Fabric == nil {
			t.Fatalf("%+v, %v", got, err)
		}
		for _, n := range got.Fabric.Nodes {
			if (n.Error == "") != (n.Kind == model.FabricSwitch && !old) {
				t.Errorf("old %v: %s: error %q", old, n.Name, n.Error)
			}
		}
		if got := asked(); (got == "") != old {
			t.Errorf("old %v: perfquery %s", old, got)
		}
	}
}
