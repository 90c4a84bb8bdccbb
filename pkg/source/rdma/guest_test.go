// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
)

// TestGuest compares the source with iproute2 on live Soft-RoCE devices. It runs in the guest
// of tests/machines/vm (ACCELSCOPE_GUEST=1), where ACCELSCOPE_WORKLOADS is the directory of the workload
// programs: compile it with go test -c and pass the binary to tests/machines/vm/cmd/guest. With
// ACCELSCOPE_RECORD=DIR it writes the replies of the kernel to DIR, for testdata.
func TestGuest(t *testing.T) {
	if os.Getenv("ACCELSCOPE_GUEST") == "" {
		t.Skip("needs a live RDMA stack: runs in the guest of tests/machines/vm")
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	old := strings.HasPrefix(string(release), "5.10.") // no contexts, no SRQs
	verbs := workload(t, "verbs", "-d", "rxe0", "-p", "2", "-c", "3", "-q", "4", "-x", "1", "-m", "1048576", "-m", "4096")
	workload(t, "verbs", "-d", "rxe1", "-q", "2", "-m", "65536")
	s := newGuestSource(t)

	t.Run("Objects", func(t *testing.T) {
		objects, err := s.Objects(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		deviceNames, err := s.DeviceNames(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if deviceNames[o.Index] != o.Device {
				t.Fatalf("device %d is called %v, and its objects are on %s", o.Index, deviceNames, o.Device)
			}
		}
		for _, c := range []struct {
			typ     model.ObjectType
			key, id string
		}{
			{model.QP, "qp", "lqpn"},
			{model.CQ, "cq", "cqn"},
			{model.MR, "mr", "mrn"},
			{model.PD, "pd", "pdn"},
			{model.CMID, "cm_id", "cm-idn"},
			{model.Context, "ctx", "ctxn"},
			{model.SRQ, "srq", "srqn"},
		} {
			if old && (c.typ == model.Context || c.typ == model.SRQ) {
				continue
			}
			want, got := []string{}, []string{}
			for _, e := range iproute(t, "resource", "show", c.key) {
				if e["pid"] != nil { // kernel objects have no PID
					want = append(want, fmt.Sprintf("%v %v %v pid %v len %v",
						e["ifname"], c.key, e[c.id], e["pid"], e["mrlen"]))
				}
			}
			for _, o := range objects {
				if o.Type == c.typ {
					length := "<nil>"
					if o.Type == model.MR {
						length = fmt.Sprint(o.Bytes)
					}
					got = append(got, fmt.Sprintf("%s %s %d pid %d len %s", o.Device, o.Type, o.ID, o.PID, length))
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s (-iproute2 +got):\n%s", c.key, d)
			}
			if len(got) == 0 && c.typ != model.CMID {
				t.Errorf("no %s: iproute2 lists none", c.key)
			}
		}
		want := map[model.ObjectType]string{
			model.PD: "2 0", model.CQ: "3 0", model.QP: "4 0", model.MR: "2 1052672", model.SRQ: "1 0",
		}
		cgroupOf := func(pid int) (model.CgroupID, error) { return model.CgroupID(pid) + 1, nil }
		for _, h := range holdings(objects, cgroupOf) {
			if h.Cgroup != model.CgroupID(h.PID)+1 {
				t.Errorf("not in the cgroup of its process: %+v", h)
			}
			if w, ok := want[h.Type]; ok && h.PID == verbs {
				if got := fmt.Sprintf("%d %d", h.Count, h.Bytes); got != w {
					t.Errorf("the process holds %s of type %s, want %s", got, h.Type, w)
				}
				delete(want, h.Type)
			}
		}
		if old {
			delete(want, model.SRQ)
		}
		if len(want) != 0 {
			t.Errorf("missing objects of the process: %v", want)
		}
	})

	t.Run("Resources", func(t *testing.T) {
		snap := mustRead(t, s)
		want := map[string]string{}
		for _, e := range iproute(t, "resource", "show") {
			for typ, n := range e {
				if typ != "ifindex" && typ != "ifname" && objectType(typ) {
					want[fmt.Sprintf("%v %s", e["ifname"], typ)] = fmt.Sprint(n)
				}
			}
		}
		got := map[string]string{}
		for _, r := range snap.Resources {
			got[r.Device+" "+string(r.Type)] = fmt.Sprint(r.Count)
		}
		if d := cmp.Diff(want, got); d != "" || len(got) < 10 {
			t.Errorf("%d resources (-iproute2 +got):\n%s", len(got), d)
		}
	})

	t.Run("Counters", func(t *testing.T) {
		snap := mustRead(t, s)
		got, want := map[string]string{}, map[string]string{}
		for _, h := range snap.HCAs {
			if h.CharDevice == "" || h.NodeType != "CA" || h.NodeGUID == "" {
				t.Errorf("attributes of %s: %+v", h.Name, h)
			}
			for _, p := range h.Ports {
				if p.State != "ACTIVE" || p.PhysState != "LinkUp" || p.LinkLayer != "Ethernet" ||
					p.Netdev == "" || p.RateBits == 0 {
					t.Errorf("port of %s: %+v", h.Name, p)
				}
				for _, c := range p.HWCounters {
					got[fmt.Sprintf("%s/%d %s", h.Name, p.Number, c.Name)] = fmt.Sprint(c.Value)
				}
			}
		}
		for _, e := range iproute(t, "statistic", "show") {
			for name, v := range e {
				if name != "ifname" && name != "port" && name != "ifindex" {
					want[fmt.Sprintf("%v/%v %s", e["ifname"], e["port"], name)] = fmt.Sprint(v)
				}
			}
		}
		if d := cmp.Diff(want, got); d != "" || len(got) < 20 {
			t.Errorf("%d counters (-iproute2 +got):\n%s", len(got), d)
		}
		// Compare with the files, which are read on a kernel without netlink.
		files, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer files.Close()
		for i, h := range mustRead(t, files).HCAs {
			a, b := h.Ports[0].HWCounters, slices.Clone(snap.HCAs[i].Ports[0].HWCounters)
			slices.SortFunc(b, func(x, y model.Counter) int { return strings.Compare(x.Name, y.Name) })
			if d := cmp.Diff(a, b); d != "" {
				t.Errorf("%s (-files +netlink):\n%s", h.Name, d)
			}
		}
	})

	// One request per port, and no file of hw_counters.
	t.Run("Requests", func(t *testing.T) {
		var conns []*nldev.Conn
		s := newGuestSource(t)
		sockets := make(chan *nldev.Conn, 100)
		s.dial = func() (*nldev.Conn, error) {
			c, err := nldev.Dial()
			sockets <- c
			return c, err
		}
		mustRead(t, s)
		mustRead(t, s)
		for len(sockets) > 0 {
			<-sockets
		}
		calls := func() int { return s.devices[0].files.Reader.Calls + s.devices[0].queries.Reader.Calls }
		before := calls()
		mustRead(t, s)
		for len(sockets) > 0 {
			conns = append(conns, <-sockets)
		}
		requests := 0
		for _, c := range conns {
			requests += int(c.Requests)
		}
		if want := 3*len(s.devices) + 1; requests != want || len(s.devices) != 2 {
			t.Errorf("%d requests, want %d: three per device, for its counters, port and domains, and one for the resources", requests, want)
		}
		counters, err := filepath.Glob("/sys/class/infiniband/" + s.devices[0].name + "/ports/1/counters/*") // since Linux 7
		if n := calls() - before; n != len(counters) || err != nil {
			t.Errorf("%d system calls on files, want %d, the counters: %v", n, len(counters), err)
		}
		byFiles, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer byFiles.Close()
		byFiles.dial = func() (*nldev.Conn, error) { return nil, unix.EPROTONOSUPPORT }
		asked, read := mustRead(t, s), mustRead(t, byFiles)
		for i := range asked.HCAs {
			a, f := asked.HCAs[i].Ports[0], read.HCAs[i].Ports[0]
			got := []any{a.State, a.PhysState, a.RateBits, a.Width, a.Speed, a.LID, a.SMLID}
			want := []any{f.State, f.PhysState, f.RateBits, f.Width, f.Speed, f.LID, f.SMLID}
			if diff := cmp.Diff(want, got); diff != "" || a.State == "" || a.RateBits == 0 {
				t.Errorf("%s by PORT_GET, against its files:\n%s", asked.HCAs[i].Name, diff)
			}
		}
	})

	t.Run("ObjectCounts", func(t *testing.T) {
		counts, err := s.ObjectCounts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		names, err := s.DeviceNames(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := map[model.Resource]bool{}
		for table, n := range counts {
			got[model.Resource{Device: names[table.Index], Type: table.Type, Count: n}] = true
		}
		want := map[model.Resource]bool{}
		for _, r := range mustRead(t, s).Resources {
			want[r] = true
		}
		if diff := cmp.Diff(want, got); diff != "" || len(got) == 0 {
			t.Errorf("%d numbers of objects (-read +counted):\n%s", len(got), diff)
		}
	})

	t.Run("Holdings", func(t *testing.T) {
		s := newGuestSource(t, func(o *Options) {
			o.Holdings = func() bool { return true }
			o.CgroupOf = func(pid int) (model.CgroupID, error) { return model.CgroupID(pid) + 1, nil }
		})
		snap := mustRead(t, s)
		if !slices.ContainsFunc(snap.Holdings, func(h model.Holding) bool {
			return h.PID == verbs && h.Device == "rxe0" && h.Type == model.QP && h.Count == 4 && h.Cgroup == model.CgroupID(verbs)+1
		}) {
			t.Errorf("holdings %v lack the 4 QPs of process %d", snap.Holdings, verbs)
		}
	})

	t.Run("Threads", func(t *testing.T) {
		pid := workload(t, "threads", "-d", "rxe0", "-n", "3")
		want := map[int]int{pid: 9}
		if old {
			want = map[int]int{0: 9} // contexts are not dumped, so no process is known
		}
		eventually(t, func() bool { // a joined thread ends in the kernel a moment later
			objects, err := s.Objects(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			owners := map[int]int{}
			for _, o := range objects {
				if o.Device == "rxe0" && (o.Type == model.QP || o.Type == model.MR || o.Type == model.PD) && o.PID != verbs {
					owners[o.PID]++
				}
			}
			t.Logf("objects of threads by owner: %v, want %v", owners, want)
			return maps.Equal(owners, want)
		})
	})

	if dir := os.Getenv("ACCELSCOPE_RECORD"); dir != "" {
		recordReplies(t, dir)
	}
	stopWorkloads()
	t.Run("Namespaces", testNamespaces)
	t.Run("Reload", testReload)
}

// testNamespaces moves a device to the namespace of a process, as a CNI plugin does for a pod, and finds it there.
// Soft-RoCE supports the move only with the module built from testdata/movable.c (ACCELSCOPE_MOVABLE). Without the
// module, the test covers the rest.
func testNamespaces(t *testing.T) {
	before := mustRead(t, newGuestSource(t)).HCAs
	sh(t, "rdma system set netns exclusive") // only allowed while no other namespace exists
	t.Cleanup(func() {
		sh(t, "for i in 1 2 3 4 5 6 7 8 9 10; do rdma system set netns shared && exit 0; sleep 0.5; done; exit 1")
	})
	space := otherNamespace(t)
	spaces := []model.Namespace{{Inode: netns(t, "self"), PID: 1, Host: true}, space}
	s := newGuestSource(t, func(o *Options) { o.Namespaces = func() []model.Namespace { return spaces } })
	read := func() []model.HCA {
		t.Helper()
		s.search.began = time.Time{}
		mustRead(t, s)
		settle(t, s)
		snap := mustRead(t, s)
		if got := states(snap); strings.Contains(got, "netns") {
			t.Errorf("states %s: %+v", got, snap.DeviceStates)
		}
		return snap.HCAs
	}
	if shared, err := nldev.Shared(nldev.Dial, time.Now().Add(time.Minute)); shared || err != nil {
		t.Errorf("shared %v, %v in the exclusive mode", shared, err)
	}
	if d, err := nldev.Devices(s.search.in(space).dial, time.Now().Add(time.Minute)); len(d) != 0 || err != nil {
		t.Errorf("an empty namespace shows %v, %v", d, err)
	}
	if module := os.Getenv("ACCELSCOPE_MOVABLE"); module != "" {
		sh(t, "insmod "+module)
	}
	sh(t, fmt.Sprintf("ip netns attach moved %d", space.PID)) // iproute2 needs a name
	out, err := command(context.Background(), "rdma", "dev", "set", "rxe0", "netns", "moved").CombinedOutput()
	sh(t, "ip netns del moved")
	if err != nil {
		t.Logf("rxe0 cannot be moved: %v: %s", err, out)
		if os.Getenv("ACCELSCOPE_MOVABLE") != "" || !strings.Contains(string(out), "Operation not supported") {
			t.Error("the move must succeed")
		}
		if got := read(); len(got) != 2 || got[0].Netns != 0 || got[1].Netns != 0 {
			t.Errorf("HCAs %+v", got)
		}
		return
	}
	if got := read(); len(got) != 2 || got[0].Name != "rxe0" || got[0].Netns != space.Inode {
		t.Fatalf("HCAs %+v", got)
	}
	// The next Read has the traffic of the container without another search.
	sh(t, fmt.Sprintf("nsenter -t %d -n sh -c 'ip link set lo up; ibv_rc_pingpong -d rxe0 -g 1 -n 100 & "+
		"sleep 0.5; ibv_rc_pingpong -d rxe0 -g 1 -n 100 127.0.0.1 && wait'", space.PID))
	got := mustRead(t, s).HCAs
	if len(got) != 2 || got[0].Name != "rxe0" || got[1].Name != "rxe1" {
		t.Fatalf("HCAs %+v", got)
	}
	want, moved := before[0], got[0]
	want.Netns = space.Inode
	if len(moved.Ports) != 1 || moved.Ports[0].State != "ACTIVE" || moved.Ports[0].RateBits == 0 {
		t.Fatalf("moved: %+v", moved)
	}
	values := func(h *model.HCA) map[string]string {
		all := map[string]string{}
		for _, c := range h.Ports[0].HWCounters {
			all[c.Name] = fmt.Sprint(c.Value)
		}
		h.Ports[0].HWCounters = nil
		return all
	}
	counted := values(&moved)
	values(&want)
	if d := cmp.Diff(want, moved, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Errorf("moved (-before +after):\n%s", d)
	}
	listed := map[string]string{}
	for name, v := range iprouteIn(t, []string{"nsenter", "-t", fmt.Sprint(space.PID), "-n"}, "statistic", "show")[0] {
		if name != "ifname" && name != "port" && name != "ifindex" {
			listed[name] = fmt.Sprint(v)
		}
	}
	if d := cmp.Diff(listed, counted); d != "" || len(listed) < 10 {
		t.Errorf("counters of the moved device (-iproute2 +got):\n%s", d)
	}
	if n, err := strconv.Atoi(counted["sent_pkts"]); err != nil || n < 400 {
		t.Errorf("sent_pkts %q after 200 messages of 4 KiB in each direction", counted["sent_pkts"])
	}
	testMovedResources(t, s, space)
	d := s.moved["rxe0"]
	if d == nil || d.state.State != model.StateOK || d.ports[0].statless || d.ports[0].stat.Err != nil {
		t.Errorf("the counters did not come through netlink: %+v", d)
	}
	readDevice := func(d *device) {
		var round hang.Round
		now := time.Now()
		s.queueDevice(&round, d, now, s.node)
		round.Wait(t.Context())
		s.answerDevice(d, now)
	}
	start := time.Now()
	for range 20 {
		readDevice(d)
	}
	t.Logf("a Read of a device that was moved takes %v", time.Since(start)/20)
	start = time.Now()
	for range 20 {
		readDevice(s.devices[0])
	}
	t.Logf("a Read of a local device takes %v", time.Since(start)/20)
	if got[1].Netns != 0 || len(got[1].Ports) != 1 {
		t.Errorf("rxe1 moved, too: %+v", got[1])
	}
	if _, err := os.Stat("/sys/class/infiniband/rxe0"); err == nil {
		t.Error("rxe0 is still local: the test shows nothing")
	}
	names, err := s.DeviceNames(t.Context())
	if err != nil || names[got[0].Index] != "rxe0" {
		t.Errorf("names by index %v, %v", names, err)
	}
	// The namespace ends, and the kernel takes the device back.
	if err := unix.Kill(space.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 600 {
		if got = read(); len(got) == 2 && got[0].Netns == 0 && len(got[0].Ports) == 1 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if len(got) != 2 || got[0].Netns != 0 || len(got[0].Ports) != 1 {
		t.Errorf("after the end of the namespace: %+v", got)
	}
}

// testMovedResources compares the object counts of a moved device with iproute2 in its
// namespace, where one process has objects.
func testMovedResources(t *testing.T, s *Source, space model.Namespace) {
	in := []string{"nsenter", "-t", fmt.Sprint(space.PID), "-n"}
	listed := func() (all map[string]string) {
		all = map[string]string{}
		for _, e := range iprouteIn(t, in[:4], "resource", "show") {
			for typ, n := range e {
				if objectType(typ) {
					all[typ] = fmt.Sprint(n)
				}
			}
		}
		return all
	}
	read := func() (all map[string]string) {
		all = map[string]string{}
		for _, r := range mustRead(t, s).Resources {
			if r.Device == "rxe0" {
				all[string(r.Type)] = fmt.Sprint(r.Count)
			}
		}
		return all
	}
	before := read()
	if d := cmp.Diff(listed(), before); d != "" || len(before) < 5 {
		t.Errorf("resources of the moved device (-iproute2 +got):\n%s", d)
	}
	in = append(in, "ibv_rc_pingpong", "-d", "rxe0", "-g", "1")
	server := command(t.Context(), in[0], in[1:]...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	eventually(t, func() bool {
		now := read()
		return now["qp"] != before["qp"] && now["mr"] != before["mr"] && cmp.Diff(listed(), now) == ""
	})
	t.Logf("the moved device has %v, and with another queue pair %v", before, read())
}

// testReload: an open source does not block a driver reload, and reading does not load the modules again.
func testReload(t *testing.T) {
	space := otherNamespace(t)
	s := newGuestSource(t, func(o *Options) {
		o.Holdings = func() bool { return true }
		o.Namespaces = func() []model.Namespace { return []model.Namespace{space} }
	})
	if got := names(mustRead(t, s)); got != "rxe0 rxe1" {
		t.Fatalf("HCAs %q", got)
	}
	// In the shared mode each namespace shows all devices.
	if d, err := nldev.Devices(s.search.in(space).dial, time.Now().Add(time.Minute)); len(d) != 2 || err != nil {
		t.Errorf("the namespace shows %v, %v", d, err)
	}
	settle(t, s)
	sh(t, "rdma link delete rxe0 && rdma link delete rxe1")
	if os.Getenv("ACCELSCOPE_MOVABLE") != "" {
		sh(t, "rmmod movable")
	}
	sh(t, "for i in 1 2 3 4 5 6 7 8 9 10; do "+
		"modprobe -r rdma_rxe rdma_ucm ib_umad ib_uverbs rdma_cm iw_cm ib_cm ib_core; "+
		"! test -d /sys/module/ib_uverbs_support || modprobe -r ib_uverbs_support ib_core; "+ // from 7 on
		"test -d /sys/module/ib_core || exit 0; sleep 0.2; done; lsmod; exit 1")
	for range 2 {
		if _, err := s.Read(t.Context()); !errors.Is(err, model.ErrAbsent) {
			t.Errorf("without a device: %v", err)
		}
	}
	if o, err := s.Objects(t.Context()); err != nil || len(o) != 0 {
		t.Errorf("objects without a device: %v %v", o, err)
	}
	if _, err := os.Stat("/sys/module/ib_core"); err == nil {
		t.Error("reading loaded ib_core again")
	}
	sh(t, "modprobe ib_uverbs && modprobe rdma_rxe && rdma link add rxe0 type rxe netdev v0")
	if got := names(mustRead(t, s)); got != "rxe0" {
		t.Errorf("HCAs after the reload %q", got)
	}
	if p := mustRead(t, s).HCAs[0].Ports; len(p) != 1 || len(p[0].HWCounters) < 10 {
		t.Errorf("ports after the reload: %v", p)
	}
}

func newGuestSource(t *testing.T, change ...func(*Options)) *Source {
	t.Helper()
	o := Options{Deadline: 10 * time.Second}
	o.Netlink = NewNetlink(o)
	for _, c := range change {
		c(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

var running []*exec.Cmd

// workload starts a program that prints "ready PID" and runs until its input ends.
func workload(t *testing.T, args ...string) (pid int) {
	t.Helper()
	cmd := command(context.Background(), filepath.Join(os.Getenv("ACCELSCOPE_WORKLOADS"), args[0]), args[1:]...)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	running = append(running, cmd)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if n, _ := fmt.Sscanf(lines.Text(), "ready %d", &pid); n == 1 {
			return pid
		}
	}
	t.Fatalf("%v did not get ready", args)
	return 0
}

func stopWorkloads() {
	for _, c := range running {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	running = nil
}

// iproute returns the JSON output of `rdma`, with numbers as written.
func iproute(t *testing.T, args ...string) []map[string]any {
	t.Helper()
	return iprouteIn(t, nil, args...)
}

func iprouteIn(t *testing.T, prefix []string, args ...string) []map[string]any {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	args = slices.Concat(prefix, []string{"rdma", "-j"}, args)
	cmd := command(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Logf("rdma %v: %v", args, err)
		return nil
	}
	var all []map[string]any
	d := json.NewDecoder(strings.NewReader(string(out)))
	d.UseNumber()
	if err := d.Decode(&all); err != nil {
		t.Fatalf("rdma %v: %v\n%s", args, err, out)
	}
	return all
}

func sh(t *testing.T, script string) {
	t.Helper()
	if out, err := command(context.Background(), "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// recordReplies writes the replies of the kernel to each request.
func recordReplies(t *testing.T, dir string) {
	index := uint32(0)
	for _, d := range mustDump(t) {
		if d.Name == "rxe0" {
			index = d.Index
		}
	}
	on, port := netlink.AppendU32(nil, nldev.AttrDevIndex, index), func(n uint32) []byte { return netlink.AppendU32(nil, nldev.AttrPortIndex, n) }
	type request struct {
		name  string
		cmd   uint16
		flags uint16
		attrs []byte
	}
	requests := []request{{"stat_bad", nldev.CmdStatGet, 0, slices.Concat(on, port(9))}}
	for cmd, name := range recordings {
		r := request{name, cmd, unix.NLM_F_DUMP, on}
		switch name {
		case "get", "res":
			r.attrs = nil
		case "stat":
			r.flags, r.attrs = 0, slices.Concat(on, port(1))
		}
		requests = append(requests, r)
	}
	for _, r := range requests {
		c, err := nldev.Dial()
		if err != nil {
			t.Fatal(err)
		}
		c.Buffer = make([]byte, netlink.BufferSize)
		var raw []byte
		b := netlink.Message(nldev.MessageType(r.cmd), r.flags, slices.Clone(r.attrs))
		netlink.SetSequence(b, 1)
		if _, err := unix.Write(c.FD, b); err != nil {
			t.Fatal(err)
		}
		for done := false; !done; {
			n, err := c.Receive(time.Now().Add(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			raw = append(raw, c.Buffer[:n]...)
			done, err = netlink.Messages(c.Buffer[:n], nldev.MessageType(r.cmd), 1, func([]byte) error { return nil })
			done = done || err != nil
		}
		c.Close()
		if err := os.WriteFile(filepath.Join(dir, r.name+".bin"), raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func mustDump(t *testing.T) []nldev.Device {
	t.Helper()
	all, err := nldev.Devices(nldev.Dial, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// objectType reports whether the model has a type of iproute2.
func objectType(name string) bool {
	switch model.ObjectType(name) {
	case model.PD, model.CQ, model.QP, model.CMID, model.MR, model.Context, model.SRQ:
		return true
	}
	return false
}
