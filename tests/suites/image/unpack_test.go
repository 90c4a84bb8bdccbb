// SPDX-License-Identifier: Apache-2.0

//go:build image

package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// archives are the archives that make test-image builds.
const (
	native = "../../../bin/accelscope-image.tar"
	arm64  = "../../../bin/accelscope-image-arm64.tar"
	fabric = "../../../bin/accelscope-fabric-image.tar"
)

// An image is an unpacked archive.
type image struct {
	tags   []string
	layers []string // SHA-256
	size   int64
	root   string
	files  map[string]*tar.Header // by path, without files of lower layers that are replaced
	config struct {
		Created      time.Time `json:"created"`
		Architecture string    `json:"architecture"`
		OS           string    `json:"os"`
		Config       struct {
			User                 string
			Env, Entrypoint, Cmd []string
			ExposedPorts         map[string]struct{}
			Labels               map[string]string
			Volumes              map[string]struct{}
			Healthcheck          struct{ Test []string }
		} `json:"config"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
}

// unpack reads an archive in Docker's format, and unpacks its layers.
func unpack(t *testing.T, path string) *image {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: make test-image builds it", err)
	}
	m := &image{size: int64(len(content)), root: t.TempDir(), files: map[string]*tar.Header{}}
	members := map[string][]byte{}
	eachMember(t, content, func(h *tar.Header, r io.Reader) {
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		members[h.Name] = data
	})
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(members["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("manifest.json: %v, %s", err, members["manifest.json"])
	}
	m.tags = manifest[0].RepoTags
	config := members[manifest[0].Config]
	if want := digest(config) + ".json"; manifest[0].Config != want {
		t.Errorf("the name of the configuration is %s, which is not its digest %s", manifest[0].Config, want)
	}
	if err := json.Unmarshal(config, &m.config); err != nil {
		t.Fatal(err)
	}
	for i, name := range manifest[0].Layers {
		m.layers = append(m.layers, digest(members[name]))
		if i >= len(m.config.RootFS.DiffIDs) || m.config.RootFS.DiffIDs[i] != "sha256:"+m.layers[i] {
			t.Errorf("layer %d is %s, the configuration has %v", i, m.layers[i], m.config.RootFS.DiffIDs)
		}
		eachMember(t, members[name], m.place(t))
	}
	return m
}

func eachMember(t *testing.T, archive []byte, do func(*tar.Header, io.Reader)) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		do(h, r)
	}
}

// place writes a file of a layer.
func (m *image) place(t *testing.T) func(*tar.Header, io.Reader) {
	return func(h *tar.Header, r io.Reader) {
		t.Helper()
		name := filepath.Clean(h.Name)
		path := filepath.Join(m.root, name)
		m.files[name] = h
		var err error
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, h.FileInfo().Mode().Perm())
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		case tar.TypeReg:
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, data, h.FileInfo().Mode().Perm())
			}
		default:
			t.Errorf("%s is neither a file, nor a directory, nor a link", name)
		}
		if err != nil {
			t.Fatal(err)
		}
		if base := filepath.Base(name); strings.HasPrefix(base, ".wh.") {
			t.Errorf("%s removes what an earlier layer has: it need not have it", name)
		}
	}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
