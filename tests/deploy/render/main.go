// SPDX-License-Identifier: Apache-2.0

// Command render prints an overlay of deploy/kubernetes as one JSON object, by KIND/NAME. It is for tests that cannot
// use the libraries of kustomize, such as those in the guest.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	deploy "github.com/accelscope/accelscope/tests/deploy"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: render REPOSITORY DIRECTORY [COMPONENT ...]")
	}
	objects, err := deploy.Kustomize(args[0], args[1], args[2:]...)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(objects)
}
