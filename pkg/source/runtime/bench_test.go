// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// A node of 110 pods of 3 containers each.
func BenchmarkResolve(b *testing.B) {
	f := newTestFeed()
	all := make([]model.Container, 440)
	for i := range all {
		all[i] = running(fmt.Sprintf("%064x", i), i+1, 1)
	}
	f.sync(all)
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			f.containers()
		}
	})
	b.Run("changed", func(b *testing.B) {
		for b.Loop() {
			f.event(model.Event{Type: model.EventOOM, Container: model.Container{ID: all[0].ID}})
			f.containers()
		}
	})
}
