// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
)

// maxEvidence is the length of a piece of evidence, in bytes: reasons and names may be long.
const maxEvidence = 240

// shorten cuts a text to maxEvidence, and makes it valid UTF-8.
func shorten(s string) string {
	if len(s) > maxEvidence {
		s = s[:maxEvidence] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// grewIn formats the growth of a counter: "link_downed +3 in 1h".
func grewIn(name string, growth uint64, window time.Duration) string {
	return name + " +" + strconv.FormatUint(growth, 10) + " in " + format.Span(window)
}
