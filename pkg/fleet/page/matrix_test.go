// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/fleet/matrix"
	"github.com/accelscope/accelscope/pkg/web/webtest"
	"github.com/accelscope/accelscope/tests/fakes/fakenode"
)

// fakeMatrix is a FAKE of what asks sensors.
type fakeMatrix struct {
	matrix matrix.Matrix
	asked  []fleet.JobName
}

func (f *fakeMatrix) Job(job fleet.JobName, _ []fleet.Member) *matrix.Matrix {
	f.asked = append(f.asked, job)
	return &f.matrix
}

// connected is the matrix of nodes that are connected to each other.
func connected(nodes int) matrix.Matrix {
	m := matrix.Matrix{At: time.Unix(1_800_000_000, 0)}
	name := func(i int) string { return fmt.Sprintf("gpu%04d:9847", i) }
	for i := range nodes {
		m.Nodes = append(m.Nodes, matrix.Node{Name: name(i), Peers: true, Addresses: true})
		for j := range nodes {
			m.Pairs = append(m.Pairs, matrix.Pair{From: name(i), To: name(j), QueuePairs: 1000*(i+1) + j})
		}
	}
	return m
}

var oneMember = fleet.JobReport{Members: []fleet.Member{{Workload: "w", Node: "gpu0000:9847"}}}

func jobSite(m matrix.Matrix) (http.Handler, *fakeMatrix, string) {
	f := &fakeMatrix{matrix: m}
	s := crowd(2)
	h := site(Options{Reader: &fakeFleet{state: s, report: oneMember}, Matrix: f})
	return h, f, jobLink(s.Jobs[0].JobName)
}

// texts returns the text of the cells of the table of nodes.
func texts(body string) string {
	_, body, _ = strings.Cut(body, `id="matrix"`)
	var out strings.Builder
	for part := range strings.SplitSeq(body, ">") {
		text, _, _ := strings.Cut(part, "<")
		if text = strings.TrimSpace(text); text != "" {
			out.WriteString(text + "|")
		}
	}
	return out.String()
}

// TestMatrix shows nodes by nodes, with what is not known, and a list if there are many.
func TestMatrix(t *testing.T) {
	m := connected(3)
	m.Pairs[1].ByLID = 1
	m.Pairs[0].OldestReceiveSeconds, m.Pairs[1].OldestReceiveSeconds = .9, 41
	m.Nodes[0].Elsewhere, m.Nodes[0].Ambiguous, m.Nodes[0].Unknown = 7, 8, 9
	m.Nodes[1].Peers, m.Nodes[1].Problem = false, "/api/v1/peers: no answer in time"
	m.Nodes[2].Addresses = false
	m.Elsewhere = []matrix.Address{{From: "gpu0000:9847", Address: "10.0.0.9", QueuePairs: 7}, {From: "gpu0000:9847", Address: "LID 4", QueuePairs: 8, Ambiguous: true}}
	m.NotAsked = []string{"left-out"}
	h, _, link := jobSite(m)
	_, body := webtest.Get(t, h, link)
	got := texts(body)
	for _, want := range []string{
		"|From|gpu0000:9847|gpu0001:9847|gpu0002:9847|elsewhere|more than one node|not known|",
		"|gpu0000:9847|1000|~1001 → ~41s|-|7|8|9|",
		"|gpu0001:9847|-|-|-|-|-|-|",
		"|gpu0002:9847|3000|3001|-|0|0|0|",
		"|gpu0001:9847: /api/v1/peers: no answer in time|not asked, beyond the first 64 nodes: 1, such as left-out|",
		"|gpu0000:9847|10.0.0.9|7|of no node of the job that answers|",
		"|gpu0000:9847|LID 4|8|of more than one node|",
		"2027-01-15 08:00:00 UTC",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %s:\n%s", want, got)
		}
	}
	m = connected(widest + 1)
	m.Nodes[3].Unknown = 1 << 20
	m.Pairs[1].OldestReceiveSeconds, m.Pairs[2].OldestReceiveSeconds, m.Pairs[3].OldestReceiveSeconds = 2, 5, .9
	h, _, link = jobSite(m)
	_, body = webtest.Get(t, h, link)
	if got := texts(body); !strings.Contains(got, "|From|To|Queue pairs|gpu0000:9847|gpu0002:9847|1002 → 5s|gpu0000:9847|gpu0001:9847|1001 → 2s|gpu0003:9847|not known|1048576|gpu0016:9847|gpu0016:9847|17016|gpu0016:9847|gpu0015:9847|17015|") {
		t.Error(got)
	}
	h, _, link = jobSite(connected(matrix.MaxNodes))
	_, body = webtest.Get(t, h, link)
	if got := texts(body); !strings.Contains(got, "|3596 more pairs are in the JSON.|") || len(body) > webtest.MaxBytes {
		t.Errorf("%d bytes:\n%s", len(body), got)
	}
	h, _, link = jobSite(matrix.Matrix{Elsewhere: make([]matrix.Address, maxAddresses+1)})
	_, body = webtest.Get(t, h, link)
	if n := strings.Count(body, "of no node of the job that answers"); n != maxAddresses {
		t.Errorf("%d addresses elsewhere", n)
	}
	h, _, link = jobSite(matrix.Matrix{})
	_, body = webtest.Get(t, h, link)
	if got := texts(body); strings.Contains(got, "|0|") {
		t.Error(got)
	}
}

// TestMatrixJSON answers with the matrix, and no sensor is asked for a name that no job has, for another view, or without the option.
func TestMatrixJSON(t *testing.T) {
	h, f, link := jobSite(connected(2))
	target := matrixPath + "?" + jobQuery(crowd(2).Jobs[0].JobName)
	header, body := webtest.Get(t, h, target)
	var got matrix.Matrix
	if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Pairs) != 4 || got.Pairs[3].QueuePairs != 2001 {
		t.Errorf("%v: %s", err, body)
	}
	if header.Get("Content-Type") != "application/json" || header.Get("X-Content-Type-Options") != "nosniff" {
		t.Error(header)
	}
	asked := len(f.asked)
	status := func(h http.Handler, target string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		return w.Code
	}
	for other, want := range map[string]int{"/": 200, "/node?name=gpu0000:9847": 200, "/job?name=x": 200, matrixPath + "?name=x": 404, matrixPath: 404} {
		if got := status(h, other); got != want {
			t.Errorf("%s: %d", other, got)
		}
	}
	if len(f.asked) != asked {
		t.Errorf("asked for %v", f.asked[asked:])
	}
	off := site(Options{Reader: &fakeFleet{state: crowd(2), report: oneMember}})
	if _, body := webtest.Get(t, off, link); strings.Contains(body, "matrix") {
		t.Error("the page shows a matrix without the option")
	}
	if got := status(off, target); got != http.StatusNotFound {
		t.Errorf("without the option: %d", got)
	}
}

// TestMatrixInert shows hostile names of nodes, addresses and problems.
func TestMatrixInert(t *testing.T) {
	for _, nodes := range []int{1, widest + 1} {
		for _, w := range fakenode.Hostile() {
			name := w.Namespace
			m := connected(nodes)
			m.Nodes[0].Name, m.Nodes[0].Problem, m.NotAsked = name, name, []string{name}
			m.Pairs[0].From, m.Pairs[0].To = name, name
			m.Elsewhere = []matrix.Address{{From: name, Address: name, QueuePairs: 1}}
			h, _, link := jobSite(m)
			_, body := webtest.Get(t, h, link)
			webtest.Inert(t, link, body)
		}
	}
}
