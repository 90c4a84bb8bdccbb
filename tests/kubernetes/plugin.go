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

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// devicePlugin is a device plugin: it advertises devices to the kubelet and hands out a device node for each.
type devicePlugin struct {
	v1beta1.UnimplementedDevicePluginServer
	resource string
	nodes    map[string]string // device node, by ID

	server *grpc.Server
	served chan struct{}
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

// devices returns the devices.
func (p *devicePlugin) devices() *v1beta1.ListAndWatchResponse {
	r := &v1beta1.ListAndWatchResponse{}
	for id := range p.nodes {
		r.Devices = append(r.Devices, &v1beta1.Device{ID: id, Health: v1beta1.Healthy})
	}
	slices.SortFunc(r.Devices, func(a, b *v1beta1.Device) int { return strings.Compare(a.ID, b.ID) })
	return r
}

// GetDevicePluginOptions implements v1beta1.DevicePluginServer.
func (p *devicePlugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch implements v1beta1.DevicePluginServer.
func (p *devicePlugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	if err := stream.Send(p.devices()); err != nil {
		return err
	}
	<-stream.Context().Done()
	return stream.Context().Err()
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
