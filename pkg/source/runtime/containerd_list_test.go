// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"io"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	"google.golang.org/grpc"
)

// fakeNamespaces has namespaces without containers, and Docker's.
type fakeNamespaces struct {
	namespaces.NamespacesClient
	n int
}

func (f *fakeNamespaces) List(context.Context, *namespaces.ListNamespacesRequest, ...grpc.CallOption) (*namespaces.ListNamespacesResponse, error) {
	out := &namespaces.ListNamespacesResponse{Namespaces: []*namespaces.Namespace{{Name: mobyNamespace}}}
	for i := range f.n {
		out.Namespaces = append(out.Namespaces, &namespaces.Namespace{Name: fmt.Sprint("ns", i)})
	}
	return out, nil
}

// fakeContainers counts the namespaces for which it is asked.
type fakeContainers struct {
	containers.ContainersClient
	listed int
}

func (f *fakeContainers) ListStream(context.Context, *containers.ListContainersRequest, ...grpc.CallOption) (containers.Containers_ListStreamClient, error) {
	f.listed++
	return noContainers{}, nil
}

type noContainers struct{ grpc.ClientStream }

func (noContainers) Recv() (*containers.ListContainerMessage, error) { return nil, io.EOF }

// TestNamespaces: a socket is asked for the containers of its first namespaces, and not of Docker's.
func TestNamespaces(t *testing.T) {
	for n, want := range map[int]int{0: 0, 3: 3, maxNamespaces + 10: maxNamespaces - 1} {
		c := &fakeContainers{}
		d := &containerdDriver{namespaces: &fakeNamespaces{n: n}, containers: c}
		if got, err := d.list(t.Context()); err != nil || len(got) != 0 || c.listed != want {
			t.Errorf("%d namespaces: %d containers, error %v, asked for %d, want %d", n, len(got), err, c.listed, want)
		}
	}
}
