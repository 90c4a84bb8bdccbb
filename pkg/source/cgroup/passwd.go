// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"cmp"
	"os"
	"strings"
	"time"
)

// passwd holds the user names of the passwd file, which is read again when it changes. Users of a directory service are
// shown by number.
type passwd struct {
	path    string
	changed time.Time
	names   map[string]string
}

// maxUsers is the maximum number of user names; other users are shown by number.
const maxUsers = 65536

func (p *passwd) of(uid string) string {
	p.refresh()
	return cmp.Or(p.names[uid], uid)
}

// uid returns the number of a user, or "" if the file lacks the user.
func (p *passwd) uid(user string) string {
	p.refresh()
	for uid, name := range p.names {
		if name == user {
			return uid
		}
	}
	return ""
}

func (p *passwd) refresh() {
	if info, err := os.Stat(p.path); err == nil && !info.ModTime().Equal(p.changed) {
		p.changed = info.ModTime()
		p.read()
	}
}

func (p *passwd) read() {
	p.names = map[string]string{}
	f, err := os.Open(p.path)
	if err != nil {
		return
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for len(p.names) < maxUsers {
		line, long, err := lines.ReadLine()
		if err != nil {
			return
		}
		fields := strings.SplitN(string(line), ":", 4)
		if len(fields) == 4 && p.names[fields[2]] == "" {
			p.names[fields[2]] = clean(fields[0], maxLabel)
		}
		for long && err == nil { // only the start of a line matters
			_, long, err = lines.ReadLine()
		}
	}
}
