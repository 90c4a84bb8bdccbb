// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestVersion checks that --version prints the version, before and after a command.
func TestVersion(t *testing.T) {
	const version = "accelscope v1.2.3 (revision 0)"
	for _, args := range [][]string{{"--version"}, {"run", "--version"}, {"doctor", "--version"}} {
		var got bytes.Buffer
		status := -1
		_, _, err := Parse(Sensor, args, version, &got, io.Discard, func(s int) { status = s })
		if err != nil || status != 0 || got.String() != version+"\n" {
			t.Errorf("%q: status %d, %q, %v; want %q", args, status, &got, err, version)
		}
	}
	t.Setenv("ACCELSCOPE_VERSION", "true") // as a deployment may name its image
	if _, _, err := Parse(Sensor, nil, version, io.Discard, io.Discard, func(int) { t.Error("it exits because of the environment") }); err != nil {
		t.Error(err)
	}
}

// TestPrograms checks that each program has its commands, and leaves the configuration file of other commands unread.
func TestPrograms(t *testing.T) {
	for program, commands := range map[Program][][]string{
		Sensor: {nil, {"run"}, {"doctor"}, {"check"}, {"version"}},
		Tool: {
			{"top"},
			{"fleet", "--prometheus=http://localhost"},
			{"peers"},
			{"topo"},
			{"gpu", "release"},
			{"gpu", "resume"},
			{"inventory", "accept"},
			{"--log.level", "debug", "top"},
		},
	} {
		for _, args := range commands {
			for _, parser := range []Program{Sensor, Tool} {
				_, _, err := Parse(parser, args, "", io.Discard, io.Discard, nil)
				if parser == program && err != nil {
					t.Errorf("%s %q: %v", parser, args, err)
				}
				if parser != program && (!errors.Is(err, ErrOtherProgram) || !strings.HasSuffix(err.Error(), " is a command of "+string(program))) {
					t.Errorf("%s %q: %v, want a command of %s", parser, args, err, program)
				}
			}
		}
	}
	if _, _, err := Parse(Sensor, []string{"top", "--config.file=/nonexistent"}, "", io.Discard, io.Discard, nil); !errors.Is(err, ErrOtherProgram) {
		t.Errorf("the file is read: %v", err)
	}
}
