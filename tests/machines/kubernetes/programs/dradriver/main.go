// SPDX-License-Identifier: Apache-2.0

// Command dradriver is a driver of dynamic resource allocation for the stand-in GPUs and HCAs of the tests. It is made with the helper
// library of Kubernetes: it registers with the kubelet, publishes the devices of the node as a ResourceSlice, reports their health, and
// writes a CDI specification for each claim, with the names that NVIDIA's driver uses. For devices without a device node it writes none,
// as DRANET does.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the driver")
	d := driver{}
	flag.StringVar(&d.name, "driver", "", "name of the driver")
	flag.StringVar(&d.node, "node", "", "name of the node, and of the pool")
	flag.StringVar(&d.unhealthy, "unhealthy", "", "file with the names of unhealthy devices, which is read each second")
	devices := flag.String("devices", "[]", "devices, in JSON")
	flag.Parse()
	if err := json.Unmarshal([]byte(*devices), &d.devices); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *kubeconfig, d); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig string, d driver) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(kubeletplugin.KubeletPluginsDir, d.name)
	if err := errors.Join(os.MkdirAll(data, 0o750), os.MkdirAll(cdiDir, 0o755)); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(d.name), kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(d.node), kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		return err
	}
	defer helper.Stop()
	var devices []resourceapi.Device
	for _, one := range d.devices {
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		for name, value := range one.Attributes {
			attributes[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{StringValue: &value}
		}
		devices = append(devices, resourceapi.Device{Name: one.Name, Attributes: attributes})
	}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		d.node: {Slices: []resourceslice.Slice{{Devices: devices}}},
	}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// device is a device of the node.
type device struct {
	Name       string            `json:"name"`
	Node       string            `json:"node"` // device node; empty if the driver writes no CDI specification for it
	Attributes map[string]string `json:"attributes"`
}

// driver implements kubeletplugin.DRAPlugin.
type driver struct {
	name, node string
	unhealthy  string // file
	devices    []device
}

func (d driver) kind() string { return "k8s." + d.name + "/claim" } // of CDI devices

// cdiDir is where runtimes look for specifications of devices that exist until the next boot.
const cdiDir = "/var/run/cdi"

func (d driver) specification(claim types.UID) string {
	return filepath.Join(cdiDir, "k8s."+d.name+"-claim_"+string(claim)+".json")
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
		if result.Driver != d.name {
			continue
		}
		allocated := kubeletplugin.Device{Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device}
		i := slices.IndexFunc(d.devices, func(one device) bool { return one.Name == result.Device })
		if i >= 0 && d.devices[i].Node != "" {
			cdi := string(claim.UID) + "-" + result.Device
			specs = append(specs, object{"name": cdi, "containerEdits": object{"deviceNodes": []object{{"path": d.devices[i].Node}}}})
			allocated.CDIDeviceIDs = []string{d.kind() + "=" + cdi}
		}
		devices = append(devices, allocated)
	}
	if len(specs) == 0 {
		return devices, nil
	}
	text, err := json.Marshal(object{"cdiVersion": "0.6.0", "kind": d.kind(), "devices": specs})
	if err != nil {
		return nil, err
	}
	// Renamed, because runtimes read the directory at any time.
	next := filepath.Join(cdiDir, "."+string(claim.UID))
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return nil, err
	}
	return devices, os.Rename(next, d.specification(claim.UID))
}

// UnprepareResourceClaims removes the CDI specifications of claims.
func (d driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.specification(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil // it was removed before
		}
		out[claim.UID] = err
	}
	return out, nil
}

// WatchHealthStatus sends the health of all devices each second.
func (d driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		text, _ := os.ReadFile(d.unhealthy) // without it all are healthy
		var r kubeletplugin.DeviceHealthReport
		for _, one := range d.devices {
			health := kubeletplugin.HealthStatusHealthy
			if slices.Contains(strings.Fields(string(text)), one.Name) {
				health = kubeletplugin.HealthStatusUnhealthy
			}
			r.Devices = append(r.Devices, kubeletplugin.DeviceHealth{PoolName: d.node, DeviceName: one.Name, Health: health})
		}
		select {
		case <-ctx.Done():
			return nil
		case reports <- r:
			time.Sleep(time.Second)
		}
	}
}

// HandleError logs an error of the background.
func (driver) HandleError(_ context.Context, err error, what string) { log.Print(what, ": ", err) }
