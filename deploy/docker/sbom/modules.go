// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/licensecheck"
	mod "golang.org/x/mod/module"
)

// A module is linked into a binary. Go's standard library is the module std.
type module struct{ Path, Version, Sum string }

const std = "stdlib"

// modules returns the modules of binaries that the same Go built from the same go.mod, each module once.
func modules(infos []*debug.BuildInfo) []module {
	list := []module{{Path: std, Version: strings.TrimPrefix(infos[0].GoVersion, "go")}}
	for _, info := range infos {
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			if one := (module{m.Path, m.Version, m.Sum}); !slices.Contains(list, one) {
				list = append(list, one)
			}
		}
	}
	return list
}

// A license is a text that a module brings.
type license struct {
	file, text string
	ids        []string // SPDX identifiers; empty for a notice, and for an unknown text
}

// A cache has the directories of modules and of Go.
type cache struct{ modules, goroot string }

func moduleCache() (cache, error) {
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output() //nolint:forbidigo // pkg/child is in another module
	if err != nil {
		return cache{}, fmt.Errorf("go env: %w", err)
	}
	v := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(v) != 2 {
		return cache{}, fmt.Errorf("go env: %q are not two directories", out)
	}
	return cache{v[0], v[1]}, nil
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// licenses reads the license texts at the root of a module. It returns nil if there are no texts.
func (c cache) licenses(m module) ([]license, error) {
	dir := c.goroot
	if m.Path != std {
		path, err := mod.EscapePath(m.Path)
		if err != nil {
			return nil, err
		}
		version, err := mod.EscapeVersion(m.Version)
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(c.modules, path+"@"+version)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []license
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenseFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, license{e.Name(), string(text), identify(text)})
	}
	return list, nil
}

// identify returns the SPDX identifiers of a text, or nil if less than three quarters of it are known.
func identify(text []byte) []string {
	cover := licensecheck.Scan(text)
	if cover.Percent < 75 {
		return nil
	}
	var ids []string
	for _, m := range cover.Match {
		if !m.IsURL && m.ID != "GooglePatentsFile" {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// expressionOf combines all licenses with AND: which files each license covers is unknown.
func expressionOf(texts []license) string {
	var ids []string
	for _, t := range texts {
		ids = append(ids, t.ids...)
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " AND ")
}

func writeNotice(w io.Writer, m module, texts []license) {
	for _, t := range texts {
		fmt.Fprintf(w, "%s\n%s %s: %s\n\n%s\n", strings.Repeat("=", 80), m.Path, m.Version, t.file, t.text)
	}
}
