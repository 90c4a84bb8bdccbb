// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/machines/cgroup"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const cgroups = "/sys/fs/cgroup"

// containerSite makes n containers like a kubelet without a container runtime: cgroups of this machine with a sleeping
// process each. Fake cgroups would do for the sensor, but not for cAdvisor.
func containerSite(ctx context.Context, dir string, n int, use []exporter) (s site, err error) {
	hierarchies, err := hierarchies()
	if err != nil {
		return s, err
	}
	s.Manifest, err = fixtures.Write(filepath.Join(dir, "names"), fixtures.Options{Containers: n, ContainersPerPod: containersPerPod, Seed: 1})
	if err != nil {
		return s, err
	}
	for _, h := range hierarchies {
		if _, err := os.Stat(filepath.Join(h, "kubepods.slice")); !errors.Is(err, fs.ErrNotExist) {
			return s, fmt.Errorf("this machine has pods of its own, below %s: %w", h, err)
		}
	}
	var stops []func()
	s.remove = func() {
		for _, stop := range stops {
			stop()
		}
		for _, h := range hierarchies {
			if err := cgroup.Remove(filepath.Join(h, "kubepods.slice")); err != nil {
				progress("%v", err)
			}
		}
	}
	for _, c := range s.Containers {
		cmd := child.Command(ctx, "sleep", "infinity")
		if err := cmd.Start(); err != nil {
			return s, err
		}
		stops = append(stops, func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		for _, h := range hierarchies {
			if err := enterCgroup(h, c.Cgroup, cmd.Process.Pid); err != nil {
				return s, err
			}
		}
		s.shown = append(s.shown, c.ID)
	}
	for _, e := range use {
		if e.name == accelscope {
			e.args = func(_ fixtures.Manifest, addr string) []string {
				return []string{
					"--web.listen-address=" + addr, "--container.scope=all", "--no-collector.rdma", "--no-collector.probe", "--no-collector.gpu",
					"--no-collector.access", "--no-collector.node", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.kernellog",
				}
			}
		}
		s.use = append(s.use, e)
	}
	return s, nil
}

// hierarchies are the cgroup hierarchies that count: version 2's, or all of version 1 except cpuset, whose new groups a
// process cannot enter without more settings.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		return []string{cgroups}, nil
	}
	entries, err := os.ReadDir(cgroups)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() && !strings.Contains(e.Name(), "cpuset") { // links are other names of a hierarchy
			all = append(all, filepath.Join(cgroups, e.Name()))
		}
	}
	return all, nil
}

// enterCgroup moves a process into a new cgroup of a hierarchy. In version 2 all cgroups above share their controllers.
func enterCgroup(hierarchy, name string, pid int) error {
	dir := filepath.Join(hierarchy, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if hierarchy == cgroups {
		for above := hierarchy; above != dir; {
			if err := os.WriteFile(filepath.Join(above, "cgroup.subtree_control"), []byte("+cpu +memory +io +pids"), 0); err != nil {
				return err
			}
			next, _, _ := strings.Cut(strings.TrimPrefix(dir, above+"/"), "/")
			above = filepath.Join(above, next)
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}
