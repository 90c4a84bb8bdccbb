// SPDX-License-Identifier: Apache-2.0

package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/machines/otel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(settled{m}) }

// settled runs the tests and waits for their goroutines: gRPC's may take longer on a busy machine than goleak waits.
type settled struct{ *testing.M }

func (s settled) Run() int {
	code := s.M.Run()
	for range 20 {
		if goleak.Find() == nil {
			break
		}
	}
	return code
}

// waitLimit is the time limit of a condition on a busy machine.
const waitLimit = time.Minute

// quick is for tests that do not depend on time.
var quick = timing{
	backoff: 10 * time.Millisecond, maxBackoff: 200 * time.Millisecond, export: defaults.export,
	snapshots: 50 * time.Millisecond, poll: 20 * time.Millisecond, flush: time.Second, grace: waitLimit,
}

// prompt is for tests that expect a snapshot soon after a reconnection.
var prompt = func() timing {
	t := defaults
	t.spread = 0
	return t
}()

// world is a fake of the runtime source: containers and watchers.
type world struct {
	mu       sync.Mutex
	watchers []func(model.Event)
	live     map[string]model.Container
	exits    map[string]uint32 // of all ended containers
	n        int
}

func newWorld(containers int) *world {
	w := &world{live: map[string]model.Container{}, exits: map[string]uint32{}}
	for range containers {
		w.create()
	}
	return w
}

func (w *world) watch(f func(model.Event)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watchers = append(w.watchers, f)
}

func (w *world) snapshot(f func([]model.Container)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]model.Container, 0, len(w.live))
	for _, c := range w.live {
		all = append(all, c)
	}
	f(all)
}

func (w *world) emit(ev model.Event) {
	ev.Time = time.Now()
	for _, f := range w.watchers {
		f(ev)
	}
}

func (w *world) change(id string, typ model.EventType, status model.ContainerStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.live[id]
	c.Status = status
	w.live[id] = c
	w.emit(model.Event{Type: typ, Container: c})
}

func (w *world) create() string {
	w.mu.Lock()
	w.n++
	id := fmt.Sprintf("%064x", w.n)
	w.live[id] = model.Container{
		ID: id, Runtime: "containerd", Name: "worker", Namespace: "train", Pod: fmt.Sprintf("job-%d", w.n),
		PodUID: fmt.Sprintf("uid-%d", w.n), Image: "registry/train:1",
	}
	w.mu.Unlock()
	w.change(id, model.EventCreate, model.ContainerCreated)
	w.change(id, model.EventStart, model.ContainerRunning)
	return id
}

func (w *world) exit(id string, code uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.live[id]
	c.Status, c.ExitCode = model.ContainerExited, &code
	w.live[id], w.exits[id] = c, code
	w.emit(model.Event{Type: model.EventExit, Container: c, ExitCode: &code})
}

func (w *world) remove(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.live[id]
	delete(w.live, id)
	w.emit(model.Event{Type: model.EventDelete, Container: c})
}

func (w *world) churn(r *rand.Rand, n int) {
	for range n {
		w.mu.Lock()
		var ids []string
		for id, c := range w.live {
			if c.Status == model.ContainerRunning {
				ids = append(ids, id)
			}
		}
		w.mu.Unlock()
		slices.Sort(ids)
		if len(ids) < 3 || r.IntN(2) == 0 {
			w.create()
			continue
		}
		id := ids[r.IntN(len(ids))]
		w.exit(id, uint32(r.IntN(256)))
		if r.IntN(4) > 0 {
			w.remove(id)
		}
	}
}

// differs describes a difference between a receiver's view and the true state.
func (w *world) differs(v *otel.View) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(v.Containers) != len(w.live) {
		return fmt.Sprintf("%d containers instead of %d", len(v.Containers), len(w.live))
	}
	for id, c := range w.live {
		r, ok := v.Containers[id]
		if !ok {
			return fmt.Sprintf("container %s is missing", id)
		}
		if got := r.Attributes["accelscope.container.status"]; got != string(c.Status) {
			return fmt.Sprintf("container %s is %s instead of %s", id, got, c.Status)
		}
	}
	return ""
}

// checkExits checks that each exit arrived exactly once, or was reported as lost.
func (w *world) checkExits(t *testing.T, v *otel.View) {
	t.Helper()
	missing := 0
	for id, code := range w.exits {
		switch got := v.Exits[id]; {
		case len(got) > 1:
			t.Errorf("%d exits of container %s", len(got), id)
		case len(got) == 0:
			missing++
		case got[0].Attributes["process.exit.code"] != fmt.Sprint(code):
			t.Errorf("exit of %s with %s, want %d", id, got[0].Attributes["process.exit.code"], code)
		}
	}
	if missing > 0 && v.Lost < int64(missing) {
		t.Errorf("%d exits are missing, and only %d events were reported lost", missing, v.Lost)
	}
	for _, wrong := range v.Wrong {
		t.Error(wrong)
	}
}

// within waits until f returns an empty text. After limit it fails with the text.
func within(t *testing.T, limit time.Duration, f func() string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		said := f()
		if said == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", limit, said)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// open returns after the first snapshot: earlier events are not sent.
func open(t *testing.T, w *world, timing timing, o Options) *Exporter {
	t.Helper()
	e := begun(t, w, timing, o)
	within(t, waitLimit, func() string { return map[bool]string{false: "not started"}[started(e)] })
	return e
}

func started(e *Exporter) bool {
	e.queue.mu.Lock()
	defer e.queue.mu.Unlock()
	return e.queue.started
}

func begun(t *testing.T, w *world, timing timing, o Options) *Exporter {
	t.Helper()
	o.Watch, o.Snapshot = w.watch, w.snapshot
	if o.QueueSize == 0 {
		o.QueueSize = 8192
	}
	o.NodeName, o.NodeIP, o.Version = "node-1", "10.0.0.1", "1.2.3"
	e, err := start(o, timing)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

var ports atomic.Uint32

// freePort returns an address that can be used repeatedly: it is outside the range from which the kernel assigns ports.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprint("127.0.0.1:", 20000+(uint32(os.Getpid())*31+ports.Add(1))%12000)
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}

var build = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return otel.Build(ctx)
})

func collector(t *testing.T, config otel.Config) *otel.Collector {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := otel.Start(ctx, path, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	return c
}

func records(t *testing.T, c *otel.Collector) []otel.Record {
	t.Helper()
	all, err := c.Records()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// receiver is a fake collector, made from the OTLP definitions, for failures that a real collector does not have.
type receiver struct {
	collogs.UnimplementedLogsServiceServer
	endpoint string
	server   *grpc.Server

	mu      sync.Mutex
	got     []otel.Record
	headers metadata.MD
	// answer returns the answer to the nth batch, from 1; keep is false if the batch is discarded.
	answer func(n int, records []otel.Record) (keep bool, response *collogs.ExportLogsServiceResponse, err error)
	// greeting is the answer to a request without records.
	greeting error
	n        int
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{endpoint: freePort(t)}
	t.Cleanup(r.down)
	return r
}

func (r *receiver) up(t *testing.T) {
	t.Helper()
	var l net.Listener
	within(t, waitLimit, func() (s string) {
		var err error
		if l, err = net.Listen("tcp", r.endpoint); err != nil {
			return err.Error()
		}
		return ""
	})
	r.server = grpc.NewServer()
	collogs.RegisterLogsServiceServer(r.server, r)
	go func(s *grpc.Server) { _ = s.Serve(l) }(r.server)
}

func (r *receiver) down() {
	if r.server != nil {
		r.server.Stop()
	}
	r.server = nil
}

func (r *receiver) Export(ctx context.Context, req *collogs.ExportLogsServiceRequest) (*collogs.ExportLogsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.headers, _ = metadata.FromIncomingContext(ctx)
	batch := decode(req)
	if len(batch) == 0 {
		return &collogs.ExportLogsServiceResponse{}, r.greeting
	}
	r.n++
	if r.answer == nil {
		r.got = append(r.got, batch...)
		return &collogs.ExportLogsServiceResponse{}, nil
	}
	keep, response, err := r.answer(r.n, batch)
	if keep {
		r.got = append(r.got, batch...)
	}
	return response, err
}

func (r *receiver) view() *otel.View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return otel.Replay(r.got)
}

func decode(req *collogs.ExportLogsServiceRequest) (all []otel.Record) {
	attrs := func(list []*commonpb.KeyValue) map[string]string {
		m := map[string]string{}
		for _, kv := range list {
			switch v := kv.Value.Value.(type) {
			case *commonpb.AnyValue_StringValue:
				m[kv.Key] = v.StringValue
			case *commonpb.AnyValue_IntValue:
				m[kv.Key] = fmt.Sprint(v.IntValue)
			case *commonpb.AnyValue_DoubleValue:
				m[kv.Key] = fmt.Sprint(v.DoubleValue)
			case *commonpb.AnyValue_BoolValue:
				m[kv.Key] = fmt.Sprint(v.BoolValue)
			case *commonpb.AnyValue_ArrayValue:
				var list []string
				for _, e := range v.ArrayValue.Values {
					list = append(list, e.GetStringValue())
				}
				text, _ := json.Marshal(list)
				m[kv.Key] = string(text)
			}
		}
		return m
	}
	for _, rl := range req.ResourceLogs {
		for _, sl := range rl.ScopeLogs {
			for _, r := range sl.LogRecords {
				all = append(all, otel.Record{
					Resource: attrs(rl.Resource.Attributes), Event: r.EventName, Attributes: attrs(r.Attributes),
					Time: time.Unix(0, int64(r.TimeUnixNano)),
				})
			}
		}
	}
	return all
}

// A gate is a TCP proxy in front of a collector. It can cut connections at any moment after a number of bytes of
// answers.
type gate struct {
	endpoint string
	target   string
	mu       sync.Mutex
	open     bool
	conns    []net.Conn
	listener net.Listener
	done     sync.WaitGroup
}

func newGate(t *testing.T, target string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{endpoint: l.Addr().String(), target: target, open: true, listener: l}
	g.done.Go(g.accept)
	t.Cleanup(func() {
		g.listener.Close()
		g.cut(false)
		g.done.Wait()
	})
	return g
}

func (g *gate) accept() {
	for {
		in, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.mu.Lock()
		out, err := net.Dial("tcp", g.target)
		if err != nil || !g.open {
			in.Close()
			if err == nil {
				out.Close()
			}
			g.mu.Unlock()
			continue
		}
		g.conns = append(g.conns, in, out)
		g.mu.Unlock()
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			g.done.Go(func() {
				_, err := io.Copy(pair[0], pair[1])
				if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
					_ = err // a reset: the other side is closed as well
				}
				pair[0].Close()
				pair[1].Close()
			})
		}
	}
}

// vanish makes all connections behave like connections of a host without power: the kernel drops incoming packets
// before it acknowledges them.
func (g *gate) vanish(t *testing.T) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	for i := 0; i < len(g.conns); i += 2 {
		raw, err := g.conns[i].(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var set error
		err = raw.Control(func(fd uintptr) {
			set = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
				&unix.SockFprog{Len: 1, Filter: &nothing[0]})
		})
		if err = errors.Join(err, set); err != nil {
			t.Fatal(err)
		}
	}
}

// cut ends all connections. Unless open, new connections are refused.
func (g *gate) cut(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	for _, c := range g.conns {
		c.Close()
	}
	g.conns = nil
}
