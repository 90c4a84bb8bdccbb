// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/silent"
)

// tenantFaults are what containers and users of the node can do.
func (k *soak) tenantFaults() []fault {
	var hostile []*cell
	return []fault{
		k.hungMounts("hung mounts (FUSE)", 4, "silent"),
		// More than the calls that may hang at once.
		k.hungMounts("hung mounts of one server", 20, "192.0.2.1:/export"),
		k.repeated("cgroup storm in a container", nil, func(ctx context.Context) error {
			return cgroupStorm(ctx, "kubepods", "pod"+digest("storm")[:32], digest("container of the storm"))
		}),
		k.repeated("cgroup storm of a user", nil, func(ctx context.Context) error {
			return cgroupStorm(ctx, "user.slice", "user-4711.slice", "user@4711.service", "app.slice")
		}),
		{
			"hostile names", nil,
			func() error {
				for _, name := range hostileNames {
					c, err := k.load.newCellAt(filepath.Join(cgroupRoot(), "kubepods", name), "sleep", "1000000")
					if err != nil {
						return err
					}
					hostile = append(hostile, c)
				}
				return nil
			},
			func() error {
				for _, c := range hostile {
					c.end()
				}
				hostile = nil
				return nil
			},
		},
	}
}

// hostileNames are names of cgroups that a format could misread, or that imitate runtimes' names. The kernel refuses
// line breaks.
var hostileNames = []string{
	`evil"} 1`, `back\slash`, "\xff\xfe\xfd", strings.Repeat("a", 255), "tab\tand\x01", "..data", "${HOME}", "%s%n",
	"docker-" + digest("hostile") + ".scope", digest("hostile too"), digest("hostile three")[:63], "# HELP x",
}

// hungMounts returns a fault that mounts file systems without an answer from one source. A statfs of NFS with a dead
// server is in uninterruptible sleep, too.
func (k *soak) hungMounts(name string, n int, source string) fault {
	var answers []func()
	return fault{
		name, nil,
		func() error {
			for range n {
				_, answer := silent.Mount(k.t, source)
				answers = append(answers, answer)
			}
			return nil
		},
		func() error {
			for _, answer := range answers {
				answer()
			}
			answers = nil
			return nil
		},
	}
}

// cgroupStorm makes 500 cgroups in the last of some nested cgroups, and then 100 per second that are removed at once.
func cgroupStorm(ctx context.Context, nested ...string) (err error) {
	dir := cgroupRoot()
	var made []string
	defer func() {
		for _, name := range slices.Backward(made) {
			err = errors.Join(err, syscall.Rmdir(name))
		}
	}()
	for _, name := range nested {
		dir = filepath.Join(dir, name)
		if err := syscall.Mkdir(dir, 0o755); err == nil {
			made = append(made, dir)
		} else if err != syscall.EEXIST {
			return err
		}
	}
	for i := 0; ctx.Err() == nil; i++ {
		name := filepath.Join(dir, fmt.Sprint("storm-", i))
		if err := syscall.Mkdir(name, 0o755); err != nil {
			return err
		}
		if i < 500 {
			made = append(made, name)
			continue
		}
		if err := syscall.Rmdir(name); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}
