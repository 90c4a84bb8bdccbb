// SPDX-License-Identifier: Apache-2.0

package container

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestNamespaces reads a fake procfs: a sandbox, a container in the same network, a container in the network of the
// node, and a container without a process.
func TestNamespaces(t *testing.T) {
	root := t.TempDir()
	var paths []string
	for i := range 4 {
		paths = append(paths, fmt.Sprintf("/docker/%d", i))
		files := fakeV2()
		files["cgroup.procs"] = fmt.Sprintf("%d\n%d\n", 50+i, 60+i)
		write(t, root, below(paths[i], files))
	}
	s := fake(t, root, true, paths...)
	// In the order of the ids.
	groups := s.list()
	pid := func(i int) string { return strings.Fields(readFile(t, root+groups[i].path+"/cgroup.procs"))[0] }
	write(t, s.opt.Procfs, map[string]string{pid(0) + "/ns/net": "", pid(0) + "/net/dev": netDev})
	for i, target := range []string{1: pid(0), 2: "1"} {
		if target == "" {
			continue
		}
		write(t, s.opt.Procfs, map[string]string{pid(i) + "/net/dev": netDev, pid(i) + "/ns/user": ""})
		if err := os.Link(filepath.Join(s.opt.Procfs, target, "ns/net"), filepath.Join(s.opt.Procfs, pid(i), "ns/net")); err != nil {
			t.Fatal(err)
		}
	}
	pod, _ := strconv.Atoi(pid(0))
	host, _ := strconv.Atoi(pid(2))
	want := []model.Namespace{
		{
			Inode: inode(t, filepath.Join(s.opt.Procfs, pid(0), "ns/net")), PID: pod, Cgroup: groups[0].id,
			Interfaces: []model.Interface{{
				Name: "eth0", ReceiveBytes: 1001, ReceivePackets: 11, ReceiveErrors: 2, ReceiveDropped: 3,
				TransmitBytes: 2001, TransmitPackets: 21, TransmitErrors: 4, TransmitDropped: 5,
			}},
		},
		{Inode: inode(t, filepath.Join(s.opt.Procfs, "1/ns/net")), PID: host, Cgroup: groups[2].id, Host: true},
	}
	if len(s.Namespaces()) > 0 {
		t.Error("namespaces before the first Read")
	}
	if d := cmp.Diff(want, read(t, s).Namespaces); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if d := cmp.Diff(want, s.Namespaces()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	only := fake(t, root, true, paths...)
	only.opt.NamespacesOnly, only.opt.Procfs = true, s.opt.Procfs
	want[0].Interfaces = nil
	clock := time.Now()
	only.opt.Now = func() time.Time { return clock }
	first := read(t, only)
	if first.Usages != nil || !cmp.Equal(want, first.Namespaces) || len(first.Losses) != 1 || len(first.SkippedLines) == 0 {
		t.Errorf("namespaces only: %+v", first)
	}
	listed := 0
	only.opt.Groups = func() map[model.CgroupID]string { listed++; return nil }
	for range 10 {
		if got := read(t, only); !cmp.Equal(first, got) {
			t.Errorf("namespaces only, again: (-want +got)\n%s", cmp.Diff(first, got))
		}
		clock = clock.Add(time.Second)
	}
	if got := read(t, only).Namespaces; listed != 1 || len(got) > 0 {
		t.Errorf("listed %d times in 10 s; %+v", listed, got)
	}
	want[0].Interfaces = s.Namespaces()[0].Interfaces
	// The process reported before stays, even if another process precedes it.
	write(t, root, map[string]string{groups[0].path + "/cgroup.procs": "9\n" + pid(0) + "\n"})
	write(t, s.opt.Procfs, map[string]string{"9/ns/net": "", "9/net/dev": netDev})
	if d := cmp.Diff(want, read(t, s).Namespaces); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	// Namespaces change only with the next Read.
	if err := os.RemoveAll(root + "/docker"); err != nil {
		t.Fatal(err)
	}
	if got := s.Namespaces(); len(got) != len(want) {
		t.Errorf("%d namespaces at once", len(got))
	}
	if got := read(t, s).Namespaces; len(got) != 0 || len(s.Namespaces()) != 0 {
		t.Errorf("%d namespaces later", len(got))
	}
	// The namespace of the node is not known.
	if err := os.RemoveAll(filepath.Join(s.opt.Procfs, "1")); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Source{s, only} {
		clock = clock.Add(maxNamespacesAge)
		for range 2 {
			if got, err := s.Read(context.Background()); err == nil || got.Namespaces == nil || len(got.Namespaces) > 0 {
				t.Errorf("%v, %v", got.Namespaces, err)
			}
		}
	}
	if listed != 2 {
		t.Errorf("listed %d times: the failure is not kept", listed)
	}
}

// TestWanted: if the usage of a cgroup is not wanted, only its namespace is read, and its processes are read once a
// minute or when the known process has ended.
func TestWanted(t *testing.T) {
	root := t.TempDir()
	var paths []string
	for i := range 3 {
		paths = append(paths, fmt.Sprintf("/docker/%d", i))
		files := fakeV2()
		files["cgroup.procs"] = fmt.Sprintln(50 + i)
		write(t, root, below(paths[i], files))
	}
	s := fake(t, root, true, paths...)
	clock := time.Now()
	s.opt.Now = func() time.Time { return clock }
	groups := s.list()
	wanted := groups[1].id
	s.opt.Wanted = func(id model.CgroupID) bool { return id == wanted }
	for i := range 4 {
		pid := fmt.Sprint(50 + i)
		write(t, s.opt.Procfs, map[string]string{pid + "/ns/net": "", pid + "/net/dev": netDev})
	}
	check := func(what string, pids ...int) {
		t.Helper()
		got := read(t, s)
		if len(got.Usages) != 1 || got.Usages[0].Cgroup != wanted {
			t.Errorf("%s: usage of %+v", what, got.Usages)
		}
		var found []int
		for _, n := range got.Namespaces {
			found = append(found, n.PID)
			if (n.Cgroup == wanted) != (len(n.Interfaces) > 0) {
				t.Errorf("%s: interfaces of %+v", what, n)
			}
		}
		if !cmp.Equal(found, pids) {
			t.Errorf("%s: processes %v, want %v", what, found, pids)
		}
	}
	var first []int
	for _, g := range groups {
		pid, err := strconv.Atoi(strings.TrimSpace(readFile(t, root+g.path+"/cgroup.procs")))
		if err != nil {
			t.Fatal(err)
		}
		first = append(first, pid)
	}
	check("at first", first...)
	write(t, root, map[string]string{groups[2].path + "/cgroup.procs": "53\n"})
	clock = clock.Add(maxProcessesAge - time.Second)
	check("another process, within a minute", first...)
	clock = clock.Add(time.Second)
	check("after a minute", first[0], first[1], 53)
	write(t, root, map[string]string{groups[2].path + "/cgroup.procs": fmt.Sprintln(first[2])})
	if err := os.RemoveAll(filepath.Join(s.opt.Procfs, "53")); err != nil {
		t.Fatal(err)
	}
	check("the process has ended", first...)
	write(t, root, map[string]string{groups[2].path + "/cgroup.procs": "54\n"})
	write(t, s.opt.Procfs, map[string]string{"54/ns/net": "", "54/net/dev": netDev, "other": ""})
	if err := os.Rename(filepath.Join(s.opt.Procfs, "other"), filepath.Join(s.opt.Procfs, fmt.Sprint(first[2]), "ns/net")); err != nil {
		t.Fatal(err)
	}
	check("another process has its number", first[0], first[1], 54)
	first[2] = 54
	wanted = groups[0].id
	check("another is wanted", first...)
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestParseNetDev(t *testing.T) {
	line := "%16s: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n"
	head := "Inter-|\n face |\n"
	text := head
	for i := range maxInterfaces + 7 {
		text += fmt.Sprintf(line, fmt.Sprintf("eth%d", i))
	}
	for _, name := range []string{"lo", "veth12ab", "docker0"} {
		text += fmt.Sprintf(line, name)
	}
	var skipped boundedfile.Skipped
	got, tooMany := parseNetDev([]byte(text), &skipped)
	if len(got) != maxInterfaces || tooMany != 7 || skipped.Lines > 0 {
		t.Errorf("%d interfaces, %d too many, %s", len(got), tooMany, &skipped)
	}
	want := model.Interface{
		Name: "eth0", ReceiveBytes: 1, ReceivePackets: 2, ReceiveErrors: 3, ReceiveDropped: 4,
		TransmitBytes: 9, TransmitPackets: 10, TransmitErrors: 11, TransmitDropped: 12,
	}
	if got[0] != want {
		t.Errorf("%+v", got[0])
	}
	got, _ = parseNetDev([]byte(head+"eth0: 1 2\n"+fmt.Sprintf(line, "eth1")+"garbage\n"), &skipped)
	if skipped.Lines != 2 || len(got) != 1 || got[0].Name != "eth1" {
		t.Errorf("%v, %s", got, &skipped)
	}
}

// TestNetworkOfAProcess compares with ip, for a real process in a real network namespace that has sent and received
// packets.
func TestNetworkOfAProcess(t *testing.T) {
	p := startHelper(t, "wait", nil, unix.CLONE_NEWNET)
	pid := strconv.Itoa(p.Process.Pid)
	name := fmt.Sprintf("asx%d", os.Getpid())
	run(t, "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", pid)
	t.Cleanup(func() { _ = child.Command(context.Background(), "ip", "link", "del", name).Run() })
	inside := func(args ...string) string { return run(t, "nsenter", append([]string{"-t", pid, "-n"}, args...)...) }
	run(t, "ip", "addr", "add", "198.18.77.1/30", "dev", name)
	run(t, "ip", "link", "set", name, "up")
	inside("ip", "addr", "add", "198.18.77.2/30", "dev", "eth0")
	inside("ip", "link", "set", "eth0", "up")
	inside("ip", "link", "set", "lo", "up")
	// An unused address: the requests for it are sent on the link.
	inside("sh", "-c", "for i in 1 2 3; do echo x > /dev/udp/198.18.77.1/9; done 2>/dev/null; "+
		"ip neigh replace 198.18.77.1 lladdr "+strings.TrimSpace(readFile(t, "/sys/class/net/"+name+"/address"))+" dev eth0; "+
		"bash -c 'for i in 1 2 3; do echo x > /dev/udp/198.18.77.1/9; done'")

	root := t.TempDir()
	write(t, root, map[string]string{"docker/x/cgroup.procs": pid + "\n", "docker/h/cgroup.procs": fmt.Sprintln(os.Getpid())})
	s := fake(t, root, true, "/docker/x", "/docker/h")
	s.opt.Procfs = "/proc"
	for range 50 {
		before := inside("ip", "-s", "-j", "link")
		namespaces := read(t, s).Namespaces
		after := inside("ip", "-s", "-j", "link")
		if before != after {
			continue
		}
		if len(namespaces) != 2 {
			t.Fatalf("%d namespaces", len(namespaces))
		}
		n := namespaces[0]
		if n.Cgroup != cgroupID(t, root+"/docker/x") {
			n = namespaces[1]
		}
		if d := cmp.Diff(fromIP(t, after), n.Interfaces); d != "" {
			t.Errorf("(-ip +ours)\n%s", d)
		}
		if n.Interfaces[0].TransmitPackets == 0 {
			t.Error("nothing was sent")
		}
		if n.PID != p.Process.Pid || n.Host || n.Inode != inode(t, "/proc/"+pid+"/ns/net") {
			t.Errorf("%+v", n)
		}
		return
	}
	t.Error("the counters keep changing")
}

func fromIP(t *testing.T, text string) []model.Interface {
	t.Helper()
	type side struct{ Bytes, Packets, Errors, Dropped uint64 }
	var links []struct {
		Ifname  string
		Stats64 struct{ RX, TX side }
	}
	if err := json.Unmarshal([]byte(text), &links); err != nil {
		t.Fatal(err)
	}
	var list []model.Interface
	for _, l := range links {
		if l.Ifname == "eth0" {
			rx, tx := l.Stats64.RX, l.Stats64.TX
			list = append(list, model.Interface{
				Name:         l.Ifname,
				ReceiveBytes: rx.Bytes, ReceivePackets: rx.Packets, ReceiveErrors: rx.Errors, ReceiveDropped: rx.Dropped,
				TransmitBytes: tx.Bytes, TransmitPackets: tx.Packets, TransmitErrors: tx.Errors, TransmitDropped: tx.Dropped,
			})
		}
	}
	return list
}

func TestConcurrent(t *testing.T) {
	root := t.TempDir()
	write(t, root, below("/docker/x", fakeV2()))
	s := fake(t, root, true, "/docker/x")
	write(t, s.opt.Procfs, map[string]string{"41/ns/net": "", "41/net/dev": netDev})
	read(t, s)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				if len(s.Namespaces()) != 1 {
					t.Error("no namespace")
				}
			}
		})
	}
	for range 20 {
		read(t, s)
	}
	wg.Wait()
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := child.Command(context.Background(), name, args...).Output()
	if err != nil {
		text := ""
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			text = string(e.Stderr)
		}
		t.Fatalf("%s %s: %v %s", name, strings.Join(args, " "), err, text)
	}
	return string(out)
}

// startHelper runs this test binary as a process that joins cgroups, works, and waits for its end.
func startHelper(t *testing.T, what string, cgroups []string, clone uintptr) *exec.Cmd {
	t.Helper()
	cmd := child.Command(context.Background(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), "CONTAINER_TEST_HELPER="+what, "CONTAINER_TEST_CGROUPS="+strings.Join(cgroups, ":"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr.Cloneflags = clone
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("helper: %q, %v", line, err)
	}
	return cmd
}
