// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"io"
	"strings"
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
	rates string                      // after the title: the interval of the rates
	color bool
	drawn bool
}

// A line is drawn in a color, an escape sequence (SGR) without its frame; empty: none.
type line struct{ text, color string }

const bold = "1"

func newScreen(out io.Writer, plain, color bool, title string) *screen {
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
		s.title, s.color = title, color
	}
	return s
}

// paint cuts a line to a number of characters and colors it.
func (s *screen) paint(l line, columns int) string {
	text := truncate(l.text, columns)
	if !s.color || l.color == "" {
		return text
	}
	return "\x1b[" + l.color + "m" + text + "\x1b[0m"
}

// draw draws verdicts and the tables that have rows, one below the other.
func (s *screen) draw(verdicts []line, tables ...grid) error {
	columns, height := s.size()
	drawn := append([]line{}, verdicts...)
	for _, t := range tables {
		if len(t.rows) == 0 {
			continue
		}
		if len(drawn) > 0 {
			drawn = append(drawn, line{})
		}
		for i, text := range table(t.header, t.rows, columns) {
			one := line{text: text}
			if i == 0 {
				one.color = bold
			}
			drawn = append(drawn, one)
		}
	}
	if s.title != "" {
		drawn = append([]line{{text: s.title + s.rates}, {}}, drawn...)
		if height > 1 && len(drawn) >= height {
			more := len(drawn) - height + 2
			drawn = append(drawn[:height-2], line{text: fmt.Sprintf("… %d more", more)})
		}
	}
	lines := make([]string, len(drawn))
	for i, l := range drawn {
		lines[i] = s.paint(l, columns)
	}
	if s.title == "" {
		return s.print(lines)
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
