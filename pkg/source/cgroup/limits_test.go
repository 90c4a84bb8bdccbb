// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestManyUsers: of the users of the node, maxUsers have a name, and the others are shown by number.
func TestManyUsers(t *testing.T) {
	var text strings.Builder
	for i := range maxUsers + 1 {
		fmt.Fprintf(&text, "user%d:x:%d:\n", i, i)
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"passwd": text.String()})
	p := passwd{path: dir + "/passwd"}
	last := fmt.Sprint(maxUsers - 1)
	if first, other := p.of(last), p.of(fmt.Sprint(maxUsers)); first != "user"+last || other != fmt.Sprint(maxUsers) {
		t.Errorf("%s is %s, the user behind it %s", last, first, other)
	}
}

// TestManyUnreadable: maxUnreadable cgroups that cannot be read are reported by name.
func TestManyUnreadable(t *testing.T) {
	w := &watcher{}
	for i := range 2 * maxUnreadable {
		w.cannotRead(fmt.Sprint("/", i), unix.EACCES)
	}
	if len(w.unreadable) != maxUnreadable {
		t.Errorf("%d cgroups are reported, want %d", len(w.unreadable), maxUnreadable)
	}
}
