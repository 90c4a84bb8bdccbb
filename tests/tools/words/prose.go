// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"
)

// part is text that people read, and the line of the file that it begins in.
type part struct {
	line int
	text string
}

var (
	hashSuffixes = []string{".sh", ".yaml", ".yml", ".mk", ".conf", ".service", ".j2"}
	shebang      = regexp.MustCompile(`^#!.*sh\b`)
)

// prose returns what is checked of a file, by its kind: the whole text of Markdown, comments and help of others.
func prose(file string, src []byte) ([]part, error) {
	name, suffix := path.Base(file), path.Ext(file)
	switch {
	case suffix == ".go":
		return goProse(file, src)
	case suffix == ".c", suffix == ".h":
		return cComments(src), nil
	case suffix == ".md":
		return []part{{1, string(src)}}, nil
	case name == "Makefile", name == "Dockerfile", slices.Contains(hashSuffixes, suffix), suffix == "" && shebang.Match(src):
		return hashComments(src), nil
	}
	return nil, nil
}

// cComments returns the comments of a C file. The branches of the expression are tried in this order, so that what looks
// like a comment in a literal is part of the literal.
func cComments(src []byte) []part {
	var parts []part
	for _, m := range cTokens.FindAllIndex(src, -1) {
		if src[m[0]] == '/' {
			parts = append(parts, part{1 + bytes.Count(src[:m[0]], []byte("\n")), string(src[m[0]:m[1]])})
		}
	}
	return parts
}

var cTokens = regexp.MustCompile(`"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|//[^\n]*|(?s:/\*.*?\*/)`)

// hashComments returns the comments that begin with # at the begin of a line or after a space, outside quotes.
func hashComments(src []byte) []part {
	var parts []part
	for i, line := range strings.Split(string(src), "\n") {
		if c := comment(line); c != "" {
			parts = append(parts, part{i + 1, c})
		}
	}
	return parts
}

// comment returns the comment of a line. A quote within a word is an apostrophe.
func comment(line string) string {
	var quote, before byte = 0, ' '
	for i := range len(line) {
		c := line[i]
		space := before == ' ' || before == '\t'
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '#' && space:
			return line[i:]
		case c == '"', c == '\'' && strings.IndexByte(" \t=:([{,$-", before) >= 0:
			if strings.IndexByte(line[i+1:], c) >= 0 {
				quote = c
			}
		}
		before = c
	}
	return ""
}
