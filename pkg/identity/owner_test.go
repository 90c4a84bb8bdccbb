// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"strings"
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

// TestAddPaths: the cgroup of an owner contains all cgroups that have a path, in any order.
func TestAddPaths(t *testing.T) {
	for _, c := range []struct{ paths, want string }{
		{"", ""}, {"/a/b", "/a/b"}, {"/a/b ", "/a/b"}, {" /a/b", "/a/b"}, {"/a/b /a/c", "/a"}, {"/a/c  /a/b", "/a"},
	} {
		var i Info
		for path := range strings.SplitSeq(c.paths, " ") {
			i.add(&name{Path: model.CgroupPath(path)})
		}
		if string(i.Cgroup) != c.want {
			t.Errorf("%q: %q, want %q", c.paths, i.Cgroup, c.want)
		}
	}
}
