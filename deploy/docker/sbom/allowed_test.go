// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestCheckLicense(t *testing.T) {
	m := module{Path: "example.org/module", Version: "v1.0.0"}
	for name, tt := range map[string]struct {
		texts []license
		want  string
	}{
		"allowed":      {[]license{{ids: []string{"Apache-2.0"}}, {file: "NOTICE"}, {ids: []string{"MIT"}}}, ""},
		"not allowed":  {[]license{{ids: []string{"MIT"}}, {ids: []string{"GPL-2.0"}}}, "GPL-2.0 is not among"},
		"not known":    {[]license{{file: "LICENSE", text: "all rights reserved"}}, "no known license"},
		"without text": {nil, "no known license"},
	} {
		err := checkLicense(m, tt.texts)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
