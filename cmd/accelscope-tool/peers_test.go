// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// peersServer is a sensor with invented peers, as the machine has no HCA.
func peersServer(t *testing.T, peers []attribution.PeerShare, err error) string {
	t.Helper()
	list := func() ([]attribution.PeerShare, error) { return peers, err }
	facts := func() api.Known { return api.Known{} }
	return serveAPI(t, facts, list)
}

// serveAPI serves the REST API of a sensor, and returns its URL.
func serveAPI(t *testing.T, facts api.Facts, list api.ListPeers) string {
	t.Helper()
	mux := http.NewServeMux()
	for pattern, handler := range api.Handlers(facts, list, api.NewSlots()) {
		mux.Handle(pattern, handler)
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// peersOutput is the expected output of the command.
func peersOutput(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, log bytes.Buffer
	err := run(t.Context(), append([]string{"peers"}, args...), &out, &log)
	return out.String(), err
}

func TestPeersTable(t *testing.T) {
	worker := identity.Owner{Workload: "ml/train-0/worker", ContainerID: "c1"}
	evil := identity.Owner{Workload: "docker:\x1b[2J\tx", ContainerID: "c2"}
	qp := func(owner identity.Owner, p model.Peer) attribution.PeerShare {
		p.Type, p.Port = "RC", 1
		return attribution.PeerShare{Owner: owner, Peer: p}
	}
	silent := qp(evil, model.Peer{Device: "mlx5_1", QPN: 5, State: "RTR", RemoteLID: 7, RemoteQPN: 6})
	silent.StalledFor = 65*time.Second + time.Millisecond
	kernel := qp(identity.Owner{Workload: "kernel:nfs"}, model.Peer{Device: "mlx5_2", QPN: 7})
	kernel.Remote = netip.MustParseAddr("10.70.0.3")
	url := peersServer(t, []attribution.PeerShare{
		qp(worker, model.Peer{Device: "mlx5_0", QPN: 17, State: "RTS", RemoteGID: "::ffff:10.70.0.1", RemoteQPN: 90}),
		qp(worker, model.Peer{Device: "mlx5_0", QPN: 18, State: "RTS", RemoteGID: "::ffff:10.70.0.1", RemoteQPN: 91}),
		qp(worker, model.Peer{Device: "mlx5_0", QPN: 19, State: "ERR", RemoteGID: "::ffff:10.70.0.1", RemoteQPN: 92}),
		qp(worker, model.Peer{Device: "mlx5_0", QPN: 20, State: "RTS", RemoteGID: "::ffff:10.70.0.2", RemoteQPN: 90}),
		silent,
		qp(identity.Owner{}, model.Peer{Device: "mlx5_1", QPN: 6, State: "RTS", RemoteQPN: 5}),
		kernel,
	}, nil)
	const groups = `WORKLOAD           DEVICE  PORT  CONNECTED TO      QPS  STATE
(no owner)         mlx5_1  1     (not known)       1    RTS
docker:?[2J?x      mlx5_1  1     LID 7             1    RTR
kernel:nfs         mlx5_2  1     10.70.0.3         1    -
ml/train-0/worker  mlx5_0  1     ::ffff:10.70.0.1  3    2 RTS, 1 ERR
ml/train-0/worker  mlx5_0  1     ::ffff:10.70.0.2  1    RTS
`
	const queues = `WORKLOAD       DEVICE  PORT  QPN  TYPE  STATE  CONNECTED TO  REMOTE QPN  STALLED
(no owner)     mlx5_1  1     6    RC    RTS    (not known)   5           -
docker:?[2J?x  mlx5_1  1     5    RC    RTR    LID 7         6           1m5s
`
	const ofKernel = `WORKLOAD    DEVICE  PORT  QPN  TYPE  STATE  CONNECTED TO  REMOTE QPN  STALLED
kernel:nfs  mlx5_2  1     7    RC    -      10.70.0.3     -           -
`
	const stalled = `WORKLOAD       DEVICE  PORT  CONNECTED TO  QPS  STATE
docker:?[2J?x  mlx5_1  1     LID 7         1    RTR
`
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"all":                {nil, groups},
		"the URL of metrics": {[]string{"--url=" + url + "/metrics"}, groups},
		"queue pairs":        {[]string{"--qps", "--device=mlx5_1"}, queues},
		"a kernel user":      {[]string{"--qps", "--device=mlx5_2"}, ofKernel},
		"stalled":            {[]string{"--stalled"}, stalled},
		"none is stalled":    {[]string{"--stalled", "--device=mlx5_0"}, "no queue pair is stalled\n"},
		"a workload":         {[]string{"--workload=ml/train-1/worker"}, "no queue pair is connected\n"},
		"JSON":               {[]string{"--json", "--workload=ml/train-0/worker", "--device=mlx5_1"}, "[]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := peersOutput(t, append([]string{"--url=" + url}, tt.args...)...)
			if d := cmp.Diff(tt.want, got); d != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, d)
			}
		})
	}
}

// Failures are reported with the reason, but without the password.
func TestPeersErrors(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "me" || password != "hunter2" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, "<html>")
	}))
	t.Cleanup(other.Close)
	account := strings.Replace(other.URL, "http://", "http://me:hunter2@", 1)
	for url, want := range map[string]string{
		peersServer(t, nil, errors.New("the kernel is\nnot probed")): "503 Service Unavailable: the kernel is; not probed",
		other.URL:            "answers 401",
		account:              "not the answer of a sensor",
		account + "x":        "hunter2",
		"http://127.0.0.1:1": "no sensor runs there",
		"ftp://a:b@c/d":      "want http://",
	} {
		out, err := peersOutput(t, "--url="+url)
		switch {
		case want == "hunter2":
			if err == nil || strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", url, err)
			}
		case err == nil || !strings.Contains(err.Error(), want) || out != "":
			t.Errorf("%s: %q, %v, want %q", url, out, err, want)
		}
	}
}
