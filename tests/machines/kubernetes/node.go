// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

const (
	manifestDir = "/etc/kubernetes/manifests" // of static pods
	podSubnet   = "10.88.0.0/24"
)

// containerdConfig is of containerd 1; 2 reads it too. Scores of the OOM killer are restricted, because a machine for tests may lack
// CAP_SYS_RESOURCE.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + guest.Image + `"
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = SYSTEMD
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
`

const network = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{
	"type": "bridge", "bridge": "cni0", "isGateway": true,
	"ipam": {"type": "host-local", "ranges": [[{"subnet": "` + podSubnet + `"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

// kubeletConfig configures the kubelet as kubeadm does, but for cgroups of version 1 (without systemdConfig), limits of disks that a busy
// machine may have reached, and short periods.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: ` + nodeIP + `
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true, cacheTTL: 1s}
  x509: {clientCAFile: PKI/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 1s, cacheUnauthorizedTTL: 1s}
tlsCertFile: PKI/kubelet.crt
tlsPrivateKeyFile: PKI/kubelet.key
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
protectKernelDefaults: true
containerRuntimeEndpoint: unix://` + criSocket + `
staticPodPath: ` + manifestDir + `
resolvConf: ""
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
syncFrequency: 5s
fileCheckFrequency: 1s
nodeStatusUpdateFrequency: 2s
volumeStatsAggPeriod: 5s
`

// systemdConfig holds the lines of kubeletConfig that differ with cgroup v2 and systemd.
var systemdConfig = []string{"cgroupDriver: systemd", "failCgroupV1: true"}

// startContainerd starts the containerd of a directory of programs, with its client and shim, and loads the images.
func (c *cluster) startContainerd(ctx context.Context, bin string) error {
	config := filepath.Join(c.dir, "containerd.toml")
	image := filepath.Join(c.dir, "image.tar")
	if err := errors.Join(
		write(config, expand(containerdConfig, "SYSTEMD", strconv.FormatBool(c.systemd))), write("/etc/cni/net.d/10-pods.conflist", network), guest.WriteImage(image),
	); err != nil {
		return err
	}
	c.containerd = c.daemon("containerd", "--config", config)
	c.containerd.args[0], c.containerd.env = filepath.Join(bin, "containerd"), []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	if err := c.containerd.start(); err != nil {
		return err
	}
	return c.containerd.until(ctx, func(ctx context.Context) error {
		_, err := c.ctr(ctx, "images", "import", image)
		return err
	})
}

// ctr runs a command of containerd's client.
func (c *cluster) ctr(ctx context.Context, args ...string) (string, error) {
	return output(ctx, c.dir, "ctr", append([]string{"--namespace", "k8s.io"}, args...)...)
}

// configured returns the configuration of the kubelet with lines of it replaced or added.
func configured(lines []string) string {
	text := kubeletConfig
	for _, line := range lines {
		key, _, _ := strings.Cut(line, ":")
		old := regexp.MustCompile("(?m)^" + key + ":.*\n")
		text = old.ReplaceAllString(text, "") + line + "\n"
	}
	return text
}

// startKubelet starts the kubelet, with lines of its configuration that replace others.
func (c *cluster) startKubelet(ctx context.Context, lines ...string) error {
	if c.systemd {
		lines = slices.Concat(systemdConfig, lines)
	}
	config := filepath.Join(c.dir, "kubelet.yaml")
	if err := errors.Join(
		write(config, expand(configured(lines), "PKI", filepath.Join(c.dir, "pki"))), os.MkdirAll(manifestDir, 0o755),
		os.RemoveAll(v1beta1.KubeletSocket), // left by a killed kubelet
	); err != nil {
		return err
	}
	c.kubelet = c.daemon("kubelet", "--config="+config, "--kubeconfig="+c.pki("kubelet.kubeconfig"),
		"--hostname-override="+nodeName, "--node-ip="+nodeIP)
	if err := c.kubelet.start(); err != nil {
		return err
	}
	return c.kubelet.until(ctx, func(ctx context.Context) error {
		// Device plugins that start before this one's socket is there are forgotten.
		if _, err := os.Stat(v1beta1.KubeletSocket); err != nil {
			return err
		}
		return c.nodeReady(ctx)
	})
}
