// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// running is the cluster of all tests.
var running *cluster

func TestMain(m *testing.M) {
	begin := outside
	if os.Getenv(dirVar) != "" {
		begin = func() error { return inside(m) }
	}
	err := begin()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case !errors.As(err, &exit): // the tests have printed why they failed
		fmt.Fprintln(os.Stderr, "kubernetes:", err)
	}
	os.Exit(1)
}

// outside builds what is needed, and runs this program again on the node.
func outside() (err error) {
	ctx := context.Background()
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
	repository := filepath.Join(here(), "../../..")
	for name, values := range charts {
		text, err := output(ctx, repository, "go", "run", "-C", "tests/suites/deploy", "./render", "-chart", repository, "v1.35.0", values)
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
	return enter(ctx, dir, dirVar+"="+dir, programsVar+"="+programs, libraryVar+"="+library, operatorVar+"="+operator,
		containerdVar+"="+filepath.Join(containerd, "usr/bin"), driverVar+"="+driver, eventsVar+"="+collector)
}

// inside starts the cluster and runs the tests.
func inside(m *testing.M) error {
	start := time.Now()
	var err error
	running, err = startCluster(context.Background(), os.Getenv(dirVar), os.Getenv(programsVar))
	defer func() { running.stop() }()
	if err != nil {
		return err
	}
	fmt.Printf("cluster: %s\n", time.Since(start).Round(time.Second))
	if code := m.Run(); code != 0 {
		return fmt.Errorf("exit status %d", code)
	}
	return nil
}

// binary is the sensor of make build.
func binary() string { return filepath.Join(here(), "../../../bin/accelscope") }

// TestKubernetes runs all tests in one cluster, in this order: containerd is of version 1 until it is upgraded.
func TestKubernetes(t *testing.T) {
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
	t.Run("lives", testLives)
	t.Run("reboot", testReboot)
	t.Run("rollout", testRollout)
}
