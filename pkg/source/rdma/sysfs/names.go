// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Limits of names.
const (
	MaxDeviceName = 63  // bytes, IB_DEVICE_NAME_MAX
	maxFileName   = 255 // bytes, NAME_MAX
	MaxRefused    = 16  // refused names that are reported, of a device or of all devices
)

// WhyRefused returns why a name cannot be an element of a path and a label, or "". A name may have any other character,
// as the kernel accepts them: spaces, commas, letters of any language.
func WhyRefused(name string, limit int) string {
	switch {
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\x00"):
		return "it is not the name of a file"
	case len(name) > limit:
		return fmt.Sprintf("it has more than %d bytes", limit)
	case !utf8.ValidString(name):
		return "it is not UTF-8"
	}
	return ""
}

// ValidDevice accepts the name of an ib_device.
func ValidDevice(name string) bool { return WhyRefused(name, MaxDeviceName) == "" }

// ValidCounter accepts the name of a counter, whatever a driver calls it: irdma's names have spaces, hfi1's end with
// ",32".
func ValidCounter(name string) bool { return name != "lifespan" && WhyRefused(name, maxFileName) == "" }

// Refused are unused names, with the reason.
type Refused []string

// Add adds a name of a device, counter or port, and why it is refused. It keeps MaxRefused names.
func (r *Refused) Add(what, name, why string) {
	text := fmt.Sprintf("%s %q: %s", what, name, why)
	if len(*r) < MaxRefused && !slices.Contains(*r, text) {
		*r = append(*r, text)
	}
}

// Counter is ValidCounter for a name in a directory or in a driver's reply. It adds a refused name.
func (r *Refused) Counter(name string) bool {
	why := WhyRefused(name, maxFileName)
	if why != "" && name != "." && name != ".." {
		r.Add("counter", name, why)
	}
	return why == "" && name != "lifespan"
}

// port reports whether a name in a directory is the number of a port. It adds any other name.
func (r *Refused) port(name string) bool {
	if portNumber(name) > 0 {
		return true
	}
	if name != "." && name != ".." {
		r.Add("port", name, "it is not a number above 0")
	}
	return false
}

// ValidInterface accepts the names that the kernel accepts (dev_valid_name).
func ValidInterface(name string) bool {
	return len(name) > 0 && len(name) < unix.IFNAMSIZ && name != "." && name != ".." && !strings.ContainsAny(name, "/: \t\n")
}
