// SPDX-License-Identifier: Apache-2.0

// Command dradriver is a driver of dynamic resource allocation for the stand-in GPUs of the tests. It is made with the helper
// library of Kubernetes: it registers with the kubelet, publishes the GPUs of the node as a ResourceSlice, and writes a CDI
// specification for each claim, with the names that NVIDIA's driver uses.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const (
	name = "gpu.nvidia.com"
	kind = "k8s.gpu.nvidia.com/claim" // of CDI devices
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the driver")
	node := flag.String("node", "", "name of the node")
	gpus := flag.Int("gpus", 0, "number of GPUs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *kubeconfig, *node, *gpus, driver{}); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig, node string, gpus int, d driver) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(kubeletplugin.KubeletPluginsDir, name)
	if err := errors.Join(os.MkdirAll(data, 0o750), os.MkdirAll(cdiDir, 0o755)); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(name), kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(node), kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		return err
	}
	defer helper.Stop()
	var devices []resourceapi.Device
	for n := range gpus {
		devices = append(devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", n)})
	}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		node: {Slices: []resourceslice.Slice{{Devices: devices}}},
	}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// driver implements kubeletplugin.DRAPlugin.
type driver struct{}

// cdiDir is where runtimes look for specifications of devices that exist until the next boot.
const cdiDir = "/var/run/cdi"

func specification(claim types.UID) string {
	return filepath.Join(cdiDir, "k8s.gpu.nvidia.com-claim_"+string(claim)+".json")
}

// PrepareResourceClaims writes the CDI specifications of claims.
func (d driver) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		out[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return out, nil
}

func (d driver) prepare(claim *resourceapi.ResourceClaim) (devices []kubeletplugin.Device, err error) {
	type object = map[string]any
	var specs []object
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != name {
			continue
		}
		cdi := string(claim.UID) + "-" + result.Device
		specs = append(specs, object{"name": cdi, "containerEdits": object{"deviceNodes": []object{
			{"path": "/dev/nvidia" + strings.TrimPrefix(result.Device, "gpu-")},
		}}})
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device, CDIDeviceIDs: []string{kind + "=" + cdi},
		})
	}
	text, err := json.Marshal(object{"cdiVersion": "0.6.0", "kind": kind, "devices": specs})
	if err != nil {
		return nil, err
	}
	// Renamed, because runtimes read the directory at any time.
	next := filepath.Join(cdiDir, "."+string(claim.UID))
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return nil, err
	}
	return devices, os.Rename(next, specification(claim.UID))
}

// UnprepareResourceClaims removes the CDI specifications of claims.
func (driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(specification(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil // it was removed before
		}
		out[claim.UID] = err
	}
	return out, nil
}

// HandleError logs an error of the background.
func (driver) HandleError(_ context.Context, err error, what string) { log.Print(what, ": ", err) }
