// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	maxDeviceName = 63  // bytes, IB_DEVICE_NAME_MAX
	maxFileName   = 255 // bytes, NAME_MAX
	maxRefused    = 16  // names of a device, or of devices, that are reported
	maxLogged     = 256
)

// whyRefused returns why a name is neither an element of a path nor a label, empty if it is both. It may have any other character, as the
// kernel accepts them: spaces, commas, letters of any language.
func whyRefused(name string, limit int) string {
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

// validDevice accepts the name of an ib_device.
func validDevice(name string) bool { return whyRefused(name, maxDeviceName) == "" }

// validCounter accepts the name of a counter, whatever a driver calls it: irdma's have spaces, hfi1's end with ",32".
func validCounter(name string) bool { return name != "lifespan" && whyRefused(name, maxFileName) == "" }

// refused are names that are not used, with the reason.
type refused []string

func (r *refused) add(what, name, why string) {
	text := fmt.Sprintf("%s %q: %s", what, name, why)
	if len(*r) < maxRefused && !slices.Contains(*r, text) {
		*r = append(*r, text)
	}
}

// counter is validCounter for a name in a directory or a reply of a driver, and notes a name that is refused.
func (r *refused) counter(name string) bool {
	why := whyRefused(name, maxFileName)
	if why != "" && name != "." && name != ".." {
		r.add("counter", name, why)
	}
	return why == "" && name != "lifespan"
}

// port reports whether a name in a directory is the number of a port, and notes another one.
func (r *refused) port(name string) bool {
	if portNumber(name) > 0 {
		return true
	}
	if name != "." && name != ".." {
		r.add("port", name, "it is not a number above 0")
	}
	return false
}

// refusedState returns the state of the names that are refused, if any. Each is logged once. A device that is refused is not read at all.
func (s *Source) refusedState(readings []*reading) []model.DeviceState {
	all := slices.Clone(s.refused)
	for _, r := range readings {
		if r == nil {
			continue
		}
		for _, text := range r.refused {
			all = append(all, r.hca.Name+": "+text)
		}
	}
	if len(all) == 0 {
		return nil
	}
	for _, text := range all {
		if !s.logged[text] && len(s.logged) < maxLogged {
			s.logged[text] = true
			s.opt.Logger.Warn("a name is refused", zap.String("name", text))
		}
	}
	state := model.StateUnsupported
	if len(s.refused) > 0 {
		state = model.StateFailed
	}
	reason := strings.Join(all[:min(len(all), maxRefused)], "; ")
	if n := len(all) - maxRefused; n > 0 {
		reason += fmt.Sprintf("; and %d more", n)
	}
	return []model.DeviceState{{Source: s.Name(), Device: "names", State: state, Reason: "refused: " + reason}}
}
