// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
	fakes "github.com/accelscope/accelscope/tests/fakes/gpumemory"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

// BenchmarkCall is the time of calls of a FAKE library, which takes nanoseconds itself: a call that succeeds, one that fails, and
// one that calls another probed function.
func BenchmarkCall(b *testing.B) {
	built := fakes.Build(b, b.TempDir())
	a := fakes.Start(b, program(built))
	a.OK("load %s", built.CUDA)
	calls := func(b *testing.B) {
		for _, c := range []struct {
			name, function string
			limit          uint64
		}{
			{"success", "cuMemAllocAsync", 1 << 60},
			{"failure", "cuMemAllocAsync", 0},
			{"nested", "cuMemAllocManaged", 1 << 60},
		} {
			b.Run(c.name, func(b *testing.B) {
				a.OK("limit %d", c.limit)
				b.ResetTimer()
				a.Failures("call %s %d 1", c.function, b.N)
			})
		}
	}
	b.Run("without", calls)
	var h libraries.Holders
	h.Add(a.Program)
	s, err := newSource(options(b, &h), nil)
	if err != nil {
		b.Fatal(err)
	}
	s.prober.First() // without the loop, which would pause a function that is called so often
	defer s.kernel.close()
	defer s.prober.Release()
	libraries.Probed(b, s, model.StateOK, namesOf(libcuda)...)
	b.Run("probed", calls)
}
