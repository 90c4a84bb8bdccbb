// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/accelscope/accelscope/tests/machines/cgroup"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// enter runs a test of this program again, in the first process of a node: init.sh has the namespaces. Its processes end with it.
// dir is on a real file system.
func enter(ctx context.Context, test, dir string, env ...string) (err error) {
	cgroups, err := makeCgroups(filepath.Base(dir))
	defer func() {
		for _, c := range cgroups {
			err = errors.Join(err, cgroup.Remove(c))
		}
	}()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroups"), []byte(strings.Join(cgroups, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"--mount", "--pid", "--uts", "--ipc", "--net", "--fork", "--kill-child", filepath.Join(here(), "init.sh"), dir, self}
	pattern := "^" + test + "$"
	if asked := flag.Lookup("test.run").Value.String(); strings.HasPrefix(asked, test) {
		pattern = asked // which may select parts of the test
	}
	args = append(append(args, os.Args[1:]...), "-test.run="+pattern)
	cmd := child.Command(ctx, "unshare", args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// makeCgroups makes a cgroup below this process's cgroup in each hierarchy.
func makeCgroups(name string) (dirs []string, err error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	v1 := false
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		mount := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(fields[1], "name="))
		if fields[1] == "" {
			mount = cgroup.V2()
		}
		v1 = v1 || fields[1] == "memory"
		parent := filepath.Join(mount, fields[2])
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return dirs, err
		}
		dirs = append(dirs, dir)
		if fields[1] != "cpuset" {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // a new one has none
			value, err := os.ReadFile(filepath.Join(parent, file))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, file), value, 0o644)
			}
			if err != nil {
				return dirs, err
			}
		}
	}
	if !v1 {
		return dirs, fmt.Errorf("the controllers are not in hierarchies of cgroup v1: %s", text)
	}
	return dirs, nil
}
