// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRetarget(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"stanzas": {
			"debian.sources",
			"# the mirror\nTypes: deb deb-src\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates\nComponents: main\n\n" +
				"Types: deb\nURIs: http://mirror/security\nSuites: bookworm-security\nComponents: main contrib\n",
			"Types: deb deb-src\nURIs: http://mirror/debian\nSuites: trixie trixie-updates\nComponents: main\n\n" +
				"Types: deb\nURIs: http://mirror/security\nSuites: trixie-security\nComponents: main contrib\n",
		},
		"lines": {
			"sources.list",
			"deb [signed-by=/k.gpg] http://mirror/debian bookworm main\ndeb-src http://mirror/debian bookworm main\n" +
				"# deb http://mirror/debian bookworm-updates main\n",
			"deb [signed-by=/k.gpg] http://mirror/debian trixie main\n",
		},
		"other component":  {"engine.list", "deb http://other bookworm stable\n", ""},
		"other suite":      {"pg.list", "deb http://other bookworm-pgdg main\n", ""},
		"name in the host": {"x.list", "deb http://bookworm.example/debian sid main\n", ""},
		"disabled file":    {"debian.sources.off", "Types: deb\nSuites: bookworm\nComponents: main\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, retarget(c.file, c.text, "bookworm", "trixie")); diff != "" {
				t.Error(diff)
			}
			// The machine's own release is kept, by the same rule.
			own := strings.ReplaceAll(c.want, "trixie", "bookworm")
			if diff := cmp.Diff(own, retarget(c.file, c.text, "bookworm", "bookworm")); diff != "" {
				t.Error(diff)
			}
		})
	}
}
