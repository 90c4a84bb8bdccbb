// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fakes/silent"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// gpu runs accelscope gpu.
func (n *gpuNode) gpu(t *testing.T, binary string, args ...string) (string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := child.Command(t.Context(), binary, append(append([]string{"gpu"}, args...), "--gpu.control-socket="+n.socket())...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return stdout.String() + stderr.String(), err
}

// doctor runs accelscope doctor for the GPUs.
func (n *gpuNode) doctor(t *testing.T, binary, library string, more ...string) string {
	t.Helper()
	args := append(n.Environment(), binary, "doctor", "--gpu.control-socket="+n.socket(), "--gpu.nvml-library="+library,
		"--path.sysfs="+n.SysFS(), "--path.procfs="+n.ProcFS(), "--path.cgroup="+n.CgroupFS(), "--path.host="+n.Dir,
		"--no-collector.probe", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.node", "--no-collector.access")
	out, _ := child.Command(t.Context(), "env", append(args, more...)...).CombinedOutput() // it fails without an HCA
	return string(out)
}

// freeBetweenRounds waits until MIG instances were opened and all closed, twice: a process that destroys an instance finds it
// free between two rounds. The kernel reports each open and close; a look at /proc from time to time misses short ones.
func (n *gpuNode) freeBetweenRounds(t *testing.T) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	queue := os.NewFile(uintptr(fd), "inotify")
	defer queue.Close()
	if _, err := unix.InotifyAddWatch(fd, n.DeviceDir(), unix.IN_OPEN|unix.IN_CLOSE); err != nil {
		t.Fatal(err)
	}
	if err := queue.SetReadDeadline(time.Now().Add(quickly)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for open, rounds := 0, 0; rounds < 2; {
		read, err := queue.Read(buf)
		if err != nil {
			t.Fatalf("%d rounds: %v; %d instances are held", rounds, err, open)
		}
		for events := buf[:read]; len(events) >= unix.SizeofInotifyEvent; {
			mask, length := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
			name := events[unix.SizeofInotifyEvent:][:length]
			events = events[unix.SizeofInotifyEvent+length:]
			switch {
			case !bytes.HasPrefix(name, []byte("nvidia-cap")):
			case mask&unix.IN_OPEN != 0:
				open++
			case open > 0: // else it was opened before the watch
				if open--; open == 0 {
					rounds++
				}
			}
		}
	}
}

// refusesOthers: the sensor itself refuses other users: the directory may be shared with containers, and its mode changed.
func (n *gpuNode) refusesOthers(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return // only root can become another user
	}
	if err := os.Chmod(n.socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	dir, name := filepath.Split(n.socket())
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	c := dialAs(t, nobody, dir, name)
	err := c.SetDeadline(time.Now().Add(quickly))
	if err == nil {
		_, err = io.WriteString(c, "POST /gpu/release?for=15m HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("another user's request ended with %v", err)
	}
	if len(n.held(t)) == 0 {
		t.Error("another user released the GPUs")
	}
}

// dialAs connects to a socket as another user. The directory is entered as root: those above it may be closed to others.
func dialAs(t *testing.T, user uintptr, dir, name string) net.Conn {
	t.Helper()
	type result struct {
		c   net.Conn
		err error
	}
	dialed := make(chan result)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread, with its directory and user, ends with the goroutine
		var r result
		defer func() { dialed <- r }()
		if r.err = errors.Join(unix.Unshare(unix.CLONE_FS), unix.Chdir(dir)); r.err != nil {
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			r.err = err
			return
		}
		file := os.NewFile(uintptr(fd), name)
		defer file.Close()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, user, user, user); errno != 0 { // of this thread only
			r.err = errno
			return
		}
		if r.err = unix.Connect(fd, &unix.SockaddrUnix{Name: name}); r.err == nil {
			r.c, r.err = net.FileConn(file)
		}
	}()
	r := <-dialed
	if r.err != nil {
		t.Fatal("connecting as another user: ", r.err)
	}
	t.Cleanup(func() { _ = r.c.Close() })
	return r.c
}

// documentedHooks returns the commands with curl in the documents, for another socket: the last one ends the release.
func documentedHooks(t *testing.T, socket string) (commands [][]string) {
	t.Helper()
	command := regexp.MustCompile(`(?m)^ +(?:command: \[)?(curl\b.* --unix-socket.*?)\]?$`)
	bare := strings.NewReplacer(`"`, "", "'", "", ",", "", "/run/accelscope/control.sock", socket)
	for _, path := range []string{"../../deploy/README.md", "../../docs/gpus.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range command.FindAllSubmatch(text, -1) {
			commands = append(commands, strings.Fields(bare.Replace(string(m[1]))))
		}
	}
	if len(commands) != 3 {
		t.Fatalf("%q", commands)
	}
	return commands
}

// TestNVMLChild: the library is open in a child only, which ends when it is to. The fake library holds files as the
// real one holds device nodes.
func TestNVMLChild(t *testing.T) {
	binary, library := buildNVML(t)
	all := []string{"nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia4", "nvidia5", "nvidia6", "nvidia7", "nvidiactl"}

	t.Run("release and resume", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, nil)
		n.listed(t)
		n.listening(t)
		n.XID("1", 31)
		n.write(t)
		before := n.until(t, "the XID", func(e exposition) bool { return e.sum("gpu_xid_errors_total", "", "") == 1 })
		var gpus int // processes that hold all GPUs; another one holds MIG instances for a moment
		for pid, files := range n.held(t) {
			if slices.Equal(files, all) {
				gpus++
			}
			if pid == n.process.Pid {
				t.Errorf("the sensor itself holds %v", files)
			}
		}
		if gpus != 1 {
			t.Fatalf("%d processes hold all GPUs, want 1: %v", gpus, n.held(t))
		}
		for path, mode := range map[string]os.FileMode{n.socket(): 0o600, filepath.Dir(n.socket()): 0o700} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: mode %v, want %o: %v", path, info.Mode(), mode, err)
			}
		}
		n.refusesOthers(t)

		n.freeBetweenRounds(t)

		out, err := n.gpu(t, binary, "release", "--for=1h", "--reason=test")
		if held := n.held(t); err != nil || len(held) > 0 || !strings.HasPrefix(out, "released: closed ") || !strings.Contains(out, "nvidia7") {
			t.Errorf("%v: %s\nheld: %v", err, out, held)
		}
		t.Log(out)
		released := func(e exposition) bool { return e.nvidia() == "released" }
		e := n.until(t, "the source says so", released)
		for _, family := range []string{"gpu_utilization", "gpu_health", "container_gpu_processes", "gpu_energy_joules_total"} {
			if got := e.by(family, "uuid"); len(got) > 0 {
				t.Errorf("%s while the GPUs are released: %v", family, got)
			}
		}
		if got := e.by("gpu_info", "uuid"); len(got) != nvml.GPUs {
			t.Errorf("gpu_info of %v", got)
		}
		if got := e.sum("gpu_xid_errors_total", "", ""); got != 1 {
			t.Errorf("%v XIDs while the GPUs are released", got)
		}
		if why := ready(t, n.url); !strings.Contains(why, "test, until ") {
			t.Errorf("/readyz: %s", why)
		}

		calls := n.called(t)
		if out := n.doctor(t, binary, library); !strings.Contains(out, "test, until ") || !strings.Contains(out, "accelscope gpu resume") {
			t.Errorf("doctor during the release:\n%s", out)
		}
		if since := n.called(t).Since(calls); len(since) > 0 {
			t.Errorf("doctor opens the library during the release: %v", since)
		}

		out, err = n.gpu(t, binary, "resume")
		if err != nil || !strings.HasPrefix(out, "ok: open ") {
			t.Errorf("%v: %s", err, out)
		}
		calls = n.called(t)
		if out := n.doctor(t, binary, library); !strings.Contains(out, "nvidia 0") || n.called(t).Since(calls)["- dlopen"] == 0 {
			t.Errorf("doctor after the release:\n%s", out)
		}
		n.listed(t)
		n.listening(t)
		n.XID("1", 31)
		n.write(t)
		e = n.until(t, "an XID after the release", func(e exposition) bool { return e.sum("gpu_xid_errors_total", "", "") > 1 })
		if got := e.sum("gpu_xid_errors_total", "", ""); got != 2 {
			t.Errorf("%v XIDs, want 2", got)
		}
		rising(t, before, e)
		others(t, before, e)
		if got := e.sum("accelscope_child_ends_total", "", ""); got != 0 {
			t.Errorf("a release counts as %v unexpected ends", got)
		}

		for _, hook := range documentedHooks(t, n.socket()) {
			out, err := child.Command(t.Context(), hook[0], hook[1:]...).CombinedOutput()
			released, state := true, `"state":"released"`
			if strings.HasSuffix(hook[len(hook)-1], "/resume") {
				released, state = false, `"state":"ok"`
			}
			if held := n.held(t); err != nil || !strings.Contains(string(out), state) || released == (len(held) > 0) {
				t.Errorf("%q: %v: %s\nheld: %v", hook, err, out, held)
			}
		}
		n.listed(t)

		// The time is over.
		if out, err := n.gpu(t, binary, "release", "--for=5s"); err != nil || len(n.held(t)) > 0 {
			t.Errorf("%v: %s\nheld: %v", err, out, n.held(t))
		}
		n.until(t, "the GPUs are read after 5 s", func(e exposition) bool { return len(e.by("gpu_utilization", "uuid")) == nvml.GPUs-2 })
		if out, err := n.gpu(t, binary, "release", "--for=0s"); err == nil {
			t.Errorf("a release for no time: %s", out)
		}

		ends(t, n.stop)
		if held := n.held(t); len(held) > 0 {
			t.Errorf("after the end of the sensor: %v", held)
		}
		if out, err := n.gpu(t, binary, "resume"); err == nil || !strings.Contains(out, "no sensor listens") {
			t.Errorf("without a sensor: %v: %s", err, out)
		}
	})

	t.Run("the library crashes", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, nil)
		defer ends(t, n.stop)
		before := n.listed(t)
		n.Crash("2", "nvmlDeviceGetPowerUsage")
		n.write(t)
		n.until(t, "the child has crashed twice", func(e exposition) bool { return e.sum("accelscope_child_ends_total", "reason", "crash") >= 2 })
		n.Heal("2", "nvmlDeviceGetPowerUsage")
		n.write(t)
		e := n.listed(t)
		n.owners(t, e)
		rising(t, before, e)
		others(t, before, e)
	})

	t.Run("a call never returns", func(t *testing.T) {
		t.Parallel()
		var log *fakeLog
		n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) { log = newFakeLog(t, n.Dir) })
		defer ends(t, n.stop)
		n.listed(t)
		before := n.listening(t)
		n.Block("2", "*")
		n.XID("4", 94) // NVML still reports the XIDs of other GPUs
		n.write(t)
		log.xid(4, 4, "94, Contained: SM (0x1). RST: No, D-RST: No")
		stuck := nvml.UUID(2)
		n.until(t, "the GPU is reported as stuck", func(e exposition) bool { return slices.Contains(problemsOf(e, stuck), "stuck") })
		log.xid(4, 2, "119, pid=2, name=kworker/0:1, Timeout after 6s of waiting for RPC response from GPU2 GSP!")
		reported := func(xids float64) func(exposition) bool {
			return func(e exposition) bool {
				return e.by("gpu_xid_errors_total", "uuid", "xid")[nvml.UUID(4)+" 94"] == xids &&
					maps.Equal(e.by("gpu_faults_total", "uuid", "code"), map[string]float64{stuck + " 119": 1, nvml.UUID(4) + " 94": 1})
			}
		}
		n.until(t, "XIDs while a call hangs", reported(1))
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) { // 30 s, on a busy machine more
			if scrape(t, n.url).sum("accelscope_child_ends_total", "reason", "hang") > 0 {
				break
			}
		}
		e := n.until(t, "another child reads the other GPUs", func(e exposition) bool {
			return len(e.by("gpu_utilization", "uuid")) == nvml.GPUs-3 && slices.Contains(problemsOf(e, stuck), "stuck") &&
				maps.Equal(without(complete(before), stuck), without(complete(e), stuck))
		})
		rising(t, before, e)
		n.until(t, "an XID after that", func(e exposition) bool { // those before the child waits for events are lost
			if !reported(1)(e) {
				return e.by("gpu_xid_errors_total", "uuid", "xid")[nvml.UUID(4)+" 94"] > 1
			}
			n.XID("4", 94)
			n.write(t)
			return false
		})
		for pid, files := range n.held(t) {
			if slices.Contains(files, "nvidia2") {
				t.Errorf("process %d holds %v", pid, files)
			}
		}
	})

	t.Run("a child does not end when it is killed", func(t *testing.T) {
		t.Parallel()
		dir, answer := silent.Mount(t, "silent")
		n := startGPUs(t, binary, library, time.Second, nil)
		defer ends(t, n.stop)
		n.listed(t)
		n.Sleep("2", "nvmlDeviceGetPowerUsage", filepath.Join(dir, "file"))
		n.write(t)
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) { // 30 s, on a busy machine more
			if scrape(t, n.url).sum("accelscope_child_stuck", "", "") > 0 {
				break
			}
		}
		n.until(t, "another child reads the other GPUs", func(e exposition) bool {
			return len(e.by("gpu_utilization", "uuid")) == nvml.GPUs-3 && slices.Contains(problemsOf(e, nvml.UUID(2)), "stuck") &&
				e.sum("accelscope_child_stuck", "", "") == 1
		})
		if out, err := n.gpu(t, binary, "release"); err == nil || !strings.Contains(out, "still open in a process that does not end") ||
			!strings.Contains(out, "nvidia2") {
			t.Errorf("a release during that: %v: %s", err, out)
		}
		answer()
		n.until(t, "the child has ended", func(e exposition) bool { return e.sum("accelscope_child_stuck", "", "") == 0 })
		if out, err := n.gpu(t, binary, "release"); err != nil {
			t.Errorf("a release after that: %v: %s", err, out)
		}
	})

	t.Run("the sensor is killed", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, nil)
		n.listed(t)
		if err := n.process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_, _ = n.stop()
		for end := time.Now().Add(quickly); len(n.held(t)) > 0; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("a child lives: %v", n.held(t))
			}
		}
	})
}

// without returns m without a key.
func without(m map[string]int, key string) map[string]int {
	delete(m, key)
	return m
}
