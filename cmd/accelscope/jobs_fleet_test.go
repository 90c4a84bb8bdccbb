// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/fleet/matrix"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// fleet compares the page of all nodes, from this Prometheus, with the REST answers of the sensors: nodes, jobs, members and GPUs. The sensors
// have no probes, so no peers, which the matrix says in their words.
func (p *prometheus) fleet(t *testing.T, nodes []*jobNode) {
	t.Helper()
	// A proxy resolves the names of the nodes: they are the labels instance.
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		for _, n := range nodes {
			if target, err := url.Parse(n.url); err == nil && r.In.URL.Host == n.instance+":9847" {
				r.Out.URL.Host = target.Host
			}
		}
	}})
	t.Cleanup(proxy.Close)
	client := filepath.Join(t.TempDir(), "sensors.yaml")
	if err := os.WriteFile(client, []byte("proxy_url: "+proxy.URL+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	site, stop := start(t, build(t), "fleet", "--prometheus="+p.url, "--fleet.sensor-url=http://{host}:9847/", "--fleet.sensor.config.file="+client)
	defer func() {
		if _, err := stop(); err != nil {
			t.Error(err)
		}
	}()
	page := func(target string) string {
		code, _, body := get(t, site+target, "")
		if code != http.StatusOK {
			t.Errorf("%s: %d %s", target, code, body)
		}
		return body
	}

	const query = "?namespace=ml&kind=JobSet&name=train"
	var got matrix.Matrix
	if err := json.Unmarshal([]byte(page("/api/v1/matrix"+query)), &got); err != nil {
		t.Fatal(err)
	}
	var want []matrix.Node
	job := fleet.Job{JobName: fleet.JobName{Namespace: "ml", Kind: "JobSet", Name: "train"}, GPUs: new(0.), Idle: new(0.)}
	hcas := 0
	for _, n := range nodes {
		_, _, body := get(t, n.url+"/api/v1/peers", "")
		var why struct{ Error string }
		var list struct{ Data []api.HCA }
		var table struct{ Data overview.Table }
		_, _, rdma := get(t, n.url+"/rdma", "")
		_, _, workloads := get(t, n.url+"/api/v1/workloads", "")
		if err := errors.Join(json.Unmarshal([]byte(body), &why), json.Unmarshal([]byte(rdma), &list), json.Unmarshal([]byte(workloads), &table)); err != nil {
			t.Fatal(err)
		}
		want = append(want, matrix.Node{Name: n.instance, Addresses: true, Judged: true, Problem: "/api/v1/peers: 503 Service Unavailable: " + why.Error})
		members := map[string]bool{}
		for i := range table.Data.Rows {
			r := &table.Data.Rows[i]
			if r.Namespace != "ml" || r.Job != "train" {
				continue
			}
			members[r.Workload+" "+r.ContainerID] = true
			if r.Kind == overview.GPU && r.Allocated {
				*job.GPUs++
				if r.Processes != nil && *r.Processes == 0 {
					*job.Idle++
				}
			}
		}
		job.Members += len(members)
		job.Nodes++
		hcas += len(list.Data)
		html := page("/job" + query)
		for name := range members {
			workload, _, _ := strings.Cut(name, " ")
			for _, text := range []string{">" + workload + "<", ">" + n.instance + "<", "503 Service Unavailable"} {
				if !strings.Contains(html, text) {
					t.Errorf("the view of the job lacks %s", text)
				}
			}
		}
	}
	if diff := gocmp.Diff(want, got.Nodes); diff != "" || len(got.Pairs) > 0 {
		t.Errorf("the matrix (-sensors +page):\n%s", diff)
	}
	if job.Members != 2 || *job.GPUs != 4 || *job.Idle != 2 {
		t.Errorf("the sensors list other members or GPUs: %+v", job)
	}
	printed, err := child.Command(t.Context(), build(t), "top", "--once", "--json", "--prometheus="+p.url, "--job=ml/train").Output()
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{"the page": page("/api/v1/job" + query), "top": string(printed)} {
		p.report(t, what, text, nodes, job)
	}
	if html := page("/job/ml/train"); !strings.Contains(html, "<h1>ml/JobSet/train</h1>") || !strings.Contains(html, "not known: ") {
		t.Errorf("the page of the job by its name: %s", html)
	}
	prometheus, err := fleet.Connect(p.url, "")
	if err != nil {
		t.Fatal(err)
	}
	s := fleet.NewReader(prometheus).Read()
	if s.Totals.Nodes != len(nodes) || s.Totals.Down != 0 || s.Totals.Ports.All == nil || *s.Totals.Ports.All != hcas {
		t.Errorf("the totals are %+v, and the sensors list %d HCAs; %q", s.Totals, hcas, s.Problems)
	}
	for _, j := range s.Jobs {
		if j.JobName == job.JobName {
			j = fleet.Job{JobName: j.JobName, Members: j.Members, Nodes: j.Nodes, GPUs: j.GPUs, Idle: j.Idle}
			if diff := gocmp.Diff(job, j); diff != "" {
				t.Errorf("the job (-sensors +page):\n%s", diff)
			}
			return
		}
	}
	t.Error(fmt.Sprint("the page has no such job: ", s.Jobs))
}

// report compares what is said about a job with the members on the nodes, and its figures with this Prometheus's answers to their queries.
func (p *prometheus) report(t *testing.T, what, text string, nodes []*jobNode, job fleet.Job) {
	t.Helper()
	var got fleet.JobReport
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%s: %v: %s", what, err, text)
	}
	if got.Job.JobName != job.JobName || len(got.Members) != job.Members || got.Summary == "" || len(got.Problems) > 0 ||
		!slices.Contains(got.Unknown, "launches of collectives of 2 members") {
		t.Errorf("%s: %q, unknown %q, problems %q, members %+v", what, got.Summary, got.Unknown, got.Problems, got.Members)
	}
	asked := what == "the page" // which has the address of the sensors
	if unknown := strings.Contains(strings.Join(got.Unknown, "\n"), "verdicts of the sensors"); unknown == asked || (got.Verdicts != nil) != asked {
		t.Errorf("%s: verdicts %v, unknown %q", what, got.Verdicts, got.Unknown)
	}
	for _, n := range nodes {
		if !slices.ContainsFunc(got.Members, func(m fleet.Member) bool { return m.Node == n.instance && *m.GPUs == 2 && *m.Used == 1 }) {
			t.Errorf("%s: no member on %s with two GPUs, one in use", what, n.instance)
		}
	}
	figures := map[string]*float64{"GPUs": job.GPUs, "Idle GPUs": job.Idle}
	for _, f := range got.Figures {
		want, ok := figures[f.Name]
		if !ok {
			continue
		}
		answer := p.ask(t, f.PromQL[0], time.Now(), 0)
		if f.Value == nil || *f.Value != *want || len(answer.Series) != 1 || answer.Series[0].Value.Value != *want {
			t.Errorf("%s: %+v, and Prometheus answers %+v", what, f, answer.Series)
		}
		delete(figures, f.Name)
	}
	if len(figures) > 0 {
		t.Errorf("%s: no %v", what, figures)
	}
}
