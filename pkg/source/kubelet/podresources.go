// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// maxMessage is the size limit of an answer. gRPC's default, 4 MiB, is too small for a node with thousands of pods.
const maxMessage = 64 << 20

// maxFacts limits the entries of a kind in an answer: more than any node can run.
const maxFacts = 1 << 16

var errTooMany = fmt.Errorf("more than %d entries in one answer", maxFacts)

// podResources is the PodResources socket: its path below a root directory.
type podResources struct{ root, path string }

// list requests the devices that device plugins and claims (dynamic resources) allocated to containers. nodes returns
// the device nodes of CDI devices. An answer beyond the limit is refused as a whole.
func (p podResources) list(ctx context.Context, nodes func(names []string) []string) (*facts, error) {
	return p.ask("List", func(c podresourcesv1.PodResourcesListerClient) (*facts, error) {
		f := &facts{Snapshot: model.Snapshot{Allocations: []model.Allocation{}}}
		r, err := c.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
		for _, pod := range r.GetPodResources() {
			for _, container := range pod.GetContainers() {
				f.appendAllocations(pod, container, nodes)
				if len(f.Allocations) > maxFacts {
					return nil, errTooMany
				}
			}
		}
		return f, err
	})
}

func (f *facts) appendAllocations(
	pod *podresourcesv1.PodResources, container *podresourcesv1.ContainerResources, nodes func(names []string) []string,
) {
	a := model.Allocation{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName()}
	add := func(resource, id string, cdi ...string) {
		a.Resource, a.ID = resource, id
		f.Allocations = append(f.Allocations, a)
		f.ids = append(f.ids, append(cdi, resource+"/"+id)[0])
	}
	for _, d := range container.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			add(d.GetResourceName(), id)
		}
	}
	for _, dynamic := range container.GetDynamicResources() {
		a.Claim = dynamic.GetClaimName()
		listed := map[string][]string{} // CDI names of the last device, by driver
		for _, c := range dynamic.GetClaimResources() {
			names := make([]string, 0, len(c.GetCdiDevices()))
			for _, cdi := range c.GetCdiDevices() {
				names = append(names, cdi.GetName())
			}
			before := listed[c.GetDriverName()]
			listed[c.GetDriverName()] = names
			names = ownNames(names, before)
			a.ShareID = c.GetShareId()
			if c.GetDeviceName() != "" {
				a.Nodes = nodes(names)
				add(c.GetDriverName()+"/"+c.GetPoolName(), c.GetDeviceName(), names...)
				continue
			}
			// Kubelets before 1.31 report only VENDOR/CLASS=NAME.
			for i, name := range names {
				kind, _, _ := strings.Cut(name, "=")
				a.Nodes = nodes(names[i : i+1])
				add(kind, name, name)
			}
		}
	}
}

// ownNames returns the CDI names of a claimed device without the names of the devices before it, which Kubernetes 1.35
// lists with it. Two shares of one device have the same names.
func ownNames(names, before []string) []string {
	if n := len(before); len(names) > n && slices.Equal(names[:n], before) {
		return names[n:]
	}
	return names
}

// allocatable requests the devices that the plugins of the node can allocate, without dynamic resource allocation.
func (p podResources) allocatable(ctx context.Context) (*facts, error) {
	return p.ask("GetAllocatableResources", func(c podresourcesv1.PodResourcesListerClient) (*facts, error) {
		f := &facts{Snapshot: model.Snapshot{Allocatable: []model.Allocatable{}}}
		r, err := c.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
		if len(r.GetDevices()) > maxFacts {
			return nil, errTooMany
		}
		at := map[string]int{} // a resource is repeated for each NUMA node
		for _, d := range r.GetDevices() {
			i, ok := at[d.GetResourceName()]
			if !ok {
				i = len(f.Allocatable)
				at[d.GetResourceName()] = i
				f.Allocatable = append(f.Allocatable, model.Allocatable{Resource: d.GetResourceName()})
			}
			f.Allocatable[i].IDs = append(f.Allocatable[i].IDs, d.GetDeviceIds()...)
		}
		return f, err
	})
}

// ask dials the socket and calls a method. The error is ErrAbsent without a socket, and ErrUnsupported if the kubelet
// does not serve the method.
func (p podResources) ask(
	method string, call func(podresourcesv1.PodResourcesListerClient) (*facts, error),
) (*facts, error) {
	socket, err := boundedfile.Below(p.root, p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no socket %s: %w", filepath.Join(p.root, p.path), model.ErrAbsent)
	}
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	var dialed atomic.Pointer[error] // error of dialing the socket: a gRPC status has only its text
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
			if err != nil {
				dialed.Store(&err)
			}
			return c, err
		}),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return nil, err
	}
	f, err := call(podresourcesv1.NewPodResourcesListerClient(conn))
	_ = conn.Close() // fails only if it was closed before
	st, ok := status.FromError(err)
	switch {
	case err == nil:
		return f, nil
	case !ok:
		return nil, err
	// Kubelets before 1.28 return this while the method's feature gate is off.
	case st.Code() == codes.Unimplemented, st.Code() == codes.Unknown && strings.HasSuffix(st.Message(), "disabled"):
		return nil, fmt.Errorf("the kubelet does not serve %s (%s): %w", method, short(st.Message()), model.ErrUnsupported)
	case st.Code() == codes.Unavailable:
		err = fmt.Errorf("%s: %s; is the kubelet running?", method, short(st.Message()))
		if reason := dialed.Load(); reason != nil {
			err = model.WithReason(err, *reason)
		}
		return nil, err
	}
	return nil, fmt.Errorf("%s: %s: %s", method, st.Code(), short(st.Message()))
}
