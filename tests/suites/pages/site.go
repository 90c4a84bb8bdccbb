// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/pages"
	"github.com/accelscope/accelscope/tests/fakes/fakenode"
)

// site serves the pages of a FAKE node with a history of 15 minutes, and refreshes it like the engine.
type site struct {
	*httptest.Server
	mu   sync.Mutex // guards node
	node *fakenode.Node
	now  api.Known
}

func serve(t testing.TB, workloads []fakenode.Workload) *site {
	t.Helper()
	s := &site{node: fakenode.New(workloads)}
	now := time.Now()
	for i := overview.Steps; i > 0; i-- {
		s.now = s.node.Refresh(now.Add(-time.Duration(i) * overview.Step))
	}
	mux := http.NewServeMux()
	slots := api.NewSlots()
	handlers := api.Handlers(s.facts, s.node.Peers, slots)
	maps.Copy(handlers, pages.Handlers(pages.Options{
		Facts: s.facts, Peers: s.node.Peers, Slots: slots, Version: "test", MetricsPath: "/metrics", Series: s.series,
	}))
	for pattern, h := range handlers {
		mux.Handle(pattern, h)
	}
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// facts returns the last refresh if it is at most a second old, else a new refresh.
func (s *site) facts() api.Known {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.now.At) >= time.Second {
		s.now = s.node.Refresh(now)
	}
	return s.now
}

func (s *site) change(change func(*fakenode.Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.node)
}

// series has one metric of each row, in the format of /metrics.
func (s *site) series() ([]byte, error) {
	k := s.facts()
	var text strings.Builder
	label := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	for _, r := range overview.Rows(&k.Facts, &k.Shares) {
		if r.Kind == overview.GPU && r.Memory != nil {
			fmt.Fprintf(&text, "container_gpu_memory_used_bytes{workload=\"%s\",container_id=\"%s\",uuid=\"%s\"} %g\n",
				label.Replace(r.Workload), r.ContainerID, r.Device, *r.Memory)
		}
		for _, b := range r.Bytes {
			fmt.Fprintf(&text, "container_rdma_%s_bytes_total{workload=\"%s\",container_id=\"%s\",device=\"%s\",method=\"%s\"} %d\n",
				b.Direction, label.Replace(r.Workload), r.ContainerID, r.Device, b.Method, b.Bytes)
		}
	}
	return []byte(text.String()), nil
}
