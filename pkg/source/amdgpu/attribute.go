// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"path/filepath"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// directory also reads the attributes of a card that are longer than a line.
type directory struct {
	drm.Directory
	buffer []byte
}

func newDirectory(path string) *directory {
	return &directory{Directory: drm.Directory{Path: path}, buffer: make([]byte, maxRead)}
}

// maxRead is more than the 28 bytes of each of 4096 bad pages.
const maxRead = 128 << 10

// read returns the start of a file, valid until the next call. The buffer is large because the
// driver computes a binary attribute again for each read. The open may block in the driver.
func (d *directory) read(name string) ([]byte, error) {
	b, err := boundedfile.ReadFile(filepath.Join(d.Path, name), d.buffer, maxRead)
	d.Answers.Add(err)
	return b, err
}

// percent converts a percentage to a ratio.
func percent(v model.Optional) model.Optional {
	v.Value /= 100
	return v
}
