// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// osReader reads os-release once a minute: only an upgrade changes it.
type osReader struct {
	reader
	root  string
	known *model.OSRelease
	at    time.Time
}

func (o *osReader) read(now time.Time, n *reading) error {
	if o.known == nil || now.Sub(o.at) >= coldAge {
		b, err := o.fileBelow(o.root, "etc/os-release")
		if errors.Is(err, fs.ErrNotExist) {
			b, err = o.fileBelow(o.root, "usr/lib/os-release")
		}
		if err != nil {
			return err
		}
		known := parseOSRelease(string(b))
		o.known, o.at = &known, now
	}
	n.OS = o.known
	return nil
}

// parseOSRelease parses lines KEY=VALUE with shell quoting.
func parseOSRelease(text string) model.OSRelease {
	v := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && len(v) < maxFigures && !strings.HasPrefix(key, "#") {
			v[key] = clean(unquote(value))
		}
	}
	return model.OSRelease{
		BuildID: v["BUILD_ID"], ID: v["ID"], IDLike: v["ID_LIKE"], ImageID: v["IMAGE_ID"], ImageVersion: v["IMAGE_VERSION"],
		Name: v["NAME"], PrettyName: v["PRETTY_NAME"], Variant: v["VARIANT"], VariantID: v["VARIANT_ID"],
		Version: v["VERSION"], VersionCodename: v["VERSION_CODENAME"], VersionID: v["VERSION_ID"], SupportEnd: v["SUPPORT_END"],
	}
}

// unquote removes the quotes, and the backslashes within double quotes.
func unquote(s string) string {
	if len(s) < 2 || s[0] != s[len(s)-1] || s[0] != '"' && s[0] != '\'' {
		return s
	}
	quote := s[0]
	s = s[1 : len(s)-1]
	if quote == '\'' {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
