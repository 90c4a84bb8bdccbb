// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// A bill lists the contents of the image in CycloneDX. It has neither a time nor a serial number: the same input
// gives the same file.
type bill struct {
	*cdx.BOM
	components []cdx.Component
	main       string
}

func newBill(info *debug.BuildInfo, version string) *bill {
	b := &bill{BOM: cdx.NewBOM(), main: golangPURL(info.Main.Path, version)}
	b.Metadata = &cdx.Metadata{Component: &cdx.Component{
		BOMRef: b.main, Type: cdx.ComponentTypeApplication, Name: info.Main.Path, Version: version, PackageURL: b.main,
		Licenses: expression("Apache-2.0"),
	}}
	return b
}

// addModule adds a module of Go. Its hash is the h1 of go.sum, which is a SHA-256 of the SHA-256 of its files.
func (b *bill) addModule(m module, texts []license) {
	c := cdx.Component{
		Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: golangPURL(m.Path, m.Version),
		Scope: cdx.ScopeRequired,
	}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) > 0 {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	if e := expressionOf(texts); e != "" {
		c.Licenses = expression(e)
	}
	b.add(c)
}

func (b *bill) addPackage(p debianPackage) {
	b.add(cdx.Component{
		Type: cdx.ComponentTypeLibrary, Name: p.name, Version: p.version,
		PackageURL: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", p.name, url.PathEscape(p.version), p.arch),
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: p.sha256}},
		Licenses:   expression(p.license),
	})
}

func (b *bill) add(c cdx.Component) {
	c.BOMRef = c.PackageURL
	b.components = append(b.components, c)
}

func (b *bill) encode(w io.Writer) error {
	refs := make([]string, len(b.components))
	for i := range b.components {
		refs[i] = b.components[i].BOMRef
	}
	b.Components = &b.components
	b.Dependencies = &[]cdx.Dependency{{Ref: b.main, Dependencies: &refs}}
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(b.BOM)
}

func expression(spdx string) *cdx.Licenses { return &cdx.Licenses{{Expression: spdx}} }

func golangPURL(path, version string) string {
	return "pkg:golang/" + path + "@" + url.PathEscape(version)
}

// A debianPackage has files in the image.
type debianPackage struct{ name, version, arch, sha256, license string }

func readPackages(path string) ([]debianPackage, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []debianPackage
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		v := strings.Split(lines.Text(), "\t")
		if len(v) != 5 {
			return nil, fmt.Errorf("%s: %q has not 5 fields", path, lines.Text())
		}
		list = append(list, debianPackage{v[0], v[1], v[2], v[3], v[4]})
	}
	return list, lines.Err()
}
