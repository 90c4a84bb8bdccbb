// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// knowsCollectives returns the facts of a sensor with the source collective.
func knowsCollectives(s model.Snapshot) Facts {
	k := Known{Facts: s, Shares: attributed(s), States: []model.SourceState{{Source: "collective", State: model.StateOK}}}
	return func() Known { return k }
}

func TestCollectives(t *testing.T) {
	facts := model.Snapshot{
		Clock: &model.Clock{Synchronized: true, EstimatedError: 250 * time.Microsecond, MaximumError: 20 * time.Millisecond},
		Communicators: []model.Communicator{
			{
				Cgroup: 7, Library: "nccl", Version: "2.28.9", Key: "b0", Rank: "10", Ranks: 12, LastLaunch: time.Unix(1700000000, 5e8),
				Operations: []model.CommunicatorOperation{
					{Operation: "all_reduce", Launches: model.Launches{Count: 2}}, {Operation: "send", Launches: model.Launches{Count: 5}},
				},
				Late: model.Some(0.25), Numbered: true, Launched: 2,
				Kept:    []model.KeptLaunch{{Number: 1, Time: time.Unix(1700000000, 0)}, {Number: 2, Time: time.Unix(1700000000, 5e8)}},
				Process: model.LaunchingProcess{PID: 413, LastLaunch: time.Unix(1700000001, 0)},
			},
			{
				Cgroup: 7, Library: "nccl", Version: "2.28.9", Key: "b0", Rank: "9", Ranks: 12,
				Process: model.LaunchingProcess{PID: 412, LastGraph: time.Unix(1700000002, 0)},
			},
			{
				Cgroup: 7, Library: "rccl", Key: "a1", Parent: "b0", Rank: "parent-9",
				Process: model.LaunchingProcess{PID: 414, Ended: true},
			},
		},
	}
	const (
		owner = `{"workload":"","namespace":"","pod":"","container":"","container_id":"",`
		clock = `{"code":0,"data":{"clock":{"state":"synchronized","estimated_error_seconds":0.00025,"maximum_error_seconds":0.02},"communicators":[`
		split = `{"communicator":"a1","parent":"b0","library":"rccl","version":"","nranks":0,"ranks":[` + owner + `"rank":"parent-9","pid":0,"launches":0,` +
			`"last_launch":null,"process_last_launch":null,"late_seconds":null,"number":null,"times":[]}]}`
		world = `{"communicator":"b0","parent":"","library":"nccl","version":"2.28.9","nranks":12,"ranks":[` + owner + `"rank":"9","pid":412,"launches":0,` +
			`"last_launch":null,"process_last_launch":"2023-11-14T22:13:22Z","late_seconds":null,"number":null,"times":[]},` + owner + `"rank":"10","pid":413,"launches":7,` +
			`"last_launch":"2023-11-14T22:13:20.5Z","process_last_launch":"2023-11-14T22:13:21Z","late_seconds":0.25,"number":2,"times":[{"number":1,"time":"2023-11-14T22:13:20Z"},` +
			`{"number":2,"time":"2023-11-14T22:13:20.5Z"}]}]}`
		end = `]},"message":"success"}`
	)
	for query, want := range map[string]string{
		"": clock + split + "," + world + end, "?communicator=a1": clock + split + end, "?workload=ml/train": clock + end,
	} {
		code, body := request(t, knowsCollectives(facts), nil, http.MethodGet, "/api/v1/collectives"+query)
		if code != http.StatusOK {
			t.Errorf("%s: %d", query, code)
		}
		if d := cmp.Diff(want, body); d != "" {
			t.Errorf("%s (-want +got):\n%s", query, d)
		}
	}
}

// TestClocks: what is unknown of the clock is said. Without the source the answer is an error.
func TestClocks(t *testing.T) {
	for want, c := range map[string]*model.Clock{
		`"unknown","estimated_error_seconds":0,"maximum_error_seconds":0`:          nil,
		`"unsynchronized","estimated_error_seconds":16,"maximum_error_seconds":16`: {EstimatedError: 16 * time.Second, MaximumError: 16 * time.Second},
	} {
		facts := model.Snapshot{Clock: c, Communicators: []model.Communicator{}}
		want = `{"code":0,"data":{"clock":{"state":` + want + `},"communicators":[]},"message":"success"}`
		if code, body := request(t, knowsCollectives(facts), nil, http.MethodGet, "/api/v1/collectives"); code != http.StatusOK || body != want {
			t.Errorf("%d %s\nwant %s", code, body, want)
		}
	}
	if code, body := request(t, knows(model.Snapshot{}, model.StateOK), nil, http.MethodGet, "/api/v1/collectives"); code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", code, body)
	}
}
