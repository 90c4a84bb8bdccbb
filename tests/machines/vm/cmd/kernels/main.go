// SPDX-License-Identifier: Apache-2.0

// Command kernels raises the pinned kernels of the guests to the newest that Debian has: `make raise-kernels`. It runs in the root of
// the repository.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/accelscope/accelscope/tests/machines/vm"
)

func main() {
	if err := raise(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func raise(ctx context.Context) error {
	text, changes, err := vm.Raised(ctx)
	if err != nil {
		return err
	}
	for _, change := range changes {
		fmt.Println(change)
	}
	return os.WriteFile(vm.PinsFile, []byte(text), 0o644)
}
