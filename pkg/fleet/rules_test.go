// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
)

// answer is as the documentation of Prometheus's HTTP API shows it, with a rule that nobody asked for.
const answer = `{"status": "success", "data": {"groups": [{"name": "example", "file": "/rules.yml", "interval": 60, "rules": [
  {"alerts": [{"activeAt": "2018-07-04T20:27:12.60602144+02:00", "annotations": {"summary": "High"},
    "labels": {"alertname": "GPULost", "severity": "critical", "instance": "n1"}, "state": "firing", "value": "1e+00"}],
   "annotations": {}, "duration": 600, "health": "ok", "labels": {"severity": "critical"}, "name": "GPULost", "query": "x",
   "lastEvaluation": "2018-07-04T20:27:12Z", "evaluationTime": 0.1, "type": "alerting"},
  {"health": "ok", "name": "Other", "query": "y", "type": "alerting", "alerts": []}]}]%s}%s}`

func TestRules(t *testing.T) {
	body, status := fmt.Sprintf(answer, "", ""), http.StatusOK
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	r := reader(t, server.URL+"/prometheus/?tenant=a", "")
	got, err := r.Rules(t.Context(), "GPULost", "GPUGone")
	want := []Rule{{
		Name: "GPULost", Health: "ok", Evaluated: time.Date(2018, 7, 4, 20, 27, 12, 0, time.UTC),
		Alerts: []RuleAlert{{Labels: map[string]string{"alertname": "GPULost", "severity": "critical", "instance": "n1"}, State: Firing}},
	}}
	if diff := gocmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if want := "/prometheus/api/v1/rules?tenant=a&rule_name%5B%5D=GPULost&rule_name%5B%5D=GPUGone&type=alert"; asked != want {
		t.Errorf("asked %s\nwant  %s", asked, want)
	}
	for name, bad := range map[string]string{
		"partial": fmt.Sprintf(answer, "", `, "warnings": ["a store does not answer"]`), "page": fmt.Sprintf(answer, `, "groupNextToken": "x"`, ""),
		"failed": `{"status": "error"}`, "cut": answer[:100], "nothing": "", "HTML": "<html>",
	} {
		body = bad
		if got, err := r.Rules(t.Context(), "GPULost"); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	if body, status = fmt.Sprintf(answer, "", ""), http.StatusServiceUnavailable; true {
		if got, err := r.Rules(t.Context(), "GPULost"); err == nil {
			t.Errorf("status 503: %v", got)
		}
	}
}

func TestHeard(t *testing.T) {
	f := &fakePrometheus{vectors: map[string]model.Vector{
		"heard": {one("instance=n1", 1e9), one("instance=n2", 1e9+0.5)}, "heard_gpus": {one("instance=n1", 1e9)},
	}}
	r := f.reader(t, "")
	got, err := r.Heard(t.Context())
	want := Heard{
		Any:  map[string]time.Time{"n1": time.Unix(1e9, 0), "n2": time.Unix(1e9, 5e8)},
		GPUs: map[string]time.Time{"n1": time.Unix(1e9, 0)}, HCAs: map[string]time.Time{},
	}
	if diff := gocmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	f.broken.Store(true)
	if got, err := r.Heard(t.Context()); err == nil {
		t.Errorf("without an answer: %v", got)
	}
}
