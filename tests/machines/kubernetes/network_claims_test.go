// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
)

// rdmaDevice is the attribute with the name of the HCA.
const rdmaDevice = "dra.net/rdmaDevice"

// testNetworkClaims has a driver like DRANET allocate HCAs, which pods choose by the attribute dra.net/rdmaDevice. The attribute is only in
// the ResourceSlice of the API server. The kubelet lists the name of the device, which has the PCI address, and there is no CDI
// specification. The sensor must show the HCA that the attribute names, as allocated if the container has its device node. DRANET adds
// the node by a hook of the runtime; here a device plugin does.
//
// The name of one device has no address: the sensor cannot know its HCA, and must show the device by its name.
func testNetworkClaims(t *testing.T) {
	const ns, unnamed = "network-claims", "port-7"
	makeNamespace(t, ns)
	s := startSensor(t)
	devices := []draDevice{{Name: unnamed, Attributes: map[string]string{rdmaDevice: "mlx5_7"}}}
	for _, h := range s.hcas {
		devices = append(devices, draDevice{
			Name: "pci-" + strings.NewReplacer(":", "-", ".", "-").Replace(h.PCIAddress), Attributes: map[string]string{rdmaDevice: h.Name},
		})
		node := &devicePlugin{resource: "example.com/" + h.CharDevice, nodes: map[string]string{"node": "/dev/infiniband/" + h.CharDevice}}
		if err := node.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(node.stop)
	}
	startDriver(t, "dra.net", devices)
	t.Cleanup(func() { removePods(t, ns) })
	apply(t, "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: dra.net}\n"+
		"spec: {selectors: [{cel: {expression: 'device.driver == \"dra.net\"'}}]}\n---\n")
	pod := func(name, hca, limits string) {
		t.Helper()
		apply(t, fmt.Sprintf("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: %s, namespace: %s}\n"+
			"spec: {devices: {requests: [{name: hca, exactly: {deviceClassName: dra.net, selectors: [{cel: {expression: "+
			"'device.attributes[\"dra.net\"].rdmaDevice == %q'}}]}}]}}\n---\n", name, ns, hca)+
			podYAML(ns, name, fmt.Sprintf("  resourceClaims: [{name: hca, resourceClaimName: %s}]\n  containers:\n"+
				"  - {name: main, IMAGE, SLEEP, resources: {claims: [{name: hca}], limits: {%s}}}\n  - {name: none, IMAGE, SLEEP}\n", name, limits)))
	}
	pod("rdma", s.hcas[1].Name, "example.com/"+s.hcas[1].CharDevice+": 1")
	pod("interface", s.hcas[2].Name, "")
	pod("unnamed", "mlx5_7", "")
	ready(t, ns, "pod/rdma", "pod/interface", "pod/unnamed")
	same(t, "containers", running.running, shown)

	claimed := func(ctx context.Context) (map[string]float64, error) { return claimedHCAs(ctx, ns, unnamed) }
	same(t, "HCAs of claims", claimed, func(ctx context.Context) (map[string]float64, error) {
		f, err := scrape(ctx)
		out := map[string]float64{}
		for key, v := range f.values("accelscope_workload_device_info", "resource", "pod", "container", "device") {
			if name, ok := strings.CutPrefix(key, "dra.net/"+nodeName+" "); ok {
				out[name] = v
			}
		}
		return out, err
	})
	same(t, "HCAs of claims, by REST", func(ctx context.Context) (map[string]float64, error) {
		all, err := claimed(ctx)
		delete(all, "unnamed main "+unnamed)
		return all, err
	}, func(ctx context.Context) (map[string]float64, error) { return restHCAs(ctx, ns) })
	allocated(t, ns, s)
	f, err := scrape(t.Context())
	if got := f.values("container_rdma_allocated", "pod", "device"); err != nil || len(got) != 1 || got["rdma "+s.hcas[1].Name] != 1 {
		t.Errorf("%v: allocated HCAs: %v", err, got)
	}
}

// claimedHCAs returns the HCAs of claims as "POD main HCA": by the device that was allocated, and its attribute. A device with the name
// unnamed is returned by this name.
func claimedHCAs(ctx context.Context, namespace, unnamed string) (map[string]float64, error) {
	var slices resourcev1.ResourceSliceList
	if err := running.get(ctx, "/apis/resource.k8s.io/v1/resourceslices", &slices); err != nil {
		return nil, err
	}
	hca := map[string]string{unnamed: unnamed}
	for i := range slices.Items {
		for _, d := range slices.Items[i].Spec.Devices {
			if a := d.Attributes[rdmaDevice]; a.StringValue != nil && d.Name != unnamed {
				hca[d.Name] = *a.StringValue
			}
		}
	}
	var claims resourcev1.ResourceClaimList
	err := running.get(ctx, "/apis/resource.k8s.io/v1/namespaces/"+namespace+"/resourceclaims", &claims)
	out := map[string]float64{}
	for i := range claims.Items {
		for _, pod := range claims.Items[i].Status.ReservedFor {
			for _, d := range claims.Items[i].Status.Allocation.Devices.Results {
				out[pod.Name+" main "+hca[d.Device]] = 1
			}
		}
	}
	return out, err
}

// restHCAs returns the HCAs of the containers of a namespace in the sensor's list of pods, as "POD CONTAINER HCA".
func restHCAs(ctx context.Context, namespace string) (map[string]float64, error) {
	return restDevices(ctx, namespace, func(d listedDevices) (names []string) {
		for _, h := range d.HCAs {
			names = append(names, h.Name)
		}
		return names
	})
}

// listedDevices are a container's devices in /pods.
type listedDevices struct {
	HCAs []struct {
		Name string `json:"name"`
	} `json:"infiniband"`
	GPUs []struct {
		UUID string `json:"uuid"`
	} `json:"gpu"`
}

// restDevices returns devices of the containers of a namespace in /pods, as "POD CONTAINER NAME".
func restDevices(ctx context.Context, namespace string, names func(listedDevices) []string) (map[string]float64, error) {
	text, err := request(ctx, http.DefaultClient, sensorURL+"/pods")
	if err != nil {
		return nil, err
	}
	var list []struct {
		Name      string        `json:"container_name"`
		Pod       string        `json:"pod_name"`
		Namespace string        `json:"pod_namespace"`
		Devices   listedDevices `json:"devices"`
	}
	err = json.Unmarshal(text, &list)
	out := map[string]float64{}
	for _, c := range list {
		for _, name := range names(c.Devices) {
			if c.Namespace == namespace {
				out[c.Pod+" "+c.Name+" "+name] = 1
			}
		}
	}
	return out, err
}
