// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// Two queue pairs of a container, one of an unknown cgroup, and one of another container on
// another device.
func somePeers(context.Context) ([]attribution.PeerShare, error) {
	return attribution.Peers([]model.Peer{
		{
			Cgroup: 9, Device: "mlx5_1", Port: 1, QPN: 30, Type: "UC", State: "RTR",
			RemoteGID: "fe80::1", RemoteLID: 7, RemoteQPN: 31,
		},
		{Cgroup: 7, Device: "mlx5_0", Port: 1, QPN: 19, Type: "RC", State: "RTS", RemoteQPN: 5},
		{
			Cgroup: 7, Device: "mlx5_0", Port: 2, QPN: 17, Type: "RC", State: "RTS",
			RemoteGID: "::ffff:10.70.0.1", RemoteQPN: 1<<24 - 1,
		},
		{Cgroup: 8, Device: "mlx5_0", QPN: 20, Type: "RC", State: "ERR", RemoteQPN: 6},
	}, []model.StalledQueuePair{
		{Device: "mlx5_0", QPN: 19, For: 12500 * time.Millisecond}, {Device: "mlx5_1", QPN: 19, For: time.Minute},
	}, identitytest.Table(map[model.CgroupID]identitytest.Entity{
		7: {Workload: "ml/train-0/worker", Namespace: "ml", Pod: "train-0", Container: "worker", ContainerID: "c1"},
		9: {Workload: "docker:x&y", ContainerID: "c2"},
	})), nil
}

func TestPeers(t *testing.T) {
	const (
		unknown = `{"workload":"","namespace":"","pod":"","container":"","container_id":"","device":"mlx5_0","port":0,` +
			`"qpn":20,"type":"RC","state":"ERR","remote_gid":"","remote_qpn":6,"remote_lid":0}`
		docker = `{"workload":"docker:x\u0026y","namespace":"","pod":"","container":"","container_id":"c2",` +
			`"device":"mlx5_1","port":1,"qpn":30,"type":"UC","state":"RTR","remote_gid":"fe80::1","remote_qpn":31,` +
			`"remote_lid":7}`
		pod = `{"workload":"ml/train-0/worker","namespace":"ml","pod":"train-0","container":"worker","container_id":"c1",` +
			`"device":"mlx5_0",`
		first = pod + `"port":2,"qpn":17,"type":"RC","state":"RTS","remote_gid":"::ffff:10.70.0.1",` +
			`"remote_qpn":16777215,"remote_lid":0}`
		second = pod + `"port":1,"qpn":19,"type":"RC","state":"RTS","remote_gid":"","remote_qpn":5,"remote_lid":0,` +
			`"stalled_seconds":12.5}`
	)
	for query, want := range map[string]string{
		"":                                       "[" + unknown + "," + docker + "," + first + "," + second + "]",
		"?workload=&device=":                     "[" + unknown + "," + docker + "," + first + "," + second + "]",
		"?workload=ml/train-0/worker":            "[" + first + "," + second + "]",
		"?workload=docker:x%26y":                 "[" + docker + "]",
		"?device=mlx5_0":                         "[" + unknown + "," + first + "," + second + "]",
		"?device=mlx5_1&workload=ml/train-0":     "[]",
		"?device=mlx5":                           "[]",
		"?stalled=true":                          "[" + second + "]",
		"?stalled=true&device=mlx5_1":            "[]",
		"?device=mlx5_1&workload=docker%3Ax%26y": "[" + docker + "]",
	} {
		code, body := request(t, nil, somePeers, http.MethodGet, "/api/v1/peers"+query)
		if code != http.StatusOK {
			t.Errorf("%s: %d", query, code)
		}
		if d := cmp.Diff(want, body); d != "" {
			t.Errorf("%s (-want +got):\n%s", query, d)
		}
	}
}

// Without a source of queue pairs the answer is an error and not an empty list.
func TestPeersUnknown(t *testing.T) {
	failing := func(context.Context) ([]attribution.PeerShare, error) { return nil, errors.New(`no "probe"`) }
	code, body := request(t, nil, failing, http.MethodGet, "/api/v1/peers")
	if code != http.StatusServiceUnavailable || body != `{"error":"no \"probe\""}` {
		t.Errorf("%d %s", code, body)
	}
}

// Requests beyond the limit are refused, and answered afterwards.
func TestPeersAreLimited(t *testing.T) {
	entered, open := make(chan struct{}), make(chan struct{})
	peers := Handlers(nil, func(context.Context) ([]attribution.PeerShare, error) {
		entered <- struct{}{}
		<-open
		return nil, nil
	})["/api/v1/peers"]
	get := func() int {
		answer := httptest.NewRecorder()
		peers.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/api/v1/peers", nil))
		return answer.Code
	}
	var all sync.WaitGroup
	for range maxListings {
		all.Go(func() {
			if code := get(); code != http.StatusOK {
				t.Errorf("%d", code)
			}
		})
	}
	for range maxListings {
		<-entered
	}
	if code := get(); code != http.StatusServiceUnavailable {
		t.Errorf("one too many: %d", code)
	}
	close(open)
	all.Wait()
	go func() { <-entered }()
	if code := get(); code != http.StatusOK {
		t.Errorf("afterwards: %d", code)
	}
}
