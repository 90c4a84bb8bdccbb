// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Image is the image of all containers that need one, and of a pod's pause container. It has a static busybox and no
// library: programs of the guest run in it once its /usr is mounted.
const Image = "localhost/guest:1"

// layer returns the root file system of Image as a tar archive.
func layer() ([]byte, error) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("%w: install the Debian package busybox-static", err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(h tar.Header, content []byte) {
		h.Size, h.ModTime = int64(len(content)), time.Unix(0, 0)
		if err == nil {
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = w.Write(content)
		}
	}
	for _, name := range []string{"bin", "dev", "etc", "proc", "sys", "tmp", "usr"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}, nil)
	}
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, busybox)
	for link, target := range map[string]string{
		"bin/sh": "busybox", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin",
	} {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: target, Mode: 0o777}, nil)
	}
	if err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

// WriteImage writes Image in the format of `docker save`, which all runtimes load.
func WriteImage(path string) error {
	rootfs, err := layer()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(rootfs)
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "created": time.Unix(0, 0).UTC(),
		"config": map[string]any{
			"Entrypoint": []string{"/bin/busybox"}, "Cmd": []string{"sleep", "1000000"},
			"Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	sum = sha256.Sum256(config)
	id := hex.EncodeToString(sum[:])
	manifest, err := json.Marshal([]map[string]any{
		{"Config": id + ".json", "RepoTags": []string{Image}, "Layers": []string{"layer.tar"}},
	})
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for _, file := range []struct {
		name    string
		content []byte
	}{{"layer.tar", rootfs}, {id + ".json", config}, {"manifest.json", manifest}} {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: file.name, Mode: 0o644, Size: int64(len(file.content))}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(file.content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}
