// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"

	"github.com/accelscope/accelscope/pkg/model"
)

// feed takes what one runtime tells. A driver calls sync once after it has
// subscribed and listed, then event for what happens; sync again whenever it
// has listed anew. The feed owns what it is given.
type feed interface {
	// sync is the complete list of this socket; differences to what was known
	// become events marked Reconciled.
	sync(all []model.Container)
	// event tells that something happened; e.Container is the state after it;
	// EventDelete removes it.
	event(e model.Event)
	// knows says whether a container of this socket is known to exist.
	knows(id string) bool
}

// driver follows one runtime until it fails or ctx ends. It returns why (never
// nil unless ctx is done).
type driver func(ctx context.Context, f feed) error
