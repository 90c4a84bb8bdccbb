// SPDX-License-Identifier: Apache-2.0

// Package mountinfo parses /proc/PID/mountinfo.
package mountinfo

import "strings"

// A Mount is a line of mountinfo:
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
type Mount struct {
	ID           string
	Major, Minor string // of the device
	Root         string // the mounted directory of the file system
	Point        string // mount point below the process's root
	Options      string // of the mount
	Type, Source string
	SuperOptions string // of the file system, with the kernel's escapes
}

// Parse parses a line. It returns false if the line is malformed.
func Parse(line string) (Mount, bool) {
	before, after, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
	own, super := strings.Split(before, " "), strings.SplitN(after, " ", 3) // a source may be empty
	if len(own) < 6 || len(super) < 3 {
		return Mount{}, false
	}
	major, minor, ok := strings.Cut(own[2], ":")
	return Mount{
		ID: own[0], Major: major, Minor: minor, Root: Unescape(own[3]), Point: Unescape(own[4]), Options: own[5],
		Type: Unescape(super[0]), Source: Unescape(super[1]), SuperOptions: super[2],
	}, ok
}

// Unescape replaces the kernel's escapes, a backslash and three octal digits: \040, \011, \012, \134, and in a source
// \043.
func Unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if c, ok := octal(s[i:]); ok {
			out = append(out, c)
			i += 3
		} else {
			out = append(out, s[i])
		}
	}
	return string(out)
}

func octal(s string) (byte, bool) {
	if len(s) < 4 || s[0] != '\\' || s[1] > '3' {
		return 0, false
	}
	c := byte(0)
	for _, digit := range []byte(s[1:4]) {
		if digit < '0' || digit > '7' {
			return 0, false
		}
		c = c<<3 | (digit - '0')
	}
	return c, true
}
