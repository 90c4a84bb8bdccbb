// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// driver follows one runtime until it fails or ctx ends. Its error is nil only if ctx is done.
type driver func(ctx context.Context, f feed) error

// drivers has a constructor for each API: it returns the driver for the socket at a path.
var drivers = map[model.RuntimeAPI]func(o Options, path string) driver{
	model.APIContainerd: containerdOrCRI,
	model.APIDocker:     func(o Options, path string) driver { return docker(path, o.Labels) },
	model.APICRI:        func(o Options, path string) driver { return cri(path, o.Labels) },
}

// apis lists the APIs in the order of the runtimes that serve them.
func apis() []model.RuntimeAPI {
	var list []model.RuntimeAPI
	for _, r := range model.Runtimes {
		if !slices.Contains(list, r.API) {
			list = append(list, r.API)
		}
	}
	return list
}

// kinds lists the APIs for messages.
func kinds() string {
	var names []string
	for _, api := range slices.Sorted(maps.Keys(drivers)) {
		names = append(names, string(api))
	}
	return strings.Join(names, ", ")
}
