// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// directory reads the sysfs attributes below one directory. It counts the answers of a removed device.
type directory struct {
	path  string
	asked int // attributes that the driver answered
	gone  int // the part of them that reported a removed device
}

const (
	maxAttribute = 256
	maxNames     = 4096 // more than any directory of a device has
)

// line returns an attribute of one line, or "" if it cannot be read.
func (d *directory) line(name string) string {
	var buffer [maxAttribute]byte
	b, err := boundedfile.ReadOnce(filepath.Join(d.path, name), buffer[:])
	gone := errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO)
	if gone {
		d.gone++
	}
	if gone || err == nil {
		d.asked++
	}
	if err != nil {
		return ""
	}
	return boundedfile.Line(b, maxAttribute)
}

// answers returns the number of attributes that were read since the last call, and how many of them reported a removed
// device.
func (d *directory) answers() (asked, gone int) {
	asked, gone = d.asked, d.gone
	d.asked, d.gone = 0, 0
	return asked, gone
}

// number returns an attribute that is a decimal number, multiplied by scale.
func (d *directory) number(name string, scale float64) model.Optional {
	v, err := strconv.ParseInt(d.line(name), 10, 64)
	if err != nil {
		return model.Optional{}
	}
	return model.Some(float64(v) * scale)
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
