// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/pkg/fleet"
)

// slowPrometheus is a FAKE that answers a query with "slow" in it when the test opens it, and the others at once: with one job.
type slowPrometheus struct {
	asked chan string   // slow queries that have arrived: each search has two
	open  chan struct{} // answers the slow queries
}

func (p *slowPrometheus) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.FormValue("query")
	if strings.Contains(query, "slow") {
		p.asked <- query
		select {
		case <-p.open:
		case <-r.Context().Done():
		}
	}
	vector := model.Vector{}
	if strings.Contains(query, "workload_info") {
		vector = model.Vector{{Metric: model.Metric{
			"instance": "n1", "workload": "ml/quick/main", "namespace": "ml", "job_kind": "Job", "job_name": "quick",
		}, Value: 1}}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": map[string]any{"resultType": "vector", "result": vector}})
}

// slowSite returns the pages of a Prometheus that answers slow queries when the test ends, and a request of a client.
func slowSite(t *testing.T) (p *slowPrometheus, get func(ctx context.Context, client, target string) (int, string)) {
	p = &slowPrometheus{asked: make(chan string, 1000), open: make(chan struct{})}
	s := httptest.NewServer(p)
	connection, err := fleet.Connect(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	h := site(Options{Reader: fleet.NewReader(connection), Matrix: &fakeMatrix{}})
	var all sync.WaitGroup
	t.Cleanup(func() {
		close(p.open)
		all.Wait()
		s.Close()
	})
	return p, func(ctx context.Context, client, target string) (int, string) {
		all.Add(1)
		defer all.Done()
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil)
		r.RemoteAddr = client
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
}

const jobQuick = "?namespace=ml&kind=Job&name=quick"

// TestSlowSearch: while Prometheus does not answer the searches of one client, however many, others are answered, and so are its views that
// ask nothing.
func TestSlowSearch(t *testing.T) {
	p, get := slowSite(t)
	get(t.Context(), "10.0.0.1:1", "/")
	for i := range 12 {
		go get(t.Context(), fmt.Sprint("10.0.0.1:", i+1), fmt.Sprint("/?q=slow", i))
	}
	<-p.asked
	time.Sleep(100 * time.Millisecond) // the others arrive
	for _, c := range []struct{ client, target, want string }{
		{"10.0.0.2:1", "/?q=quick", "ml/quick/main"},
		{"[::ffff:10.0.0.3]:1", "/job" + jobQuick, "ml/quick/main"},
		{"10.0.0.2:1", matrixPath + jobQuick, "{"},
		{"10.0.0.2:1", "/node?name=n1", "n1"},
		{"10.0.0.1:99", "/", "Fleet"},
		{"10.0.0.1:99", statePath, "quick"},
	} {
		began := time.Now()
		if status, body := get(t.Context(), c.client, c.target); status != http.StatusOK || !strings.Contains(body, c.want) {
			t.Errorf("%s of %s: status %d after %v", c.target, c.client, status, time.Since(began).Round(time.Millisecond))
		}
	}
}

// TestBusyClient: a search of a client that has others without an answer is refused with status 503, and says so. When they are answered, the
// client is served. The search of a client that has gone is answered for those that asked the same.
func TestBusyClient(t *testing.T) {
	p, get := slowSite(t)
	gone, leave := context.WithCancel(t.Context())
	defer leave()
	go get(gone, "10.0.0.1:1", "/?q=slow")
	<-p.asked
	go get(t.Context(), "10.0.0.1:2", "/?q=slower")
	for !strings.Contains(<-p.asked, "slower") { // the other query of the first search
	}
	status, body := get(t.Context(), "[::ffff:10.0.0.1]:3", "/?q=quick")
	if status != http.StatusServiceUnavailable || !strings.Contains(body, fleet.ErrBusy.Error()) {
		t.Errorf("a third search of a client: status %d: %s", status, body)
	}
	answered := make(chan int, 1)
	go func() {
		status, _ := get(t.Context(), "10.0.0.2:1", "/?q=slow")
		answered <- status
	}()
	time.Sleep(50 * time.Millisecond) // it arrives
	leave()
	time.Sleep(50 * time.Millisecond)
	for {
		select {
		case p.open <- struct{}{}:
		case status := <-answered:
			if status != http.StatusOK {
				t.Errorf("status %d of one that asked the same", status)
			}
			if status, _ := get(t.Context(), "10.0.0.1:3", "/?q=quick"); status != http.StatusOK {
				t.Errorf("status %d after the searches have been answered", status)
			}
			return
		case <-time.After(time.Minute):
			t.Fatal("the shared search is not answered")
		}
	}
}

// TestUnansweredSearch: a search without an answer, and an unknown job, have status 503, and the page names the problem.
func TestUnansweredSearch(t *testing.T) {
	h := site(Options{Reader: &refusing{fakeFleet{state: crowd(1)}}, Matrix: &fakeMatrix{}})
	job := crowd(1).Jobs[0].JobName
	for _, target := range []string{"/?q=train", jobLink(job), jobPath + "?" + jobQuery(job), matrixPath + "?" + jobQuery(job)} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "all queries: no memory") {
			t.Errorf("%s: status %d", target, w.Code)
		}
	}
}

// refusing is a FAKE reader that knows a state only.
type refusing struct{ fakeFleet }

func (*refusing) Job(context.Context, *fleet.State, fleet.JobName) (*fleet.JobReport, []string) {
	return nil, []string{"all queries: no memory"}
}

func (*refusing) Search(context.Context, string) ([]fleet.Found, []string) {
	return nil, []string{"all queries: no memory"}
}
