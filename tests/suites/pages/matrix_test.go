// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/fleet/matrix"
	"github.com/accelscope/accelscope/pkg/fleet/page"
)

// fakeJob is a FAKE Prometheus, fakeSensors are the FAKE sensors of the job's nodes.
type (
	fakeJob     struct{ nodes int }
	fakeSensors struct{ fakeJob }
)

func (f fakeJob) Read() *fleet.State {
	return &fleet.State{At: time.Now(), Alerts: []fleet.Alert{}, Jobs: []fleet.Job{{JobName: fleet.JobName{Namespace: "ml", Kind: "Job", Name: "train"}}}}
}

func (f fakeJob) Enter(context.Context, string) (func(), error) { return func() {}, nil }

func (f fakeJob) Job(context.Context, *fleet.State, fleet.JobName) (*fleet.JobReport, []string) {
	r := &fleet.JobReport{Summary: "The job waits for ml/train-0/main.", Severity: fleet.Warning, Figures: []fleet.Figure{{Name: "GPUs", PromQL: []string{"up"}}}}
	for i := range f.nodes {
		r.Members = append(r.Members, fleet.Member{Workload: fmt.Sprintf("ml/train-%d/main", i), Node: f.node(i)})
	}
	return r, nil
}

func (f fakeJob) Search(context.Context, string) ([]fleet.Found, []string) { return nil, nil }

func (f fakeJob) node(i int) string { return fmt.Sprintf("gpu%04d.cluster.example:9847", i) }

// Job has a node that does not answer, and a hostile address.
func (f fakeSensors) Job(fleet.JobName, []fleet.Member) *matrix.Matrix {
	m := &matrix.Matrix{At: time.Now(), NotAsked: []string{foreign}}
	for i := range f.nodes {
		m.Nodes = append(m.Nodes, matrix.Node{Name: f.node(i), Peers: i > 0, Addresses: true})
		for j := range f.nodes {
			m.Pairs = append(m.Pairs, matrix.Pair{From: f.node(i), To: f.node(j), QueuePairs: 8 + i, ByLID: i % 2})
		}
	}
	m.Nodes[0].Problem = "/api/v1/peers: " + foreign
	m.Nodes[1].Elsewhere = 7
	m.Elsewhere = []matrix.Address{{From: f.node(1), Address: foreign, QueuePairs: 7}}
	return m
}

// TestConnectedNodes shows how a job's nodes are connected, as a table and as a list, without a script, and measures
// the look.
func TestConnectedNodes(t *testing.T) {
	for nodes, cell := range map[int]string{3: "#matrix tbody tr:nth-child(2) td:nth-child(2)", 17: "#matrix tbody tr:first-child td:last-child"} {
		f := fakeJob{nodes}
		mux := http.NewServeMux()
		for pattern, h := range page.Handlers(page.Options{Reader: f, Matrix: fakeSensors{f}, Version: "test"}) {
			mux.Handle(pattern, h)
		}
		s := httptest.NewServer(mux)
		t.Cleanup(s.Close)
		job := s.URL + "/job?namespace=ml&kind=Job&name=train"
		b := open(t, s.URL, 1280, 900)
		call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		b.do(chromedp.Navigate(job), chromedp.WaitReady("footer"))
		want := "~9"
		if nodes > 16 {
			want = "24"
		}
		if got := run(b, chromedp.Text(cell)); got != want {
			t.Errorf("%d nodes: the cell has %q, want %q", nodes, got, want)
		}
		look(t, s.URL, []string{job})
		accessible(t, s.URL, []string{job})
	}
}
