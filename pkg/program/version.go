// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is the version and the revision that a program was built from.
type Version struct{ Number, Revision string }

// VersionOf returns the version of the program. linked is the number that the linker has set, "" in other builds than a release.
func VersionOf(linked string) Version {
	v := Version{linked, "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Number == "" {
		v.Number = info.Main.Version
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	v.Revision += dirty
	return v
}

// String is what accelscope version and --version print.
func (v Version) String() string {
	return fmt.Sprintf("accelscope %s (revision %s, %s, %s/%s)", v.Number, v.Revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
