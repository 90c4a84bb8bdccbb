// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// remembered is how long a stage that passed is not run again: what it reads from the outside, such as Debian's
// archive, is no input.
const remembered = 7 * 24 * time.Hour

// memory is a directory with a file for each stage that passed, named after the stage and a checksum of its inputs. The
// zero value remembers nothing.
type memory struct{ dir string }

func (m memory) path(stage, sum string) string { return filepath.Join(m.dir, stage+"-"+sum) }

// passed returns when a stage passed with these inputs.
func (m memory) passed(stage, sum string) (time.Time, bool) {
	info, err := os.Stat(m.path(stage, sum))
	if m.dir == "" || sum == "" || err != nil || time.Since(info.ModTime()) > remembered {
		return time.Time{}, false
	}
	return info.ModTime(), true
}

// keep remembers whether a stage passed with these inputs, and forgets what is too old.
func (m memory) keep(stage, sum string, passed bool) error {
	if m.dir == "" || sum == "" {
		return nil
	}
	kept, _ := os.ReadDir(m.dir)
	for _, file := range kept {
		if info, err := file.Info(); err == nil && time.Since(info.ModTime()) > remembered {
			_ = os.Remove(filepath.Join(m.dir, file.Name()))
		}
	}
	_ = os.Remove(m.path(stage, sum))
	if !passed {
		return nil
	}
	return cmp.Or(os.MkdirAll(m.dir, 0o755), os.WriteFile(m.path(stage, sum), nil, 0o644))
}

// inputs returns a checksum of what a stage depends on: the files that it reads, committed or not, with their names and
// modes, and the machine. It returns "" if git cannot list the files.
func inputs(ctx context.Context, stage, machine string) string {
	list, err := child.Command(ctx, "git", "ls-files", "-coz", "--exclude-standard").Output()
	if err != nil {
		return ""
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%q\n", machine)
	paths := slices.Sorted(strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00"))
	for _, path := range paths {
		if !reads(stage, path) {
			continue
		}
		info, err := os.Lstat(path)
		if err != nil { // deleted, not committed
			continue
		}
		text, err := content(path, info)
		if err != nil {
			return ""
		}
		fmt.Fprintf(sum, "%q %v %d\n", path, info.Mode(), len(text))
		_, _ = io.WriteString(sum, text)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:16])
}

func content(path string, info os.FileInfo) (string, error) {
	if info.Mode()&os.ModeSymlink != 0 {
		return os.Readlink(path)
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// machine describes what stages depend on beside the project: kernel, Go, settings, Debian packages, and the tags of
// git, which give packages their version.
func machine(ctx context.Context) (string, error) {
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return "", err
	}
	all := []string{unix.ByteSliceToString(kernel.Release[:]), unix.ByteSliceToString(kernel.Version[:])}
	for _, command := range [][]string{
		{"go", "version"},
		{"go", "env", "-changed"},
		{"dpkg-query", "-W", "-f", "${Package} ${Architecture} ${Version} ${Status}\n"},
		{"git", "tag"},
	} {
		text, err := child.Command(ctx, command[0], command[1:]...).Output()
		if err != nil {
			return "", fmt.Errorf("%v: %w", command, err)
		}
		all = append(all, string(text))
	}
	all = append(all, settings(os.Environ())...)
	slices.Sort(all)
	return strings.Join(all, "\n"), nil
}

var (
	matched = regexp.MustCompile(`^(ACCELSCOPE_|BPF2GO_|CGO_|GO|ROLE$)`)
	chosen  = regexp.MustCompile(`^(ALL|FIRST|IDLE|SPARE)=`) // which stages run
)

// settings returns the environment variables that change what a stage does.
func settings(environ []string) (set []string) {
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case name == "MAKEFLAGS": // with the variables of the command line, such as GUESTS=2
			for flag := range strings.FieldsSeq(value) {
				if !chosen.MatchString(flag) && !strings.HasPrefix(flag, "-") {
					set = append(set, flag)
				}
			}
		case matched.MatchString(name):
			set = append(set, v)
		}
	}
	return set
}
