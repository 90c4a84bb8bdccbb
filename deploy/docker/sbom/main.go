// SPDX-License-Identifier: Apache-2.0

// Command sbom lists what Go binaries of a module and an image around them are made of: a bill of materials in CycloneDX, and
// the texts of the licenses of all modules, which their terms want beside the binaries.
//
// Modules are those that the linker wrote into the binaries; nothing is taken from go.mod, which names more. Their
// licenses are read from the module cache that the binaries were built from.
package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
)

func main() {
	version := flag.String("version", "unknown", "version of accelscope")
	packages := flag.String("packages", "", "Debian packages in the image: a line NAME VERSION ARCH SHA256 LICENSE each, by tabs")
	out := flag.String("out", "", "root of the image: usr/share/sbom and usr/share/doc below it are written")
	flag.Parse()
	if err := run(*version, *packages, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom: error:", err)
		os.Exit(1)
	}
}

func run(version, packages, out string, binaries []string) error {
	infos := make([]*debug.BuildInfo, len(binaries))
	for i, binary := range binaries {
		var err error
		if infos[i], err = buildinfo.ReadFile(binary); err != nil {
			return err
		}
	}
	if len(infos) == 0 {
		return errors.New("want binaries")
	}
	cache, err := moduleCache()
	if err != nil {
		return err
	}
	b := newBill(infos[0], version)
	var notices bytes.Buffer
	for _, m := range modules(infos) {
		texts, err := cache.licenses(m)
		if err != nil {
			return err
		}
		if err := checkLicense(m, texts); err != nil {
			return err
		}
		b.addModule(m, texts)
		writeNotice(&notices, m, texts)
	}
	if packages != "" {
		list, err := readPackages(packages)
		if err != nil {
			return err
		}
		for _, p := range list {
			b.addPackage(p)
		}
	}
	var bill bytes.Buffer
	if err := b.encode(&bill); err != nil {
		return err
	}
	if err := write(filepath.Join(out, "usr/share/sbom/accelscope.cdx.json"), bill.Bytes()); err != nil {
		return err
	}
	return write(filepath.Join(out, "usr/share/doc/accelscope/THIRD-PARTY-NOTICES"), notices.Bytes())
}

// write writes a file that every user of the image may read.
func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // see above
		return err
	}
	return os.WriteFile(path, content, 0o644) //nolint:gosec // see above
}
