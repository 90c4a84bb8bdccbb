// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// TestAlertNames compares the alerts that are read with the shipped alerts.
func TestAlertNames(t *testing.T) {
	text, err := os.ReadFile("../../deploy/prometheus/rules/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" && !slices.Contains(want, r.Alert) {
				want = append(want, r.Alert)
			}
		}
	}
	if diff := gocmp.Diff(want, alertNames); diff != "" {
		t.Errorf("alertNames, in the order of the file:\n%s", diff)
	}
	for _, name := range []string{degradedAlert, flappingAlert, downAlert} {
		if !slices.Contains(want, name) {
			t.Errorf("there is no alert %s", name)
		}
	}
}

// TestQueries: each query of the file is sent, and no other query.
func TestQueries(t *testing.T) {
	f := &fakePrometheus{}
	r := f.reader(t, "")
	r.Read()
	r.Job(t.Context(), &State{}, JobName{"ml", "Job", "train"})
	r.Search(t.Context(), "0x1234")
	_, _ = r.Heard(t.Context())
	for name := range queries {
		if !slices.ContainsFunc(f.asked, func(query string) bool { return is(name, query) }) {
			t.Errorf("%s is never sent", name)
		}
	}
	if len(f.asked) != len(queries) || len(queries) < 35 {
		t.Errorf("%d queries were sent of %d", len(f.asked), len(queries))
	}
}

// is reports whether a sent query is the query of a name.
func is(name, query string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(queries[name]), `\$`, `$`)
	return regexp.MustCompile("^" + placeholder.ReplaceAllString(pattern, `"(?:[^"\\]|\\.)*"`) + "$").MatchString(query)
}

// TestExpand: any value becomes one string.
func TestExpand(t *testing.T) {
	got := expand(`a{x=$name, y=$namespace} or $name`, map[string]string{"name": `a"} or b{c="\`, "namespace": "n\n\xff$name"})
	if want := `a{x="a\"} or b{c=\"\\", y="n\n?$name"} or "a\"} or b{c=\"\\"`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for text, want := range map[string]string{
		"0x506B:4b03:00ab": "506b4b0300ab", "506b": "506b", "GPU-1": "", "ab": "", "0x": "", "train": "",
	} {
		if got := guidOf(text); got != want {
			t.Errorf("guidOf(%q) = %q, want %q", text, got, want)
		}
	}
}

type fakePrometheus struct {
	vectors  map[string]model.Vector
	matrices map[string]model.Matrix
	broken   atomic.Bool

	mu    sync.Mutex
	asked []string
}

func (f *fakePrometheus) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.FormValue("query")
	f.mu.Lock()
	f.asked = append(f.asked, query)
	f.mu.Unlock()
	if f.broken.Load() {
		http.Error(w, "the disk is full", http.StatusServiceUnavailable)
		return
	}
	vector := model.Vector{}
	for name, v := range f.vectors {
		if is(name, query) {
			vector = v
		}
	}
	data := map[string]any{"resultType": "vector", "result": vector}
	for name, m := range f.matrices {
		if is(name, query) {
			data = map[string]any{"resultType": "matrix", "result": m}
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success", "data": data})
}

func (f *fakePrometheus) reader(t *testing.T, config string) *Reader {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return reader(t, s.URL, config)
}

func reader(t *testing.T, url, config string) *Reader {
	t.Helper()
	api, err := Connect(url, config)
	if err != nil {
		t.Fatal(err)
	}
	return NewReader(api)
}

// one returns a series of a vector from "instance=a device=b" and a value.
func one(labels string, value float64) *model.Sample {
	s := &model.Sample{Metric: model.Metric{}, Value: model.SampleValue(value), Timestamp: 1000}
	for pair := range strings.FieldsSeq(labels) {
		name, value, _ := strings.Cut(pair, "=")
		s.Metric[model.LabelName(name)] = model.LabelValue(value)
	}
	return s
}

// TestState joins the answers for a node with a GPU of two parts, a node without GPUs, and nodes that do not answer:
// for a minute, and for so long that only the alert remains.
func TestState(t *testing.T) {
	f := &fakePrometheus{vectors: map[string]model.Vector{
		"nodes":        {one("instance=a", 1), one("instance=b", 1)},
		"nodes_before": {one("instance=a", 1), one("instance=b", 1), one("instance=d", 1)},
		"gpus": {
			one("instance=a uuid=GPU-1", 1), one("instance=a uuid=MIG-1 parent_uuid=GPU-1", 1), one("instance=a uuid=MIG-2 parent_uuid=GPU-1", 1),
			one("instance=a uuid=GPU-2", 1), one("instance=a uuid=GPU-3", 1), one("instance=a uuid=GPU-4", 1),
		},
		"gpus_given":    {one("instance=a uuid=MIG-2", 1), one("instance=a uuid=GPU-2", 1), one("instance=a uuid=GPU-4", 1)},
		"gpu_processes": {one("instance=a uuid=MIG-2", 3), one("instance=a uuid=MIG-1", 0), one("instance=a uuid=GPU-2", 0), one("instance=a uuid=GPU-3", 1)},
		"gpu_health":    {one("instance=a uuid=GPU-1", 1), one("instance=a uuid=GPU-2", 0), one("instance=a uuid=GPU-3", 1)},
		"ports": {
			one("instance=a device=mlx5_0 port=1", 1), one("instance=a device=mlx5_0 port=2", 0),
			one("instance=a device=mlx5_10 port=1", 1), one("instance=a device=mlx5_2 port=1", 1),
			one("instance=a device=mlx5_9 port=1", 1),
		},
		"functions":           {one("instance=a device=mlx5_9", 1)},
		"rail_transmit":       {one("instance=a device=mlx5_2", .25), one("instance=a device=mlx5_9", 1)},
		"rail_receive":        {one("instance=a device=mlx5_2", .75)},
		"rail_errors":         {one("instance=a device=mlx5_2", 2)},
		"rail_lost":           {one("instance=a device=mlx5_2", 3)},
		"rail_pause":          {one("instance=a device=mlx5_0", .5)},
		"transmit":            {one("instance=a", 100)},
		"receive":             {one("instance=a", 300)},
		"transmit_attributed": {one("instance=a", 50)},
		"receive_attributed":  {one("instance=a", 150)},
		"job_members":         {one("namespace=ml job_kind=Job job_name=quick", 2), one("namespace=ml job_kind=Job job_name=slow", 2), one("namespace=x job_kind=Job job_name=idle", 1)},
		"job_idle":            {one("namespace=x job_kind=Job job_name=idle", 8), one("namespace=ml job_kind=Job job_name=quick", 0)},
		"job_transmit": {
			one("namespace=ml job_kind=Job job_name=quick method=port", 5), one("namespace=ml job_kind=Job job_name=quick method=survey", 1),
		},
		"alerts": {
			one("alertname=RDMALinkUnstable severity=warning instance=a job=j device=mlx5_2 port=1", 900),
			one("alertname=GPULost severity=critical instance=a uuid=GPU-2 gpu_id=1", 800),
			one("alertname=RDMALinkDegraded severity=warning instance=a device=mlx5_2 port=1", 950),
			one("alertname=RDMALinkDegraded severity=warning instance=a device=mlx5_2 port=1 netdev=x", 950),
			one("alertname=AccelscopeDown severity=warning instance=c", 700),
		},
		"job_outlier": {one("namespace=ml job_kind=Job job_name=slow instance=b workload=ml/slow-1/main", 3.5)},
	}}
	s := f.reader(t, "").Read()
	if len(s.Problems) > 0 {
		t.Fatal(s.Problems)
	}
	want := []Node{
		{
			Name: "a", GPUs: GPUs{All: new(4), Given: new(3), Used: new(2), Idle: new(1), Sick: new(1)},
			Ports: Ports{All: new(5), Up: new(4), Degraded: new(1), Flapping: new(1)},
			Bytes: Bytes{Transmit: new(float64(100)), Receive: new(float64(300)), Attributed: new(float64(200))},
			Rails: map[string]Rail{
				"mlx5_0": {Pause: new(.5)}, "mlx5_2": {Use: new(.75), Errors: new(float64(5)), Up: true}, "mlx5_10": {Up: true},
			},
			Alerts: 4, Worst: Critical,
		},
		{
			Name: "b", GPUs: GPUs{All: new(0)}, Ports: Ports{All: new(0), Up: new(0), Degraded: new(0), Flapping: new(0)},
			Rails: map[string]Rail{},
		},
		{Name: "c", Down: true, Rails: map[string]Rail{}, Alerts: 1, Worst: Warning},
		{Name: "d", Down: true, Rails: map[string]Rail{}},
	}
	if diff := gocmp.Diff(want, s.Nodes); diff != "" {
		t.Error(diff)
	}
	if diff := gocmp.Diff([]string{"mlx5_0", "mlx5_2", "mlx5_10"}, s.Rails); diff != "" {
		t.Error(diff)
	}
	total := want[0]
	if diff := gocmp.Diff(Totals{Nodes: 4, Down: 2, GPUs: total.GPUs, Ports: total.Ports, Bytes: total.Bytes}, s.Totals); diff != "" {
		t.Error(diff)
	}
	var order []string
	for _, a := range s.Alerts {
		order = append(order, a.Name+" "+a.Node)
	}
	if diff := gocmp.Diff([]string{"GPULost a", "RDMALinkDegraded a", "RDMALinkDegraded a", "RDMALinkUnstable a", "AccelscopeDown c"}, order); diff != "" {
		t.Error(diff)
	}
	wantJobs := []Job{
		{JobName: JobName{"ml", "Job", "slow"}, Members: 2, Outlier: "ml/slow-1/main", OutlierNode: "b", Slower: new(3.5)},
		{JobName: JobName{"x", "Job", "idle"}, Members: 1, Idle: new(float64(8))},
		{JobName: JobName{"ml", "Job", "quick"}, Members: 2, Idle: new(float64(0)), Transmit: &Rate{6, true}},
	}
	if diff := gocmp.Diff(wantJobs, s.Jobs); diff != "" {
		t.Error(diff)
	}
}

// TestUnknown: figures of unanswered queries are unknown, and named.
func TestUnknown(t *testing.T) {
	f := &fakePrometheus{}
	f.broken.Store(true)
	s := f.reader(t, "").Read()
	if s.Alerts != nil || s.Jobs != nil || s.Totals.GPUs.All != nil || s.Totals.Ports.All != nil || s.Totals.Bytes.Transmit != nil {
		t.Errorf("%+v", s)
	}
	if len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "all queries") || !strings.Contains(s.Problems[0], "503") {
		t.Errorf("problems: %q", s.Problems)
	}
	f.broken.Store(false)
	f.vectors = map[string]model.Vector{"nodes": {one("instance=a", 1)}, "ports": {one("instance=a device=d port=1", 1)}}
	if s := f.reader(t, "").Read(); len(s.Problems) != 1 || !strings.Contains(s.Problems[0], "recording rules") {
		t.Errorf("without rules: %q", s.Problems)
	}
}

// TestNoNumber: a figure that is not a number is unknown, an answer without series is known, and both have JSON.
func TestNoNumber(t *testing.T) {
	nan, infinite := math.NaN(), math.Inf(1)
	f := &fakePrometheus{vectors: map[string]model.Vector{
		"nodes":         {one("instance=a", 1)},
		"transmit":      {one("instance=a", infinite)},
		"rail_transmit": {one("instance=a device=mlx5_0", nan)},
		"alerts":        {one("alertname=RDMAPortDown severity=critical instance=a", 1e300)},
		"job_members":   {one("namespace=ml job_kind=Job job_name=train", nan)},
	}}
	s := f.reader(t, "").Read()
	if _, err := json.Marshal(s); err != nil {
		t.Error(err)
	}
	if len(s.Nodes) != 1 || s.Nodes[0].Bytes.Transmit != nil || len(s.Alerts) != 1 {
		t.Errorf("%+v", s)
	}
	none := (&fakePrometheus{}).reader(t, "").Read()
	if none.Nodes == nil || none.Rails == nil || none.Jobs == nil || none.Alerts == nil || len(none.Nodes) > 0 {
		t.Errorf("answered without series: %+v", none)
	}
}

// TestReader: viewers share answers, and get the last answers while Prometheus does not answer.
func TestReader(t *testing.T) {
	f := &fakePrometheus{vectors: map[string]model.Vector{"nodes": {one("instance=a", 1)}}}
	r := f.reader(t, "")
	now := time.Unix(1000, 0)
	r.now = func() time.Time { return now }
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { r.Read() })
		all.Go(func() { r.Search(t.Context(), "train") })
		all.Go(func() { r.Job(t.Context(), &State{}, JobName{"a", "b", "c"}) })
	}
	all.Wait()
	if want := len(stateQueries) + 2 + len(jobQueries) + len(pastQueries); len(f.asked) != want {
		t.Errorf("20 viewers sent %d queries, want %d", len(f.asked), want)
	}
	f.broken.Store(true)
	now = now.Add(maxAge)
	s := r.Read()
	if len(s.Nodes) != 1 || len(s.Problems) != 2 || !strings.Contains(s.Problems[0], "no answers since 00:16:40 UTC") || s.At.Unix() != 1000 {
		t.Errorf("while Prometheus does not answer: %+v", s)
	}
	if now = now.Add(maxAge); len(r.Read().Problems) != 2 {
		t.Errorf("at the next attempt: %q", r.Read().Problems)
	}
	f.broken.Store(false)
	if now = now.Add(maxAge); len(r.Read().Problems) != 0 || !r.Read().At.Equal(now) {
		t.Errorf("when it answers again: %+v", r.Read())
	}
	for i := range 3 * maxKept {
		r.Search(t.Context(), fmt.Sprint("text", i))
	}
	if len(r.found.kept) > maxKept {
		t.Errorf("%d searches are kept", len(r.found.kept))
	}
}

// TestConnect: credentials and headers come from files, each request reads them, and they are not sent to another host.
func TestConnect(t *testing.T) {
	var mu sync.Mutex
	var headers []http.Header
	received := func() []http.Header { // since the last call
		mu.Lock()
		defer mu.Unlock()
		defer func() { headers = nil }()
		return headers
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		headers = append(headers, r.Header.Clone())
		mu.Unlock()
		w.WriteHeader(http.StatusBadRequest)
	}))
	defer s.Close()
	moved := httptest.NewServer(http.RedirectHandler(s.URL, http.StatusTemporaryRedirect))
	defer moved.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	config := write("http.yml", "authorization: {credentials_file: token}\nhttp_headers: {X-Scope-OrgID: {values: [team-a]}}\n")
	write("token", "first")
	r := reader(t, s.URL, config)
	r.Job(t.Context(), &State{}, JobName{})
	write("token", "second")
	r.Search(t.Context(), "train")
	tokens := map[string]int{}
	for _, h := range received() {
		if h.Get("X-Scope-OrgID") != "team-a" {
			t.Errorf("headers: %v", h)
		}
		tokens[h.Get("Authorization")]++
	}
	if tokens["Bearer first"] != len(jobQueries) || tokens["Bearer second"] != 2 {
		t.Errorf("tokens: %v", tokens)
	}
	write("password", "secret")
	reader(t, s.URL, write("basic.yml", "basic_auth: {username: u, password_file: password}\n")).Search(t.Context(), "train")
	if got := received(); len(got) != 2 || got[0].Get("Authorization") != "Basic dTpzZWNyZXQ=" {
		t.Errorf("basic auth: %v", got)
	}
	_, problems := reader(t, moved.URL, config).Search(t.Context(), "train")
	if got := received(); len(got) > 0 || len(problems) == 0 {
		t.Errorf("the credentials were sent to where a redirect leads: %v %v", got, problems)
	}
	for _, c := range []struct{ url, file, want string }{
		{"localhost:9090", "", "want http"},
		{"http://u:secret@h\x7f/", "", "invalid"},
		{"ftp://u:secret@h/", "", "xxxxx"},
		{s.URL, write("wrong.yml", "basic: {}"), "field basic not found"},
		{s.URL, filepath.Join(dir, "missing"), "no such file"},
		{s.URL, write("ca.yml", "tls_config: {ca_file: missing.pem}"), ""},
	} {
		_, err := Connect(c.url, c.file)
		if err == nil && c.want == "" {
			continue // it is read on connecting
		}
		if text := fmt.Sprint(err); !strings.Contains(text, cmp.Or(c.want, "missing.pem")) || strings.Contains(text, "secret") {
			t.Errorf("%s %s: %v, want %q", c.url, c.file, err, c.want)
		}
	}
}

// TestBounds: a too large or missing answer is only a problem.
func TestBounds(t *testing.T) {
	hang := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.FormValue("query"), "gpu_info") {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			return
		}
		block := []byte(strings.Repeat(" ", 1<<20))
		for range maxAnswer>>20 + 2 {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}))
	defer s.Close()
	defer close(hang)
	r := reader(t, s.URL, "")
	r.timeout = 2 * time.Second
	found, problems := r.Search(t.Context(), "train")
	if text := strings.Join(problems, "\n"); len(found) > 0 || !strings.Contains(text, "deadline exceeded") {
		t.Errorf("%v %q", found, text)
	}
	r.timeout = time.Minute
	_, problems = r.Job(t.Context(), &State{}, JobName{})
	if text := strings.Join(problems, "\n"); !strings.Contains(text, errTooLarge.Error()) {
		t.Errorf("%q", text)
	}
}
