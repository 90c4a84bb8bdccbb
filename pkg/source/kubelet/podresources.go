// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxMessage is the largest answer that is taken. gRPC's own limit, 4 MiB, is
// less than what a node with thousands of pods answers.
const maxMessage = 64 << 20

// maxFacts is how many facts of a kind an answer may hold: more than any node
// can run, and few enough to be kept.
const maxFacts = 1 << 16

var errTooMany = fmt.Errorf("more than %d facts in one answer", maxFacts)

// podResources is the path of the PodResources socket.
type podResources string

// list asks which devices the containers were given, by device plugins and by
// claims (dynamic resources). The answer is refused as a whole when it is too
// large.
func (p podResources) list(ctx context.Context) (*facts, error) {
	f := &facts{Snapshot: model.Snapshot{Allocations: []model.Allocation{}}}
	err := p.ask("List", func(c podresourcesv1.PodResourcesListerClient) error {
		r, err := c.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
		for _, pod := range r.GetPodResources() {
			for _, container := range pod.GetContainers() {
				f.Allocations = appendAllocations(f.Allocations, pod, container)
				if len(f.Allocations) > maxFacts {
					return errTooMany
				}
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func appendAllocations(
	to []model.Allocation, pod *podresourcesv1.PodResources, container *podresourcesv1.ContainerResources,
) []model.Allocation {
	a := model.Allocation{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName()}
	add := func(resource, id string) {
		a.Resource, a.ID = resource, id
		to = append(to, a)
	}
	for _, d := range container.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			add(d.GetResourceName(), id)
		}
	}
	for _, dynamic := range container.GetDynamicResources() {
		a.Claim = dynamic.GetClaimName()
		for _, c := range dynamic.GetClaimResources() {
			if c.GetDeviceName() != "" {
				add(c.GetDriverName()+"/"+c.GetPoolName(), c.GetDeviceName())
				continue
			}
			// Kubelets before 1.31 tell only VENDOR/CLASS=NAME.
			for _, cdi := range c.GetCdiDevices() {
				kind, _, _ := strings.Cut(cdi.GetName(), "=")
				add(kind, cdi.GetName())
			}
		}
	}
	return to
}

// allocatable asks which devices the plugins of the node have to give. Devices
// of dynamic resource allocation are not among them.
func (p podResources) allocatable(ctx context.Context) (*facts, error) {
	f := &facts{Snapshot: model.Snapshot{Allocatable: []model.Allocatable{}}}
	err := p.ask("GetAllocatableResources", func(c podresourcesv1.PodResourcesListerClient) error {
		r, err := c.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
		if len(r.GetDevices()) > maxFacts {
			return errTooMany
		}
		at := map[string]int{} // a resource comes once for each NUMA node
		for _, d := range r.GetDevices() {
			i, ok := at[d.GetResourceName()]
			if !ok {
				i = len(f.Allocatable)
				at[d.GetResourceName()] = i
				f.Allocatable = append(f.Allocatable, model.Allocatable{Resource: d.GetResourceName()})
			}
			f.Allocatable[i].IDs = append(f.Allocatable[i].IDs, d.GetDeviceIds()...)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// ask dials the socket and calls a method. The error is ErrAbsent without a
// socket, ErrUnsupported when the kubelet does not serve the method.
func (p podResources) ask(method string, call func(podresourcesv1.PodResourcesListerClient) error) error {
	if _, err := os.Stat(string(p)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no socket %s: %w", string(p), model.ErrAbsent)
	}
	var dialed atomic.Pointer[error] // why the socket could not be dialed: a gRPC status has the text only
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "unix", string(p))
			if err != nil {
				dialed.Store(&err)
			}
			return c, err
		}),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return err
	}
	err = call(podresourcesv1.NewPodResourcesListerClient(conn))
	_ = conn.Close() // it only says whether it was closed before
	st, ok := status.FromError(err)
	switch {
	case err == nil, !ok:
		return err
	// Kubelets before 1.28 answer so while the method's feature gate is off.
	case st.Code() == codes.Unimplemented, st.Code() == codes.Unknown && strings.HasSuffix(st.Message(), "disabled"):
		return fmt.Errorf("the kubelet does not serve %s (%s): %w", method, short(st.Message()), model.ErrUnsupported)
	case st.Code() == codes.Unavailable:
		err = fmt.Errorf("%s: %s; is the kubelet running?", method, short(st.Message()))
		if reason := dialed.Load(); reason != nil {
			err = model.WithReason(err, *reason)
		}
		return err
	}
	return fmt.Errorf("%s: %s: %s", method, st.Code(), short(st.Message()))
}
