// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestCommonPath(t *testing.T) {
	for _, tt := range []struct{ a, b, want model.CgroupPath }{
		{"/a/b", "/a/b", "/a/b"},
		{"/a/b", "/a/b/c", "/a/b"},
		{"/a/b/c", "/a/b", "/a/b"},
		{"/a/bc", "/a/bd", "/a"},
		{"/a", "/b", ""},
		{"", "/b", ""},
		{"a", "b", ""},
	} {
		if got := CommonPath(tt.a, tt.b); got != tt.want {
			t.Errorf("CommonPath(%q, %q) = %q, want %q", tt.a, tt.b, got, tt.want)
		}
	}
}
