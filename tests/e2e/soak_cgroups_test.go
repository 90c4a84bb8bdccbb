// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/silent"
)

// tenantFaults are what containers and users of the node can do.
func (k *soak) tenantFaults() []fault {
	var answers []func()
	var hostile []*cell
	return []fault{
		{
			// A statfs of NFS with a dead server is in uninterruptible sleep, too.
			"hung mounts (FUSE)", nil,
			func() error {
				for range 4 {
					_, answer := silent.Mount(k.t)
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
		},
		k.repeated("cgroup storm", nil, cgroupStorm),
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

// hostileNames are names of cgroups that a format could misread, or that imitate those of runtimes. The kernel refuses
// line breaks.
var hostileNames = []string{
	`evil"} 1`, `back\slash`, "\xff\xfe\xfd", strings.Repeat("a", 255), "tab\tand\x01", "..data", "${HOME}", "%s%n",
	"docker-" + digest("hostile") + ".scope", digest("hostile too"), digest("hostile three")[:63], "# HELP x",
}

// cgroupStorm makes 500 cgroups below a container, and then 100 per second that are removed at once.
func cgroupStorm(ctx context.Context) (err error) {
	dir := filepath.Join(cgroupRoot(), "kubepods", "pod"+digest("storm")[:32], digest("container of the storm"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var made []string
	defer func() {
		for _, name := range append(made, dir, filepath.Dir(dir)) {
			err = errors.Join(err, syscall.Rmdir(name))
		}
	}()
	for i := 0; ctx.Err() == nil; i++ {
		name := filepath.Join(dir, fmt.Sprint("storm-", i))
		if err := syscall.Mkdir(name, 0o755); err != nil {
			return err
		}
		if len(made) < 500 {
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
