// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const (
	group       = "/apis/resource.k8s.io"
	managedBy   = "app.kubernetes.io/managed-by"
	annotation  = "accelscope/" // node, device, verdicts
	taintKey    = "accelscope/unhealthy"
	taintValues = 63 // bytes: a taint's value is limited as a label's
)

// ErrNoDevice reports that no driver of resource claims publishes the device.
var ErrNoDevice = errors.New("no driver of resource claims publishes the device")

// DeviceTaint is a DeviceTaintRule of this package.
type DeviceTaint struct {
	Name, ObjectUID string
	Node, UUID      string // of the device
	Verdicts        []string
}

type selector struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

type taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

type rule struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       struct {
		DeviceSelector selector `json:"deviceSelector"`
		Taint          taint    `json:"taint"`
	} `json:"spec"`
}

// Devices are the versions of the API of devices that the API server serves.
type Devices struct{ rules, slices string }

// Devices asks for the API of devices. It returns nil if the API server has no DeviceTaintRules or no ResourceSlices.
func (c *Cluster) Devices(ctx context.Context) (*Devices, error) {
	var versions struct{ Versions []struct{ Version string } }
	if err := c.get(ctx, group, nil, &versions); errors.Is(err, ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	d := &Devices{}
	for _, v := range versions.Versions { // the preferred version first
		var list struct{ Resources []struct{ Name string } }
		if err := c.get(ctx, group+"/"+v.Version, nil, &list); err != nil {
			return nil, err
		}
		for _, r := range list.Resources {
			if r.Name == "devicetaintrules" && d.rules == "" {
				d.rules = v.Version
			}
			if r.Name == "resourceslices" && d.slices == "" {
				d.slices = v.Version
			}
		}
	}
	if d.rules == "" || d.slices == "" {
		return nil, nil
	}
	return d, nil
}

// DeviceTaints returns own DeviceTaintRules.
func (c *Cluster) DeviceTaints(ctx context.Context, d *Devices) (all []DeviceTaint, err error) {
	query := url.Values{"labelSelector": {managedBy + "=" + manager}}
	err = pages(ctx, c, group+"/"+d.rules+"/devicetaintrules", query, func(r *rule) { all = append(all, ownTaint(r)) })
	return all, err
}

func ownTaint(r *rule) DeviceTaint {
	of := r.Metadata.Annotations
	return DeviceTaint{
		Name: r.Metadata.Name, ObjectUID: r.Metadata.UID, Node: of[annotation+"node"], UUID: of[annotation+"device"],
		Verdicts: strings.Split(of[annotation+"verdicts"], separator),
	}
}

// Taint creates the DeviceTaintRule for the device of a node with a UUID.
func (c *Cluster) Taint(ctx context.Context, d *Devices, node, uuid, effect string, verdicts []string) (DeviceTaint, error) {
	if !nodeName.MatchString(node) {
		return DeviceTaint{}, fmt.Errorf("node %q: %w: no name of a node", node, ErrNotFound)
	}
	device, err := c.device(ctx, d, node, uuid)
	if err != nil {
		return DeviceTaint{}, err
	}
	r := &rule{APIVersion: "resource.k8s.io/" + d.rules, Kind: "DeviceTaintRule"}
	r.Metadata = metadata{
		Name:   fmt.Sprintf("accelscope-%x", sha256.Sum256([]byte(node+"/"+uuid)))[:len("accelscope-")+16],
		Labels: map[string]string{managedBy: manager},
		Annotations: map[string]string{
			annotation + "node": node, annotation + "device": uuid, annotation + "verdicts": strings.Join(verdicts, separator),
		},
	}
	r.Spec.DeviceSelector = *device
	r.Spec.Taint = taint{Key: taintKey, Value: verdicts[0][:min(len(verdicts[0]), taintValues)], Effect: effect}
	made := &rule{}
	path := group + "/" + d.rules + "/devicetaintrules"
	err = c.do(ctx, http.MethodPost, path, url.Values{"fieldManager": {manager}}, r, "application/json", made)
	return ownTaint(made), err
}

// Untaint deletes a DeviceTaintRule, but not another object that has its name now.
func (c *Cluster) Untaint(ctx context.Context, d *Devices, t DeviceTaint) error {
	body := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]string{"uid": t.ObjectUID}}
	err := c.do(ctx, http.MethodDelete, group+"/"+d.rules+"/devicetaintrules/"+t.Name, nil, body, "application/json", nil)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// device finds the device with an attribute uuid.
func (c *Cluster) device(ctx context.Context, d *Devices, node, uuid string) (found *selector, err error) {
	type slice struct {
		Spec struct {
			Driver   string
			NodeName string
			Pool     struct{ Name string }
			Devices  []struct {
				Name       string
				Attributes map[string]struct{ String string }
			}
		}
	}
	query := url.Values{"fieldSelector": {"spec.nodeName=" + node}}
	err = pages(ctx, c, group+"/"+d.slices+"/resourceslices", query, func(s *slice) {
		for _, one := range s.Spec.Devices {
			names := []string{"uuid", s.Spec.Driver + "/uuid"}
			has := slices.ContainsFunc(names, func(name string) bool { return one.Attributes[name].String == uuid })
			if has && s.Spec.NodeName == node {
				found = &selector{Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name, Device: one.Name}
			}
		}
	})
	if err == nil && found == nil {
		err = fmt.Errorf("%s %s: %w", node, uuid, ErrNoDevice)
	}
	return found, err
}
