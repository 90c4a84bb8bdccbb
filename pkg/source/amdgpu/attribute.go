// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// directory reads the attributes below one directory of sysfs. It remembers
// whether the device behind them is gone.
type directory struct {
	path   string
	buffer []byte
	asked  int // attributes that the driver was asked for
	gone   int // those of them to which the device was not there any more
}

func newDirectory(path string) *directory {
	return &directory{path: path, buffer: make([]byte, maxRead)}
}

// maxRead is more than the 28 bytes of each of 4096 bad pages.
const maxRead = 128 << 10

// read gives the start of a file, valid until the next call. It is read at once:
// binary attributes are made anew for each part of them. Open blocks where the
// driver does.
func (d *directory) read(name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(d.path, name))
	if err == nil {
		defer f.Close()
		n := 0
		for n < len(d.buffer) && err == nil {
			var m int
			m, err = f.Read(d.buffer[n:])
			n += m
		}
		if err == nil || errors.Is(err, io.EOF) {
			d.asked++
			return d.buffer[:n], nil
		}
	}
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		d.asked++
		d.gone++
	}
	return nil, err
}

// lost says whether the device was gone whatever it was asked since the last call.
func (d *directory) lost() bool {
	lost := d.asked > 0 && d.gone == d.asked
	d.asked, d.gone = 0, 0
	return lost
}

// line gives an attribute of one line; "" where it cannot be read: not of this
// chip (ENOENT, EOPNOTSUPP), not now (EPERM, EBUSY), not any more (ENODEV).
func (d *directory) line(name string) string {
	b, err := d.read(name)
	if err != nil {
		return ""
	}
	return parseLine(b)
}

// number gives an attribute that is a decimal number, scaled.
func (d *directory) number(name string, scale float64) model.Optional {
	v, err := strconv.ParseFloat(d.line(name), 64)
	if err != nil || v != v || v < -1<<53 || v > 1<<63 {
		return model.Optional{}
	}
	return model.Some(v * scale)
}

// names gives the sorted names in a directory below.
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

// parseLine takes the first line, without what does not print.
func parseLine(b []byte) string {
	line, _, _ := strings.Cut(string(b), "\n")
	line = strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(line, ""))
	return strings.TrimSpace(line[:min(len(line), maxLine)])
}

const maxLine = 256

// put appends a figure that is known.
func put(figures []model.Figure, name string, v model.Optional) []model.Figure {
	if !v.Known {
		return figures
	}
	return append(figures, model.Figure{Name: name, Value: v.Value})
}

// percent is a share from a file in percent.
func percent(v model.Optional) model.Optional {
	if !v.Known || v.Value < 0 || v.Value > 100 {
		return model.Optional{}
	}
	return model.Some(v.Value / 100)
}
