// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// PinsFile is the file of the pinned kernels in the repository. Raised returns its new text.
const PinsFile = "tests/machines/vm/kernels.txt"

//go:embed kernels.txt
var pinsText string

var pins = parsePins(pinsText)

// pin is a Debian kernel of the guests until the pins are raised.
type pin struct {
	kernel, suite string // "6.1", "bookworm"
	debs          []deb
}

// deb is the file of a package.
type deb struct{ sum, file string }

// spec returns the package as apt names a version of it: linux-image-6.1.0-56-amd64=6.1.192-2.
func (d deb) spec() string {
	fields := append(strings.Split(d.file, "_"), "") // NAME_VERSION_ARCHITECTURE.deb
	return fields[0] + "=" + fields[1]
}

// version returns the version of the package of the image.
func (p pin) version() string {
	for _, d := range p.debs {
		if name, version, _ := strings.Cut(d.spec(), "="); strings.HasPrefix(name, "linux-image-") {
			return version
		}
	}
	return ""
}

// extra matches the packages that only builds of modules need. They are downloaded for these.
var extra = regexp.MustCompile(`^linux-(headers|source)-`)

func (p pin) installed() (specs []string) {
	for _, d := range p.debs {
		if !extra.MatchString(d.file) {
			specs = append(specs, d.spec())
		}
	}
	return specs
}

func findPin(kernel string) (pin, error) {
	var known []string
	for _, p := range pins {
		if p.kernel == kernel {
			return p, nil
		}
		known = append(known, p.kernel)
	}
	return pin{}, fmt.Errorf("kernel %q: want one of %s", kernel, strings.Join(known, ", "))
}

// parsePins parses kernels.txt: a line "KERNEL SUITE" for each kernel, and below it a line for each file, as sha256sum prints it.
func parsePins(text string) (all []pin) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) != 2 || f[0] == "#":
		case len(f[0]) == 64 && len(all) > 0:
			last := &all[len(all)-1]
			last.debs = append(last.debs, deb{f[0], f[1]})
		default:
			all = append(all, pin{kernel: f[0], suite: f[1]})
		}
	}
	return all
}

const pinsHeader = `# The kernels of the guests: Debian's packages, with the kernel that a test asks for and the Debian release.
# make raise-kernels writes the newest of today. To add a kernel, add a line of both, and raise.
`

// formatPins is the inverse of parsePins.
func formatPins(all []pin) string {
	var out strings.Builder
	out.WriteString(pinsHeader)
	for _, p := range all {
		fmt.Fprintf(&out, "\n%s %s\n", p.kernel, p.suite)
		for _, d := range p.debs {
			fmt.Fprintf(&out, "%s  %s\n", d.sum, d.file)
		}
	}
	return out.String()
}

// Raised returns the text of PinsFile with the kernels that Debian has today, and a line for each change.
func Raised(ctx context.Context) (text string, changes []string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", nil, err
	}
	raised := slices.Clone(pins)
	for i, p := range raised {
		r, err := openRepository(ctx, filepath.Join(cache, "kernels"), p.suite)
		if err != nil {
			return "", nil, err
		}
		raised[i].debs, err = r.newest(ctx)
		r.close()
		if err != nil {
			return "", nil, fmt.Errorf("kernel %s of Debian %s: %w", p.kernel, p.suite, err)
		}
		if before, now := p.version(), raised[i].version(); before != now {
			changes = append(changes, fmt.Sprintf("%s: %s -> %s", p.kernel, cmp.Or(before, "none"), now))
		}
	}
	return formatPins(raised), changes, nil
}

// newest returns the packages of the newest kernel of a suite.
func (r *repository) newest(ctx context.Context) ([]deb, error) {
	images, err := r.depends(ctx, "linux-image-amd64", `linux-image-[0-9]\S*`)
	if err != nil {
		return nil, err
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("linux-image-amd64 depends on %d kernels: %q", len(images), images)
	}
	// Since forky the package of the image is empty: it depends on the packages of the image, the modules, and the list
	// of built-in modules.
	names, err := r.depends(ctx, images[0], `linux-(binary|modules|base)-[0-9]\S*`)
	if err != nil {
		return nil, err
	}
	source, err := r.depends(ctx, "linux-source", `linux-source-[0-9]\S*`)
	if err != nil {
		return nil, err
	}
	names = append(append(images, names...), source...)
	return r.files(ctx, append(names, strings.Replace(images[0], "image", "headers", 1))...)
}

// uri is a line of `apt-get download --print-uris`: 'http://…/linux-source-6.1_6.1.190-1_all.deb' linux-source-6.1_6.1.190-1_all.deb 139374464 SHA256:….
var uri = regexp.MustCompile(`(?m)^'.*' (\S+\.deb) \d+ SHA256:([0-9a-f]{64})$`)

// files returns the files of packages, of the versions in their names or the newest, from apt's lists. It fails if a
// package is missing.
func (r *repository) files(ctx context.Context, specs ...string) (debs []deb, err error) {
	out, err := r.apt(ctx, "apt-get", append([]string{"download", "--print-uris"}, specs...)...)
	if err != nil {
		return nil, err
	}
	for _, m := range uri.FindAllStringSubmatch(out, -1) {
		debs = append(debs, deb{sum: m[2], file: m[1]})
	}
	if len(debs) != len(specs) {
		return nil, fmt.Errorf("apt names %d files of %q", len(debs), specs)
	}
	slices.SortFunc(debs, func(a, b deb) int { return strings.Compare(a.file, b.file) })
	return debs, nil
}

// choose returns the packages of a kernel: the pinned packages, or the newest if the mirror no longer has all of them.
// Without the packages for modules, a test could not complete the kernel later.
func (r *repository) choose(ctx context.Context, p pin) (pin, error) {
	var specs []string
	for _, d := range p.debs {
		specs = append(specs, d.spec())
	}
	if len(specs) > 0 {
		if _, err := r.files(ctx, specs...); err == nil {
			return p, nil
		}
	}
	var err error
	p.debs, err = r.newest(ctx)
	return p, err
}

// verify compares a downloaded file with its checksum, if it is pinned.
func verify(path string) error {
	for _, p := range pins {
		for _, d := range p.debs {
			if d.file != filepath.Base(path) {
				continue
			}
			if sum, err := checksum(path); err != nil || sum != d.sum {
				return errors.Join(err, fmt.Errorf("%s: sha256 %s, pinned is %s", d.file, sum, d.sum))
			}
		}
	}
	return nil
}
