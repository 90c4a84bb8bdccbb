// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// drivers has the driver of each API. It follows the runtime at a socket until it fails or ctx ends. Its error is nil
// only if ctx is done.
var drivers = map[model.RuntimeAPI]func(ctx context.Context, o Options, path string, f feed) error{
	model.APIContainerd: containerdOrCRI,
	model.APIDocker:     docker,
	model.APICRI:        cri,
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

func kinds() string {
	var names []string
	for _, api := range slices.Sorted(maps.Keys(drivers)) {
		names = append(names, string(api))
	}
	return strings.Join(names, ", ")
}
