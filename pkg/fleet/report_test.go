// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
)

const (
	memberA = "instance=n1 workload=ml/a/main container_id=1"
	memberB = "instance=n2 workload=ml/b/main container_id=2"
)

// reported returns the report of a job with two members.
func reported(t *testing.T, s *State, f *fakePrometheus, more map[string]model.Vector, now time.Time) *JobReport {
	t.Helper()
	f.vectors = map[string]model.Vector{
		"members": {one(memberA, 1), one(memberB, 1)}, "energy_gpus": {one("namespace=ml", 7.2e6)},
		"member_last_launch": {one(memberA, 2), one(memberB, 3)},
	}
	maps.Copy(f.vectors, more)
	r := f.reader(t, "")
	r.now = func() time.Time { return now }
	report, problems := r.Job(t.Context(), s, JobName{"ml", "Job", "train"})
	if report == nil || len(problems) > 0 {
		t.Fatal(problems)
	}
	return report
}

// TestSummary: one sentence says what is wrong, the worst first. Without a known problem it says what is not known.
func TestSummary(t *testing.T) {
	alert := func(name string, severity Severity, node, workload string) Alert {
		return Alert{Name: name, Severity: severity, Node: node, Labels: map[string]string{"workload": workload}}
	}
	lost, late := alert("GPULost", Critical, "n2", ""), alert("JobMemberLate", Info, "n2", "ml/b/main")
	for _, c := range []struct {
		want     string
		severity Severity
		alerts   []Alert
		more     map[string]model.Vector
		first    string // member
		unknown  string
	}{
		{want: "Nothing is known to be wrong with 2 members.", alerts: []Alert{}, first: "n1"},
		{want: "Whether something is wrong is not known: alerts are not answered.", first: "n1", unknown: "alerts"},
		{
			want: "Nothing is known to be wrong with 2 members; not known: launches of collectives of 2 members, joules.", alerts: []Alert{}, first: "n1",
			more: map[string]model.Vector{"energy_gpus": {}, "member_last_launch": {}}, unknown: "launches of collectives of 2 members|joules",
		},
		{
			want:     "The job waits for ml/b/main on n2, which is 3 launches behind and launched last 10m1s ago.",
			severity: Warning, alerts: []Alert{lost}, first: "n2",
			more: map[string]model.Vector{"member_behind": {one(memberB, 3)}, "member_last_launch": {one(memberA, 600), one(memberB, 601)}},
		},
		{
			want: "GPULost fires for n2, a node of the job, and 1 more alert.", severity: Critical,
			alerts: []Alert{lost, late, alert("GPULost", Critical, "n9", ""), alert("RDMAFault", Warning, "n1", "ml/other/main")}, first: "n2",
		},
		{want: "GPULost fires for n2, a node of the job.", severity: Critical, alerts: []Alert{lost}, first: "n2"},
		{want: "JobMemberLate fires for n2 ml/b/main.", severity: Info, alerts: []Alert{late}, first: "n2"},
		{
			want: "No member has launched a collective for 6m12s.", severity: Info, alerts: []Alert{late}, first: "n2",
			more: map[string]model.Vector{"member_last_launch": {one(memberA, 372), one(memberB, 400)}},
		},
		{
			want: "The sensors of 1 of 2 members do not answer.", severity: Warning, alerts: []Alert{}, first: "n2",
			more:    map[string]model.Vector{"members": {one(memberA, 1)}, "members_lost": {one(memberB, 1)}, "member_last_launch": {one(memberA, 1)}},
			unknown: "everything since their sensors do not answer of 1 member",
		},
		{
			want: "Nothing is known to be wrong with 2 members; not known: some launches of collectives of 1 member, processes on the GPUs of 1 member.",
			more: map[string]model.Vector{
				"member_partial": {one(memberA, 1)}, "member_gpus": {one(memberA, 8), one(memberB, 8)}, "member_gpus_used": {one(memberB, 8)},
			},
			alerts: []Alert{}, first: "n2", unknown: "some launches of collectives of 1 member|processes on the GPUs of 1 member",
		},
	} {
		r := reported(t, &State{Alerts: c.alerts}, &fakePrometheus{}, c.more, time.Unix(1_800_000_000, 0)).WithSaid(&Said{})
		if r.Summary != c.want || r.Severity != c.severity || r.Members[0].Node != c.first || strings.Join(r.Unknown, "|") != c.unknown {
			t.Errorf("%q %q, first %s, unknown %q\nwant %q %q, first %s", r.Summary, r.Severity, r.Members[0].Node, r.Unknown, c.want, c.severity, c.first)
		}
	}
	if r := reported(t, &State{Alerts: []Alert{}}, &fakePrometheus{}, nil, time.Unix(1_800_000_000, 0)); r.Unsaid() != nil || len(r.Unknown) == 0 {
		t.Errorf("%q is said twice: %q", r.Unsaid(), r.Summary)
	}
	if r := reported(t, &State{Alerts: []Alert{lost}}, &fakePrometheus{}, nil, time.Unix(1_800_000_000, 0)); len(r.Unsaid()) != 1 {
		t.Errorf("%q is not said: %q", r.Unknown, r.Summary)
	}
	idle := &State{Alerts: []Alert{}, Jobs: []Job{{JobName: JobName{"ml", "Job", "train"}, GPUs: new(16.), Idle: new(3.)}}}
	if r := reported(t, idle, &fakePrometheus{}, nil, time.Unix(1_800_000_000, 0)); r.Summary != "3 of 16 GPUs held by the job did nothing in the last minutes." {
		t.Error(r.Summary)
	}
	idle.Problems = []string{"ports: timeout"}
	if r := reported(t, idle, &fakePrometheus{}, nil, time.Unix(1_800_000_000, 0)); !slices.Contains(r.Unknown, "what Prometheus did not answer") {
		t.Error(r.Unknown)
	}
}

// TestVerdicts: what a sensor says is said first, and a sensor that says nothing is not a sensor that finds nothing.
func TestVerdicts(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := reported(t, &State{Alerts: []Alert{}}, &fakePrometheus{}, nil, now)
	before := *r
	for _, c := range []struct {
		found  []Verdict
		silent int
		want   string
		level  Severity
	}{
		{nil, 0, "Nothing is known to be wrong with 2 members.", ""},
		{nil, 2, "Nothing is known to be wrong with 2 members; not known: verdicts of the sensors of 2 nodes.", ""},
		{[]Verdict{{Name: "RDMACoverageGap", Severity: Info, Node: "n1"}}, 0, "Nothing is known to be wrong with 2 members.", ""},
		{
			[]Verdict{{Name: "JobMemberLate", Severity: Info, Node: "n1"}, {Name: "JobStalled", Severity: Warning, Node: "n2", Evidence: []string{"8 ranks stand", "more"}}},
			1, "JobStalled on n2: 8 ranks stand.", Warning,
		},
	} {
		got := r.WithSaid(&Said{Verdicts: c.found, Silent: c.silent})
		if got.Summary != c.want || got.Severity != c.level || len(got.Verdicts) != len(c.found) || got.Verdicts == nil {
			t.Errorf("%q %q, %d verdicts, want %q %q", got.Summary, got.Severity, len(got.Verdicts), c.want, c.level)
		}
	}
	late := Late{Communicator: "w", Rank: "5", Workload: "ml/b/main", Node: "n2", Seconds: .0351, ErrorSeconds: .002, Launches: 9}
	got := r.WithSaid(&Said{Late: []Late{late}, Uncompared: 1, Omitted: 3, MoreLate: 4, Incomplete: []Incomplete{{"w", 15, 16}}, MoreIncomplete: 2})
	const want = "rank 5 of communicator w (ml/b/main on n2) launches 35.1ms after the first compared rank on other nodes, whose clocks differ by at most 2ms."
	if got.Summary != want || got.Severity != Info {
		t.Errorf("%q, want %q", got.Summary, want)
	}
	if text := strings.Join(got.Unknown, "|"); text != "3 more verdicts of the sensors|how late ranks on 1 node launch|4 more late ranks|1 of 16 ranks of communicator w|ranks of 2 more communicators" {
		t.Error(text)
	}
	fires := reported(t, &State{Alerts: []Alert{{Name: "GPULost", Severity: Critical, Node: "n2", Labels: map[string]string{}}}}, &fakePrometheus{}, nil, now)
	for severity, want := range map[Severity]string{Warning: "GPULost fires for n2, a node of the job.", Critical: "JobStalled on n1: all stand."} {
		got := fires.WithSaid(&Said{Verdicts: []Verdict{{Name: "JobStalled", Severity: severity, Node: "n1", Evidence: []string{"all stand"}}}})
		if got.Summary != want {
			t.Errorf("%s beside a critical alert: %q, want %q", severity, got.Summary, want)
		}
	}
	fault := Fault{Node: "n1", Device: "GPU 3", Driver: "nvidia", Code: "79", Workload: "ml/a/main", Time: now, Last: now.Add(time.Minute), Repeated: 2, Text: "fell off"}
	got = r.WithSaid(&Said{Faults: []Fault{fault}, MoreFaults: 1, Unlogged: 2})
	if text := got.Faults[0].String(); text != "2027-01-15 08:00:00 on n1: nvidia 79 of GPU 3, by ml/a/main, 2 more until 2027-01-15 08:01:00: fell off" {
		t.Error(text)
	}
	if text := strings.Join(got.Unknown, "|"); text != "faults in the kernel logs of 2 nodes|1 more fault in kernel logs" {
		t.Error(text)
	}
	last := r.Members[len(r.Members)-1]
	for severity, at := range map[Severity]int{Info: len(r.Members) - 1, Warning: 0, Critical: 0} {
		said := []Verdict{{Name: "RDMACoverageGap", Severity: Info, Node: last.Node, Workload: last.Workload}, {Severity: severity, Node: last.Node, Workload: last.Workload}}
		if got := r.WithSaid(&Said{Verdicts: said}).Members; len(got) != len(r.Members) || got[at].Workload != last.Workload {
			t.Errorf("named with %s: %v, want it as number %d", severity, got, at)
		}
	}
	if d := gocmp.Diff(before, *r, gocmp.AllowUnexported(JobReport{})); d != "" {
		t.Error("the shared report changed:", d)
	}
}

// TestOmitted: what is too much to be listed is counted, and the summary does not judge it.
func TestOmitted(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	var members, events model.Vector
	f := &fakePrometheus{matrices: map[string]model.Matrix{}}
	for i := range maxMembers + 3 {
		members = append(members, one(fmt.Sprintf("instance=n1 workload=w%d container_id=c", i), 1))
	}
	for i := range maxEvents + 2 {
		f.matrices["events"] = append(f.matrices["events"], matrix(fmt.Sprintf("alertname=GPUFault severity=warning instance=n1 gpu_id=%d", i),
			now.Add(-time.Hour), eventStep, float64(now.Add(-time.Hour).Unix())))
	}
	r := reported(t, &State{Alerts: []Alert{}}, f, map[string]model.Vector{"members": members, "events": events}, now)
	if r.OmittedMembers != 3 || r.OmittedEvents != 2 || !strings.HasSuffix(r.Summary, "everything of 3 more members, launches of collectives of 5000 members, verdicts of the sensors, faults in kernel logs and lateness over nodes (not asked).") {
		t.Errorf("%d members and %d events more: %q", r.OmittedMembers, r.OmittedEvents, r.Summary)
	}
	var alerts []Alert
	for i := range maxEvents + 2 {
		alerts = append(alerts, Alert{Name: "GPUFault", Severity: Warning, Node: "n1", Labels: map[string]string{"gpu_id": fmt.Sprint(i)}})
	}
	r = reported(t, &State{Alerts: alerts}, &fakePrometheus{}, nil, now)
	if r.OmittedAlerts != 2 || r.Summary != "GPUFault fires for n1 GPU 0, a node of the job, and 501 more alerts." {
		t.Errorf("%d alerts more: %q", r.OmittedAlerts, r.Summary)
	}
}

// matrix returns a series with values from a time on.
func matrix(labels string, begin time.Time, step time.Duration, values ...float64) *model.SampleStream {
	s := &model.SampleStream{Metric: one(labels, 0).Metric}
	for i, v := range values {
		s.Values = append(s.Values, model.SamplePair{Timestamp: model.TimeFromUnixNano(begin.Add(time.Duration(i) * step).UnixNano()), Value: model.SampleValue(v)})
	}
	return s
}

// TestPast: strips have a value for each step, and alerts that fired are listed once for each time, but alerts of other workloads and nodes,
// and alerts that still fire, are not.
func TestPast(t *testing.T) {
	now := time.Unix(1_800_000_000, 0).Add(7 * time.Minute) // between two steps
	begin := time.Unix(1_800_000_000, 0).Add(-PastRange + stripStep)
	fired := float64(begin.Add(time.Hour).Unix())
	f := &fakePrometheus{matrices: map[string]model.Matrix{
		"strip_gpus": {matrix(memberB, begin, stripStep, .25, .25, math.NaN(), 1)},
		"strip_hcas": {matrix("instance=n1", begin.Add(35*stripStep), stripStep, .5)},
		"events": {
			matrix("alertname=GPUFault severity=warning instance=n2 gpu_id=3", begin.Add(time.Hour), eventStep, fired, fired, fired+240, fired+240, fired+240),
			matrix("alertname=JobMemberLate severity=info instance=n1 workload=ml/a/main", begin.Add(3*time.Hour), eventStep, fired),
			matrix("alertname=JobMemberLate severity=info instance=n1 workload=ml/x/main", begin.Add(3*time.Hour), eventStep, fired),
			matrix("alertname=GPUFault severity=warning instance=n9", begin.Add(3*time.Hour), eventStep, fired),
			matrix("alertname=GPULost severity=warning instance=n1", now.Add(-eventStep), eventStep, fired),
		},
	}}
	r := reported(t, &State{Alerts: []Alert{}}, f, nil, now)
	if !r.Past.Begin.Equal(begin) || r.Past.Members != 2 || r.Past.StepSeconds != 600 {
		t.Errorf("%+v, want %v", r.Past, begin)
	}
	want := make([]*float64, 36)
	want[0], want[1], want[3] = new(.25), new(.25), new(1.)
	if diff := gocmp.Diff(want, r.Members[1].GPUUse); diff != "" {
		t.Error(diff)
	}
	want = make([]*float64, 36)
	want[35] = new(.5)
	if diff := gocmp.Diff(want, r.Members[0].HCAUse); diff != "" {
		t.Error(diff)
	}
	var got []string
	for _, e := range r.Events {
		got = append(got, strings.Join([]string{e.Name, e.Subject(), e.Since.Sub(begin).String(), e.Until.Sub(begin).String()}, " "))
	}
	if diff := gocmp.Diff([]string{"JobMemberLate n1 ml/a/main 1h0m0s 3h0m0s", "GPUFault n2 GPU 3 1h4m0s 1h8m0s", "GPUFault n2 GPU 3 1h0m0s 1h2m0s"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestStrips: only the nodes of the first members are asked for their past.
func TestStrips(t *testing.T) {
	f := &fakePrometheus{}
	var members model.Vector
	for i := range maxStrips + 1 {
		members = append(members, one("instance=n.("+strings.Repeat("x", i+1)+" workload=w"+strings.Repeat("y", i)+" container_id=c", 1))
	}
	r := reported(t, &State{Alerts: []Alert{}}, f, map[string]model.Vector{"members": members}, time.Unix(1_800_000_000, 0))
	if len(r.Members) != maxStrips+1 || r.Members[maxStrips-1].GPUUse == nil || r.Members[maxStrips].GPUUse != nil {
		t.Error("not the first members have strips")
	}
	if i := slices.IndexFunc(f.asked, func(q string) bool { return is("strip_hcas", q) }); i < 0 ||
		!strings.Contains(f.asked[i], `n\\.\\(x|`) || strings.Contains(f.asked[i], strings.Repeat("x", maxStrips+1)) {
		t.Error("other nodes are asked for")
	}
}

// TestFigures: each figure has its query, with the name of the job as it is.
func TestFigures(t *testing.T) {
	f := &fakePrometheus{vectors: map[string]model.Vector{"members": {one(memberA, 1)}, "energy_gpus": {one("namespace=ml", 3), one("namespace=ml job_kind=x", 4)}}}
	name := JobName{"ml", "Job", `a  "b` + "\n"}
	s := &State{Jobs: []Job{{JobName: name, GPUs: new(8.), Errors: new(.5), Transmit: &Rate{PerSecond: 9}}}}
	r, _ := f.reader(t, "").Job(t.Context(), s, name)
	values := map[string]float64{}
	for _, one := range r.Figures {
		if one.Value != nil {
			values[one.Name] = *one.Value
		}
		if len(one.PromQL) == 0 {
			t.Errorf("%s has no source", one.Name)
		}
		for _, q := range one.PromQL {
			if !strings.Contains(q, `job_name="a  \"b\n"`) && !strings.HasPrefix(one.Name, "Use of") || strings.Contains(q, "$") {
				t.Errorf("%s: %s", one.Name, q)
			}
		}
	}
	if diff := gocmp.Diff(map[string]float64{"GPU energy, last day": 7, "GPUs": 8, "Errors": .5, "Out": 9}, values); diff != "" {
		t.Error(diff)
	}
}
