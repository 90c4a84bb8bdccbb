// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"path/filepath"
	"slices"
	"strconv"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// directory reads the sysfs attributes below one directory. It detects a device that was removed, or does not answer.
type directory struct {
	path    string
	buffer  []byte
	answers boundedfile.Answers
}

func newDirectory(path string) *directory {
	return &directory{path: path, buffer: make([]byte, maxRead)}
}

// maxRead is more than the 28 bytes of each of 4096 bad pages.
const maxRead = 128 << 10

// read returns the start of a file, valid until the next call. The buffer is large because the
// driver computes a binary attribute again for each read. The open may block in the driver.
func (d *directory) read(name string) ([]byte, error) {
	b, err := boundedfile.ReadFile(filepath.Join(d.path, name), d.buffer, maxRead)
	d.answers.Add(err)
	return b, err
}

// line returns an attribute of one line, or "" if it cannot be read: the chip does not
// have it (ENOENT, EOPNOTSUPP), it is not available now (EPERM, EBUSY), or the device
// is gone (ENODEV).
func (d *directory) line(name string) string {
	b, err := d.read(name)
	if err != nil {
		return ""
	}
	return parseLine(b)
}

// number returns an attribute that is a decimal number, divided by per. What stands for no value stays as it is: see model.GPU.Bound.
func (d *directory) number(name string, per float64) model.Optional {
	v, err := strconv.ParseFloat(d.line(name), 64)
	switch {
	case err != nil || v != v:
		return model.Optional{}
	case model.IsBlank(v):
		return model.Some(v)
	}
	return model.Some(v / per)
}

// names returns the sorted names in a directory below.
func (d *directory) names(name string) []string {
	names, err := readNames(filepath.Join(d.path, name), maxNames)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	return names
}

// maxNames is more than any directory of a device has.
const maxNames = 4096

// parseLine returns the first line as text.
func parseLine(b []byte) string { return boundedfile.Line(b, maxLine) }

const maxLine = 256

// put appends a value if it is known.
func put(values []model.Figure, name string, v model.Optional) []model.Figure {
	if !v.Known {
		return values
	}
	return append(values, model.Figure{Name: name, Value: v.Value})
}

// percent converts a percentage to a ratio.
func percent(v model.Optional) model.Optional {
	v.Value /= 100
	return v
}
