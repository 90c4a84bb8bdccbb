// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// allowed are the licenses of modules that may be linked into the binary, which is under Apache-2.0. CC-BY-SA-4.0 is for the
// documentation of a module.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-SA-4.0", "ISC", "MIT", "MPL-2.0"}

// checkLicense returns an error unless a module has a known license and all its licenses are allowed.
func checkLicense(m module, texts []license) error {
	expression := expressionOf(texts)
	if expression == "" {
		return fmt.Errorf("%s %s: no known license", m.Path, m.Version)
	}
	for id := range strings.SplitSeq(expression, " AND ") {
		if !slices.Contains(allowed, id) {
			return fmt.Errorf("%s %s: the license %s is not among the allowed ones: %s", m.Path, m.Version, id, strings.Join(allowed, ", "))
		}
	}
	return nil
}
