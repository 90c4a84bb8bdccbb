// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// readPressure reads /proc/pressure, which may be missing or disabled.
func (p *procReader) readPressure(_ time.Time, n *reading) error {
	var failed []error
	for _, resource := range []string{"cpu", "io", "memory", "irq"} {
		file := "pressure/" + resource
		b, err := p.file(p.dir + "/" + file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		skipped := n.skipped.In(file)
		one := model.Pressure{Resource: resource}
		read := parsePressure(&one, b, skipped)
		if err := unparsed(file, read, skipped); err != nil {
			failed = append(failed, err)
			continue
		}
		n.Pressure = append(n.Pressure, one)
	}
	return errors.Join(failed...)
}

// parsePressure parses the lines "some" and "full" of a file, and converts their total from microseconds to seconds. It
// returns the number of parsed lines. Lines of other names are not an error.
func parsePressure(to *model.Pressure, b []byte, skipped *boundedfile.Skipped) (read int) {
	for len(b) > 0 {
		var line []byte
		line, b = cutLine(b)
		kind, rest := cutField(line)
		_, total, _ := bytes.Cut(rest, []byte(" total="))
		v, ok := parseUint(total)
		switch {
		case string(kind) != "some" && string(kind) != "full":
			continue
		case !ok:
			skipped.Add(line)
			continue
		case string(kind) == "some":
			to.Some = new(float64(v) / 1000 / 1000)
		default:
			to.Full = new(float64(v) / 1000 / 1000)
		}
		read++
	}
	return read
}
