// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"maps"
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestDrivers compares the APIs of the rows with the drivers.
func TestDrivers(t *testing.T) {
	served := slices.Sorted(slices.Values(apis()))
	if spoken := slices.Sorted(maps.Keys(drivers)); !slices.Equal(served, spoken) {
		t.Errorf("the runtimes serve %v, there are drivers for %v", served, spoken)
	}
	if first := apis()[0]; first != model.APIContainerd {
		t.Errorf("the first API is %s: a socket of containerd that is given twice would be followed through it", first)
	}
}

// TestRowsAreFound: each default socket leads back to its row, by its path alone and in DeviceStates.
func TestRowsAreFound(t *testing.T) {
	for _, r := range model.Runtimes {
		for _, path := range r.Sockets {
			got, err := ParseSocket("unix://" + path)
			if err != nil || got != (Socket{r.API, path}) {
				t.Errorf("%s: %v, %v; want the API %s", path, got, err, r.API)
			}
		}
	}
	for s, want := range map[Socket]string{
		{model.APIContainerd, "/run/docker/containerd/containerd.sock"}: "containerd",
		{model.APICRI, "/run/containerd/containerd.sock"}:               "cri",
		{model.APICRI, "/run/crio/crio.sock"}:                           "cri",
		{model.APIDocker, "/var/run/docker.sock"}:                       "docker",
		{model.APIDocker, "/run/user/1000/podman/podman.sock"}:          "podman",
		{model.APIDocker, "/run/podman/docker.sock"}:                    "podman",
		{model.APIDocker, "/run/engine.sock"}:                           "docker",
	} {
		if got := nameOfSocket(s); got != want {
			t.Errorf("%v: %q, want %q", s, got, want)
		}
	}
}
