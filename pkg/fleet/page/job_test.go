// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/web/webtest"
)

// waiting is the report of a job that waits for a member.
func waiting() fleet.JobReport {
	at := time.Unix(1_800_000_000, 0).UTC()
	alert := fleet.Alert{Name: "GPULost", Severity: fleet.Critical, Node: "n2", Labels: map[string]string{"gpu_id": "3"}, Since: at.Add(-time.Hour)}
	return fleet.JobReport{
		At: at, Summary: "The job waits for ml/b/main on n2.", Severity: fleet.Warning, Unknown: []string{"joules"},
		Members: []fleet.Member{
			{Workload: "ml/b/main", Node: "n2", Behind: new(1.), Alerts: 2, Worst: fleet.Critical, GPUUse: []*float64{new(.05), new(.05), nil, new(.9)}, HCAUse: make([]*float64, 4)},
			{Workload: "ml/a/main", Node: "n1", Lost: true},
		},
		Alerts: []fleet.Alert{alert}, Events: []fleet.Event{{Alert: alert, Until: at.Add(-time.Minute)}},
		Problems: []string{"member_ratio: timeout"},
		Past:     fleet.Past{Begin: at.Add(-6 * time.Hour), StepSeconds: 600, Members: 2},
		Figures: []fleet.Figure{
			{Name: "GPU energy, last day", Unit: "J", Value: new(7.2e6), PromQL: []string{`a{x="<b>"}`}},
			{Name: "CPU and memory energy, last day", Unit: "J", PromQL: []string{"b"}},
			{Name: "Errors", Unit: "1/s", Value: new(2.), PromQL: []string{"c", "d"}},
			{Name: "Alerts", Each: true, PromQL: []string{"e"}},
		},
	}
}

// TestJobPage shows the state in one sentence, what is not known, the members with their strips, alerts, and figures with their queries.
func TestJobPage(t *testing.T) {
	h := site(Options{Reader: &fakeFleet{state: crowd(2), report: waiting()}})
	_, body := webtest.Get(t, h, "/job/research/llama-1")
	for _, want := range []string{
		`<li class="warning"><span class="badge">warning</span><p><b>The job waits for ml/b/main on n2.</b>`, "not known: joules",
		"<dt>GPU energy</dt><dd>2 kWh (7.2e&#43;06 J)<small>last day</small>", "<dt>CPU and memory energy</dt><dd>-<small>",
		`aria-label="GPUs: 33% on average, known for 3 of 4 steps"`, `<path class="u0" d="M0 0h2"/><path class="u4" d="M3 0h1"/>`, `aria-label="HCA: not known"`,
		`class="critical"><span class="badge">2 firing</span>`, `class="warning"><span class="badge">no answer</span>`,
		"until 2027-01-15 07:59:00 UTC", `<code data-copy>a{x=&#34;&lt;b&gt;&#34;}</code>`, `<code data-copy>c</code> + <code data-copy>d</code>`,
		`href="/api/v1/job?kind=JobSet&amp;name=llama-1&amp;namespace=research"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s:\n%s", want, body)
		}
	}
	if strings.Index(body, "ml/b/main") > strings.Index(body, "ml/a/main") {
		t.Error("the member that holds the job is not the first")
	}
	m := connected(2)
	m.Said = fleet.Said{Silent: 2, Faults: []fleet.Fault{{Node: "n2", Driver: "nvidia", Code: "79", Device: "GPU 3", Last: time.Unix(1_800_000_000, 0), Text: "<Xid>"}}, Late: []fleet.Late{{Rank: "<5>", Communicator: "w", Seconds: .035}}, Verdicts: []fleet.Verdict{{Node: "n2", Name: "JobStalled", Severity: fleet.Critical, Subject: "ml/b/main on GPU 3", Evidence: []string{"8 ranks <stand>", "GPUs wait"}}}}
	_, body = webtest.Get(t, site(Options{Reader: &fakeFleet{state: crowd(2), report: waiting()}, Matrix: &fakeMatrix{matrix: m}}), "/job/research/llama-1")
	for _, want := range []string{"<b>JobStalled on n2: 8 ranks &lt;stand&gt;.</b>", "ml/b/main on GPU 3", "8 ranks &lt;stand&gt; · GPUs wait", "<li>rank &lt;5&gt; of communicator w ( on ) launches 35ms after", "<h3>Kernel logs</h3>", " on n2: nvidia 79 of GPU 3: &lt;Xid&gt;</li>", "/docs/verdicts.md", "not known: joules, verdicts of the sensors of 2 nodes"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s:\n%s", want, body)
		}
	}
	nothing := waiting()
	nothing.Severity, nothing.Alerts, nothing.Events = "", nil, nil
	_, body = webtest.Get(t, site(Options{Reader: &fakeFleet{state: crowd(2), report: nothing}}), "/job/research/llama-1")
	if !strings.Contains(body, "Alerts are not known.") || !strings.Contains(body, "Past alerts are not known.") || strings.Contains(body, `class="ok"`) {
		t.Error("what is not known looks healthy")
	}
}

// TestJobLink: the address of any job leads to that job, in browsers, too, which remove dots and decode.
func TestJobLink(t *testing.T) {
	s := crowd(0)
	for _, name := range []string{"train", ".", "..", "a/b", "a?b#c%2F", "-", "ä\x00\n", "job"} {
		for _, namespace := range []string{"ml", "", "-", "..", "x/y"} {
			for _, kind := range []string{"Job", "", "slurm&name=x"} {
				s.Jobs = append(s.Jobs, fleet.Job{JobName: fleet.JobName{Namespace: namespace, Kind: kind, Name: name}})
			}
		}
	}
	var named *http.Request
	mux := http.NewServeMux()
	mux.HandleFunc("GET /job", func(_ http.ResponseWriter, r *http.Request) { named = r })
	mux.HandleFunc("GET /job/{namespace}/{name}", func(_ http.ResponseWriter, r *http.Request) { named = r })
	for i := range s.Jobs {
		j := s.Jobs[i].JobName
		link, err := url.Parse("http://host" + jobLink(j))
		if err != nil {
			t.Fatal(err)
		}
		named = nil
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, link.String(), nil))
		if named == nil || strings.Contains(link.EscapedPath()+"/", "/../") || strings.Contains(link.EscapedPath()+"/", "/./") {
			t.Errorf("%q: %s is no address", j, link)
			continue
		}
		if got := jobsOf(named, s); len(got) == 0 || got[0].JobName != j && j.Kind != "" {
			t.Errorf("%q: %s leads to %v", j, link, got)
		}
	}
	if got := jobLink(fleet.JobName{Kind: "slurm", Name: "4711"}); got != "/job/-/4711?kind=slurm" {
		t.Error(got)
	}
}

// TestJobKinds: a name that jobs of two kinds have shows both, and asks for nothing.
func TestJobKinds(t *testing.T) {
	s := crowd(1)
	s.Jobs = append(s.Jobs, fleet.Job{JobName: fleet.JobName{Namespace: "research", Kind: "Job", Name: "llama-0"}})
	f := &fakeFleet{state: s, report: waiting()}
	_, body := webtest.Get(t, site(Options{Reader: f}), "/job/research/llama-0")
	for _, want := range []string{`href="/job/research/llama-0?kind=Job"`, `href="/job/research/llama-0?kind=JobSet"`, "jobs of different kinds have this name"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(body, "The job waits") || f.jobs > 0 {
		t.Error("one of both is shown")
	}
}

// TestLargeJob shows the first of 1,000 members, and a link to the others.
func TestLargeJob(t *testing.T) {
	report := waiting()
	for i := range 998 {
		report.Members = append(report.Members, fleet.Member{Workload: fmt.Sprint("ml/w-", i, "/main"), Node: fmt.Sprint("node", i), GPUs: new(8.), Used: new(8.)})
	}
	for i := range maxRows {
		m := &report.Members[i]
		m.GPUUse = nil
		for step := range 36 {
			m.GPUUse = append(m.GPUUse, new(float64((i*7+step*13)%100)/100))
		}
		m.HCAUse = m.GPUUse
	}
	report.OmittedMembers, report.OmittedAlerts, report.OmittedEvents = 7, 3, 2
	h := site(Options{Reader: &fakeFleet{state: crowd(2), report: report}})
	_, body := webtest.Get(t, h, "/job/research/llama-1?kind=JobSet")
	for _, part := range []string{
		fmt.Sprintf("%d of %d", len(report.Alerts), len(report.Alerts)+3), fmt.Sprintf("%d of %d", len(report.Events), len(report.Events)+2),
	} {
		if !strings.Contains(body, part) {
			t.Errorf("the page lacks %q of alerts or events", part)
		}
	}
	if !strings.Contains(body, "64 of 1007") || !strings.Contains(body, `href="/job/research/llama-1?all=1&amp;kind=JobSet"`) || strings.Contains(body, "ml/w-62/") {
		t.Error("not the first 64 members with a link to all")
	}
	t.Logf("%d bytes", len(body))
	if len(body) > webtest.MaxBytes {
		t.Errorf("the first view has %d bytes", len(body))
	}
	if _, all := webtest.Get(t, h, "/job/research/llama-1?kind=JobSet&all=1"); !strings.Contains(all, "ml/w-997/") {
		t.Error("not all members")
	}
}
