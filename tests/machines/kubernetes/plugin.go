// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// devicePlugin is a device plugin: it advertises devices to the kubelet and hands out a device node for each.
type devicePlugin struct {
	v1beta1.UnimplementedDevicePluginServer
	resource string
	nodes    map[string]string // device node, by ID
	numa     map[string]int64  // NUMA node, by ID; nil if the plugin does not report it

	server *grpc.Server
	served chan struct{}

	mu      sync.Mutex
	sick    map[string]bool // unhealthy devices, by ID
	changed chan struct{}   // closed with the next change of sick
}

func (p *devicePlugin) endpoint() string {
	return strings.NewReplacer("/", "-", ".", "-").Replace(p.resource) + ".sock"
}

// start serves the plugin and registers it. It is called again after a restart of the kubelet, as plugins do, because the kubelet
// removes their sockets.
func (p *devicePlugin) start(ctx context.Context) error {
	socket := filepath.Join(v1beta1.DevicePluginPath, p.endpoint())
	_ = os.Remove(socket) // of an earlier start
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	p.server, p.served = grpc.NewServer(), make(chan struct{})
	v1beta1.RegisterDevicePluginServer(p.server, p)
	go func() { defer close(p.served); _ = p.server.Serve(listener) }()

	conn, err := grpc.NewClient("unix://"+v1beta1.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: p.endpoint(), ResourceName: p.resource,
	}, grpc.WaitForReady(true))
	return errors.Join(err, conn.Close())
}

func (p *devicePlugin) stop() {
	p.server.Stop()
	<-p.served
}

// setSick makes exactly these devices unhealthy.
func (p *devicePlugin) setSick(ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sick = map[string]bool{}
	for _, id := range ids {
		p.sick[id] = true
	}
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// devices returns the devices, and a channel that is closed with their next change.
func (p *devicePlugin) devices() (*v1beta1.ListAndWatchResponse, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &v1beta1.ListAndWatchResponse{}
	for id := range p.nodes {
		d := &v1beta1.Device{ID: id, Health: v1beta1.Healthy}
		if p.sick[id] {
			d.Health = v1beta1.Unhealthy
		}
		if node, ok := p.numa[id]; ok {
			d.Topology = &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: node}}}
		}
		r.Devices = append(r.Devices, d)
	}
	slices.SortFunc(r.Devices, func(a, b *v1beta1.Device) int { return strings.Compare(a.ID, b.ID) })
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return r, p.changed
}

// GetDevicePluginOptions implements v1beta1.DevicePluginServer.
func (p *devicePlugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch implements v1beta1.DevicePluginServer.
func (p *devicePlugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	for {
		devices, changed := p.devices()
		if err := stream.Send(devices); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// Allocate implements v1beta1.DevicePluginServer.
func (p *devicePlugin) Allocate(_ context.Context, r *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	out := &v1beta1.AllocateResponse{}
	for _, container := range r.GetContainerRequests() {
		one := &v1beta1.ContainerAllocateResponse{}
		for _, id := range container.GetDevicesIds() {
			one.Devices = append(one.Devices, &v1beta1.DeviceSpec{ContainerPath: p.nodes[id], HostPath: p.nodes[id], Permissions: "rw"})
		}
		out.ContainerResponses = append(out.ContainerResponses, one)
	}
	return out, nil
}
