// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// Two queue pairs of a container, one of an unknown cgroup, one of another container on
// another device, and two of the kernel.
func somePeers() ([]attribution.PeerShare, error) {
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
	}, &model.Snapshot{
		Stalled: []model.StalledQueuePair{
			{Device: "mlx5_0", QPN: 19, For: 12500 * time.Millisecond}, {Device: "mlx5_1", QPN: 19, For: time.Minute},
		},
		QueuePairWaits: []model.QueuePairWait{
			{Device: "mlx5_0", QPN: 17, Waited: 2500 * time.Millisecond, Waiting: time.Second}, {Device: "mlx5_1", QPN: 17, Waited: time.Minute},
		},
		KernelIDs: []model.KernelID{
			{Device: "mlx5_2", Module: "rpcrdma", Port: 1, QPN: 41, QPType: 2, Remote: netip.MustParseAddr("10.70.0.1")},
			{Device: "mlx5_2", Module: "rpcrdma"}, // a listener
			{Device: "mlx5_2", Module: "nvme_rdma", Port: 1, QPN: 42, QPType: 2},
		},
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
		nfs = `{"workload":"kernel:nfs","namespace":"","pod":"","container":"","container_id":"","device":"mlx5_2","port":1,` +
			`"qpn":41,"type":"RC","state":"","remote_gid":"","remote_qpn":0,"remote_lid":0,"remote_address":"10.70.0.1"}`
		nvme = `{"workload":"kernel:nvme","namespace":"","pod":"","container":"","container_id":"","device":"mlx5_2","port":1,` +
			`"qpn":42,"type":"RC","state":"","remote_gid":"","remote_qpn":0,"remote_lid":0}`
		pod = `{"workload":"ml/train-0/worker","namespace":"ml","pod":"train-0","container":"worker","container_id":"c1",` +
			`"device":"mlx5_0",`
		first = pod + `"port":2,"qpn":17,"type":"RC","state":"RTS","remote_gid":"::ffff:10.70.0.1",` +
			`"remote_qpn":16777215,"remote_lid":0,"receive_wait_seconds":2.5,"oldest_receive_seconds":1}`
		second = pod + `"port":1,"qpn":19,"type":"RC","state":"RTS","remote_gid":"","remote_qpn":5,"remote_lid":0,` +
			`"stalled_seconds":12.5}`
	)
	for query, want := range map[string]string{
		"":                                       "[" + unknown + "," + docker + "," + nfs + "," + nvme + "," + first + "," + second + "]",
		"?workload=&device=":                     "[" + unknown + "," + docker + "," + nfs + "," + nvme + "," + first + "," + second + "]",
		"?workload=ml/train-0/worker":            "[" + first + "," + second + "]",
		"?workload=docker:x%26y":                 "[" + docker + "]",
		"?workload=kernel:nfs":                   "[" + nfs + "]",
		"?device=mlx5_0":                         "[" + unknown + "," + first + "," + second + "]",
		"?device=mlx5_1&workload=ml/train-0":     "[]",
		"?device=mlx5":                           "[]",
		"?stalled=true":                          "[" + second + "]",
		"?stalled=true&device=mlx5_1":            "[]",
		"?device=mlx5_1&workload=docker%3Ax%26y": "[" + docker + "]",
	} {
		code, body := request(t, knows(model.Snapshot{}, model.StateOK), somePeers, http.MethodGet, "/api/v1/peers"+query)
		if code != http.StatusOK {
			t.Errorf("%s: %d", query, code)
		}
		if d := cmp.Diff(want, body); d != "" {
			t.Errorf("%s (-want +got):\n%s", query, d)
		}
	}
}

// TestPeersUnknown: without a source of queue pairs the answer is an error and not an empty list.
func TestPeersUnknown(t *testing.T) {
	failing := func() ([]attribution.PeerShare, error) { return nil, errors.New(`no "probe"`) }
	code, body := request(t, knows(model.Snapshot{}, model.StateOK), failing, http.MethodGet, "/api/v1/peers")
	if code != http.StatusServiceUnavailable || body != `{"error":"no \"probe\""}` {
		t.Errorf("%d %s", code, body)
	}
}

// TestPeersAreKept: the list is made once per refresh for requests without a query, and each time for requests with a
// query.
func TestPeersAreKept(t *testing.T) {
	k := Known{At: time.Unix(1, 0)}
	lists := 0
	peers := Handlers(func() Known { return k }, func() ([]attribution.PeerShare, error) {
		lists++
		return somePeers()
	}, NewSlots())["/api/v1/peers"]
	first := ask(peers, "/api/v1/peers", "")
	tag := first.Header().Get("ETag")
	if again := ask(peers, "/api/v1/peers", ""); tag == "" || again.Header().Get("ETag") != tag || again.Body.String() != first.Body.String() {
		t.Errorf("ETag %q, then %+v", tag, again)
	}
	if a := ask(peers, "/api/v1/peers", tag); a.Code != http.StatusNotModified || a.Body.Len() != 0 {
		t.Errorf("to a client that has the answer: %d %s", a.Code, a.Body)
	}
	if lists != 1 {
		t.Errorf("%d lists for a refresh", lists)
	}
	if a := ask(peers, "/api/v1/peers?device=mlx5_1", ""); a.Code != http.StatusOK || lists != 2 {
		t.Errorf("with a query: %d, %d lists", a.Code, lists)
	}
	k.At = time.Unix(2, 0)
	if a := ask(peers, "/api/v1/peers", ""); a.Code != http.StatusOK || lists != 3 {
		t.Errorf("after another refresh: %d, %d lists", a.Code, lists)
	}
}
