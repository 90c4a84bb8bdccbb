// SPDX-License-Identifier: Apache-2.0

package boundedfile

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Skipped are the lines of a file that its parser cannot read. They do not affect the other lines.
type Skipped struct {
	Lines int
	first string // quoted
}

// Add adds a line.
func (s *Skipped) Add(line []byte) {
	if s.Lines++; s.Lines == 1 {
		s.first = fmt.Sprintf("%.80q", strings.TrimSuffix(string(line[:min(len(line), 320)]), "\n"))
	}
}

// String quotes the first line.
func (s *Skipped) String() string {
	if s.Lines == 1 {
		return "the line " + s.first + " cannot be parsed and is left out"
	}
	return fmt.Sprintf("%d lines cannot be parsed and are left out, the first is %s", s.Lines, s.first)
}

// SkippedFiles are the skipped lines of one read of files, by the name of the file.
type SkippedFiles map[string]*Skipped

// In returns the lines of a file, to which its parser adds. The file is counted even without skipped lines.
func (f *SkippedFiles) In(file string) *Skipped {
	if *f == nil {
		*f = SkippedFiles{}
	}
	s := (*f)[file]
	if s == nil {
		s = &Skipped{}
		(*f)[file] = s
	}
	return s
}

// Add adds the skipped lines of another file of a name.
func (f *SkippedFiles) Add(file string, s Skipped) {
	to := f.In(file)
	if to.Lines == 0 {
		to.first = s.first
	}
	to.Lines += s.Lines
}

// Merge adds the lines that another reader skipped.
func (f *SkippedFiles) Merge(o SkippedFiles) {
	for file, s := range o {
		f.Add(file, *s)
	}
}

// String quotes the first skipped line of each file, or returns "".
func (f SkippedFiles) String() string {
	var parts []string
	for file, s := range f {
		if s.Lines > 0 {
			parts = append(parts, file+": "+s.String())
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

// SkippedCount counts skipped lines since it was made. A line that stays in its file is counted once: a read adds only
// the lines in excess of the last read.
type SkippedCount struct {
	files map[string]*skippedCount
}

type skippedCount struct {
	total uint64
	last  int
}

// Count adds the lines of one read of files. A file that was not read is not counted.
func (c *SkippedCount) Count(files SkippedFiles) {
	if c.files == nil {
		c.files = map[string]*skippedCount{}
	}
	for file, s := range files {
		to := c.files[file]
		if to == nil {
			to = &skippedCount{}
			c.files[file] = to
		}
		to.total += uint64(max(0, s.Lines-to.last))
		to.last = s.Lines
	}
}

// All returns the counts of the files that were read.
func (c *SkippedCount) All() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for file, n := range c.files {
			if !yield(file, n.total) {
				return
			}
		}
	}
}
