// SPDX-License-Identifier: Apache-2.0

package intel

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

// directory reads the sysfs attributes below one directory.
type directory struct {
	path    string
	answers boundedfile.Answers
}

const (
	maxAttribute = 256
	maxNames     = 4096 // more than any directory of a device has
)

// line returns an attribute of one line, or "" if it cannot be read.
func (d *directory) line(name string) string {
	var buffer [maxAttribute]byte
	b, err := boundedfile.ReadOnce(filepath.Join(d.path, name), buffer[:])
	d.answers.Add(err)
	if err != nil {
		return ""
	}
	return boundedfile.Line(b, maxAttribute)
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
	f, err := os.Open(filepath.Join(d.path, name))
	if err != nil {
		return nil
	}
	defer f.Close()
	names, err := f.Readdirnames(maxNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	slices.Sort(names)
	return names
}

// put appends a value if it is known.
func put(values []model.Figure, name string, v model.Optional) []model.Figure {
	if !v.Known {
		return values
	}
	return append(values, model.Figure{Name: name, Value: v.Value})
}
