// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// Directory reads the sysfs attributes below one directory. It detects a device that was removed, or does not answer.
type Directory struct {
	Path    string
	Answers boundedfile.Answers
}

const (
	maxAttribute = 256
	maxNames     = 4096 // more than any directory of a device has
)

// Line returns an attribute of one line, or "" if it cannot be read: the chip does not have it (ENOENT, EOPNOTSUPP), it is
// not available now (EPERM, EBUSY), or the device is gone (ENODEV). The open may block in the driver.
func (d *Directory) Line(name string) string {
	var buffer [maxAttribute]byte
	b, err := boundedfile.ReadOnce(filepath.Join(d.Path, name), buffer[:])
	d.Answers.Add(err)
	if err != nil {
		return ""
	}
	return Text(b)
}

// Number returns an attribute that is a decimal number, divided by per. What stands for no value stays as it is: see model.GPU.Bound.
func (d *Directory) Number(name string, per float64) model.Optional {
	v, err := strconv.ParseFloat(d.Line(name), 64)
	switch {
	case err != nil || v != v:
		return model.Optional{}
	case model.IsBlank(v):
		return model.Some(v)
	}
	return model.Some(v / per)
}

// Names returns the sorted names in a directory below.
func (d *Directory) Names(name string) []string {
	names, err := ReadNames(filepath.Join(d.Path, name), maxNames)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	return names
}

// ReadNames returns the first names in a directory, unsorted.
func ReadNames(dir string, limit int) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(limit)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// Numbers returns the names that are process IDs or file descriptors.
func Numbers(names []string) []int {
	list := make([]int, 0, len(names))
	for _, name := range names {
		if n, err := strconv.ParseUint(name, 10, 31); err == nil {
			list = append(list, int(n))
		}
	}
	return list
}

// Text returns the first line of an attribute as text for a label.
func Text(b []byte) string { return boundedfile.Line(b, maxAttribute) }

// Put appends a value if it is known.
func Put(values []model.Figure, name string, v model.Optional) []model.Figure {
	if !v.Known {
		return values
	}
	return append(values, model.Figure{Name: name, Value: v.Value})
}
