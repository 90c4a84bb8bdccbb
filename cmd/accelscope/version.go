// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// version is set by the linker in a release: -X main.version=v1.2.3.
var version string

type versionCmd struct{}

func (versionCmd) run(stdout io.Writer) error {
	_, err := fmt.Fprintln(stdout, versionLine())
	return err
}

// versionLine is what accelscope version and --version print.
func versionLine() string {
	v, revision := buildVersion()
	return fmt.Sprintf("accelscope %s (revision %s, %s, %s/%s)", v, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// buildVersion returns the version and the revision that the program was built from.
func buildVersion() (v, revision string) {
	v, revision = version, "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v, revision
	}
	if v == "" {
		v = info.Main.Version
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	return v, revision + dirty
}
