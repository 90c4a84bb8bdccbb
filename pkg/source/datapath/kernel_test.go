// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bufio"
	"context"
	"debug/elf"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// A fake is a process that uses a FAKE provider, because the machine has no HCA. See testdata/fake_provider.c.
type fake struct {
	*exec.Cmd
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Scanner
	key gen.DatapathContextKey
	qp  uint64
	// longest is the duration of its longest action, an upper bound of all others.
	longest time.Duration
}

// buildFake compiles the fake and returns the offsets of its functions in the file.
func buildFake(t testing.TB, flags ...string) (path string, sites []locate.Site) {
	t.Helper()
	path, sites = buildProvider(t, "testdata/fake_provider.c", flags...)
	if len(sites) != len(providerFunctions) {
		t.Fatalf("%d of %d functions found", len(sites), len(providerFunctions))
	}
	return path, sites
}

var providerFunctions = map[string]locate.Function{
	"post_send": locate.PostSend, "post_recv": locate.PostRecv, "poll_cq": locate.PollCQ, "wr_rdma_write": locate.WrRDMAWrite,
	"wr_rdma_read": locate.WrRDMARead, "wr_send": locate.WrSend, "wr_send_tso": locate.WrSendTSO, "wr_set_inline_data": locate.WrSetInlineData,
	"wr_set_inline_data_list": locate.WrSetInlineDataList, "wr_set_sge": locate.WrSetSGE, "wr_set_sge_list": locate.WrSetSGEList,
	"wr_start": locate.WrStart, "wr_complete": locate.WrComplete, "wr_abort": locate.WrAbort,
	"post_srq_recv": locate.PostSRQRecv, "wr_atomic_write": locate.WrAtomicWrite, "wr_flush": locate.WrFlush,
	"start_poll": locate.StartPoll, "next_poll": locate.NextPoll, "read_opcode": locate.WcReadOpcode,
	"read_byte_len": locate.WcReadByteLen, "read_qp_num": locate.WcReadQPNum,
}

// buildProvider compiles a FAKE provider and returns the offsets of its probed functions.
func buildProvider(t testing.TB, source string, flags ...string) (path string, sites []locate.Site) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	path = filepath.Join(t.TempDir(), "provider")
	flags = append([]string{"-O2", "-Wall", "-o", path, source, "-lpthread"}, flags...)
	out, err := child.Command(context.Background(), "gcc", flags...).CombinedOutput()
	if err != nil {
		t.Fatalf("gcc (and libibverbs-dev): %v\n%s", err, out)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		fn, ok := providerFunctions[s.Name]
		if !ok || elf.ST_TYPE(s.Info) != elf.STT_FUNC {
			continue
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD && p.Vaddr <= s.Value && s.Value < p.Vaddr+p.Filesz {
				sites = append(sites, locate.Site{Function: fn, Offset: s.Value - p.Vaddr + p.Off})
			}
		}
	}
	return path, sites
}

func startFake(t testing.TB, path string) *fake {
	t.Helper()
	return startFakeIn(t, path, 0)
}

// startFakeIn starts a fake in new namespaces: CLONE_NEW*.
func startFakeIn(t testing.TB, path string, namespaces uintptr) *fake {
	t.Helper()
	f := &fake{Cmd: child.Command(context.Background(), path), t: t}
	f.SysProcAttr.Cloneflags = namespaces
	var err error
	if f.in, err = f.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := f.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = f.in.Close()
		if err := f.Wait(); err != nil {
			t.Errorf("the fake's end: %v", err)
		}
	})
	f.out = bufio.NewScanner(out)
	f.greet()
	f.key.Tgid = uint32(f.Process.Pid)
	return f
}

// greet reads the addresses that a fake prints when it starts.
func (f *fake) greet() {
	f.t.Helper()
	if _, err := fmt.Sscanf(f.line(), "0x%x 0x%x", &f.key.Context, &f.qp); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) line() string {
	f.t.Helper()
	if !f.out.Scan() {
		f.t.Fatal("the fake has gone")
	}
	return f.out.Text()
}

// do makes the fake run an action of its source n times, and waits.
func (f *fake) do(what string, n int) string {
	f.t.Helper()
	began := time.Now()
	if _, err := fmt.Fprintln(f.in, what, n); err != nil {
		f.t.Fatal(err)
	}
	out, ok := strings.CutSuffix(f.line(), "done")
	f.longest = max(f.longest, time.Since(began))
	if !ok {
		f.t.Fatal(out)
	}
	return out
}

// startKernel loads the programs that do not need InfiniBand.
func startKernel(t testing.TB) *kernel {
	t.Helper()
	return startKernelWith(t, Options{})
}

func startKernelWith(t testing.TB, opts Options) *kernel {
	t.Helper()
	spec, err := gen.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	return loadKernel(t, opts, spec)
}

// loadKernel loads programs of a spec. The kernel must not refuse what the source requires.
func loadKernel(t testing.TB, opts Options, spec *ebpf.CollectionSpec) *kernel {
	t.Helper()
	bpf.Root(t)
	if err := supported(); err != nil {
		t.Fatal(err)
	}
	k, _, err := open(opts.Sysfs, bpf.Compiled(opts.spec(), spec), nil)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(k.close)
	return k
}

// needs skips a test of an optional program that this kernel refuses. The guests' kernels refuse no program.
func (k *kernel) needs(t testing.TB, program string) {
	t.Helper()
	if err := k.refused[program]; err != nil {
		bpf.Skip(t, err)
	}
}

// add adds a context and returns its key.
func (k *kernel) add(t testing.TB, e event, chosen bool) gen.DatapathContextKey {
	t.Helper()
	var err error
	if e.key.Number, err = k.insert(e, chosen); err != nil {
		t.Fatal(err)
	}
	return e.key
}

// observedFake starts a FAKE provider and chooses its context. Its functions are not probed yet.
func observedFake(t testing.TB) (k *kernel, f *fake, path string, sites []locate.Site) {
	t.Helper()
	path, sites = buildFake(t)
	k = startKernel(t)
	f = startFake(t, path)
	f.key = k.add(t, event{key: f.key}, true)
	return k, f, path, sites
}

// The cost of traps that the programs get.
const entryNS, returnNS = emulatedTrap, returnTrap

func (k *kernel) probeAll(t testing.TB, path string, sites []locate.Site, calls ...int) (detach func()) {
	t.Helper()
	var links []io.Closer
	for _, s := range sites {
		for _, c := range calls {
			if groupOf(s.Function) != c {
				continue
			}
			k.needs(t, functionPrograms[s.Function].entry)
			for _, h := range newFile(s.File, 0, false).Missing(target{Place: s}, returns(s.Function)) {
				l, err := k.probe(h)(path)
				if err != nil {
					t.Fatal(err)
				}
				links = append(links, l)
			}
		}
	}
	detach = func() {
		var wg sync.WaitGroup
		for _, l := range links {
			wg.Go(func() {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		links = nil
	}
	t.Cleanup(detach)
	return detach
}

// counted returns the growth of one context's counts since last.
func (k *kernel) counted(t testing.TB, key gen.DatapathContextKey, last *gen.DatapathContextStat) (d gen.DatapathContextStat) {
	t.Helper()
	found := false
	if err := k.maps.contexts(func(at gen.DatapathContextKey, s *gen.DatapathContextStat) {
		if at != key {
			return
		}
		found = true
		d = *s
		for i := range d.Posted {
			d.Posted[i] -= last.Posted[i]
			d.Bytes[i] -= last.Bytes[i]
		}
		for i := range d.Errors {
			d.Errors[i] -= last.Errors[i]
		}
		d.Received -= last.Received
		d.Unread -= last.Unread
		d.ReceivedBytes -= last.ReceivedBytes
		for i := range d.Hits {
			d.Hits[i] -= last.Hits[i]
			d.SpentNs[i] -= last.SpentNs[i]
		}
		*last = *s
	}); err != nil {
		t.Fatal(err)
	}
	if !found {
		t.Fatal("the context is not there")
	}
	return d
}

// took returns the number of durations of a class, and the number of durations in the expected range: the fake waits 2
// ms, plus delays that depend on the load of the machine.
func (k *kernel) took(t testing.TB, f *fake, class gen.DatapathCompleted) (all, right uint64) {
	t.Helper()
	bounds, most := fineBounds(), max(uint64(f.longest), 40e6)
	if err := k.maps.latencies(func(at gen.DatapathLatencyKey, l *gen.DatapathLatency) {
		if at.Context != f.key || at.Completed != uint32(class) {
			return
		}
		for i, n := range l.Buckets {
			all += n
			if i > 0 && i < len(bounds) && bounds[i] >= 2e6 && bounds[i-1] < most {
				right += n
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	return all, right
}

func (k *kernel) losses() map[string]uint64 {
	var snap model.Snapshot
	k.maps.fill(&snap)
	out := map[string]uint64{}
	for _, l := range snap.Losses {
		if l.Count > 0 {
			out[l.Reason] = l.Count
		}
	}
	return out
}

const (
	opWrite  = gen.DatapathOpcodeOPCODE_RDMA_WRITE
	opSend   = gen.DatapathOpcodeOPCODE_SEND
	opRead   = gen.DatapathOpcodeOPCODE_RDMA_READ
	opAtomic = gen.DatapathOpcodeOPCODE_ATOMIC_CMP_AND_SWP
	opInv    = gen.DatapathOpcodeOPCODE_LOCAL_INV
	opTSO    = gen.DatapathOpcodeOPCODE_TSO
	opRecv   = gen.DatapathOpcodeOPCODE_RECV
)

type ops = map[gen.DatapathOpcode][2]uint64 // work requests, bytes

func checkOps(t *testing.T, what string, d gen.DatapathContextStat, want ops) {
	t.Helper()
	for i := range d.Posted {
		got := [2]uint64{d.Posted[i], d.Bytes[i]}
		if got != want[gen.DatapathOpcode(i)] {
			t.Errorf("%s: opcode %d: %v, want %v", what, i, got, want[gen.DatapathOpcode(i)])
		}
	}
}

// TestCounts compares the counts with the actions that a process ran, with a FAKE provider and no HCA.
func TestCounts(t *testing.T) { testCounts(t, startKernel(t)) }

func testCounts(t *testing.T, k *kernel) {
	t.Helper()
	path, sites := buildFake(t)
	f, foreign := startFake(t, path), startFake(t, path)
	f.key = k.add(t, event{key: f.key, cgroup: 5, device: 3}, true)
	k.probeAll(t, path, sites, posts, polls)
	var last gen.DatapathContextStat
	whole := ops{opWrite: {1, 128}, opSend: {1, 64}, opRead: {1, 4096}, opAtomic: {1, 8}, opInv: {1, 0}, opTSO: {1, 1054}}
	for _, c := range []struct {
		what  string
		n     int
		want  ops
		calls [2]uint64
	}{
		{"chain", 10, ops{
			opWrite: {10, 1280}, opSend: {10, 640}, opRead: {10, 40960}, opAtomic: {10, 80}, opInv: {10, 0},
			opTSO: {10, 10540},
		}, [2]uint64{10, 0}},
		{"refused", 0, ops{}, [2]uint64{1, 0}},
		{"refused", 2, ops{opWrite: {1, 128}, opSend: {1, 64}}, [2]uint64{1, 0}},
		{"recv", 7, ops{opRecv: {21, 0}}, [2]uint64{7, 0}},
		{"recv-refused", 7, ops{opRecv: {14, 0}}, [2]uint64{7, 0}},
		{"srq", 5, ops{opRecv: {10, 0}}, [2]uint64{5, 0}},
		{"ex-atomic-write", 0, ops{gen.DatapathOpcodeOPCODE_OTHER: {1, 0}}, [2]uint64{1, 0}},
		{"ex-flush", 0, ops{gen.DatapathOpcodeOPCODE_OTHER: {1, 0}}, [2]uint64{1, 0}},
		{"ex", 0, ops{opWrite: {1, 321}, opSend: {2, 98}, opRead: {1, 4000}, opTSO: {1, 154}}, [2]uint64{2, 0}},
		{"ex", 12, ops{}, [2]uint64{2, 0}},
		{"threads", 0, ops{opWrite: {20000, 200000}}, [2]uint64{20000, 40000}},
		{"nested", 1, whole, [2]uint64{1, 1}},
		{"fork", 1, ops{}, [2]uint64{}},
	} {
		f.do(c.what, c.n)
		foreign.do("chain", 3)
		d := k.counted(t, f.key, &last)
		checkOps(t, c.what, d, c.want)
		// The cost of empty polls is counted in groups.
		if d.Hits[posts] != c.calls[posts] || d.Hits[polls]+64*4 < c.calls[polls] || d.Hits[polls] > c.calls[polls] {
			t.Errorf("%s: hits %v, want %v", c.what, d.Hits, c.calls)
		}
		for i, n := range d.Hits {
			if d.SpentNs[i] < n*entryNS || d.SpentNs[i] > n*(entryNS+returnNS)*1000+1e9 {
				t.Errorf("%s: %d hits took %d ns", c.what, n, d.SpentNs[i])
			}
		}
	}
	if last.Cgroup != 5 || last.Device != 3 {
		t.Errorf("of cgroup %d, device %d", last.Cgroup, last.Device)
	}
	if lost := k.losses(); len(lost) != 0 {
		t.Error("lost:", lost)
	}
	n := 0
	if err := k.maps.contexts(func(gen.DatapathContextKey, *gen.DatapathContextStat) { n++ }); err != nil || n != 1 {
		t.Errorf("%d contexts, %v", n, err)
	}
}

// TestUnknownCost: the cost of probes to a process without a known context is counted, too.
// FAKE provider.
func TestUnknownCost(t *testing.T) {
	path, sites := buildFake(t)
	k := startKernel(t)
	f := startFake(t, path)
	k.probeAll(t, path, sites, posts, polls)
	f.do("idle", 100)
	f.do("chain", 1)
	spent := func() (ns [groups]uint64) {
		if err := k.unknownCosts(func(tgid uint32, s *gen.DatapathUnknownCost) {
			if tgid == f.key.Tgid {
				ns = s.SpentNs
			}
		}); err != nil {
			t.Fatal(err)
		}
		return ns
	}
	if got, want := spent(), [groups]uint64{posts: 2 * entryNS, polls: 100 * (entryNS + returnNS)}; got != want {
		t.Errorf("spent %v, want %v", got, want)
	}
	if err := k.removeProcesses([]uint32{f.key.Tgid}, f.key); err != nil {
		t.Fatal(err)
	}
	if got := spent(); got != [groups]uint64{} {
		t.Errorf("%v stays", got)
	}
}

// TestNamed: if a process names a function of a shared file as its entry, only this process's calls are counted for it.
// FAKE provider.
func TestNamed(t *testing.T) {
	k, f, path, sites := observedFake(t)
	called := map[locate.Function]locate.Function{locate.PostSend: locate.PostRecv, locate.PostRecv: locate.PostSend, locate.PollCQ: locate.PostSend, locate.WrStart: locate.WrSetSGE, locate.WrComplete: locate.WrStart}
	var wrong []locate.Site
	for _, s := range sites {
		if other, ok := called[s.Function]; ok {
			s.Function = other
			wrong = append(wrong, s)
		}
	}
	k.probeAll(t, path, wrong, posts, polls)
	for _, what := range []string{"chain", "recv", "ex"} {
		f.do(what, 0)
		f.do(what, 3)
	}
	d := k.counted(t, f.key, new(gen.DatapathContextStat))
	checkOps(t, "misnamed", d, ops{})
	if d.Hits != [groups]uint64{} || d.Received != 0 {
		t.Errorf("hits %v, %d received", d.Hits, d.Received)
	}
}

// TestCompletionKinds: completions of receives, of datagrams, and errors.
func TestCompletionKinds(t *testing.T) {
	k, f, path, sites := observedFake(t)
	k.probeAll(t, path, sites, posts, polls)
	f.do("polled", 0)
	d := k.counted(t, f.key, &gen.DatapathContextStat{})
	if d.Received != 5 || d.ReceivedBytes != 1000+500+(140-40)+140+(240-40) {
		t.Errorf("%d received, %d bytes", d.Received, d.ReceivedBytes)
	}
	for status, n := range d.Errors {
		// An unknown status is counted as the last.
		if want := map[int]uint64{12: 1, 23: 1}[status]; n != want {
			t.Errorf("status %d: %d, want %d", status, n, want)
		}
	}
	if d.Hits[polls] != 21 || d.SpentNs[polls] < 21*(entryNS+returnNS) {
		t.Errorf("%d polls took %d ns", d.Hits[polls], d.SpentNs[polls])
	}
}

// TestLost: calls that cannot be followed are counted as lost, and nothing hangs.
func TestLost(t *testing.T) {
	k, f, path, sites := observedFake(t)
	k.probeAll(t, path, sites, posts, polls)
	var last gen.DatapathContextStat
	f.do("unreadable", 0)
	checkOps(t, "unreadable", k.counted(t, f.key, &last), ops{})
	if lost := k.losses(); lost["datapath_unreadable"] != 1 || len(lost) != 1 || last.Lost != 1 {
		t.Error(lost, last.Lost)
	}
	f.do("cycle", 0)
	if d := k.counted(t, f.key, &last); d.Posted[opSend] != 16384 {
		t.Errorf("%d of a chain without end", d.Posted[opSend])
	}
	if lost := k.losses(); lost["datapath_chain_cut"] != 1 || len(lost) != 2 || last.Lost != 2 {
		t.Error(lost, last.Lost)
	}
	f.do("chain", 1)
	if d := k.counted(t, f.key, &last); d.Posted[opSend] != 1 || d.Hits[posts] != 1 {
		t.Errorf("%+v", d)
	}
}

// TestUnselectedContext: for a context that is not selected only the cost is counted, and a removed context has no counts.
func TestUnselectedContext(t *testing.T) {
	path, sites := buildFake(t)
	k := startKernel(t)
	f := startFake(t, path)
	if err := k.mark(f.key, true, 1); err == nil {
		t.Error("a context was marked that is not there")
	}
	f.key = k.add(t, event{key: f.key}, false)
	k.probeAll(t, path, sites, posts, polls)
	var last gen.DatapathContextStat
	do := func() gen.DatapathContextStat {
		f.do("chain", 4)
		f.do("ex", 0)
		f.do("recv", 1)
		f.do("polled", 0)
		return k.counted(t, f.key, &last)
	}
	d := do()
	checkOps(t, "not chosen", d, ops{})
	if d.Received != 0 || d.Errors[12] != 0 || d.Hits[posts] != 4+2+1+1 || d.Hits[polls] != 21 || d.SpentNs[posts] < 8*entryNS {
		t.Errorf("%+v", d)
	}
	if err := k.mark(f.key, true, 1); err != nil {
		t.Fatal(err)
	}
	if d := do(); d.Posted[opWrite] != 4+1 || d.Received != 5 || last.Chosen != 1 || last.Ready != 1 {
		t.Errorf("%+v", d)
	}
	// A second insert, as after a hook: the context keeps its counts.
	f.key = k.add(t, event{key: f.key}, false)
	if d := k.counted(t, f.key, &gen.DatapathContextStat{}); d.Posted[opWrite] != 5 || d.Chosen != 0 {
		t.Errorf("%+v", d)
	}
	other := f.key
	other.Tgid++
	other = k.add(t, event{key: other}, true)
	if err := k.removeProcesses([]uint32{f.key.Tgid}, f.key); err != nil {
		t.Fatal(err)
	}
	var left []gen.DatapathContextKey
	if err := k.maps.contexts(func(key gen.DatapathContextKey, _ *gen.DatapathContextStat) { left = append(left, key) }); err != nil {
		t.Fatal(err)
	}
	var snap model.Snapshot
	if err := k.maps.latencies(func(gen.DatapathLatencyKey, *gen.DatapathLatency) { t.Error("durations are left") }); err != nil {
		t.Fatal(err)
	}
	k.maps.fill(&snap)
	if len(left) != 1 || left[0] != other || snap.Maps[0].Entries != 1 || snap.Maps[2].Entries != 0 {
		t.Errorf("left: %+v, %+v", left, snap.Maps)
	}
	f.do("chain", 1) // for the removed context
}

// TestDurations: how long work requests take, and when that cannot be measured.
func TestDurations(t *testing.T) {
	k, f, path, sites := observedFake(t)
	k.probeAll(t, path, sites, posts, polls)
	check := func(what string, class gen.DatapathCompleted, least, most uint64) {
		t.Helper()
		// A preempted request takes longer.
		if all, right := k.took(t, f, class); all < least || all > most || right < all-all/10 {
			t.Errorf("%s: %d durations, %d of them about 2 ms, want %d to %d", what, all, right, least, most)
		}
	}
	// The queue pair is older than the sensor: equal wr_ids identify no work request.
	f.do("same", 20)
	check("same wr_id", gen.DatapathCompletedCOMPLETED_WRITE, 0, 0)
	k.gap(f.key)
	f.do("distinct", 20)
	check("distinct wr_ids", gen.DatapathCompletedCOMPLETED_SEND, 12, 13)
	// After a work request was identified, the order of the ring is known.
	f.do("same", 20)
	check("same wr_id, in step", gen.DatapathCompletedCOMPLETED_WRITE, 20, 20)
	f.do("retried", 10)
	check("refused", gen.DatapathCompletedCOMPLETED_READ, 10, 10)
	// All requests have completions, but sq_sig_all is not known to be set: the order of the ring is lost.
	f.do("all", 3)
	check("sq_sig_all", gen.DatapathCompletedCOMPLETED_ATOMIC, 0, 0)
	f.do("same", 5)
	check("out of step", gen.DatapathCompletedCOMPLETED_WRITE, 20, 20)
	k.gap(f.key)
	f.do("distinct", 20)
	f.do("deep", 200)
	all, _ := k.took(t, f, gen.DatapathCompletedCOMPLETED_SEND)
	// 128 of the 200 outstanding requests are measured.
	if all < 25+400*128/200-80 || all > 25+400 {
		t.Errorf("%d durations of a deep queue", all)
	}
	f.do("same", 5)
	check("after a deep queue", gen.DatapathCompletedCOMPLETED_WRITE, 25, 25)
	// Work requests that a provider defines (mlx5dv_wr_*, IBV_WR_DRIVER1) do not shift work requests of others.
	f.do("driver", 3)
	f.do("ex-driver", 3)
	f.do("same", 5)
	check("after work requests of the provider's own", gen.DatapathCompletedCOMPLETED_WRITE, 30, 30)
	if lost := k.losses(); len(lost) != 0 {
		t.Error("lost:", lost)
	}
}

// TestGap: posts are observed in a window in which completions are not.
func TestGap(t *testing.T) {
	k, f, path, sites := observedFake(t)
	detach := k.probeAll(t, path, sites, posts, polls)
	f.do("distinct", 10)
	before, _ := k.took(t, f, gen.DatapathCompletedCOMPLETED_SEND)
	detach()
	detach = k.probeAll(t, path, sites, posts)
	f.do("same", 5)
	detach()
	k.gap(f.key)
	k.probeAll(t, path, sites, posts, polls)
	f.do("same", 5)
	if all, _ := k.took(t, f, gen.DatapathCompletedCOMPLETED_WRITE); all != 0 || before == 0 {
		t.Errorf("%d durations across a gap, %d before", all, before)
	}
	// A call that was in progress when the probes were detached is not mixed up with a later one.
	if d := k.counted(t, f.key, &gen.DatapathContextStat{}); d.Posted[opWrite] != 10 {
		t.Errorf("%d posted", d.Posted[opWrite])
	}
}

// TestFineBounds compares the bounds with those computed to 200 bits.
func TestFineBounds(t *testing.T) {
	bounds := fineBounds()
	root := func(x *big.Float) *big.Float { return new(big.Float).SetPrec(200).Sqrt(x) }
	two := new(big.Float).SetPrec(200).SetInt64(2)
	for i, got := range bounds {
		b := big.NewFloat(1e9).SetPrec(200)
		b.SetMantExp(b, i/4+model.FineMinExp)
		for range i % 4 {
			b.Mul(b, root(root(two)))
		}
		// The fourth root may be inexact in the last bit; its integer part is exact.
		want, _ := b.Uint64()
		if got != want {
			t.Errorf("bound %d: %d, want %d", i, got, want)
		}
	}
	if bounds[0] != 476 || bounds[96] != 8e9 {
		t.Error(bounds[0], bounds[96])
	}
}

// TestFineBucket runs the programs' search for the bucket, compiled for this machine, on all bounds, their neighbors,
// and many values between.
func TestFineBucket(t *testing.T) {
	dir := t.TempDir()
	main, path := filepath.Join(dir, "main.c"), filepath.Join(dir, "main")
	var text strings.Builder
	header, err := os.ReadFile("../../../bpf/fine.h")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, b := range fineBounds() {
		list = append(list, fmt.Sprint(b))
	}
	source := strings.Replace(string(header), "fine_bounds[FINE_BUCKETS - 1];",
		"fine_bounds[FINE_BUCKETS - 1] = {"+strings.Join(list, ",")+"};", 1)
	fmt.Fprintf(&text, "#include <stdio.h>\ntypedef unsigned long long __u64;\ntypedef unsigned __u32;\n"+
		"#define FINE_BUCKETS %d\n%s\nint main(void){__u64 n;while(scanf(\"%%llu\",&n)==1)printf(\"%%u\\n\",fine_bucket(n));}\n",
		model.FineBuckets, source)
	if err := os.WriteFile(main, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := child.Command(context.Background(), "gcc", "-O2", "-o", path, main).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	values := []uint64{0, 1, math.MaxUint64}
	for _, b := range fineBounds() {
		values = append(values, b-1, b, b+1)
	}
	for v := uint64(3); v < 20e9; v += v/50 + 1 {
		values = append(values, v)
	}
	cmd := child.Command(context.Background(), path)
	cmd.Stdin = strings.NewReader(strings.Trim(fmt.Sprint(values), "[]"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	if len(got) != len(values) {
		t.Fatalf("%d of %d", len(got), len(values))
	}
	for i, v := range values {
		want := 0
		for want < model.FineBuckets-1 {
			b, _ := new(big.Float).Quo(
				new(big.Float).Mul(big.NewFloat(float64(v)), big.NewFloat(1<<-model.FineMinExp)), big.NewFloat(1e9)).Float64()
			if math.Log2(b)*4 <= float64(want)+1e-12 {
				break
			}
			want++
		}
		if got[i] != fmt.Sprint(want) {
			t.Errorf("%d ns: bucket %s, want %d", v, got[i], want)
		}
	}
}

// TestLoad attaches the hooks. It runs in a guest, because this needs InfiniBand.
func TestLoad(t *testing.T) {
	if _, err := os.Stat("/sys/class/infiniband_verbs/uverbs0"); err != nil {
		t.Skip("no HCA, not even an emulated one")
	}
	k, hooks, err := newKernel(Options{Sysfs: "/sys", Procfs: "/proc"})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer k.close()
	for _, h := range hooks {
		if h.State != model.StateOK {
			t.Errorf("%+v", h)
		}
	}
	before, err := k.existing()
	if err != nil {
		t.Fatal(err)
	}
	server := child.Command(context.Background(), "ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "1000000")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	pid := uint32(server.Process.Pid)
	opened, err := k.events.next()
	if err != nil || opened.key.Tgid != pid || opened.qp != 0 || opened.cgroup == 0 {
		t.Errorf("%+v, %v: want that %d opened a context", opened, err, pid)
	}
	connected, err := k.events.next()
	if err != nil || connected.key.Tgid != pid || connected.qp == 0 || connected.key.Context == 0 {
		t.Errorf("%+v, %v: want a queue pair of %d", connected, err, pid)
	}
	d := k.counted(t, connected.key, &gen.DatapathContextStat{})
	if model.CgroupID(d.Cgroup) != opened.cgroup || d.Device != opened.device || d.Chosen != 1 || d.Ready != 0 || d.Late != 0 {
		t.Errorf("%+v", d)
	}
	eventually(t, "the ring of the queue pair, which the program makes after the event", func() bool {
		var snap model.Snapshot
		return k.maps.fill(&snap) == nil && snap.Maps[2].Entries == 1
	})
	after, err := k.existing()
	if err != nil || len(after) != len(before)+1 {
		t.Fatalf("%+v, then %+v, %v", before, after, err)
	}
	if e := after[len(after)-1]; e.qp != connected.qp || e.key.Tgid != pid || e.cgroup != opened.cgroup || e.device != opened.device {
		t.Errorf("%+v, want %+v", e, connected)
	}
	client := child.Command(context.Background(), "ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "10", "localhost")
	if out, err := client.CombinedOutput(); err != nil {
		t.Logf("%v\n%s", err, out)
	}
	eventually(t, "it was not late", func() bool {
		d := k.counted(t, connected.key, &gen.DatapathContextStat{})
		return d.Late == 1 && d.LateNs != 0
	})
	k.needs(t, gen.DatapathProgListOutstanding)
	var rings []gen.DatapathOutstanding
	if err := k.outstanding(func(o *gen.DatapathOutstanding) {
		if o.Key.Tgid == pid {
			rings = append(rings, *o)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(rings) != 1 || rings[0].InStep != 1 || rings[0].Plain != 1 || rings[0].OldestNs != 0 ||
		rings[0].SinceNs < k.counted(t, connected.key, &gen.DatapathContextStat{}).LateNs {
		t.Errorf("%+v: want a queue pair of %d that is in step since it can send", rings, pid)
	}
	if lost := k.losses(); len(lost) != 0 {
		t.Error("lost:", lost)
	}
}

// BenchmarkHit measures a call of the fake, with and without probes.
func BenchmarkHit(b *testing.B) {
	path, sites := buildFake(b)
	k := startKernel(b)
	f := startFake(b, path)
	report := func(what string) {
		for _, call := range []string{"idle", "posts", "receives", "idle-ex", "received-ex"} {
			var ns float64
			if _, err := fmt.Sscan(f.do(call, 100000), &ns); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(ns, what+"-"+call+"-ns")
		}
	}
	report("without")
	k.probeAll(b, path, sites, posts, polls)
	report("foreign")
	f.key = k.add(b, event{key: f.key}, false)
	report("unchosen")
	if err := k.mark(f.key, true, 1); err != nil {
		b.Fatal(err)
	}
	report("counted")
}

// TestTiers attaches each hook with each of its tiers. It runs in a guest, too.
func TestTiers(t *testing.T) {
	if _, err := os.Stat("/sys/class/infiniband_verbs/uverbs0"); err != nil {
		t.Skip("no HCA, not even an emulated one")
	}
	o, _, err := hook.Open((&Options{}).spec(), func(o *hook.Object) ([]model.Hook, error) {
		for _, h := range kernelHooks {
			for _, tier := range h.Tiers {
				if got := o.Attach(h, tier.Name); got.State != model.StateOK {
					t.Errorf("%+v", got)
				}
			}
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	o.Close()
}
