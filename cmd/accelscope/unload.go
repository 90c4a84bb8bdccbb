// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/nvidia/unload"
)

// serviceAccount is the directory of the token that Kubernetes mounts in a pod.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// watchUnload releases NVIDIA's driver when a tool is about to unload it, until the returned function is called. gpus is nil if
// NVIDIA's GPUs are not read.
func watchUnload(f sensorFlags, gpus releaser, log *zap.Logger) (stop func()) {
	if gpus == nil {
		return func() {}
	}
	o := unload.Options{
		Sysfs: f.Sysfs, Procfs: f.Procfs, Run: cmp.Or(f.Run, f.onNode("run")), Logger: log.Named("nvidia"),
	}
	if f.NodeLabels {
		if o.Node = ownNode(f.NodeName); o.Node == nil {
			log.Warn("--gpu.release-on-node-labels has no effect outside a pod")
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go safely.Do("nvidia", func() {
		defer close(done)
		unload.Watch(ctx, o, unload.Handler{
			Release: func(reason string, most time.Duration) { gpus.Hold(reason, most) },
			Resume:  gpus.EndHold,
		})
	})
	return func() {
		cancel()
		<-done
	}
}

// nodeLabels adds whether the labels of the node can be watched. node is nil outside a pod.
func (r *report) nodeLabels(ctx context.Context, node *unload.Node) {
	const name = "labels of the node"
	if node == nil {
		r.add("permission", name, model.StateUnsupported, "--gpu.release-on-node-labels has no effect outside a pod", "")
		return
	}
	if err := node.Try(ctx); err != nil {
		r.add("permission", name, model.StateFailed, err.Error(),
			"apply the component gpu-release, or set gpu.releaseOnNodeLabels of the chart, and name the node with --node.name")
		return
	}
	r.add("permission", name, model.StateOK, "", "")
}

// ownNode returns the node of the pod, or nil outside a pod.
func ownNode(name string) *unload.Node {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil
	}
	return &unload.Node{
		Name: nodeName(name), Server: "https://" + net.JoinHostPort(host, port),
		TokenFile: filepath.Join(serviceAccount, "token"), CAFile: filepath.Join(serviceAccount, "ca.crt"),
	}
}
