// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// minWorkload is the minimum width of the first column.
const minWorkload = 12

// A screen draws tables: over the previous one on a terminal, below it otherwise. The last
// table stays when the program ends.
type screen struct {
	out   io.Writer
	size  func() (columns, lines int) // zero: unlimited
	title string                      // empty when not on a terminal
	drawn bool
}

func newScreen(out io.Writer, plain bool, title string) *screen {
	s := &screen{out: out, size: func() (int, int) { return 0, 0 }}
	f, ok := out.(interface{ Fd() uintptr })
	if !ok {
		return s
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return s
	}
	s.size = func() (int, int) {
		w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return 0, 0
		}
		return int(w.Col), int(w.Row)
	}
	if !plain {
		s.title = title
	}
	return s
}

// draw draws the tables of HCAs, of stalled queue pairs and of GPUs that have rows, one below the other.
func (s *screen) draw(hcas, stalled, gpus [][]string) error {
	columns, height := s.size()
	var lines []string
	for _, t := range []struct {
		header []string
		rows   [][]string
	}{{header, hcas}, {stalledHeader, stalled}, {gpuHeader, gpus}} {
		switch {
		case len(t.rows) == 0:
			continue
		case len(lines) > 0:
			lines = append(lines, "")
		}
		lines = append(lines, table(t.header, t.rows, columns)...)
	}
	if len(lines) == 0 {
		lines = []string{"no workload uses an HCA or a GPU"}
	}
	if s.title == "" {
		return s.print(lines)
	}
	lines = append([]string{truncate(s.title, columns), ""}, lines...)
	if height > 1 && len(lines) >= height {
		more := len(lines) - height + 2
		lines = append(lines[:height-2], fmt.Sprintf("… %d more", more))
	}
	// Cursor home, clear each line to its end, and clear below: no flicker.
	text := "\x1b[H" + strings.Join(lines, "\x1b[K\n") + "\x1b[K\n\x1b[J"
	if !s.drawn {
		text = "\x1b[H\x1b[2J" + strings.Join(lines, "\n") + "\n"
	}
	s.drawn = true
	_, err := io.WriteString(s.out, text)
	return err
}

// print adds a table below the last one.
func (s *screen) print(lines []string) error {
	text := strings.Join(lines, "\n") + "\n"
	if s.drawn {
		text = "\n" + text
	}
	s.drawn = true
	_, err := io.WriteString(s.out, text)
	return err
}

// message prints one line below the table.
func (s *screen) message(text string) error {
	if s.title != "" {
		columns, _ := s.size()
		text = "\r" + truncate(text, columns) + "\x1b[K\r"
	} else {
		text += "\n"
	}
	_, err := io.WriteString(s.out, text)
	return err
}

// table aligns rows below the header, text to the left and numbers to the right. If they are
// too wide it truncates the workloads.
func table(header []string, rows [][]string, columns int) []string {
	rows = append([][]string{header}, rows...)
	width := make([]int, len(header))
	total := 2 * (len(header) - 1)
	for i := range header {
		for _, r := range rows {
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
		}
		total += width[i]
	}
	if columns > 0 && total > columns {
		width[0] = max(minWorkload, width[0]-(total-columns))
	}
	lines := make([]string, len(rows))
	for i, r := range rows {
		var b strings.Builder
		fmt.Fprintf(&b, "%-*s  %-*s", width[0], truncate(r[0], width[0]), width[1], r[1])
		for c := 2; c < len(r); c++ {
			fmt.Fprintf(&b, "  %*s", width[c], r[c])
		}
		lines[i] = truncate(b.String(), columns)
	}
	return lines
}

// truncate cuts s to n characters, the last one an ellipsis. Zero means unlimited.
func truncate(s string, n int) string {
	if n <= 0 || utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// escape makes a foreign name safe for a terminal: control and invisible characters are
// escaped.
func escape(s string) string {
	var b strings.Builder
	for i, r := range s {
		_, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r < utf8.RuneSelf && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
