// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/verdict"
)

var job = fleet.JobName{Namespace: "ml", Kind: "Job", Name: "train"}

// fakeSensor is the REST API of a sensor with a FAKE node.
type fakeSensor struct {
	hcas  []model.HCA
	peers []attribution.PeerShare
	why   error
	asked atomic.Int32
	found []verdict.Verdict
	ranks []attribution.CommunicatorShare // of the first owner, ml/a
	clock *model.Clock
	// faults are in the kernel log, which is not read without them.
	faults []attribution.FaultRecord
}

func (f *fakeSensor) handler() http.Handler {
	mux := http.NewServeMux()
	facts := func() api.Known {
		k := api.Known{At: time.Now(), States: []model.SourceState{{Source: "rdma", State: model.StateOK}, {Source: "collective", State: model.StateOK}}}
		k.Shares.Owners, k.Shares.Communicators, k.Facts.Clock = []identity.Owner{{}, {Workload: "ml/a", ContainerID: "id-ml/a"}}, f.ranks, f.clock
		k.Facts.HCAs, k.Shares.FaultHistory = f.hcas, f.faults
		if f.faults != nil {
			k.States = append(k.States, model.SourceState{Source: "kernellog", State: model.StateOK})
		}
		k.Verdicts.Verdicts = append([]verdict.Verdict{{Name: "NothingWrong", Severity: verdict.OK, Subject: verdict.Subject{Kind: verdict.OfNode}}}, f.found...)
		return k
	}
	list := func() ([]attribution.PeerShare, error) { return f.peers, f.why }
	for pattern, h := range api.Handlers(facts, list, api.NewSlots()) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			f.asked.Add(1)
			h.ServeHTTP(w, r)
		})
	}
	return mux
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// reader returns a reader with longer timeouts: the machine may be busy.
func reader(t *testing.T, file string) *Reader {
	t.Helper()
	r, err := NewReader("http://{instance}/", file)
	if err != nil {
		t.Fatal(err)
	}
	r.timeout, r.nodeTimeout = time.Minute, time.Minute
	return r
}

func roce(name string, addresses ...string) model.HCA {
	h := model.HCA{Name: name, Ports: []model.Port{{Number: 1, LinkLayer: "Ethernet", LID: "0x0"}}}
	for i, a := range addresses {
		h.Ports[0].GIDs = append(h.Ports[0].GIDs, model.GID{Index: i, Type: model.GIDRoCEv2, Address: netip.MustParseAddr(a), Netdev: "eth1"})
	}
	return h
}

func infiniband(name, gid, lid string) model.HCA {
	return model.HCA{Name: name, Ports: []model.Port{{
		Number: 1, LinkLayer: "InfiniBand", LID: lid, GIDs: []model.GID{{Type: model.GIDInfiniBand, Address: netip.MustParseAddr(gid)}},
	}}}
}

// peer returns a queue pair of a workload to "GID", "LID 7" or an unknown end.
func peer(workload, device string, qpn uint32, to string) attribution.PeerShare {
	p := attribution.PeerShare{Owner: identity.Owner{Workload: workload, ContainerID: "id-" + workload}}
	p.Peer = model.Peer{Device: device, Port: 1, QPN: qpn, Type: "RC", State: "RTS", RemoteQPN: 9}
	if _, err := fmt.Sscanf(to, "LID %d", &p.RemoteLID); err != nil {
		p.RemoteGID = to
	}
	return p
}

func member(workload, node string) fleet.Member {
	return fleet.Member{Workload: workload, ContainerID: "id-" + workload, Node: node}
}

// TestRoCE counts the connections of three sensors: between nodes, within a node, to an address of no node, to an
// address of two nodes, and unknown. Queue pairs of other workloads do not count.
func TestRoCE(t *testing.T) {
	a := &fakeSensor{hcas: []model.HCA{roce("mlx5_0", "fe80::a", "::ffff:10.0.0.1"), roce("mlx5_1", "::ffff:10.0.1.1")}}
	b := &fakeSensor{hcas: []model.HCA{roce("mlx5_0", "::ffff:10.0.0.2", "::ffff:172.17.0.1")}}
	c := &fakeSensor{hcas: []model.HCA{roce("mlx5_0", "::ffff:10.0.0.3", "::ffff:172.17.0.1")}}
	a.peers = []attribution.PeerShare{
		peer("ml/a", "mlx5_0", 1, "::ffff:10.0.0.2"), peer("ml/a", "mlx5_0", 2, "::ffff:10.0.0.2"), peer("ml/a", "mlx5_1", 3, "::ffff:10.0.0.3"),
		peer("ml/a", "mlx5_1", 4, "::ffff:10.0.0.1"), peer("ml/a", "mlx5_1", 5, "fe80::a"), peer("ml/a", "mlx5_1", 6, ""),
		peer("ml/a", "mlx5_1", 7, "2001:db8::7"), peer("ml/a", "mlx5_1", 8, "::ffff:172.17.0.1"), peer("ml/other", "mlx5_0", 9, "::ffff:10.0.0.2"),
	}
	b.peers = []attribution.PeerShare{peer("ml/b", "mlx5_0", 1, "::ffff:10.0.0.1"), peer("ml/b2", "mlx5_0", 2, "::ffff:10.0.1.1"), peer("ml/x", "mlx5_0", 3, "fe80::a")}
	names := map[string]string{}
	for name, s := range map[string]*fakeSensor{"a": a, "b": b, "c": c} {
		names[serve(t, s.handler())] = name
	}
	of := func(name string) string {
		for instance, is := range names {
			if is == name {
				return instance
			}
		}
		return ""
	}
	r := reader(t, "")
	members := []fleet.Member{member("ml/a", of("a")), member("ml/b", of("b")), member("ml/b2", of("b")), member("ml/c", of("c"))}
	m := r.Job(job, members)
	got := map[string]int{}
	for _, p := range m.Pairs {
		got[names[p.From]+names[p.To]] = p.QueuePairs
		if p.ByLID != 0 {
			t.Errorf("%+v", p)
		}
	}
	if d := gocmp.Diff(map[string]int{"ab": 2, "ac": 1, "aa": 2, "ba": 2}, got); d != "" {
		t.Error(d)
	}
	for _, n := range m.Nodes {
		want := Node{Name: n.Name, Peers: true, Addresses: true, Judged: true}
		if names[n.Name] == "a" {
			want.Elsewhere, want.Ambiguous, want.Unknown = 1, 1, 1
		}
		if n != want {
			t.Errorf("%s: %+v", names[n.Name], n)
		}
	}
	want := []Address{{of("a"), "172.17.0.1", 1, true}, {of("a"), "2001:db8::7", 1, false}}
	if d := gocmp.Diff(want, m.Elsewhere); d != "" {
		t.Error(d)
	}

	// Viewers share the requests.
	asked := a.asked.Load()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { r.Job(job, members) })
	}
	all.Wait()
	if n := a.asked.Load(); n != asked {
		t.Errorf("%d more requests", n-asked)
	}
	r.now = func() time.Time { return time.Now().Add(maxAge) }
	for range 20 {
		all.Go(func() { r.Job(job, members) })
	}
	all.Wait()
	if n := a.asked.Load(); n != asked+5 {
		t.Errorf("%d more requests, want 5", n-asked)
	}
}

// TestVerdicts: the verdicts on members are known, of others not, and neither are the verdicts of sensors without an answer.
func TestVerdicts(t *testing.T) {
	of := func(workload, name string, texts ...string) verdict.Verdict {
		return verdict.Verdict{
			Name: name, Severity: verdict.Warning, Since: time.Unix(1_800_000_000, 0).UTC(), Evidence: func() []string { return texts },
			Subject: verdict.Subject{Kind: verdict.OfWorkload, Owner: identity.Owner{Workload: workload, ContainerID: "id-" + workload}, GPU: "3"},
		}
	}
	long := strings.Repeat("é", 1000)
	a := &fakeSensor{found: []verdict.Verdict{of("ml/a", "JobStalled", "all stand", "2", "3", "4", "5"), of("ml/x", "JobStalled", "another job")}}
	many := &fakeSensor{}
	for range maxKnown + 2 {
		many.found = append(many.found, of("ml/b", "JobMemberLate", long))
	}
	hostA, hostB := serve(t, a.handler()), serve(t, many.handler())
	m := reader(t, "").Job(job, []fleet.Member{member("ml/a", hostA), member("ml/b", hostB), member("ml/c", "127.0.0.1:1"), {Node: hostA}})
	found := m.Said.Verdicts
	if m.Said.Silent != 1 || m.Said.Uncompared != 3 || m.Said.Omitted != 2 || len(found) != 1+maxKnown {
		t.Fatalf("%d silent nodes, %d that are not compared, %d verdicts and %d more", m.Said.Silent, m.Said.Uncompared, len(found), m.Said.Omitted)
	}
	slices.SortFunc(found, func(a, b fleet.Verdict) int { return strings.Compare(b.Name, a.Name) })
	want := fleet.Verdict{
		Node: hostA, Name: "JobStalled", Severity: fleet.Warning, Subject: "ml/a on GPU 3", Workload: "ml/a", Since: time.Unix(1_800_000_000, 0).UTC(),
		Evidence: []string{"all stand", "2", "3", "4"},
	}
	if d := gocmp.Diff(want, found[0]); d != "" {
		t.Error(d)
	}
	if text := found[1].Evidence[0]; len(text) > maxText || !utf8.ValidString(text) {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

// TestFaults: the latest faults of members, also of a container before its restart, and of nobody come first. Faults of others and of last
// week are neither listed nor counted, and the text of a process whose owner is unknown is not shown. A kernel log that is not read has no
// faults, which is said.
func TestFaults(t *testing.T) {
	at := time.Now().UTC().Truncate(time.Second).Add(-time.Hour)
	of := func(workload, container string, minute int) attribution.FaultRecord {
		last := at.Add(time.Duration(minute) * time.Minute)
		return attribution.FaultRecord{
			Owner: identity.Owner{Workload: workload, ContainerID: container},
			Fault: &model.Fault{FaultKey: model.FaultKey{Driver: "nvidia", Code: "31", PCIAddress: "0000:3b:00.0"}, Time: at, Last: last, Text: "MMU fault"},
		}
	}
	end, repeated, unknown := of("ml/a", "id-ml/a", 5), of("ml/a", "before", 4), of("", "", 2)
	end.Recovered, repeated.Repeated, unknown.PID = true, 3, 4711
	a := &fakeSensor{faults: []attribution.FaultRecord{repeated, of("ml/a", "id-ml/a", 1), of("ml/x", "id-ml/x", 2), of("", "", 3), end, unknown}}
	many := &fakeSensor{faults: []attribution.FaultRecord{of("ml/b", "id-ml/b", -360), of("ml/b", "id-ml/b", -361)}}
	for i := range maxKnown + 2 {
		many.faults = append(many.faults, of("ml/b", "id-ml/b", -1-i))
	}
	hostA, hostB, hostC := serve(t, a.handler()), serve(t, many.handler()), serve(t, (&fakeSensor{}).handler())
	said := reader(t, "").Job(job, []fleet.Member{member("ml/a", hostA), member("ml/b", hostB), member("ml/c", hostC)}).Said
	if len(said.Faults) != 4+maxKnown || said.MoreFaults != 2 || said.Unlogged != 1 {
		t.Fatalf("%d faults, %d more, the logs of %d nodes are unknown", len(said.Faults), said.MoreFaults, said.Unlogged)
	}
	want := func(minute int, workload, text string, repeated uint64) fleet.Fault {
		return fleet.Fault{
			Node: hostA, Device: "0000:3b:00.0", Driver: "nvidia", Code: "31", Workload: workload, Time: at, Last: at.Add(time.Duration(minute) * time.Minute),
			Repeated: repeated, Text: text,
		}
	}
	first := []fleet.Fault{
		want(4, "ml/a", "MMU fault", 3), want(3, "", "MMU fault", 0), want(2, "", "a process whose owner is not known", 0), want(1, "ml/a", "MMU fault", 0),
	}
	if d := gocmp.Diff(first, said.Faults[:len(first)]); d != "" {
		t.Error(d)
	}
}

// TestWaits: the waits of queue pairs between two nodes add up, the longest present wait is shown.
func TestWaits(t *testing.T) {
	a, b := &fakeSensor{hcas: []model.HCA{roce("mlx5_0", "::ffff:10.0.0.1")}}, &fakeSensor{hcas: []model.HCA{roce("mlx5_0", "::ffff:10.0.0.2", "::ffff:10.0.1.2")}}
	for i, to := range []string{"::ffff:10.0.0.2", "::ffff:10.0.1.2", "::ffff:10.0.0.2"} {
		p := peer("ml/a", "mlx5_0", uint32(i+1), to)
		p.ReceiveWait, p.OldestReceive = time.Duration(i+1)*time.Second, time.Duration(10-i)*time.Second
		a.peers = append(a.peers, p)
	}
	b.peers = []attribution.PeerShare{peer("ml/b", "mlx5_0", 9, "::ffff:10.0.0.1")}
	hostA, hostB := serve(t, a.handler()), serve(t, b.handler())
	m := reader(t, "").Job(job, []fleet.Member{member("ml/a", hostA), member("ml/b", hostB)})
	want := []Pair{{From: hostA, To: hostB, QueuePairs: 3, ReceiveWaitSeconds: 6, OldestReceiveSeconds: 10}, {From: hostB, To: hostA, QueuePairs: 1}}
	slices.SortFunc(want, func(x, y Pair) int { return strings.Compare(x.From, y.From) })
	if d := gocmp.Diff(want, m.Pairs); d != "" {
		t.Error(d)
	}
}

// TestLIDs: a LID belongs to a port in the same subnet, which is an estimate, and is ambiguous if two nodes have it.
func TestLIDs(t *testing.T) {
	a := &fakeSensor{hcas: []model.HCA{infiniband("ib0", "fe80::1", "0x1"), infiniband("ib1", "fec0::1", "0x1")}}
	b := &fakeSensor{hcas: []model.HCA{infiniband("ib0", "fe80::2", "0x2"), infiniband("ib1", "fec0::2", "0x3")}}
	c := &fakeSensor{hcas: []model.HCA{infiniband("ib0", "fe80::3", "0x2"), {Name: "ib1", Ports: []model.Port{{Number: 1, LinkLayer: "InfiniBand", LID: "0x9"}}}}}
	a.peers = []attribution.PeerShare{
		peer("w", "ib0", 1, "LID 2"), peer("w", "ib1", 2, "LID 3"), peer("w", "ib0", 3, "LID 3"), peer("w", "ib1", 4, "fec0::2"), peer("w", "ib9", 5, "LID 3"),
	}
	m := reader(t, "").Job(job, []fleet.Member{
		member("w", serve(t, a.handler())), member("w", serve(t, b.handler())), member("w", serve(t, c.handler())),
	})
	if len(m.Pairs) != 1 || m.Pairs[0].QueuePairs != 2 || m.Pairs[0].ByLID != 1 {
		t.Errorf("%+v", m.Pairs)
	}
	for _, n := range m.Nodes {
		if n.Name == m.Pairs[0].From && (n.Ambiguous != 1 || n.Elsewhere != 2) {
			t.Errorf("%+v", n)
		}
	}
	var addresses []string
	for _, e := range m.Elsewhere {
		addresses = append(addresses, fmt.Sprint(e.Address, " ", e.Ambiguous))
	}
	if got := strings.Join(addresses, ", "); got != "LID 2 true, LID 3 false, LID 3 false" {
		t.Error(got)
	}
}

// TestNotAnswered: a sensor that hangs, sends too much, redirects, refuses, lies, or has a hostile name is named with
// the reason. Other sensors count.
func TestNotAnswered(t *testing.T) {
	good := &fakeSensor{hcas: []model.HCA{roce("mlx5_0", "::ffff:10.0.0.1")}, peers: []attribution.PeerShare{peer("w", "mlx5_0", 1, "::ffff:10.0.0.1")}}
	refuses := &fakeSensor{hcas: good.hcas[:0:0], why: fmt.Errorf("peers: %s", strings.Repeat("é", 1000))}
	reached := &fakeSensor{}
	other := httptest.NewServer(reached.handler())
	t.Cleanup(other.Close)
	text := func(hcas, peers string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body := peers
			if r.URL.Path == "/rdma" {
				body = hcas
			}
			_, _ = w.Write([]byte(body))
		})
	}
	const hca = `{"code":0,"data":[{"if_name":"d","gids":[{"port":1,"index":0,"type":"roce_v2","address":"10.9.9.%d","interface":""}]}],"message":"success"}`
	hang := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	endless := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`[`))
		for {
			if _, err := w.Write([]byte(strings.Repeat(`{"workload":"x"},`, 4096))); err != nil {
				return
			}
		}
	})
	many := strings.Builder{}
	for i := range maxAddresses + 1 {
		fmt.Fprintf(&many, `{"workload":"w","container_id":"id-w","remote_gid":"10.%d.%d.1"},`, i/256, i%256)
	}
	const evil = `"><script>alert(1)</script>`
	for name, c := range map[string]struct {
		handler  http.Handler
		instance string
		want     string // in the problem
		address  bool
	}{
		"hangs":          {handler: hang, want: "no answer in time"},
		"endless":        {handler: endless, want: "/rdma: the answer is too large; /api/v1/peers: the answer is too large"},
		"one large peer": {handler: text(fmt.Sprintf(hca, 2), `[{"workload":"`+strings.Repeat("x", 1<<20)), want: "/api/v1/peers: the answer is too large", address: true},
		"redirects":      {handler: http.RedirectHandler(other.URL+"/api/v1/peers", http.StatusTemporaryRedirect), want: "/rdma: 307 Temporary Redirect"},
		"refuses":        {handler: refuses.handler(), want: "/api/v1/peers: 503 Service Unavailable: peers: é"},
		"no JSON":        {handler: text("<html>", "<html>"), want: "this is not the answer of a sensor"},
		"other JSON":     {handler: text(`{"data":[1]}`, `{"a":1}`), want: "this is not the answer of a sensor"},
		"cut":            {handler: text(fmt.Sprintf(hca, 3), `[{"workload":"w","container_id":"id-w"},`), want: "/api/v1/peers: this is not", address: true},
		"no GID":         {handler: text(fmt.Sprintf(hca, 4), `[{"workload":"w","container_id":"id-w","remote_gid":"`+`<b>`+`"}]`), want: "/api/v1/peers: this is not", address: true},
		"too many":       {handler: text(fmt.Sprintf(hca, 5), `[`+many.String()+`{}]`), want: "more than 8192 remote addresses", address: true},
		"name":           {instance: evil, want: "not asked: the label instance"},
		"user":           {instance: "u@" + strings.TrimPrefix(other.URL, "http://"), want: "not asked: the label instance"},
		"path":           {instance: strings.TrimPrefix(other.URL, "http://") + "/x", want: "not asked: the label instance"},
		"nobody":         {instance: "127.0.0.1:1", want: "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			instance := c.instance
			if c.handler != nil {
				instance = serve(t, c.handler)
			}
			r := reader(t, "")
			if name == "hangs" {
				r.nodeTimeout = 5 * time.Second
			}
			here := serve(t, good.handler())
			m := r.Job(job, []fleet.Member{member("w", instance), member("w", here)})
			if d := gocmp.Diff([]Pair{{From: here, To: here, QueuePairs: 1}}, m.Pairs); d != "" {
				t.Error(d)
			}
			for _, n := range m.Nodes {
				switch {
				case n.Name == here && n != Node{Name: here, Peers: true, Addresses: true, Judged: true}:
					t.Errorf("%+v", n)
				case n.Name == instance:
					if n.Peers || n.Addresses != c.address || n.Elsewhere+n.Ambiguous+n.Unknown != 0 || !strings.Contains(n.Problem, c.want) {
						t.Errorf("%+v, want %q", n, c.want)
					}
					if len(n.Problem) > 3*maxProblem {
						t.Errorf("the problem has %d bytes", len(n.Problem))
					}
				}
			}
		})
	}
	if n := reached.asked.Load(); n > 0 {
		t.Errorf("%d requests went to where a redirect or a name leads", n)
	}
}

// TestBounds: the number of nodes, of concurrent requests, and the total time are limited.
func TestBounds(t *testing.T) {
	var now, most atomic.Int32
	hang := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-r.Context().Done()
	})
	s := httptest.NewUnstartedServer(hang)
	all, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "0.0.0.0:0") // each address of the loopback interface
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Listener.Close()
	s.Listener = all
	s.Start()
	t.Cleanup(s.Close)
	var members []fleet.Member
	for i := range MaxNodes + 3 {
		members = append(members, member("w", fmt.Sprintf("127.0.0.%d:%d", i+1, all.Addr().(*net.TCPAddr).Port)))
	}
	r := reader(t, "")
	r.timeout = time.Second / 2
	began := time.Now()
	m := r.Job(job, members)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("took %v", took)
	}
	if len(m.Nodes) != MaxNodes || len(m.NotAsked) != 3 || most.Load() > maxRequests {
		t.Errorf("%d nodes, not asked %q, %d at a time", len(m.Nodes), m.NotAsked, most.Load())
	}
	for _, n := range m.Nodes {
		if n.Peers || n.Problem == "" {
			t.Errorf("%+v", n)
		}
	}
}

// TestHeld: the number of addresses of all nodes and jobs together is bounded. A node whose addresses do not fit is
// unknown, with the reason.
func TestHeld(t *testing.T) {
	s := &fakeSensor{hcas: []model.HCA{roce("mlx5_0", "::ffff:10.0.0.1", "::ffff:10.0.0.2")}}
	s.peers = []attribution.PeerShare{peer("w", "mlx5_0", 1, "::ffff:10.0.0.2")}
	r := reader(t, "")
	of := []fleet.Member{member("w", serve(t, s.handler()))}
	r.held.Store(maxHeld - 2)
	if m := r.Job(job, of); m.Nodes[0].Peers || m.Nodes[0].Addresses || m.Nodes[0].Problem != errTooMany.Error() || len(m.Pairs) > 0 {
		t.Errorf("%+v", m)
	}
	if r.held.Load() != maxHeld-2 {
		t.Errorf("%d addresses are held", r.held.Load())
	}
	r.held.Store(maxHeld - 3)
	if m := r.Job(fleet.JobName{Name: "other"}, of); !m.Nodes[0].Peers || m.Nodes[0].Problem != "" || r.held.Load() != maxHeld-3 {
		t.Errorf("%+v, %d addresses are held", m, r.held.Load())
	}
}

// TestTooMuch: addresses, matrices and texts beyond the limits are not kept.
func TestTooMuch(t *testing.T) {
	a := answer{remotes: map[remote]ends{}}
	for i := range maxElsewhere + 1 {
		a.remotes[remote{lid: uint32(i + 1)}] = ends{pairs: 1}
	}
	if m := count([]answer{a}); len(m.Elsewhere) != maxElsewhere {
		t.Errorf("%d addresses elsewhere", len(m.Elsewhere))
	}
	r := reader(t, "")
	for i := range maxKept + 1 {
		r.Job(fleet.JobName{Name: fmt.Sprint(i)}, nil)
	}
	if len(r.kept) > maxKept {
		t.Errorf("%d matrices are kept", len(r.kept))
	}
	if text := problem(errors.New(strings.Repeat("x", maxProblem+1))); len(text) != maxProblem {
		t.Errorf("%d bytes", len(text))
	}
}

// TestCredentials: sensors get the credentials of their file, not Prometheus's.
func TestCredentials(t *testing.T) {
	var mu sync.Mutex
	got := map[string][]string{}
	record := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			got[name] = append(got[name], r.Header.Get("Authorization")+r.Header.Get("X-Scope-OrgID"))
			w.WriteHeader(http.StatusBadRequest)
		})
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	write("prom", "of-prometheus")
	write("sensors", "of-sensors")
	prometheus, err := fleet.Connect("http://"+serve(t, record("prometheus")), write("p.yml", "authorization: {credentials_file: prom}\nhttp_headers: {X-Scope-OrgID: {values: [-team]}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	node := member("w", serve(t, record("sensor")))
	reader(t, write("s.yml", "authorization: {credentials_file: sensors}\n")).Job(job, []fleet.Member{node})
	fleet.NewReader(prometheus).Job(t.Context(), &fleet.State{}, job)
	for _, h := range got["sensor"] {
		if h != "Bearer of-sensors" {
			t.Errorf("a sensor got %q", h)
		}
	}
	for _, h := range got["prometheus"] {
		if h != "Bearer of-prometheus-team" {
			t.Errorf("Prometheus got %q", h)
		}
	}
	if len(got["sensor"]) != 5 || len(got["prometheus"]) == 0 {
		t.Errorf("%q", got)
	}
	for template, file := range map[string]string{
		"http://u:secret@{host}:9847/": "", "http://node/": "", "ftp://{host}/": "", "{instance}": "", "http://{instance}/": filepath.Join(dir, "missing"),
	} {
		if _, err := NewReader(template, file); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s %s: %v", template, file, err)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(`[{"workload":"w","container_id":"c","device":"d","port":1,"remote_gid":"fe80::1%eth0","remote_lid":1}]`,
		`{"code":0,"data":[{"if_name":"d","gids":[{"port":1,"index":0,"type":"ib","address":"fe80::1"}],"lids":[{"port":1,"lid":1}]}],"message":"partial: x"}`)
	f.Fuzz(func(t *testing.T, peers, hcas string) {
		a := answer{addresses: map[remote]bool{}, subnets: map[portOf]subnet{}, remotes: map[remote]ends{}}
		_ = a.readHCAs(&fleet.Body{From: strings.NewReader(hcas), Left: 1 << 20, Part: 1 << 20})
		n := 0
		body := &fleet.Body{From: strings.NewReader(peers), Left: 1 << 20, Part: 1 << 20}
		_ = eachPeer(body, func(*api.Peer) error { n++; return nil })
		_ = a.readPeers(&fleet.Body{From: strings.NewReader(peers), Left: 1 << 20, Part: 1 << 20}, map[owner]bool{{"w", "c"}: true})
		sum := 0
		for _, c := range a.remotes {
			sum += c.pairs
		}
		if m := count([]answer{a}); sum > n || len(m.Nodes) != 1 {
			t.Errorf("%d of %d queue pairs, %+v", sum, n, m)
		}
	})
}
