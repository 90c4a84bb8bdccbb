// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
	fakes "github.com/accelscope/accelscope/tests/fakes/collective"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

// BenchmarkCall is the time of calls of a FAKE library, which takes nanoseconds itself.
func BenchmarkCall(b *testing.B) {
	built := build(b)
	r := fakes.Start(b, command(built.Rank))
	r.OK("load %s", built.NCCL)
	r.OK("init rank 1 11 2 1")
	calls := func(b *testing.B) {
		for _, operation := range []string{"all_reduce", "reduce", "send"} {
			b.Run(operation, func(b *testing.B) {
				b.ResetTimer()
				r.OK("call %s 1 %d 1 7", operation, b.N)
			})
		}
	}
	b.Run("without", calls)
	var h libraries.Holders
	h.Add(r)
	o := options(b, &h)
	s, err := newSource(o, o.spec())
	if err != nil {
		b.Fatal(err)
	}
	s.prober.First() // without the loop, which would pause a function that is called so often
	defer s.kernel.close()
	defer s.prober.Release()
	libraries.Probed(b, s, model.StateOK, all...)
	b.Run("probed", calls)
}
