// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/authority"
	"github.com/accelscope/accelscope/tests/machines/otel"
)

// TestTLS connects to a real Collector with TLS, and checks the errors of wrong configurations.
func TestTLS(t *testing.T) {
	t.Parallel()
	a, other := authority.New(t), authority.New(t)
	server, client, foreign := a.Local(t, "server"), a.Local(t, "client"), other.Local(t, "client")
	plain := otel.Config{Dir: t.TempDir(), Endpoint: freePort(t)}
	tls := otel.Config{Dir: t.TempDir(), Endpoint: freePort(t), CertFile: server.CertFile, KeyFile: server.KeyFile}
	mtls := otel.Config{Dir: t.TempDir(), Endpoint: freePort(t), CertFile: server.CertFile, KeyFile: server.KeyFile, ClientCAFile: a.CAFile}
	for _, config := range []otel.Config{plain, tls, mtls} {
		collector(t, config)
	}
	for name, test := range map[string]struct {
		o    Options
		fail string
	}{
		"tls":             {o: Options{Endpoint: tls.Endpoint, CAFile: a.CAFile}},
		"mtls":            {o: Options{Endpoint: mtls.Endpoint, CAFile: a.CAFile, CertFile: client.CertFile, KeyFile: client.KeyFile}},
		"wrong CA":        {o: Options{Endpoint: tls.Endpoint, CAFile: other.CAFile}, fail: "give the CA's file"},
		"no CA":           {o: Options{Endpoint: tls.Endpoint}, fail: "give the CA's file"},
		"no certificate":  {o: Options{Endpoint: mtls.Endpoint, CAFile: a.CAFile}, fail: "give certificate and key"},
		"plain for TLS":   {o: Options{Endpoint: plain.Endpoint, CAFile: a.CAFile}, fail: "use insecure"},
		"TLS for plain":   {o: Options{Endpoint: tls.Endpoint, Insecure: true}, fail: "does it want TLS"},
		"nothing":         {o: Options{Endpoint: freePort(t), Insecure: true}, fail: "is the collector running"},
		"wrong authority": {o: Options{Endpoint: mtls.Endpoint, CAFile: a.CAFile, CertFile: foreign.CertFile, KeyFile: foreign.KeyFile}, fail: "its CA signed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := open(t, newWorld(2), quick, test.o)
			within(t, waitLimit, func() string {
				_, err := e.Read(t.Context())
				switch s := e.Stats(); {
				case test.fail == "" && (err != nil || s.Sent != 4):
					return "not sent: " + errText(err)
				case test.fail != "" && (err == nil || !strings.Contains(err.Error(), test.fail) || s.Connected):
					return "the error is: " + errText(err)
				}
				return ""
			})
		})
	}
}

func errText(err error) string {
	if err == nil {
		return "none"
	}
	return err.Error()
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.up(t)
	file := filepath.Join(t.TempDir(), "headers")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# our identity\n\nAuthorization: Bearer secret-1\nX-Scope-OrgID:  tenant\n")
	open(t, newWorld(1), quick, Options{Endpoint: r.endpoint, Insecure: true, HeadersFile: file})
	has := func(name, want string) func() string {
		return func() string {
			r.mu.Lock()
			defer r.mu.Unlock()
			if got := r.headers.Get(name); len(got) != 1 || got[0] != want {
				return name + " is " + strings.Join(got, ", ")
			}
			return ""
		}
	}
	within(t, waitLimit, has("authorization", "Bearer secret-1"))
	within(t, waitLimit, has("x-scope-orgid", "tenant"))
	// The next connection uses a rotated token.
	write("authorization: Bearer secret-2\n")
	r.down()
	r.up(t)
	within(t, waitLimit, has("authorization", "Bearer secret-2"))
	// The error of an invalid file does not have its content.
	write("authorization=Bearer secret-3\n")
	r.down()
	r.up(t)
	e := open(t, newWorld(0), quick, Options{Endpoint: r.endpoint, Insecure: true})
	o := e.o
	o.HeadersFile = file
	if _, err := start(o, quick); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("error %v", err)
	}
}

// TestOneConnection checks that records go only to the receiver of the empty request: gRPC does not reconnect.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.up(t)
	w, err := dial(Options{Endpoint: r.endpoint, Insecure: true}, quick.export)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.greet(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer w.close(true)
	r.down()
	r.up(t)
	a := w.export(t.Context(), newRenderer(Options{}, "s").render([]entry{{kind: begin}}))
	if judge(a) != again {
		t.Errorf("%+v", a)
	}
	within(t, waitLimit, func() string { return map[bool]string{false: "the loss is not noticed"}[w.lost()] })
}

func TestParseHeaders(t *testing.T) {
	for text, want := range map[string]string{
		"a: b\nC:d : e\n":     "a b c d : e",
		"":                    "",
		"a b\n":               "line 1 is not",
		"\n: x\n":             "line 2: a name",
		"grpc-timeout: 1\n":   "line 1: a name",
		"a b: x\n":            "line 1: a name",
		"a: \x01\n":           "line 1: a value",
		"a: b\r\nc: d\r\n":    "a b c d",
		"a: ü\n":              "line 1: a value",
		":authority: other\n": "line 1: a name",
	} {
		got, err := parseHeaders(text)
		if said := strings.Join(got, " ") + errTail(err); !strings.HasPrefix(said, want) || want == "" && said != "" {
			t.Errorf("%q gives %q, want %q", text, said, want)
		}
	}
}

func errTail(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func FuzzParseHeaders(f *testing.F) {
	f.Add("a: b\n# c\nd:e")
	f.Fuzz(func(t *testing.T, text string) {
		headers, err := parseHeaders(text)
		if err == nil && len(headers)%2 != 0 {
			t.Errorf("%q", headers)
		}
	})
}

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		a    answer
		want action
	}{
		{answer{}, taken},
		{answer{err: status.Error(codes.Unavailable, ""), answered: true, sent: true}, again},
		{answer{err: status.Error(codes.ResourceExhausted, ""), answered: true, sent: true}, refused},
		{answer{err: status.Error(codes.InvalidArgument, ""), answered: true, sent: true}, refused},
		{answer{err: status.Error(codes.PermissionDenied, ""), answered: true, sent: true}, shut},
		{answer{err: status.Error(codes.Internal, "the stream ended"), sent: true}, again},
		{answer{err: status.Error(codes.Internal, "cannot be encoded")}, refused}, // or it would be sent again forever
	} {
		if got := judge(test.a); got != test.want {
			t.Errorf("%+v: %d, want %d", test.a, got, test.want)
		}
	}
}

func TestOptions(t *testing.T) {
	w := newWorld(0)
	good := Options{Endpoint: "127.0.0.1:1", Insecure: true, QueueSize: 1, Watch: w.watch, Snapshot: w.snapshot}
	for name, change := range map[string]func(*Options){
		"endpoint":      func(o *Options) { o.Endpoint = "http://collector" },
		"queue":         func(o *Options) { o.QueueSize = 0 },
		"runtime":       func(o *Options) { o.Watch = nil },
		"exclude":       func(o *Options) { o.CAFile = "x" },
		"CA: ":          func(o *Options) { o.Insecure, o.CAFile = false, "/does/not/exist" },
		"certificate":   func(o *Options) { o.Insecure, o.CertFile = false, "/does/not/exist" },
		"headers: open": func(o *Options) { o.HeadersFile = "/does/not/exist" },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManyOfAContainer: an event has the first devices and labels of a container.
func TestManyOfAContainer(t *testing.T) {
	c := model.Container{Devices: make([]string, maxDevices+1), Labels: map[string]string{}}
	for i := range maxLabels + 1 {
		c.Labels[fmt.Sprintf("label%d", i)] = "x"
	}
	labels, devices := 0, 0
	for _, a := range containerAttrs(&c) {
		switch {
		case strings.HasPrefix(string(a.Key), "container.label."):
			labels++
		case string(a.Key) == attrGiven:
			devices = len(a.Value.AsStringSlice())
		}
	}
	if labels != maxLabels || devices != maxDevices {
		t.Errorf("%d labels, %d devices", labels, devices)
	}
}

// TestLargeHeaders: a file of headers beyond the limit is refused.
func TestLargeHeaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "headers")
	for size, want := range map[int]bool{maxHeaders: true, maxHeaders + 1: false} {
		if err := os.WriteFile(path, []byte("a: "+strings.Repeat("b", size-3)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readHeaders(path); (err == nil) != want {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
