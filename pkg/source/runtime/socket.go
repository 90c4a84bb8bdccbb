// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// A Socket is the socket of a container runtime.
type Socket struct {
	Kind model.RuntimeAPI // API that the runtime serves on it
	Path string           // on the node, below Options.Root and Options.Run
}

func defaultSockets() []Socket {
	var sockets []Socket
	for _, r := range model.Runtimes {
		for _, path := range r.Sockets {
			sockets = append(sockets, Socket{r.API, path})
		}
	}
	return sockets
}

// ParseSocket reads KIND:PATH, where PATH may be a URL: KIND:///PATH or KIND:unix:///PATH. A bare path or unix:///PATH
// has the API of the runtime in its file name, or else the CRI.
func ParseSocket(s string) (Socket, error) {
	prefix, path, ok := strings.Cut(s, ":")
	kind := model.RuntimeAPI(prefix)
	switch {
	case !ok:
		kind, path = "", s
	case kind == "unix":
		kind = ""
	case drivers[kind] == nil:
		return Socket{}, fmt.Errorf("socket %q: kind %q is none of %s", s, kind, kinds())
	}
	path = strings.TrimPrefix(path, "unix:")
	if rest, ok := strings.CutPrefix(path, "//"); ok {
		path = rest
	}
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return Socket{}, fmt.Errorf("socket %q: want KIND:PATH with an absolute path", s)
	}
	if kind == "" {
		kind = kindOf(path)
	}
	return Socket{Kind: kind, Path: filepath.Clean(path)}, nil
}

// kindOf returns the API of the runtime that the file name of a socket contains.
func kindOf(path string) model.RuntimeAPI {
	name := filepath.Base(path)
	for _, r := range model.Runtimes {
		if r.SocketWord != "" && strings.Contains(name, r.SocketWord) {
			return r.API
		}
	}
	return model.APICRI
}

// nameOfSocket returns the runtime that the path of a socket contains, else the API.
func nameOfSocket(s Socket) string {
	name := string(s.Kind)
	for _, r := range model.Runtimes {
		if r.API == s.Kind && r.SocketWord != "" && strings.Contains(s.Path, r.SocketWord) {
			name = r.Name
		}
	}
	return name
}

// A node is where this process sees the files of the node.
type node struct {
	root string
	run  string // its /run, or "" if it is below root too
}

func (n node) at(path string) string {
	rest, ok := strings.CutPrefix(path, "/run")
	if ok && n.run != "" && (rest == "" || rest[0] == '/') {
		return filepath.Join(n.run, rest)
	}
	return filepath.Join(n.root, path)
}

// locate follows the symbolic links of path as the node does, so that /var/run is not resolved in the root of this
// process, and returns the path of the socket.
func (n node) locate(path string) (string, error) {
	if n.run != "" && strings.HasPrefix(path, "/var/run/") {
		path = strings.TrimPrefix(path, "/var") // the link may be outside the mount
	}
	at := "/" // on the node
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" {
			continue // "/" itself may be missing: only /run may be mounted
		}
		next := filepath.Join(at, name) // ".." of the root is the root
		target, err := os.Readlink(n.at(next))
		switch {
		case errors.Is(err, unix.EINVAL): // not a link
			at = next
			continue
		case err != nil:
			return "", err
		}
		if links++; links > 40 {
			return "", &os.PathError{Op: "readlink", Path: path, Err: unix.ELOOP}
		}
		if strings.HasPrefix(target, "/") {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	at = n.at(at)
	st, err := os.Stat(at)
	switch {
	case err != nil:
		return "", err
	case st.Mode().Type() != os.ModeSocket:
		return "", fmt.Errorf("%s is not a socket", at)
	}
	return at, nil
}
