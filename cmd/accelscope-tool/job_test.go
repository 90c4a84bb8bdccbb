// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/identity"
)

// sensorOf is a sensor that knows ranks of a version of NCCL.
func sensorOf(t *testing.T, version, message string, ranks ...api.CommunicatorRank) string {
	t.Helper()
	known := api.Collectives{Communicators: []api.Communicator{{Communicator: "b0", Library: "nccl", Version: version, Ranks: ranks}}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != api.CollectivesPath {
			t.Errorf("asks %s", r.URL)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"code": 0, "message": message, "data": known})
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func rankOf(namespace, pod string, pid int, last time.Time) api.CommunicatorRank {
	r := api.CommunicatorRank{Owner: identity.Owner{Workload: namespace + "/" + pod + "/worker", Namespace: namespace, Pod: pod}, PID: pid}
	if !last.IsZero() {
		r.ProcessLastLaunch = &last
	}
	return r
}

// TestFindRanks: a job is not asked if it launches, if it may be starting, if its library may crash, or if too little is known.
func TestFindRanks(t *testing.T) {
	now := time.Now()
	stood := now.Add(-2 * time.Minute)
	llama := rankOf("ml", "llama-0", 7, stood)
	for _, tt := range []struct {
		name, version, message, pod string
		ranks                       []api.CommunicatorRank
		reasons                     []string // begins of them
		err                         string
	}{
		{name: "stands", ranks: []api.CommunicatorRank{llama}},
		{name: "several processes", ranks: []api.CommunicatorRank{llama, rankOf("ml", "llama-0", 8, stood), llama}},
		{name: "of a namespace", pod: "ml/llama-0", ranks: []api.CommunicatorRank{llama, rankOf("other", "llama-0", 1, now)}},
		{name: "of a workload", pod: "ml/llama-0/worker", ranks: []api.CommunicatorRank{llama}},
		{
			name:    "launches",
			ranks:   []api.CommunicatorRank{llama, rankOf("ml", "llama-0", 9, now.Add(time.Second-stands))},
			reasons: []string{"process 9 launched 59s ago"},
		},
		{name: "starts", ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", 7, time.Time{})}, reasons: []string{"process 7 was not seen to launch"}},
		{name: "the clock was set", ranks: []api.CommunicatorRank{rankOf("ml", "llama-0", 7, now.Add(time.Hour))}, reasons: []string{"process 7 launched 0s ago"}},
		{name: "crashes", version: "2.24.3", ranks: []api.CommunicatorRank{llama}, reasons: []string{"crashes are known of version 2.24.3"}},
		{name: "crashes, the last", version: "2.30.7", ranks: []api.CommunicatorRank{llama}, reasons: []string{"crashes are known of version 2.30.7"}},
		{name: "before RAS", version: "2.23.4", ranks: []api.CommunicatorRank{llama}, reasons: []string{"version 2.23.4 has no RAS"}},
		{name: "no version", version: "-", ranks: []api.CommunicatorRank{llama}, reasons: []string{"the version of the library is unknown"}},
		{
			name: "two reasons, and a partial answer", version: "2.28.9", message: "partial: collective is late",
			ranks:   []api.CommunicatorRank{rankOf("ml", "llama-0", 7, time.Time{})},
			reasons: []string{"collective is late", "crashes are known of version 2.28.9", "process 7 was not seen to launch"},
		},
		{name: "two pods", ranks: []api.CommunicatorRank{llama, rankOf("other", "llama-0", 8, stood)}, err: "llama-0 is in several namespaces"},
		{name: "unknown", pod: "llama-1\x1b[2J", ranks: []api.CommunicatorRank{llama}, err: "no rank of llama-1?[2J on this node"},
		{name: "without an owner", pod: "/", ranks: []api.CommunicatorRank{{PID: 7}}, err: "no rank of / on this node"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := sensorOf(t, or(tt.version, "2.31.1"), or(tt.message, "success"), tt.ranks...)
			got, err := findRanks(t.Context(), &config.RASCommand{Pod: or(tt.pod, "llama-0"), URL: url}, now)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if tt.version == "" {
				tt.reasons = append([]string{"whether the crashes of versions before are mended in version 2.31.1 is unknown"}, tt.reasons...)
			}
			if err != nil || len(got.reasons) != len(tt.reasons) {
				t.Fatalf("%q, error %v, want %q", got.reasons, err, tt.reasons)
			}
			for i, want := range tt.reasons {
				if !strings.HasPrefix(got.reasons[i], want) {
					t.Errorf("%q, want %q", got.reasons[i], want)
				}
			}
			pids := map[string][]int{"several processes": {7, 8}, "launches": {7, 9}}[tt.name]
			if pids == nil {
				pids = []int{7}
			}
			if d := cmp.Diff(pids, got.pids); d != "" {
				t.Error(d)
			}
		})
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// TestJobRAS: the command refuses with the reason, and asks a process if it may or if it is forced.
func TestJobRAS(t *testing.T) {
	for _, tt := range []struct {
		ago  time.Duration
		args []string
		want string
	}{
		{time.Second, nil, "not asked, as the query may end the job (--force asks): whether the crashes of versions before are mended in version 2.31.1 is unknown; process"},
		{time.Hour, nil, "not asked, as the query may end the job (--force asks): whether"},
		{time.Second, []string{"--force"}, "no RAS listens at port 28028"},
		{time.Hour, []string{"--force", "--port=28029"}, "no RAS listens at port 28029"},
		{time.Hour, []string{"--force", "--url=http://198.51.100.1"}, "http://198.51.100.1 is another node"},
	} {
		url := sensorOf(t, "2.31.1", "success", rankOf("ml", "a", os.Getpid(), time.Now().Add(-tt.ago)))
		var out bytes.Buffer
		err := run(t.Context(), append(append([]string{"job", "ras", "--url=" + url}, tt.args...), "ml/a"), &out, &out)
		if err == nil || !strings.Contains(err.Error(), tt.want) || out.Len() > 0 {
			t.Errorf("%v: %q, error %v, want %q", tt, out.String(), err, tt.want)
		}
	}
}
