// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const (
	managedRoot = "/run/managed/root" // the root directory of containers
	managedBin  = "/run/managed/bin"  // the programs, where each user may run them
	managedUser = 1600                // bob
	lxcConfig   = "/run/lxc/web.conf"
)

// TestManagers: if no API names the container of a manager in Debian, it belongs to the workload in its cgroup. The
// managers run as their guides say, under systemd. `make test-kernels` runs it.
func TestManagers(t *testing.T) {
	if !whole() {
		t.Skip("runs in make test-kernels")
	}
	if guest.Enter(t, managersOptions(t)) {
		managed(t)
	}
}

// managersOptions builds, outside the guest, the programs that TestManagers needs in it.
func managersOptions(t *testing.T) vm.Options {
	t.Helper()
	if os.Getenv(binaryVar) != "" {
		return vm.Options{} // in the guest
	}
	t.Parallel()
	workloads, err := vm.BuildWorkloads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sh(t, "go", "build", "-o", dir, "github.com/accelscope/accelscope/cmd/...")
	return vm.Options{
		Kernel: "6.12", Devices: 1, Systemd: true, Timeout: 20 * time.Minute,
		Env: []string{
			nodesVar + "=" + os.Getenv(nodesVar),
			binaryVar + "=" + dir + "/accelscope", workloadsVar + "=" + workloads, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		},
	}
}

// manager starts a container whose program holds queue pairs, and returns its workload.
type manager struct {
	name    string
	cgroup  string // a part of the path of the container's cgroup
	program func(command []string) *exec.Cmd
	// workload returns the workload that the cgroup of the container names.
	workload func(cgroup string) string
}

// libpod returns the workload of a container of podman. The socket, which would name it, is missing.
func libpod(cgroup string) string {
	_, id, _ := strings.Cut(cgroup, "libpod-")
	return "podman:" + id[:12]
}

func only(workload string) func(string) string { return func(string) string { return workload } }

func managed(t *testing.T) {
	sh(t, "sh", "-ec", fmt.Sprintf(`
		for d in usr proc sys dev tmp run etc; do mkdir -p %[1]s/$d; done
		for d in bin sbin lib lib64; do ln -s usr/$d %[1]s/$d; done
		cp -r /etc/libibverbs.d /etc/passwd /etc/group %[1]s/etc
		echo 'ID=debian' >%[1]s/etc/os-release
		cp -r %[2]s %[3]s; chmod -R a+rX /run/managed
		chmod 666 /dev/infiniband/uverbs0
		useradd --uid %[4]d --create-home --home-dir /run/bob bob
		mkdir /run/lxc
		systemctl start user@%[4]d.service`, managedRoot, os.Getenv(workloadsVar), managedBin, managedUser))
	write(t, lxcConfig, fmt.Sprintf(`lxc.rootfs.path = dir:%s
lxc.uts.name = web
lxc.net.0.type = none
lxc.apparmor.profile = unconfined
lxc.mount.auto = proc sys
lxc.mount.entry = /usr usr none ro,bind 0 0
lxc.mount.entry = %s run/bin none ro,bind,create=dir 0 0
lxc.mount.entry = /dev/infiniband dev/infiniband none bind,create=dir 0 0
lxc.cgroup2.devices.allow = a
`, managedRoot, managedBin))

	if _, err := guest.StartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := guest.StartDocker(t.Context(), "systemd"); err != nil {
		t.Fatal(err)
	}
	s := start(t)
	for i, m := range []manager{
		{
			name: "systemd-nspawn", cgroup: "/machine.slice/machine-web.scope",
			program: func(command []string) *exec.Cmd {
				return child.Command(context.Background(), "systemd-nspawn", append([]string{
					"--quiet", "--machine=web", "--directory=" + managedRoot, "--bind-ro=/usr", "--bind-ro=" + managedBin + ":/run/bin",
					"--bind=/dev/infiniband/uverbs0", "--property=DeviceAllow=/dev/infiniband/uverbs0 rw", "--console=pipe",
				}, command...)...)
			},
			workload: only("unit:machine-web.scope"),
		},
		{
			name: "LXC", cgroup: "/lxc.payload.web",
			program: func(command []string) *exec.Cmd {
				return child.Command(context.Background(), "lxc-execute", append([]string{
					"--name=web", "--rcfile=" + lxcConfig, "--lxcpath=/run/lxc", "--",
				}, command...)...)
			},
			workload: only("lxc:web"),
		},
		{
			name: "podman, the driver systemd", cgroup: "/machine.slice/libpod-",
			program:  func(command []string) *exec.Cmd { return podman("/run/managed/state", nil, command) },
			workload: libpod,
		},
		{
			name: "podman of a user", cgroup: fmt.Sprintf("/user.slice/user-%[1]d.slice/user@%[1]d.service/user.slice/libpod-", managedUser),
			program: func(command []string) *exec.Cmd {
				return podman("/run/bob/state", []string{
					"setpriv", fmt.Sprint("--reuid=", managedUser), fmt.Sprint("--regid=", managedUser), "--clear-groups", "env", "HOME=/run/bob", "USER=bob",
					fmt.Sprint("XDG_RUNTIME_DIR=/run/user/", managedUser),
					fmt.Sprintf("DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/%d/bus", managedUser),
				}, command)
			},
			workload: libpod,
		},
		{
			name: "Docker, the driver systemd, a parent", cgroup: "/ci.slice/ci-jobs.slice/docker-",
			program: func(command []string) *exec.Cmd {
				return child.Command(context.Background(), "/usr/bin/docker", append([]string{
					"run", "--rm", "--name=job-7", "--cgroup-parent=ci-jobs.slice", "--network=none", "--security-opt=apparmor=unconfined",
					"--entrypoint=", "--volume=/usr:/usr:ro", "--volume=/etc/libibverbs.d:/etc/libibverbs.d:ro", "--volume=" + managedBin + ":/run/bin:ro",
					"--device=" + uverbs[0], guest.Image,
				}, command...)...)
			},
			workload: only("docker:job-7"),
		},
	} {
		t.Run(m.name, func(t *testing.T) { s.manages(t, &m, 3+i) })
	}
	s.stop()
}

// podman runs a container of podman, as another user with the program before it.
func podman(state string, before, command []string) *exec.Cmd {
	args := append(before, "podman", "--root="+state, "--storage-driver=vfs", "--runtime=runc", "--cgroup-manager=systemd",
		"--events-backend=file", "run", "--rm", "--network=host", "--volume=/usr:/usr:ro", "--volume="+managedBin+":/run/bin:ro",
		"--device="+uverbs[0], "--rootfs", managedRoot)
	args = append(args, command...)
	return child.Command(context.Background(), args[0], args[1:]...)
}

// manages compares the sensor with the cgroup of a container that holds this many queue pairs.
func (s *sensor) manages(t *testing.T, m *manager, qps int) {
	cmd := m.program([]string{"/run/bin/verbs", "-d", "rxe0", "-q", strconv.Itoa(qps)})
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	}()
	var cgroup string
	eventually(t, 2*time.Minute, func() (err error) { cgroup, err = cgroupOfVerbs(m.cgroup); return err })
	want := m.workload(cgroup)
	t.Logf("%s: %s", cgroup, want)
	eventually(t, 30*time.Second, func() error {
		all := s.scrape()
		if got := all.sum("container_rdma_resources", "workload", want, "type", "qp"); got != float64(qps) {
			return fmt.Errorf("%s has %v queue pairs, want %d: %v", want, got, qps, all.by("container_rdma_resources", "workload"))
		}
		return nil
	})
}

// cgroupOfVerbs returns the cgroup of the program verbs whose path has this part.
func cgroupOfVerbs(part string) (string, error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return "", err
	}
	var found []string
	for _, name := range names {
		if comm, err := os.ReadFile(name); err != nil || string(comm) != "verbs\n" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(filepath.Dir(name), "cgroup"))
		if err != nil {
			continue
		}
		_, path, _ := strings.Cut("\n"+string(text), "\n0::") // systemd-nspawn adds a hierarchy of version 1
		path, _, _ = strings.Cut(path, "\n")
		if strings.Contains(path, part) {
			return path, nil
		}
		found = append(found, path)
	}
	return "", errors.New("no program in " + part + ", but in " + strings.Join(found, " "))
}
