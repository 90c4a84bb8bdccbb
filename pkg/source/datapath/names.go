// SPDX-License-Identifier: Apache-2.0

package datapath

import "maps"

// deviceNames are the names of the HCAs by index.
type deviceNames struct {
	byIndex map[uint32]string
	// former is the last number that stands for a renamed HCA. The kernel's indexes are below 2^31.
	former uint32
}

func newDeviceNames() deviceNames { return deviceNames{byIndex: map[uint32]string{}, former: 1 << 31} }

// of returns the name of an HCA, empty while it is not known.
func (d *deviceNames) of(index uint32) string { return d.byIndex[index] }

// update sets the names. The counts of a removed HCA stay under its name. A renamed HCA keeps its counts under the former name, because a
// new HCA may get that name.
func (d *deviceNames) update(names map[uint32]string, f *fold) {
	for index, former := range d.byIndex {
		if name := names[index]; name != "" && name != former {
			d.former++
			f.split(index, d.former)
			d.byIndex[d.former] = former
		}
	}
	maps.DeleteFunc(d.byIndex, func(index uint32, _ string) bool {
		return !f.hasDevice(func(i uint32) bool { return i == index })
	})
	maps.Copy(d.byIndex, names)
}
