// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The maximum length of a label and a path in bytes. The creator of a cgroup chooses its name: up to 255 bytes, any
// byte except '/', NUL and newline.
const (
	maxLabel = 253
	maxPath  = 1024
)

// clean makes s valid as a label. Like systemd, it writes bytes that are not printable UTF-8 as \xNN (boundedfile.Line
// would drop them). The end of a long string becomes a hash of the whole, so that different names stay different.
func clean(s string, limit int) string {
	if len(s) <= limit && plain(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s) && b.Len() <= limit; {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || !unicode.IsPrint(r) {
			for _, c := range []byte(s[i : i+n]) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		} else {
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	out := b.String()
	if len(out) <= limit {
		return out
	}
	sum := sha256.Sum256([]byte(s))
	tail := "~" + hex.EncodeToString(sum[:8])
	cut := limit - len(tail)
	for !utf8.RuneStart(out[cut]) {
		cut--
	}
	return out[:cut] + tail
}

func plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
