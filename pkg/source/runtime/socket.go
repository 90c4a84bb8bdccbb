// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Kinds of sockets: the API that is spoken on them. Podman serves Docker's.
const (
	kindContainerd = "containerd"
	kindCRI        = "cri"
	kindDocker     = "docker"
)

// A Socket is where a runtime listens.
type Socket struct {
	Kind string // containerd, cri, docker
	Path string // on the node, below Options.Root and Options.Run
}

// usual is where runtimes listen unless they are told otherwise.
var usual = []Socket{
	{kindContainerd, "/run/containerd/containerd.sock"},
	{kindContainerd, "/run/k3s/containerd/containerd.sock"},
	{kindContainerd, "/run/k0s/containerd.sock"},
	{kindContainerd, "/var/snap/microk8s/common/run/containerd.sock"},
	{kindDocker, "/run/docker.sock"},
	{kindDocker, "/var/run/docker.sock"},
	{kindDocker, "/run/podman/podman.sock"},
	{kindCRI, "/run/crio/crio.sock"},
}

// ParseSocket reads KIND:PATH, where PATH may be a URL: KIND:///PATH or
// KIND:unix:///PATH. Of a bare path or unix:///PATH the name tells the kind; a
// name that tells nothing is a CRI socket.
func ParseSocket(s string) (Socket, error) {
	kind, path, ok := strings.Cut(s, ":")
	switch {
	case !ok:
		kind, path = "", s
	case kind == "unix":
		kind = ""
	case kind != kindContainerd && kind != kindCRI && kind != kindDocker:
		return Socket{}, fmt.Errorf("socket %q: kind %q is none of containerd, cri, docker", s, kind)
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

func kindOf(path string) string {
	name := filepath.Base(path)
	switch {
	case strings.Contains(name, "containerd"):
		return kindContainerd
	case strings.Contains(name, "docker"), strings.Contains(name, "podman"):
		return kindDocker
	}
	return kindCRI
}

// A node is where we see a node's files.
type node struct {
	root string
	run  string // its /run; empty when that is below root as well
}

// at is where we see a path of the node.
func (n node) at(path string) string {
	rest, ok := strings.CutPrefix(path, "/run")
	if ok && n.run != "" && (rest == "" || rest[0] == '/') {
		return filepath.Join(n.run, rest)
	}
	return filepath.Join(n.root, path)
}

// locate follows the symbolic links of path as the node does, so that /var/run
// is not looked for in our own root, and returns where the socket is.
func (n node) locate(path string) (string, error) {
	if n.run != "" && strings.HasPrefix(path, "/var/run/") {
		path = strings.TrimPrefix(path, "/var") // the link may be where we see nothing
	}
	at := "/" // on the node
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" {
			continue // "/" itself need not be there: /run may be all that we see
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
