// SPDX-License-Identifier: Apache-2.0

package guides

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

var (
	// link matches the target of an inline link or image: [text](target).
	link = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	// codeSpan matches text between single backticks, which contains no links.
	codeSpan = regexp.MustCompile("`[^`]*`")
	// heading matches a line that begins a section.
	heading = regexp.MustCompile(`^#{1,6} +(.*?) *#*$`)
	// linked matches a link in a heading. Only its text is part of the anchor.
	linked = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// prose returns the lines of a document, with empty lines for code blocks.
func prose(text string) []string {
	lines := strings.Split(text, "\n")
	fenced := false
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			lines[i] = ""
		} else if fenced {
			lines[i] = ""
		}
	}
	return lines
}

// anchors returns the anchors of a document's sections in GitHub's format.
func anchors(text string) map[string]bool {
	found, count := map[string]bool{}, map[string]int{}
	for _, line := range prose(text) {
		m := heading.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		var name strings.Builder
		for _, r := range strings.ToLower(linked.ReplaceAllString(m[1], "$1")) {
			switch {
			case r == ' ':
				name.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				name.WriteRune(r)
			}
		}
		anchor := name.String()
		if n := count[anchor]; n > 0 {
			found[fmt.Sprintf("%s-%d", anchor, n)] = true
		} else {
			found[anchor] = true
		}
		count[anchor]++
	}
	return found
}

// brokenLinks returns an error for each relative link of the document whose target does not exist, is outside of root,
// or is a section that the linked document lacks.
func brokenLinks(root, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var errs []error
	for i, line := range prose(string(text)) {
		for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			if err := follows(root, path, m[1]); err != nil {
				errs = append(errs, fmt.Errorf("%s:%d: %s: %w", path, i+1, m[1], err))
			}
		}
	}
	return errors.Join(errs...)
}

func follows(root, path, target string) error {
	file, anchor, _ := strings.Cut(target, "#")
	to := path
	if file != "" {
		to = filepath.Join(filepath.Dir(path), file)
	}
	if inside, err := filepath.Rel(root, to); err != nil || !filepath.IsLocal(inside) {
		return errors.New("leads out of the repository")
	}
	info, err := os.Stat(to)
	if err != nil || anchor == "" {
		return err
	}
	if info.IsDir() || filepath.Ext(to) != ".md" {
		return errors.New("only documents have sections")
	}
	text, err := os.ReadFile(to)
	if err != nil {
		return err
	}
	if !anchors(string(text))[anchor] {
		return errors.New("there is no such section")
	}
	return nil
}

// allDocuments returns the Markdown files of the repository, without generated files.
func allDocuments(root string) (files []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin"):
			return filepath.SkipDir
		case !d.IsDir() && filepath.Ext(path) == ".md":
			files = append(files, path)
		}
		return nil
	})
	return files, err
}
