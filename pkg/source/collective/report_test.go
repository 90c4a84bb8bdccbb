// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/pkg/source/library"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

// TestPartlyProbed: a process maps two files with the functions, and not all of them are probed, or known. Some launches are not counted.
func TestPartlyProbed(t *testing.T) {
	const pid = 7
	first, second := newTestFile(pid), newTestFile(pid)
	first.Links[library.Half{}] = io.NopCloser(nil)
	s := &Source{prober: library.New(library.Options{}, library.Spec{})}
	s.prober.Files[locate.FileID{Inode: 1}], s.prober.Files[locate.FileID{Inode: 2}] = first, second
	p := &library.Process{}
	gaps := func(what string, want ...model.CollectiveGap) {
		t.Helper()
		for range 100 { // in each order of the files
			if got := s.gapsOf(pid, p, &linked{uses: true, counting: true}); !slices.Equal(got, want) {
				t.Fatalf("%s: gaps %q, want %q", what, got, want)
			}
		}
	}
	gaps("one file without probes", "", model.CollectiveRefused)
	second.Links[library.Half{}] = io.NopCloser(nil)
	gaps("both probed", "")
	second.Places = append(second.Places, library.Place{})
	gaps("one function without a probe yet", "", model.CollectiveRefused)
	second.Places = second.Places[:1]
	p.Incomplete = true
	gaps("a file that could not be read", "", model.CollectiveRefused)
}

func newTestFile(pid int) *library.File {
	f := &library.File{File: uprobe.NewFile[int](1, false), Places: make([]library.Place, 1)}
	f.Paths[pid] = "libnccl.so.2"
	return f
}

// TestLoad: programs are loaded when the first library is to be probed. If the kernel refuses them, all states say so from then on.
func TestLoad(t *testing.T) {
	b := build(t)
	for what, kernelRefuses := range map[string]bool{"loaded": false, "refused": true} {
		t.Run(what, func(t *testing.T) {
			var h libraries.Holders
			o := options(t, &h)
			spec := o.spec()
			spec.Load = func() (*ebpf.CollectionSpec, error) {
				compiled, err := gen.LoadCollective()
				if err == nil && kernelRefuses {
					bpf.Refuse(compiled, bpf.Part{Kind: "program", Name: gen.CollectiveProgCollective})
				}
				return compiled, err
			}
			s, err := newSource(o, spec)
			if err != nil {
				t.Fatal(err)
			}
			s.prober.Start()
			defer s.Close() //nolint:errcheck // returns nil
			c := libraries.NewCgroup(t)
			r := start(t, c, b.Rank)
			h.Add(r)
			check := func(state model.State, wrapped error, gaps ...model.CollectiveGap) {
				t.Helper()
				libraries.Eventually(t, func() error {
					snap, err := s.Read(t.Context())
					var got []model.CollectiveGap
					for _, f := range snap.CollectiveCoverage {
						got = append(got, f.Gap)
					}
					slices.Sort(got)
					if !errors.Is(err, wrapped) || snap.Hooks[0].State != state || !slices.Equal(got, gaps) {
						return fmt.Errorf("%w, %+v, gaps %q", err, snap.Hooks[0], got)
					}
					return nil
				})
			}
			r.OK("load %s", b.CUDA)
			time.Sleep(10 * o.Interval) // the library of graphs is found
			check(model.StateAbsent, nil)
			if slices.ContainsFunc(s.kernel.programs, func(of [libraryCount]*ebpf.Program) bool { return of[nccl] != nil }) {
				t.Error("programs are loaded without a library")
			}
			if r.OK("load %s", b.NCCL); kernelRefuses {
				check(model.StateUnsupported, model.ErrUnsupported, "", model.CollectiveRefused)
			} else {
				check(model.StateOK, nil, "")
			}
		})
	}
}
