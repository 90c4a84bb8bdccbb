// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/program"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// TestCheckNode: exit status and lines are what a custom plugin of node-problem-detector returns: 0 if the node has no problem, 1 with a
// problem, 2 if nobody knows.
func TestCheckNode(t *testing.T) {
	of := func(name string, severity verdict.Severity, kind verdict.Kind, subject string, evidence ...string) api.Verdict {
		return api.Verdict{
			Name: name, Severity: severity, Subject: api.VerdictSubject{Kind: kind, Name: subject, Source: subject}, Evidence: evidence,
		}
	}
	lost := of("GPULost", verdict.Critical, verdict.OfGPU, "GPU 3", "XID 79", "2026-01-01T00:00:00Z")
	down := of("RDMAPortDown", verdict.Critical, verdict.OfPort, "mlx5_0/1", "DOWN\nfor 4m")
	slow := of("RDMALinkDegraded", verdict.Warning, verdict.OfPort, "mlx5_1/1", "100 of 400 Gb/s")
	blind := of("AccelscopeDeviceUnreadable", verdict.Warning, verdict.OfSource, "nvidia 3", "stuck: no answer")
	events := of("AccelscopeEventsLost", verdict.Warning, verdict.OfSource, "events", "7 in 15m")
	fine := of("NothingWrong", verdict.OK, verdict.OfNode, "node", "8 GPUs")
	now := time.Now()
	judged := verdict.Judged{Ports: 2, Active: 1, GPUs: 8, Workloads: 3, Sources: 9, Working: 7}
	const all = "no verdict of severity critical: 1 of 2 ports are active, 8 GPUs, 3 workloads, 7 of 9 sources work\n"
	for _, tt := range []struct {
		name    string
		list    api.VerdictList
		message string
		args    []string
		want    error
		out     string
	}{
		{"fine", api.VerdictList{At: now, Judged: &judged, Verdicts: []api.Verdict{fine}}, "success", nil, nil, all},
		{"less severe", api.VerdictList{At: now, Judged: &judged, Verdicts: []api.Verdict{slow}}, "success", nil, nil, all},
		{
			"problems",
			api.VerdictList{At: now, Judged: &judged, Verdicts: []api.Verdict{lost, down, slow, blind}},
			"success", nil, program.ErrReported,
			"GPULost GPU 3: XID 79; 2026-01-01T00:00:00Z\nRDMAPortDown mlx5_0/1: DOWN; for 4m\n",
		},
		{
			"warnings too",
			api.VerdictList{At: now, Judged: &judged, Verdicts: []api.Verdict{slow}},
			"success",
			[]string{"--severity=warning"},
			program.ErrReported, "RDMALinkDegraded mlx5_1/1: 100 of 400 Gb/s\n",
		},
		{
			"one kind",
			api.VerdictList{At: now, Judged: &judged, Verdicts: []api.Verdict{lost, down}},
			"success",
			[]string{"--subject=port,hca"},
			program.ErrReported, "RDMAPortDown mlx5_0/1: DOWN; for 4m\n",
		},
		{
			"events are not the node",
			api.VerdictList{At: now, Judged: &judged, Verdicts: []api.Verdict{events}},
			"success", nil, nil,
			all,
		},
		{
			"a device is not read",
			api.VerdictList{At: now, Judged: &judged, Verdicts: []api.Verdict{slow, blind}},
			"success", nil, program.ErrUnknown,
			"unknown: AccelscopeDeviceUnreadable nvidia 3: stuck: no answer\n",
		},
		{
			"no GPU is read",
			api.VerdictList{At: now, Judged: &verdict.Judged{Ports: 2}, Verdicts: []api.Verdict{fine}},
			"success",
			[]string{"--subject=gpu,switch"},
			program.ErrUnknown, "unknown: the sensor reads no gpu\n",
		},
		{
			"no port is read",
			api.VerdictList{At: now, Judged: &verdict.Judged{GPUs: 8}, Verdicts: []api.Verdict{fine}},
			"success",
			[]string{"--subject=port,hca"},
			program.ErrUnknown, "unknown: the sensor reads no port\n",
		},
		{
			"an older sensor",
			api.VerdictList{At: now, Verdicts: []api.Verdict{fine}},
			"success", nil, program.ErrUnknown,
			"unknown: the sensor does not say what it reads\n",
		},
		{
			"one kind is read",
			api.VerdictList{At: now, Judged: &verdict.Judged{Ports: 2}, Verdicts: []api.Verdict{fine}},
			"success",
			[]string{"--subject=port,gpu"},
			program.ErrUnknown, "unknown: the sensor reads no gpu\n",
		},
		{
			"no room",
			api.VerdictList{At: now, Judged: &judged, Verdicts: []api.Verdict{slow}, Omitted: 2},
			"success", nil, program.ErrUnknown,
			"unknown: 2 verdicts or counters without room\n",
		},
		{
			"partial",
			api.VerdictList{At: now, Judged: &judged, Verdicts: []api.Verdict{fine}},
			"partial: nvidia is late", nil, program.ErrUnknown,
			"unknown: nvidia is late\n",
		},
		{
			"old",
			api.VerdictList{At: time.Unix(1767225600, 0).UTC(), Verdicts: []api.Verdict{fine}},
			"success", nil, program.ErrUnknown,
			"unknown: the verdicts are from 2026-01-01T00:00:00Z\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != api.VerdictsPath {
					t.Errorf("asks %s", r.URL)
				}
				_ = json.NewEncoder(w).Encode(map[string]any{"code": 0, "message": tt.message, "data": tt.list})
			}))
			defer s.Close()
			checkOutput(t, append(tt.args, "--url="+s.URL), tt.want, tt.out)
		})
	}
	t.Run("nothing was judged", func(t *testing.T) {
		url := serveAPI(t, func() api.Known { return api.Known{} }, nil)
		checkOutput(t, []string{"--url=" + url}, program.ErrUnknown, "unknown: "+url+api.VerdictsPath+" answers 503 ")
	})
	t.Run("no sensor", func(t *testing.T) {
		checkOutput(t, []string{"--url=http://127.0.0.1:1"}, program.ErrUnknown, "unknown: Get ")
	})
	t.Run("no answer", func(t *testing.T) { // a kernel accepts the connection
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		checkOutput(t, []string{"--url=http://" + l.Addr().String(), "--timeout=50ms"}, program.ErrUnknown, "unknown: no answer within 50ms\n")
	})
}

// TestFitting: a message of any verdicts is text of at most the length at which node-problem-detector cuts.
func TestFitting(t *testing.T) {
	for _, n := range []int{1, 2, 9, 200, 5000} {
		for _, text := range []string{"x", strings.Repeat("ä", 99), strings.Repeat("ä", 501), strings.Repeat("xä", 900)} {
			message := fitting(slices.Repeat([]string{text}, n))
			shown := strings.Count(message, text)
			if len(message) >= maxMessage || !utf8.ValidString(message) {
				t.Errorf("%d lines of %d bytes: %d bytes: %q", n, len(text), len(message), message)
			}
			if cut := strings.Contains(message, "…"); !cut && shown < n && !strings.HasSuffix(message, fmt.Sprintf("\n%d more", n-shown)) {
				t.Errorf("%d lines of %d bytes: %d are shown: %q", n, len(text), shown, message)
			}
		}
	}
}

// TestNodeProblemDetector: the configuration in deploy is what the custom plugin monitor of node-problem-detector accepts
// (pkg/custompluginmonitor/types: Validate): each condition has a default, no rule takes longer than the plugin, its command answers.
func TestNodeProblemDetector(t *testing.T) {
	text, err := os.ReadFile("../../deploy/node-problem-detector/accelscope.json")
	if err != nil {
		t.Fatal(err)
	}
	type condition struct{ Type, Reason, Message string }
	var c struct {
		Plugin       string
		PluginConfig struct {
			Interval    string `json:"invoke_interval"`
			Timeout     string
			Length      int `json:"max_output_length"`
			Concurrency int
			Changes     bool `json:"enable_message_change_based_condition_update"`
		}
		Source     string
		Metrics    bool `json:"metricsReporting"`
		Conditions []condition
		Rules      []struct {
			Type, Condition, Reason, Path string
			Args                          []string
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		t.Fatal(err)
	}
	limit, err := time.ParseDuration(c.PluginConfig.Timeout)
	if err != nil || c.Plugin != "custom" || c.PluginConfig.Length != maxMessage || len(c.Rules) == 0 {
		t.Errorf("%v, %+v", err, c)
	}
	for _, rule := range c.Rules {
		if rule.Type != "permanent" || !slices.ContainsFunc(c.Conditions, func(d condition) bool { return d.Type == rule.Condition }) {
			t.Errorf("%+v has no default condition", rule)
		}
		parsed, _, err := config.Parse(config.Tool, rule.Args, "", io.Discard, io.Discard, nil)
		if err != nil || parsed.Check.Node.Timeout >= limit {
			t.Errorf("%v: %v; node-problem-detector ends it after %v", rule.Args, err, limit)
		}
		checkOutput(t, append(rule.Args[2:], "--url=http://127.0.0.1:1"), program.ErrUnknown, "unknown: Get ")
	}
}

// checkOutput checks the result and the beginning of the output of check node.
func checkOutput(t *testing.T, args []string, want error, begin string) {
	t.Helper()
	var out, log bytes.Buffer
	err := run(t.Context(), append([]string{"check", "node"}, args...), &out, &log)
	if !errors.Is(err, want) || err != nil && want == nil {
		t.Errorf("%v, want %v", err, want)
	}
	if !strings.HasPrefix(out.String(), begin) || strings.HasSuffix(begin, "\n") && out.String() != begin {
		t.Errorf("%q, want %q", out.String(), begin)
	}
}
