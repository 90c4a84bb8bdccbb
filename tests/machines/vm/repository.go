// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// repository is a view of the packages of a Debian suite, with its own apt sources, lists and caches in a temporary
// directory. The machine's own apt state stays unchanged.
type repository struct {
	dir string
}

// openRepository creates the repository of a suite in a new directory below parent and downloads its package lists:
// from this machine's mirror, or from Debian's archive if the mirror lacks the suite. Debian moves security updates
// there at another time. The caller closes the repository.
func openRepository(ctx context.Context, parent, suite string) (*repository, error) {
	sources, err := debianSources(suite)
	if err != nil {
		return nil, err
	}
	return openSources(ctx, parent, sources,
		map[string]string{"archive.sources": archive("debian", suite) + archive("debian-security", suite+"-security")},
		archivedRelease(sources, suite))
}

// openSources is openRepository with the apt sources, by file name, of places to be tried in turn.
func openSources(ctx context.Context, parent string, places ...map[string]string) (*repository, error) {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "download-")
	if err != nil {
		return nil, err
	}
	r := &repository{dir: dir}
	var failed error
	for _, sources := range places {
		err := r.update(ctx, sources)
		if err == nil {
			return r, nil
		}
		failed = errors.Join(failed, err)
	}
	r.close()
	return nil, failed
}

// archive returns the apt source of a suite that Debian has moved from its mirrors to the archive, where expired
// signatures are not renewed.
func archive(path, suite string) string {
	return "Types: deb\nURIs: http://archive.debian.org/" + path + "\nSuites: " + suite + "\nComponents: main\n" +
		"Check-Valid-Until: no\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"
}

// archivedRelease returns the sources of a suite whose release is in the archive while its security updates are still
// on the mirror.
func archivedRelease(sources map[string]string, suite string) map[string]string {
	all := map[string]string{"archive.sources": archive("debian", suite)}
	for file, text := range sources {
		var kept []string
		for entry := range strings.SplitSeq(text, separator(file)) {
			if words := strings.Fields(entry); slices.Contains(words, suite+"-security") && !slices.Contains(words, suite) {
				kept = append(kept, entry)
			}
		}
		if len(kept) > 0 {
			all[file] = strings.Join(kept, separator(file)) + "\n"
		}
	}
	return all
}

// close removes the directory of the repository and everything in it that was not moved elsewhere.
func (r *repository) close() { os.RemoveAll(r.dir) }

// update writes the apt sources, given by file name, and downloads the package lists.
func (r *repository) update(ctx context.Context, sources map[string]string) error {
	if err := os.RemoveAll(filepath.Join(r.dir, "parts")); err != nil { // of another place
		return err
	}
	for _, d := range []string{"parts", "lists/partial", "cache/archives/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(r.dir, d), 0o755); err != nil {
			return err
		}
	}
	for name, text := range sources {
		if err := os.WriteFile(filepath.Join(r.dir, "parts", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, "status"), nil, 0o644); err != nil {
		return err
	}
	// If a list cannot be downloaded now, its packages would seem to be gone from the mirror.
	_, err := r.apt(ctx, "apt-get", "update", "--error-on=any")
	return err
}

// apt runs a program of apt on the repository and returns its standard output.
func (r *repository) apt(ctx context.Context, name string, args ...string) (string, error) {
	return output(ctx, r.dir, name, append([]string{
		"-o", "Dir::Etc::sourcelist=/dev/null",
		"-o", "Dir::Etc::sourceparts=" + filepath.Join(r.dir, "parts"),
		"-o", "Dir::State::lists=" + filepath.Join(r.dir, "lists"),
		"-o", "Dir::State::status=" + filepath.Join(r.dir, "status"),
		"-o", "Dir::Cache=" + filepath.Join(r.dir, "cache"),
		"-o", "Acquire::Languages=none",
		"-o", "APT::Sandbox::User=root", // the unprivileged user cannot write below the cache
	}, args...)...)
}

// depends returns the names that match a pattern among a package and the packages it depends on.
func (r *repository) depends(ctx context.Context, of, pattern string) ([]string, error) {
	out, err := r.apt(ctx, "apt-cache", "depends", of)
	return regexp.MustCompile(pattern).FindAllString(out, -1), err
}

// installs is a line of `apt-get --simulate install`: "Inst libc6 (2.41-12+deb13u4 Debian:13.2/stable [amd64])".
var installs = regexp.MustCompile(`(?m)^Inst (\S+) `)

// closure returns the names of packages and of all packages that they depend on.
func (r *repository) closure(ctx context.Context, names []string) (all []string, err error) {
	out, err := r.apt(ctx, "apt-get", append([]string{"install", "--simulate", "--no-install-recommends"}, names...)...)
	for _, m := range installs.FindAllStringSubmatch(out, -1) {
		all = append(all, m[1])
	}
	return all, err
}

// unpack downloads packages and returns the directory that holds their files. close removes that directory.
func (r *repository) unpack(ctx context.Context, names []string) (root string, err error) {
	if _, err := r.apt(ctx, "apt-get", append([]string{"download"}, names...)...); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(r.dir, "*.deb"))
	if err != nil || len(debs) != len(names) {
		return "", fmt.Errorf("apt-get download %v left %d packages: %w", names, len(debs), err)
	}
	root = filepath.Join(r.dir, "root")
	for _, deb := range debs {
		if err := verify(deb); err != nil {
			return "", err
		}
		if _, err := output(ctx, r.dir, "dpkg-deb", "-x", deb, root); err != nil {
			return "", err
		}
	}
	return root, nil
}

// debianSources returns the apt sources of this machine's own Debian release, by file name, with another release's
// suites: same mirror, same keys.
func debianSources(suite string) (map[string]string, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return nil, err
	}
	m := regexp.MustCompile(`(?m)^VERSION_CODENAME="?([a-z]+)`).FindSubmatch(release)
	if m == nil {
		return nil, errors.New("/etc/os-release has no VERSION_CODENAME: the guest needs a Debian machine")
	}
	files, err := filepath.Glob("/etc/apt/sources.list.d/*")
	if err != nil {
		return nil, err
	}
	sources := make(map[string]string)
	for _, file := range append(files, "/etc/apt/sources.list") {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if kept := retarget(filepath.Base(file), string(text), string(m[1]), suite); kept != "" {
			sources[filepath.Base(file)] = kept
		}
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("apt has no Debian source for %s on this machine", m[1])
	}
	return sources, nil
}

// retarget returns the entries of an apt source file, of either format, for Debian's own suites of one release, changed
// to another release: the code name, alone or with -updates or -security.
func retarget(file, text, from, to string) string {
	sep := separator(file)
	if sep == "" {
		return ""
	}
	word := regexp.MustCompile(`\S+`)
	text = regexp.MustCompile(`(?m)^#.*\n?`).ReplaceAllString(text, "")
	var kept []string
	for entry := range strings.SplitSeq(text, sep) {
		entry = strings.TrimSpace(entry) + "\n"
		debian := false
		moved := word.ReplaceAllStringFunc(entry, func(w string) string {
			switch w {
			case from, from + "-updates", from + "-security":
				debian = true
				return to + strings.TrimPrefix(w, from)
			}
			return w
		})
		// The component identifies Debian: other distributors often use another component.
		main := slices.Contains(strings.Fields(entry), "main")
		if debian && main && !strings.HasPrefix(entry, "deb-src") {
			kept = append(kept, moved)
		}
	}
	return strings.Join(kept, "\n")
}

// separator returns the separator of the entries of an apt source file, or "" for other files.
func separator(file string) string {
	switch filepath.Ext(file) {
	case ".list":
		return "\n"
	case ".sources":
		return "\n\n"
	}
	return ""
}
