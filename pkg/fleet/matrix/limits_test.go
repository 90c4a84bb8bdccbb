// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/model"
)

// padded answers as s does. The answer at path is longer: change makes it.
func padded(t *testing.T, s *fakeSensor, path string, change func(answer string) string) *Matrix {
	t.Helper()
	h := s.handler()
	of := fleet.Member{Workload: "ml/a", ContainerID: "id-ml/a", Node: serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			h.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		_, _ = w.Write([]byte(change(answer.Body.String()))) // the reader stops
	}))}
	return reader(t, "").Job(job, []fleet.Member{of})
}

// TestLongAnswers: an answer up to the limit is read, a longer one is too large, and what it would have said is unknown.
func TestLongAnswers(t *testing.T) {
	s := &fakeSensor{
		hcas:   []model.HCA{roce("mlx5_0", "::ffff:10.0.0.1")},
		peers:  []attribution.PeerShare{peer("ml/a", "mlx5_0", 1, "::ffff:10.0.0.1"), peer("ml/a", "mlx5_0", 2, "::ffff:10.0.0.1")},
		ranks:  []attribution.CommunicatorShare{launches("0", 0, 1)}, // the other ranks are unknown
		faults: []attribution.FaultRecord{},
	}
	for path, limit := range map[string]int{"/api/v1/verdicts": maxVerdicts, "/rdma": maxHCAs, "/api/v1/peers": maxPeers, "/api/v1/collectives": maxLaunches, "/api/v1/faults": maxFaults} {
		for _, more := range []int{0, 1} {
			m := padded(t, s, path, func(answer string) string {
				// Spaces are before the answer. Peers have limits of their own, so there are more of them.
				if path != "/api/v1/peers" {
					return strings.Repeat(" ", limit-len(answer)+more) + answer
				}
				other, n := `{"workload":"`+strings.Repeat("x", 1000)+`"},`, (limit-len(answer))/1016
				long := "[" + strings.Repeat(other, n) + strings.TrimPrefix(answer, "[")
				return strings.Replace(long, `"x`, `"`+strings.Repeat("x", limit-len(long)+more+1), 1)
			})
			n := &m.Nodes[0]
			unknown := map[string]bool{
				"/api/v1/verdicts": !n.Judged, "/rdma": !n.Addresses, "/api/v1/peers": !n.Peers, "/api/v1/collectives": m.Said.Incomplete == nil,
				"/api/v1/faults": m.Said.Unlogged > 0,
			}
			for of, is := range unknown {
				if is != (of == path && more > 0) {
					t.Errorf("%s has %d bytes more than the limit: %s is unknown: %v, %q", path, more, of, is, n.Problem)
				}
			}
			if says := strings.Contains(n.Problem, errTooLarge.Error()); says != (more > 0 && path != "/api/v1/collectives" && path != "/api/v1/faults") {
				t.Errorf("%s has %d bytes more than the limit: %q", path, more, n.Problem)
			}
		}
	}
}

// TestEmptyParts: an answer takes little more memory than its text, whatever it consists of.
func TestEmptyParts(t *testing.T) {
	of := map[owner]bool{{"w", ""}: true}
	for path, c := range map[string]struct {
		read        func(*answer, *fleet.Body) error
		begin, part string
		end         string
		limit       int
	}{
		"verdicts":      {func(a *answer, b *fleet.Body) error { return a.readVerdicts(b, of) }, `{"data":{"verdicts":[`, "{}", `]}}`, maxVerdicts},
		"verdicts of w": {func(a *answer, b *fleet.Body) error { return a.readVerdicts(b, of) }, `{"data":{"verdicts":[`, `{"subject":{"workload":"w"}}`, `]}}`, maxVerdicts},
		"faults":        {func(a *answer, b *fleet.Body) error { return a.readFaults(b, of) }, `{"data":[`, "null", `]}`, maxFaults},
		"HCAs":          {(*answer).readHCAs, `{"data":[`, "{}", `]}`, maxHCAs},
		"communicators": {func(a *answer, b *fleet.Body) error { return a.readLaunches(b, of) }, `{"data":{"communicators":[`, "{}", `]}}`, maxLaunches},
		"ranks":         {func(a *answer, b *fleet.Body) error { return a.readLaunches(b, of) }, `{"data":{"communicators":[{"ranks":[`, "{}", `]}]}}`, maxLaunches},
		"times": {
			func(a *answer, b *fleet.Body) error { return a.readLaunches(b, of) }, `{"data":{"communicators":[{"ranks":[{"times":[`, "null", `]}]}]}}`,
			maxLaunches,
		},
	} {
		text := c.begin + strings.Repeat(c.part+",", (c.limit-100)/(len(c.part)+1)) + c.part + c.end
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := c.read(&answer{addresses: map[remote]bool{}}, &fleet.Body{From: strings.NewReader(text), Left: c.limit, Part: c.limit})
		runtime.ReadMemStats(&after)
		if most := uint64(16<<20 + 6*c.limit); after.HeapAlloc > before.HeapAlloc+most {
			t.Errorf("%s: %d bytes in memory after %d of text: %v", path, after.HeapAlloc-before.HeapAlloc, len(text), err)
		}
	}
}

// TestLongParts: a queue pair that is too long makes the answer too large, and a sensor cannot make a sum too large.
func TestLongParts(t *testing.T) {
	s := &fakeSensor{hcas: []model.HCA{roce("mlx5_0", "::ffff:10.0.0.1")}, peers: []attribution.PeerShare{peer("ml/a", "mlx5_0", 1, "::ffff:10.0.0.1")}}
	m := padded(t, s, "/api/v1/peers", func(answer string) string {
		return "[" + strings.Repeat(" ", 2*maxPeer) + strings.TrimPrefix(answer, "[")
	})
	if n := &m.Nodes[0]; n.Peers || !strings.Contains(n.Problem, errTooLarge.Error()) {
		t.Errorf("a long peer: %+v", n)
	}
	m = padded(t, s, "/api/v1/verdicts", func(answer string) string {
		return strings.Replace(answer, `"omitted":0`, fmt.Sprintf(`"omitted":%d`, maxOmitted+1), 1)
	})
	if m.Said.Omitted != maxOmitted {
		t.Errorf("%d verdicts are omitted", m.Said.Omitted)
	}
}

// TestLongReason: the reason of an error is read up to the limit.
func TestLongReason(t *testing.T) {
	for spaces, want := range map[int]bool{0: true, maxError: false} {
		node := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte(strings.Repeat(" ", spaces) + `{"error":"the reason"}`))
		}))
		m := reader(t, "").Job(job, []fleet.Member{member("ml/a", node)})
		if got := strings.Contains(m.Nodes[0].Problem, "the reason"); got != want {
			t.Errorf("after %d bytes: %q", spaces, m.Nodes[0].Problem)
		}
	}
}

// TestWaitLimit: a sensor cannot make sums of waits infinite.
func TestWaitLimit(t *testing.T) {
	a := answer{remotes: map[remote]ends{}}
	body := `[{"workload":"w","remote_lid":7,"receive_wait_seconds":1e308,"oldest_receive_seconds":-1}]`
	if err := a.readPeers(&fleet.Body{From: strings.NewReader(body), Left: 1 << 20, Part: 1 << 20}, map[owner]bool{{"w", ""}: true}); err != nil {
		t.Fatal(err)
	}
	for _, e := range a.remotes {
		if e != (ends{1, maxWait, 0}) {
			t.Errorf("%+v", e)
		}
	}
}
