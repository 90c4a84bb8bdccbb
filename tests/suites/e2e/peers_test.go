// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// peer is an entry of /api/v1/peers.
type peer struct {
	Workload    string
	ContainerID string `json:"container_id"`
	Device      string
	Port, QPN   uint32
	Type, State string
	RemoteGID   string `json:"remote_gid"`
	RemoteQPN   uint32 `json:"remote_qpn"`
	RemoteLID   uint32 `json:"remote_lid"`

	RemoteAddress string `json:"remote_address"`

	StalledSeconds       float64 `json:"stalled_seconds"`
	ReceiveWaitSeconds   float64 `json:"receive_wait_seconds"`
	OldestReceiveSeconds float64 `json:"oldest_receive_seconds"`
}

func (s *sensor) listPeers(t *testing.T, query string) ([]peer, error) {
	t.Helper()
	res, err := http.Get(s.url + "/api/v1/peers" + query)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", res.Status, body)
	}
	var list []peer
	if err := json.Unmarshal(body, &list); err != nil || list == nil {
		t.Fatalf("%s: %v", body, err)
	}
	return list, nil
}

// peers requests the connected queue pairs by container. Each of these containers has one queue pair.
func (s *sensor) peers(t *testing.T, query string) (map[string]peer, error) {
	t.Helper()
	list, err := s.listPeers(t, query)
	if err != nil {
		return nil, err
	}
	byContainer := map[string]peer{}
	for _, p := range list {
		byContainer[p.ContainerID] = p
	}
	if len(byContainer) != len(list) {
		return nil, fmt.Errorf("a container has several: %+v", list)
	}
	return byContainer, nil
}

// peers compares the two ends of a connection with the tool's output: while it exists, after a restart of the sensor,
// and after its processes were killed.
func (n node) peers(t *testing.T) {
	s := start(t, n.args()...)
	if !n.counts() {
		if _, err := s.peers(t, ""); err == nil || !strings.Contains(err.Error(), `503 Service Unavailable: {"error":`) {
			t.Errorf("peers without a hook: %v", err)
		}
		s.stop()
		return
	}
	const ping = "exec stdbuf -oL ibv_rc_pingpong -d rxe0 -g 1 -p 18700 -n 100000000"
	server := enter(t, "ping", "sh", "-c", ping)
	listening(t, 18700)
	client := enter(t, "pong", "sh", "-c", ping+" 10.70.0.1")
	want := map[string]peer{}
	for _, c := range []*container{server, client} {
		own, _ := pingAddress(t, c.line(t, "  local address:"))
		qpn, gid := pingAddress(t, c.line(t, "  remote address:"))
		want[c.id] = peer{
			ContainerID: c.id, Device: "rxe0", Port: 1, QPN: own, Type: "RC", State: "RTS", RemoteGID: gid, RemoteQPN: qpn,
		}
	}
	if want[server.id].QPN != want[client.id].RemoteQPN || want[client.id].QPN != want[server.id].RemoteQPN {
		t.Fatalf("the tool printed other ends: %+v", want)
	}
	shown := func() (workload string) {
		eventually(t, 30*time.Second, func() error {
			got, err := s.peers(t, "")
			if err != nil {
				return err
			}
			for id, p := range got {
				if id == client.id {
					workload = p.Workload
				}
				p.Workload = ""
				got[id] = p
			}
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("peers (-tool +sensor):\n%s", diff)
			}
			return nil
		})
		return workload
	}
	workload := shown()
	for query, want := range map[string]int{
		"?workload=" + url.QueryEscape(workload): 1, "?workload=other": 0, "?device=rxe0": 2, "?device=rxe1": 0,
	} {
		if got, err := s.peers(t, query); len(got) != want || err != nil {
			t.Errorf("%s: %v, %v, want %d", query, got, err, want)
		}
	}
	of := want[client.id]
	row := []string{
		workload, "rxe0", "1", fmt.Sprint(of.QPN), "RC", "RTS", of.RemoteGID, fmt.Sprint(of.RemoteQPN), "-",
	}
	table := sh(t, os.Getenv(binaryVar), "peers", "--url="+s.url, "--qps", "--workload="+workload)
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if diff := cmp.Diff(row, strings.Fields(lines[len(lines)-1])); diff != "" || len(lines) != 2 {
		t.Errorf("the table (-want +got):\n%s\n%s", diff, table)
	}
	// --workload= overrides ACCELSCOPE_WORKLOAD, which this suite sets for another purpose.
	groups := sh(t, os.Getenv(binaryVar), "peers", "--url="+s.url, "--workload=")
	if n := strings.Count(groups, " rxe0 "); n != 2 {
		t.Errorf("%d groups, want 2:\n%s", n, groups)
	}
	t.Logf("%s%s", table, groups)

	// Netlink reports the numbers of earlier connections, but no GID.
	s.stop()
	s = start(t, n.args()...)
	for id, p := range want {
		p.RemoteGID = ""
		want[id] = p
	}
	shown()

	for _, c := range []*container{server, client} {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
	eventually(t, 30*time.Second, func() error {
		if got, err := s.peers(t, ""); len(got) != 0 || err != nil {
			return fmt.Errorf("of processes that are gone: %+v, %w", got, err)
		}
		if v := s.fresh().sum("accelscope_probe_map_entries", "map", "peers"); v != 0 {
			return fmt.Errorf("the map has %v entries", v)
		}
		return nil
	})
	s.stop()
}

func pingAddress(t *testing.T, line string) (qpn uint32, gid string) {
	t.Helper()
	found := regexp.MustCompile(`QPN (0x[0-9a-f]+),.* GID (\S+)`).FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("no address: %q", line)
	}
	number, err := strconv.ParseUint(found[1], 0, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(number), found[2]
}
