// SPDX-License-Identifier: Apache-2.0

// Package guides runs the commands of README.md, docs and deploy/README.md as they are printed, like a new user. An
// unlisted command, or output that differs from the printed output, is a failure. It also checks the links of all
// documents.
package guides

import (
	"fmt"
	"regexp"
	"strings"
)

// A block is a fenced block of commands (```sh), with the block of their output that may follow directly.
type block struct {
	line     int // line of the first command
	commands []string
	output   []string
}

// comment matches the comment after a command, which follows two spaces.
var comment = regexp.MustCompile(`\s{2,}#.*$`)

// blocks returns the blocks of a document, which may be indented, as in a list. A here-document belongs to its command.
func blocks(text string) ([]block, error) {
	var found []block
	fence, indent, here := "", "", "" // open elements: the language of a block, its indentation, a here-document
	open, after := false, false       // whether a block is open; whether only blank lines followed a block of commands
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimLeft(line, " ")
		if language, ok := strings.CutPrefix(trimmed, "```"); ok && here == "" {
			if open = !open; open {
				fence, indent = language, line[:len(line)-len(trimmed)]
				if fence == "sh" {
					found = append(found, block{line: i + 1})
				}
			} else {
				after = fence == "sh"
			}
			continue
		}
		if !open {
			after = after && trimmed == ""
			continue
		}
		line = strings.TrimPrefix(line, indent)
		var b *block
		if len(found) > 0 {
			b = &found[len(found)-1]
		}
		switch {
		case fence == "sh" && here != "":
			b.commands[len(b.commands)-1] += "\n" + line
			if line == here {
				here = ""
			}
		case fence == "sh" && strings.HasSuffix(line, "\\"):
			return nil, fmt.Errorf("line %d: put the command on one line", i+1)
		case fence == "sh" && line != "":
			b.commands = append(b.commands, comment.ReplaceAllString(line, ""))
			if _, end, ok := strings.Cut(line, "<<"); ok {
				here = strings.Trim(end, "'")
			}
		case fence == "" && after:
			b.output = append(b.output, line)
		}
	}
	if open {
		return nil, fmt.Errorf("a block is not closed")
	}
	return found, nil
}

// prints reports whether got contains the lines of want in order, perhaps with others between them; … in a line matches
// anything.
func prints(got string, want []string) error {
	lines := strings.Split(got, "\n")
	for _, w := range want {
		pattern := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(w), "…", ".*") + "$")
		for {
			if len(lines) == 0 {
				return fmt.Errorf("%q is not printed", w)
			}
			line := lines[0]
			lines = lines[1:]
			if pattern.MatchString(strings.TrimRight(line, " \r")) {
				break
			}
		}
	}
	return nil
}
