// SPDX-License-Identifier: Apache-2.0

package runtime

import "github.com/accelscope/accelscope/pkg/model"

// feed receives the containers and events of one runtime. A driver calls sync once after it has subscribed and listed,
// then event for each event, and sync again after each further list. The feed owns its arguments.
type feed interface {
	// sync receives the complete list of this socket. Differences from the known containers become events that are
	// marked Reconciled.
	sync(all []model.Container)
	// event receives one event: e.Container is the state after it, EventDelete removes the container.
	event(e model.Event)
	// knows reports whether a container of this socket is known to exist.
	knows(id string) bool
}
