// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

var errMlxlink = errors.New("unexpected output of mlxlink")

// mlxlinkText is the used part of the tool's JSON. Without output, output is a string.
type mlxlinkText struct {
	Status struct {
		Message string `json:"message"`
	} `json:"status"`
	Result struct {
		Output json.RawMessage `json:"output"`
	} `json:"result"`
}

// mlxlinkSection has the values of a section, by title. A value is a string, or an object with a list of strings.
type mlxlinkSection map[string]json.RawMessage

type mlxlinkSections struct {
	Operation mlxlinkSection `json:"Operational Info"`
	Counters  mlxlinkSection `json:"Physical Counters and BER Info"`
}

const maxLanes = 16

// parseMlxlink parses the output of `mlxlink --show_counters --json`. If the tool has printed an error, color codes
// come first.
func parseMlxlink(text []byte, b *model.BitErrors) error {
	begin := bytes.IndexByte(text, '{')
	if begin < 0 {
		return fmt.Errorf("%w: no JSON", errMlxlink)
	}
	var all mlxlinkText
	var s mlxlinkSections
	if err := json.Unmarshal(text[begin:], &all); err != nil {
		return fmt.Errorf("%w: %w", errMlxlink, err)
	}
	if err := json.Unmarshal(all.Result.Output, &s); err != nil || len(s.Counters) == 0 {
		return fmt.Errorf("%w: no counters: %q", errMlxlink, boundedfile.Line([]byte(all.Status.Message), 256))
	}
	b.FEC, b.Speed, b.Width = s.Operation.label("FEC"), s.Operation.label("Speed"), s.Operation.label("Width")
	c := s.Counters
	b.Raw, b.Effective, b.Symbol = c.ratio("Raw Physical BER"), c.ratio("Effective Physical BER"), c.ratio("Symbol BER")
	b.EffectiveErrors, b.SymbolErrors = c.count("Effective Physical Errors"), c.count("Symbol Errors")
	if minutes, err := strconv.ParseFloat(c.text("Time Since Last Clear [Min]"), 64); err == nil && minutes >= 0 && minutes < 1e12 {
		b.Age = model.Some(minutes * 60)
	}
	b.LaneErrors = counts(c.list("Raw Physical Errors Per Lane"))
	return nil
}

// text returns a value, or "" if it is missing or not a string.
func (s mlxlinkSection) text(title string) string {
	var text string
	if json.Unmarshal(s[title], &text) != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

// label returns a value as text for a label, or "" if the tool lacks it.
func (s mlxlinkSection) label(title string) string {
	if text := boundedfile.Line([]byte(s.text(title)), 64); text != "N/A" {
		return text
	}
	return ""
}

// list returns a list of values. For HCAs up to ConnectX-5 the tool prints them as one string with commas.
func (s mlxlinkSection) list(title string) []string {
	if text := s.text(title); text != "" {
		return strings.Split(text, ",")
	}
	var list struct {
		Values []string `json:"values"`
	}
	if json.Unmarshal(s[title], &list) != nil {
		return nil
	}
	return list.Values
}

func (s mlxlinkSection) count(title string) *uint64 {
	n, err := strconv.ParseUint(s.text(title), 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// counts returns nil unless all values are numbers.
func counts(values []string) []uint64 {
	if len(values) > maxLanes {
		return nil
	}
	var list []uint64
	for _, v := range values {
		n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
		if err != nil {
			return nil
		}
		list = append(list, n)
	}
	return list
}

// noErrors is the exponent of a ratio without an error seen by the firmware: 15E-255.
const noErrors = "255"

// ratio returns a ratio, which the tool prints as the coefficient and the exponent of the register: 5E-10.
func (s mlxlinkSection) ratio(title string) model.Optional {
	text := s.text(title)
	coefficient, exponent, ok := strings.Cut(text, "E-")
	if _, err := strconv.ParseUint(coefficient, 10, 8); err != nil || !ok {
		return model.Optional{}
	}
	if _, err := strconv.ParseUint(exponent, 10, 8); err != nil {
		return model.Optional{}
	}
	if exponent == noErrors {
		return model.Some(0)
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v > 1 {
		return model.Optional{}
	}
	return model.Some(v)
}
