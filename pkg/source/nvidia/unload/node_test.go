// SPDX-License-Identifier: Apache-2.0

package unload

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/accelscope/accelscope/tests/fakes/authority"
)

const secret = "eyJ.secret-token.sig"

// apiServer stands for the API server of Kubernetes, over TLS.
type apiServer struct {
	*httptest.Server
	node     *Node
	requests atomic.Int32
}

func newAPIServer(t testing.TB, handle http.HandlerFunc) *apiServer {
	t.Helper()
	n := newTree(t)
	a := &apiServer{}
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.requests.Add(1)
		handle(w, r)
	}))
	a.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.StartTLS()
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	a.node = &Node{
		Name: "gpu01", Server: a.URL, pause: time.Millisecond,
		TokenFile: filepath.Join(n.o.Run, "token"), CAFile: filepath.Join(n.o.Run, "ca.crt"),
	}
	n.write(a.node.TokenFile, secret+"\n")
	n.write(a.node.CAFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})))
	return a
}

// nodeEvent returns an event of the API server, with the types of Kubernetes.
func nodeEvent(t testing.TB, kind, name string, labels map[string]string) string {
	t.Helper()
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	node.Status.NodeInfo.KernelVersion = "6.12"
	object, err := json.Marshal(node)
	if err != nil {
		t.Fatal(err)
	}
	var e metav1.WatchEvent
	e.Type, e.Object.Raw = kind, object
	text, err := json.Marshal(&e)
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

func send(w http.ResponseWriter, text string) {
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

// TestNode pauses the clients of the driver, and starts them again, through the labels of the node.
func TestNode(t *testing.T) {
	events, ended := make(chan string), make(chan struct{}, 8)
	a := newAPIServer(t, func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		q := r.URL.Query()
		if r.Header.Get("Authorization") != "Bearer "+secret || r.URL.Path != "/api/v1/nodes" ||
			q.Get("watch") != "true" || q.Get("fieldSelector") != "metadata.name=gpu01" || q.Get("timeoutSeconds") != "300" {
			t.Errorf("request %s", r.URL)
		}
		for {
			select {
			case e := <-events:
				send(w, e)
			case <-r.Context().Done():
				return
			}
		}
	})
	n := newTree(t)
	n.o.Node = a.node
	calls := n.start()
	label := func(kind, node, value string) {
		t.Helper()
		select {
		case events <- nodeEvent(t, kind, node, map[string]string{"nvidia.com/gpu.deploy.dcgm": value}):
		case <-time.After(time.Minute):
			t.Fatal("no request")
		}
	}
	const reason = "node label nvidia.com/gpu.deploy.dcgm=paused-for-driver-upgrade"
	label("ADDED", "gpu01", "true")
	label("MODIFIED", "gpu02", "paused-for-driver-upgrade") // another node, which was not requested
	label("BOOKMARK", "gpu01", "paused-for-driver-upgrade") // bookmarks of a real server have no labels
	label("MODIFIED", "gpu01", "paused-for-driver-upgrade")
	n.expect(calls, reason)
	a.CloseClientConnections() // the labels stay
	<-ended                    // otherwise the ended request could take the next events
	label("ADDED", "gpu01", "paused-for-driver-upgrade")
	label("MODIFIED", "gpu01", "true")
	n.expect(calls, "resume "+reason)
	label("MODIFIED", "gpu01", "paused-for-driver-upgrade")
	n.expect(calls, reason)
	label("DELETED", "gpu01", "paused-for-driver-upgrade")
	n.expect(calls, "resume "+reason)
}

// TestTry: doctor tries the watch that the sensor will use.
func TestTry(t *testing.T) {
	for name, tt := range map[string]struct {
		handle http.HandlerFunc
		want   string
	}{
		"permitted": {func(w http.ResponseWriter, r *http.Request) {
			send(w, nodeEvent(t, "ADDED", "gpu01", nil))
			<-r.Context().Done()
		}, ""},
		"forbidden":                     {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "watching the node: 403 Forbidden"},
		"no such node, the answer ends": {func(http.ResponseWriter, *http.Request) {}, `the API server has no node "gpu01"`},
		"no such node": {func(w http.ResponseWriter, r *http.Request) {
			send(w, "")
			<-r.Context().Done()
		}, `the API server sends nothing about the node "gpu01" in 3s`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if err := newAPIServer(t, tt.handle).node.Try(t.Context()); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestNodeFails has an API server that fails in all ways and then answers. The log names the reason once, and never
// contains the token.
func TestNodeFails(t *testing.T) {
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another server received %v", r.Header)
	}))
	defer elsewhere.Close()
	for name, tt := range map[string]struct {
		handle http.HandlerFunc
		change func(*apiServer)
		want   string // in the log
	}{
		"forbidden": {
			handle: func(w http.ResponseWriter, r *http.Request) {
				http.Error(w, r.Header.Get("Authorization"), http.StatusForbidden)
			},
			want: "403 Forbidden",
		},
		"redirect": {
			handle: func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
			want:   "302 Found",
		},
		"expired": {
			handle: func(w http.ResponseWriter, _ *http.Request) {
				send(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"message":"`+secret+`"}}`)
			},
			want: "status 410",
		},
		"not JSON": {
			handle: func(w http.ResponseWriter, _ *http.Request) { send(w, "<html>"+secret) },
			want:   "an event about the node",
		},
		"huge": {
			handle: func(w http.ResponseWriter, r *http.Request) {
				send(w, `{"type":"ADDED","object":{"metadata":{"name":"gpu01","labels":{"a":"`)
				for r.Context().Err() == nil {
					if _, err := w.Write(bytes.Repeat([]byte("x"), 1<<16)); err != nil {
						return
					}
				}
			},
			want: "larger than",
		},
		"no CA":    {change: func(a *apiServer) { writePEM(t, a.node.CAFile, a.Certificate().Raw[:100]) }, want: "no certificate in"},
		"wrong CA": {change: func(a *apiServer) { a.node.CAFile = authority.New(t).CAFile }, want: "unknown authority"},
		"no token": {change: func(a *apiServer) { a.node.TokenFile += "x" }, want: "no such file"},
		"large token": {
			change: func(a *apiServer) { (&tree{t: t}).write(a.node.TokenFile, strings.Repeat("x", maxFile+1)) },
			want:   "is larger than",
		},
		"no TLS": {change: func(a *apiServer) { a.node.Server = strings.Replace(a.node.Server, "https", "http", 1) }, want: "not https"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPIServer(t, tt.handle)
			if tt.change != nil {
				tt.change(a)
			}
			core, logs := observer.New(zap.DebugLevel)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				a.node.watch(ctx, zap.New(core), func(map[string]string) { t.Error("labels") })
			}()
			deadline := time.Now().Add(time.Minute)
			for (logs.Len() == 0 || tt.handle != nil && a.requests.Load() < 3) && time.Now().Before(deadline) {
				time.Sleep(time.Millisecond)
			}
			cancel()
			<-done
			text := fmt.Sprint(logs.All())
			if logs.Len() != 1 || !strings.Contains(text, tt.want) || strings.Contains(text, secret) {
				t.Errorf("%d logs, want %q: %s", logs.Len(), tt.want, text)
			}
		})
	}
}

func writePEM(t *testing.T, path string, raw []byte) {
	t.Helper()
	(&tree{t: t}).write(path, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})))
}

// TestNodePause counts the requests to an API server that ends each answer at once: the pause doubles.
func TestNodePause(t *testing.T) {
	a := newAPIServer(t, func(w http.ResponseWriter, _ *http.Request) { send(w, nodeEvent(t, "ADDED", "gpu01", nil)) })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	a.node.watch(ctx, zap.NewNop(), func(map[string]string) {})
	if n := a.requests.Load(); n < 1 || n > 12 { // pauses of 1, 2, 4, … 1024 ms
		t.Errorf("%d requests in 2 s", n)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"name":"gpu01","labels":{"nvidia.com/mig.config.state":"pending"}}}}`))
	f.Add([]byte(`{"type":"ERROR","object":{"code":410}}{"type":"DELETED"`))
	f.Add([]byte(`[[[[{"a":null}]]]]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n := &Node{Name: "gpu01"}
		limited := &io.LimitedReader{R: bytes.NewReader(text)}
		decoder := json.NewDecoder(limited)
		for range len(text) + 1 {
			labels, mine, err := n.next(decoder, limited)
			if err != nil {
				return
			}
			for _, s := range paused(labels) {
				if !mine || len(s.reason) > 300 {
					t.Errorf("signal %q", s.reason)
				}
			}
		}
		t.Error("no end")
	})
}
