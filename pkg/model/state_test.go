// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"slices"
	"testing"
)

// TestWithoutState removes what %w adds to errors, at either end of a line.
func TestWithoutState(t *testing.T) {
	for reason, want := range map[string]string{
		fmt.Sprint(fmt.Errorf("no HCA: %w", ErrAbsent)):      "no HCA",
		fmt.Sprint(fmt.Errorf("%w: no HCA", ErrAbsent)):      "no HCA",
		fmt.Sprint(fmt.Errorf("no HCA: %w\nx", ErrAbsent)):   "no HCA\nx",
		fmt.Sprint(fmt.Errorf("x\n%w: no HCA", ErrAbsent)):   "x\nno HCA",
		fmt.Sprint(fmt.Errorf("no HCA: %w", ErrUnsupported)): "no HCA: unsupported",
		fmt.Sprint(fmt.Errorf("no HCA: %w: x", ErrAbsent)):   "no HCA: absent: x",
		"the absent HCA": "the absent HCA",
	} {
		if got := WithoutState(reason, StateAbsent); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}

// TestActiveProblems: nil means that the health is unknown, empty that the GPU is healthy.
func TestActiveProblems(t *testing.T) {
	for _, c := range []struct{ problems, want []string }{{nil, nil}, {[]string{}, []string{}}, {[]string{"b", "a"}, []string{"b", "a"}}} {
		var g GPU
		if c.problems != nil {
			g.Problems = []GPUCondition{{Name: "inactive"}}
		}
		for _, name := range c.problems {
			g.Problems = append(g.Problems, GPUCondition{Name: name, Active: true})
		}
		if got := g.ActiveProblems(); !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%v: %#v, want %#v", c.problems, got, c.want)
		}
	}
}

func TestLacksPod(t *testing.T) {
	for c, want := range map[[2]string]bool{{"uid", RuntimeDocker}: true, {"", RuntimeDocker}: false, {"uid", "containerd"}: false} {
		if got := (&Container{PodUID: c[0], Runtime: c[1]}).LacksPod(); got != want {
			t.Errorf("%v: %t, want %t", c, got, want)
		}
	}
}
