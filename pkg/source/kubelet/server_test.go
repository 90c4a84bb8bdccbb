// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/accelscope/accelscope/tests/fakes/authority"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The servers in this file stand for a kubelet, which a unit test cannot run. Their answers use the kubelet's own
// types.

type lister struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	list        func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error)
	allocatable func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error)
}

func (l *lister) List(
	ctx context.Context, r *podresourcesv1.ListPodResourcesRequest,
) (*podresourcesv1.ListPodResourcesResponse, error) {
	if l.list == nil {
		return l.UnimplementedPodResourcesListerServer.List(ctx, r)
	}
	return l.list(ctx)
}

func (l *lister) GetAllocatableResources(
	ctx context.Context, r *podresourcesv1.AllocatableResourcesRequest,
) (*podresourcesv1.AllocatableResourcesResponse, error) {
	if l.allocatable == nil {
		return l.UnimplementedPodResourcesListerServer.GetAllocatableResources(ctx, r)
	}
	return l.allocatable(ctx)
}

// devices returns the devices of a pod with this name, and of the node.
func devices(pod string, ids ...string) *lister {
	return &lister{
		list: func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
			return &podresourcesv1.ListPodResourcesResponse{PodResources: []*podresourcesv1.PodResources{{
				Name: pod, Namespace: "ml",
				Containers: []*podresourcesv1.ContainerResources{{
					Name:    "main",
					Devices: []*podresourcesv1.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: ids}},
				}},
			}}}, nil
		},
		allocatable: func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error) {
			return &podresourcesv1.AllocatableResourcesResponse{Devices: []*podresourcesv1.ContainerDevices{
				{ResourceName: "nvidia.com/gpu", DeviceIds: ids},
			}}, nil
		},
	}
}

// serveSocket serves at path until stop is called or the test ends. stop removes the socket, as a kubelet does at its
// end.
func serveSocket(t *testing.T, path string, l podresourcesv1.PodResourcesListerServer) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	if l != nil {
		podresourcesv1.RegisterPodResourcesListerServer(server, l)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	stop = func() {
		server.Stop()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// api is a kubelet's HTTPS API: it requires a token, and its parts can be changed while it serves.
type api struct {
	url            string
	tokenFile      string
	caFile         string
	ca             *authority.Authority
	token          atomic.Pointer[string] // the accepted token
	pods, summary  atomic.Pointer[http.HandlerFunc]
	newConnections atomic.Int32
	certificate    atomic.Pointer[tls.Certificate]
	close          func()
}

// answer returns v as JSON; a string or bytes unchanged.
func answer(t *testing.T, v any) http.HandlerFunc {
	t.Helper()
	var body []byte
	switch v := v.(type) {
	case string:
		body = []byte(v)
	case []byte:
		body = v
	default:
		var err error
		if body, err = json.Marshal(v); err != nil {
			t.Fatal(err)
		}
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}
}

const secret = "eyJ.secret-token.sig"

func serveAPI(t *testing.T, pods, summary any) *api {
	t.Helper()
	dir := t.TempDir()
	a := &api{ca: authority.New(t), tokenFile: filepath.Join(dir, "token"), caFile: filepath.Join(dir, "ca.crt")}
	certificate := a.ca.Local(t, "kubelet").Pair
	a.certificate.Store(&certificate)
	a.setToken(t, secret)
	writeFile(t, a.caFile, string(a.ca.PEM))
	a.setPods(answer(t, pods))
	a.setSummary(answer(t, summary))

	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+*a.token.Load() {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/pods":
			(*a.pods.Load())(w, r)
		case "/stats/summary":
			(*a.summary.Load())(w, r)
		default:
			http.NotFound(w, r)
		}
	}))
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*a.certificate.Load()}}, nil
	}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			a.newConnections.Add(1)
		}
	}
	server.StartTLS()
	a.url, a.close = server.URL, server.CloseClientConnections
	t.Cleanup(server.Close)
	return a
}

func (a *api) setPods(h http.HandlerFunc)    { a.pods.Store(&h) }
func (a *api) setSummary(h http.HandlerFunc) { a.summary.Store(&h) }

func (a *api) setToken(t *testing.T, token string) {
	t.Helper()
	a.token.Store(&token)
	writeFile(t, a.tokenFile, token+"\n")
}

func (a *api) options() Options {
	return Options{URL: a.url, TokenFile: a.tokenFile, CAFile: a.caFile, Socket: "/nonexistent/kubelet.sock"}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, o Options) *Source {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
