// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// deviceFaults are the faults of HCAs and their driver. rxe cannot take a device from its users: before they end, its
// deletion would not return.
func (k *soak) deviceFaults() []fault {
	return []fault{
		{
			"rxe delete and add",
			[]string{"rdma"},
			func() error {
				k.load.permit(false)
				return k.command("rdma", "link", "delete", "rxe1")
			},
			func() error {
				defer k.load.permit(true)
				return k.command("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "v1")
			},
		},
		{"driver reload", []string{"rdma"}, k.unloadDriver, k.loadDriver},
	}
}

func (k *soak) unloadDriver() error {
	k.load.permit(false)
	for _, device := range []string{"rxe0", "rxe1"} {
		if err := k.command("rdma", "link", "delete", device); err != nil {
			return err
		}
	}
	unload(k.t)
	return nil
}

func (k *soak) loadDriver() error {
	defer k.load.permit(true)
	for _, m := range []string{"rdma_rxe", "ib_uverbs", "rdma_ucm", "ib_umad"} {
		if err := k.command("modprobe", m); err != nil {
			return err
		}
	}
	for i := range 2 {
		if err := k.command("rdma", "link", "add", fmt.Sprint("rxe", i), "type", "rxe", "netdev", fmt.Sprint("v", i)); err != nil {
			return err
		}
	}
	return nil
}

// command runs a program. Faults do not run on the test's goroutine, which alone may end the test.
func (k *soak) command(name string, args ...string) error {
	if out, err := child.Command(k.ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}
