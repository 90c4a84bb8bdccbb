// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"cmp"
	"context"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/control"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/nvidia/unload"
)

// serviceAccount is the directory of the token that Kubernetes mounts in a pod.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// watchUnload releases NVIDIA's driver when a tool is about to unload it, until the returned function is called. gpus is nil if
// NVIDIA's GPUs are not read.
func watchUnload(f *Options, gpus control.Releaser, log *zap.Logger) (stop func()) {
	if gpus == nil {
		return func() {}
	}
	o := unload.Options{
		Sysfs: f.Sysfs, Procfs: f.Procfs, Run: cmp.Or(f.Run, f.onNode("run")), Logger: log.Named("nvidia"),
	}
	if f.NodeLabels {
		if o.Node = f.OwnNode(); o.Node == nil {
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

// OwnNode returns the node of the pod, or nil outside a pod.
func (o *Options) OwnNode() *unload.Node {
	if o.APIServer == "" {
		return nil
	}
	return &unload.Node{
		Name: nodeName(o.NodeName), Server: o.APIServer,
		TokenFile: filepath.Join(serviceAccount, "token"), CAFile: filepath.Join(serviceAccount, "ca.crt"),
	}
}
