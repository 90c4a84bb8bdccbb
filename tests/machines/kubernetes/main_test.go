// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/machines/otel"
	"github.com/accelscope/accelscope/tests/machines/vm"
)

// Names of environment variables of the test program on the node.
const (
	dirVar      = "ACCELSCOPE_KUBERNETES"
	programsVar = "ACCELSCOPE_KUBERNETES_PROGRAMS"
	libraryVar  = "ACCELSCOPE_NVML"
	driverVar   = "ACCELSCOPE_DRIVER"   // of dynamic resource allocation
	operatorVar = "ACCELSCOPE_OPERATOR" // source of the Prometheus operator
	eventsVar   = "ACCELSCOPE_OTELCOL"  // the Collector

	containerdVar = "ACCELSCOPE_CONTAINERD" // programs of containerd 2
)

// charts are the values of the Helm chart to render, by name.
var charts = map[string]string{
	"default":      "",
	"capabilities": "{mode: capabilities, podMonitor: {enabled: true}, prometheusRule: {enabled: true}, networkPolicy: {enabled: true}}",
	"rollout":      "{config: {container.scope: all, kubelet.interval: 1s}}",
	"service":      "{serviceMonitor: {enabled: true}, fabric: {enabled: true}, gpu: {releaseOnNodeLabels: true}}",
}

// running is the cluster of the test.
var running *cluster

// onNode builds what is needed, and runs the test again on a node that is made of this machine.
func onNode(ctx context.Context, test string) (err error) {
	start := time.Now()
	programs, err := buildPrograms(ctx)
	if err != nil {
		return err
	}
	driver, err := buildDriver(ctx)
	if err != nil {
		return err
	}
	collector, err := otel.Build(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("programs of the cluster: %s\n", time.Since(start).Round(time.Second))
	dir, err := os.MkdirTemp("", "accelscope-kubernetes-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	library, err := nvml.Build(ctx, filepath.Join(dir, "nvml"), false)
	if err != nil {
		return err
	}
	for name, values := range charts {
		text, err := output(ctx, repository(), "go", "run", "-C", "tests/suites/deploy", "./render", "-chart", repository(), "v1.37.0", values)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, "chart", name), text); err != nil {
			return err
		}
	}
	operator, err := download(ctx, "github.com/prometheus-operator/prometheus-operator@v0.93.0")
	if err != nil {
		return err
	}
	containerd, err := vm.FetchPackages(ctx, "forky", "containerd")
	if err != nil {
		return err
	}
	return enter(ctx, test, dir, dirVar+"="+dir, programsVar+"="+programs, libraryVar+"="+library, operatorVar+"="+operator,
		containerdVar+"="+filepath.Join(containerd, "usr/bin"), driverVar+"="+driver, eventsVar+"="+collector)
}

// startCluster starts the cluster of a test, which ends with it.
func startCluster(t *testing.T, c *cluster) {
	t.Helper()
	start := time.Now()
	running = c
	t.Cleanup(c.stop)
	if err := c.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("cluster: %s", time.Since(start).Round(time.Second))
}

func repository() string { return filepath.Join(here(), "../../..") }

// binary is the sensor of make build.
func binary() string { return filepath.Join(repository(), "bin/accelscope") }

// TestKubernetes runs all tests in one cluster, in this order: containerd is of version 1 until it is upgraded.
func TestKubernetes(t *testing.T) {
	if os.Getenv(dirVar) == "" {
		if err := onNode(t.Context(), t.Name()); err != nil {
			t.Fatal(err)
		}
		return // the test has run, on the node
	}
	startCluster(t, &cluster{dir: os.Getenv(dirVar), programs: os.Getenv(programsVar)})
	t.Run("manifests", testManifests)
	t.Run("permissions", testPermissions)
	t.Run("names", testNames)
	t.Run("jobs", testJobs)
	t.Run("certificates", testCertificates)
	t.Run("resize", testResize)
	t.Run("health", testHealth)
	t.Run("topology", testTopology)
	t.Run("runtime", testRuntimeUpgrade)
	t.Run("claims", testClaims) // with the containerd 2 of "runtime": the older one does not know CDI
	t.Run("network claims", testNetworkClaims)
	t.Run("taint", testTaint)
	t.Run("lives", testLives)
	t.Run("reboot", testReboot)
	t.Run("rollout", testRollout)
}
