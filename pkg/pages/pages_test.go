// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/html"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/web"
	"github.com/accelscope/accelscope/pkg/web/webtest"
	"github.com/accelscope/accelscope/tests/fakes/fakenode"
)

// site serves the pages of a fake node that has a history of 15 minutes.
func site(t testing.TB, n *fakenode.Node, series string) http.Handler {
	t.Helper()
	at := time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC)
	var k api.Known
	all := n.Workloads
	n.Workloads = all[:min(len(all), 50)] // most steps are quick
	for i := range overview.Steps {
		at = at.Add(overview.Step)
		if i == overview.Steps-3 {
			n.Workloads = all
		}
		k = n.Refresh(at)
	}
	mux := http.NewServeMux()
	for pattern, h := range Handlers(Options{
		Facts: func() api.Known { return k }, Peers: n.Peers, Slots: api.NewSlots(), Version: "v1", MetricsPath: "/metrics",
		Series: func() ([]byte, error) { return []byte(series), nil },
	}) {
		mux.Handle(pattern, h)
	}
	return mux
}

// TestRecent: all viewers of five seconds cause one refresh, unless it failed.
func TestRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refreshes, failed := 0, errors.New("failed")
		facts := recent(func() api.Known {
			refreshes++
			return api.Known{At: time.Now(), Err: failed}
		})
		for i, step := range []struct {
			after time.Duration
			err   error
			want  int
		}{{0, failed, 1}, {0, nil, 2}, {0, nil, 2}, {5*time.Second - 1, nil, 2}, {1, nil, 3}} {
			time.Sleep(step.after)
			failed = step.err
			if facts(); refreshes != step.want {
				t.Errorf("step %d: %d refreshes, want %d", i, refreshes, step.want)
			}
		}
	})
}

// TestBytes measures the first view of a node with 1,000 workloads: the page and all that it loads.
func TestBytes(t *testing.T) {
	h := site(t, fakenode.New(append(fakenode.Workloads(), fakenode.Crowd(1000)...)), "")
	sum := 0
	for _, target := range []string{"/", "/assets/page.css", "/assets/page.js", "/assets/icon.svg"} {
		_, body := webtest.Get(t, h, target)
		t.Logf("%s: %d bytes", target, len(body))
		sum += len(body)
	}
	if sum > webtest.MaxBytes {
		t.Errorf("the first view has %d bytes, more than %d", sum, webtest.MaxBytes)
	}
	if _, all := webtest.Get(t, h, "/?all=1"); strings.Count(all, "inference-0999") == 0 {
		t.Error("?all=1 does not show all rows")
	}
}

func TestHeaders(t *testing.T) {
	h := site(t, fakenode.New(fakenode.Workloads()), "")
	for _, target := range []string{"/", "/workload", "/device", "/assets/page.css", "/assets/page.js", "/assets/icon.svg"} {
		header, _ := webtest.Get(t, h, target)
		policy := header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
			t.Errorf("%s: the policy is %q", target, policy)
		}
		if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Set-Cookie") != "" || header.Get("ETag") == "" {
			t.Errorf("%s: %v", target, header)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
		r.Header.Set("If-None-Match", header.Get("ETag"))
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		if answer.Code != http.StatusNotModified || answer.Body.Len() > 0 {
			t.Errorf("%s: %d for a client that has it", target, answer.Code)
		}
		answer = httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, nil))
		if answer.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", target, answer.Code)
		}
	}
}

// TestInert parses the pages of workloads with hostile names, as a browser does: no code, no style and no address of another host.
func TestInert(t *testing.T) {
	hostile := fakenode.Hostile()
	series := `x_total{workload=` + quote(hostile[0].Namespace+"/"+hostile[0].Pod+"/"+hostile[0].Container) + `,device="mlx5_0"} 3` + "\n"
	h := site(t, fakenode.New(hostile), series)
	targets := []string{"/", "/device?name=mlx5_0", "/?" + url.Values{"q": {hostile[1].Pod}, "namespace": {hostile[0].Pod}}.Encode()}
	for _, w := range hostile {
		targets = append(targets, web.WorkloadLink(w.Namespace+"/"+w.Pod+"/"+w.Container, ""))
	}
	for _, target := range targets {
		_, body := webtest.Get(t, h, target)
		webtest.Inert(t, target, body)
	}
}

// cells returns the rows of the tables of GPUs and HCAs, headings first, each with the text of its cells.
func cells(t *testing.T, body string) (tables [][][]string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for e := range root.Descendants() {
		if e.Data != "table" || !slices.Contains(e.Attr, html.Attribute{Key: "class", Val: "usage"}) {
			continue
		}
		var rows [][]string
		for row := range e.Descendants() {
			if row.Data != "tr" {
				continue
			}
			var texts []string
			for cell := range row.ChildNodes() {
				if cell.Type == html.ElementNode {
					texts = append(texts, text(cell))
				}
			}
			rows = append(rows, texts)
		}
		tables = append(tables, rows)
	}
	return tables
}

func text(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// TestTable compares the rows with the traffic of the fake node, and checks search, filter and order.
func TestTable(t *testing.T) {
	n := fakenode.New(fakenode.Workloads())
	h := site(t, n, "")
	_, body := webtest.Get(t, h, "/?sort=out&namespace=vision")
	tables := cells(t, body)
	if want := []string{"Workload", "GPU", "Memory", "Utilization"}; !slices.Equal(tables[0][0], want) {
		t.Errorf("the columns of GPUs are %v", tables[0][0])
	}
	want := []string{"Workload", "HCA", "Registered memory", "Out", "In", "QPs", "Verbs p99", "Completion p99", "Errors"}
	if !slices.Equal(tables[1][0], want) {
		t.Errorf("the columns of HCAs are %v", tables[1][0])
	}
	// 2.1 GB/s, which go up and down by 35 %, in KiB.
	first := tables[1][1]
	if first[0] != "vision/resnet-sweep-x7f2p/train" || first[1] != "mlx5_6" || !strings.HasPrefix(first[2], "14.0 GiB host 2.0 GiB, GPU 12.0 GiB") ||
		!strings.Contains(first[3], "GiB/s") || first[5] != "12 GPUDirect" {
		t.Errorf("%q", first)
	}
	unattributed := 0
	for _, r := range slices.Concat(tables[0][1:], tables[1][1:]) {
		switch r[0] {
		case format.NoOwner:
			unattributed++
		case "vision/resnet-sweep-x7f2p/train":
		default:
			if !strings.HasPrefix(r[0], "vision/") {
				t.Errorf("%q is not of the namespace", r[0])
			}
		}
	}
	if unattributed != 2*fakenode.Devices {
		t.Errorf("%d unattributed shares, want one for each of the %d devices", unattributed, 2*fakenode.Devices)
	}
	for query, want := range map[string]string{
		"q=RESNET": "vision/resnet-sweep-x7f2p/train", "job=JobSet%2Fllama-70b&sort=workload&order=desc": "ml/llama-70b-workers-1/trainer",
		"sort=workload": "ml/llama-70b-workers-0/trainer", "q=nvidia+6": "vision/resnet-sweep-x7f2p/train",
		"": "ml/llama-70b-workers-0/trainer", "q=no+such+thing": format.NoOwner, "sort=nonsense&order=nonsense": "ml/llama-70b-workers-0/trainer",
	} {
		_, body := webtest.Get(t, h, "/?"+query)
		if got := cells(t, body)[0][1][0]; !strings.HasPrefix(got, want) {
			t.Errorf("?%s begins with %q, want %q", query, got, want)
		}
		if none := strings.Contains(body, "No workload matches."); none != (want == format.NoOwner) {
			t.Errorf("?%s: no workload matches: %v", query, none)
		}
	}
	for query, want := range map[string]string{"sort=errors": "ml/llama-70b-workers-1/trainer", "q=4711": "slurm:4711"} {
		_, body := webtest.Get(t, h, "/?"+query)
		if got := cells(t, body)[1][1][0]; !strings.HasPrefix(got, want) {
			t.Errorf("?%s: the HCAs begin with %q, want %q", query, got, want)
		}
	}
}

// TestNode looks for one text of each section.
func TestNode(t *testing.T) {
	n := fakenode.New(fakenode.Workloads())
	_, body := webtest.Get(t, site(t, n, ""), "/")
	for section, want := range map[string]string{
		"node": "simulated-node", "totals": ">RDMA ports<", "verdicts": "GPUThermalSlowdown", "topology": "PCIe x8 of x16, 32 GT/s",
		"history": "<path class=\"hca\" d=\"M", "doctor": "give the service account", "absent": "bytes: late", "time": "2026-11-25 10:15:00 UTC",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s: no %q", section, want)
		}
	}
	n = fakenode.New(nil)
	n.Recorder = overview.NewRecorder(false)
	_, body = webtest.Get(t, site(t, n, ""), "/")
	if !strings.Contains(body, "The history is switched off") || !strings.Contains(body, "uses an HCA or a GPU.") {
		t.Error(body)
	}
}

func TestDetail(t *testing.T) {
	const name = "ml/llama-70b-workers-0/trainer"
	series := fmt.Sprintf("# HELP x a\ncontainer_rdma_resources{workload=%q,namespace=\"\",device=\"mlx5_0\",type=\"qp\"} 24\n"+
		"other{workload=\"x\",label=\"workload=\\\"%s\\\"\"} 1\nno_labels 3\nbroken{\ngpu_power_watts{uuid=\"GPU-1\"} 12.5\n"+
		"container_rdma_verbs_total{workload=%q,device=\"mlx5_0\"} 7\n", name, name, name)
	h := site(t, fakenode.New(fakenode.Workloads()), series)
	_, body := webtest.Get(t, h, web.WorkloadLink(name, ""))
	for what, want := range map[string]string{
		"job": "JobSet/llama-70b", "image": "registry.internal/train:24.10", "peers": "::ffff:10.70.0.1", "histogram": "Completions of write",
		"fault": "MMU fault", "value": ">24<", "query": "<code data-copy>container_rdma_resources{workload=&#34;" + name,
		"rate": "rate(container_rdma_verbs_total{workload=&#34;" + name + "&#34;,device=&#34;mlx5_0&#34;}[5m])",
	} {
		if what == "fault" { // the process of the fault is in the second workload
			_, other := webtest.Get(t, h, web.WorkloadLink("ml/llama-70b-workers-1/trainer", ""))
			if !strings.Contains(other, want) {
				t.Errorf("%s: no %q", what, want)
			}
		} else if !strings.Contains(body, want) {
			t.Errorf("%s: no %q", what, want)
		}
	}
	if strings.Contains(body, ">other<") {
		t.Error("a series of another workload is listed")
	}
	for target, want := range map[string]string{
		"/device?name=mlx5_3": "both ends support x16", "/device": "all devices", "/device?name=none": "no such device",
		"/workload?name=none": "no such workload", "/workload": "unattributed", "/device?name=GPU-00ac0005-0000-4000-8000-000000000005": "thermal_slowdown",
	} {
		if _, body := webtest.Get(t, h, target); !strings.Contains(body, want) {
			t.Errorf("%s: no %q", target, want)
		}
	}
}

// TestManyOfAWorkload: the view of a workload lists no more faults, peers and figures than it has room for.
func TestManyOfAWorkload(t *testing.T) {
	var k api.Known
	var peers []attribution.PeerShare
	for i := range maxFigures + 1 {
		k.Shares.FaultHistory = append(k.Shares.FaultHistory, attribution.FaultRecord{Fault: &model.Fault{}})
		peers = append(peers, attribution.PeerShare{Peer: model.Peer{RemoteLID: uint32(i)}})
	}
	o := Options{
		Peers:  func() ([]attribution.PeerShare, error) { return peers, nil },
		Series: func() ([]byte, error) { return []byte(strings.Repeat("x{device=\"d\"} 1\n", maxFigures+1)), nil },
	}
	var v detail
	v.faults(&k, func(*attribution.FaultRecord) bool { return true })
	o.peersOf(&v, func(*attribution.PeerShare) bool { return true })
	o.figures(&v, pair{"device", "d"})
	if len(v.Faults) != maxFaults || len(v.Peers) != maxPeers || len(v.Figures) != maxFigures {
		t.Errorf("%d faults, %d peers, %d figures", len(v.Faults), len(v.Peers), len(v.Figures))
	}
	r, shares := overview.NewRecorder(true), attribution.Attribution{Owners: []identity.Owner{{}}}
	for i := range maxSparks {
		shares.GPUFigures = append(shares.GPUFigures, attribution.GPUFigures{
			GPU: &model.GPU{UUID: fmt.Sprint("GPU-", i), Utilization: model.Some(1)}, Memory: model.Some(1),
		})
	}
	r.Observe(time.Unix(1e9, 0), &model.Snapshot{}, &shares)
	if h := historyOf(r, nil); len(h.Sparks) != maxSparks || h.More == 0 {
		t.Errorf("%d pictures, %d more", len(h.Sparks), h.More)
	}
	if v.PeersNote == "" || v.FiguresNote == "" {
		t.Errorf("the notes %q and %q", v.PeersNote, v.FiguresNote)
	}
}

// TestEvents: the views of a workload and of a device have its own events, or the reason for no events.
func TestEvents(t *testing.T) {
	const started, lost = "container ml/llama-70b-workers-0/trainer started", "lost its carrier once"
	h := site(t, fakenode.New(fakenode.Workloads()), "")
	for target, want := range map[string]string{
		web.WorkloadLink("ml/llama-70b-workers-0/trainer", ""): started, web.WorkloadLink("ml/llama-70b-workers-1/trainer", ""): "",
		"/device?name=mlx5_3": lost, "/device?name=mlx5_2": "", "/workload": "",
	} {
		_, body := webtest.Get(t, h, target)
		_, section, _ := strings.Cut(body, "Recent events</h2>")
		section, _, _ = strings.Cut(section, "</section>")
		if want != "" && !strings.Contains(section, want) || want == "" && !strings.Contains(section, ">None.<") {
			t.Errorf("%s: want %q in %s", target, want, section)
		}
	}
	var v detail
	v.events(&api.Known{}, func(*model.RecentEvent) bool { return true })
	if v.Events != nil || !strings.Contains(v.EventsNote, "--events.otlp-endpoint") {
		t.Errorf("without events: %+v", v)
	}
}

// FuzzFigures looks for series in any text.
func FuzzFigures(f *testing.F) {
	f.Add([]byte("a{workload=\"x\"} 1\nb_total{workload=\"x\",c=\"}\"} NaN 5\n"), "x")
	f.Add([]byte("a{b=\"workload=\\\"x\\\"\"} 1"), "x")
	f.Fuzz(func(t *testing.T, text []byte, workload string) {
		for _, found := range figuresOf(text, pair{"workload", workload}) {
			if found.Name == "" && !strings.Contains(string(text), "{") {
				t.Error("a series without a name")
			}
		}
	})
}

// BenchmarkNode is what the page of a node with 1,000 workloads costs, which is made once for all viewers of a refresh; with a query it
// is made for each.
func BenchmarkNode(b *testing.B) {
	h := site(b, fakenode.New(append(fakenode.Workloads(), fakenode.Crowd(1000)...)), "")
	for name, target := range map[string]string{"kept": "/", "made": "/?sort=in"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				webtest.Get(b, h, target)
			}
		})
	}
}
