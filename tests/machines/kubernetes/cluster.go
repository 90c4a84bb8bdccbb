// SPDX-License-Identifier: Apache-2.0

// Package kubernetes runs accelscope in a cluster of one node that is made of the real programs: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kubelet and kubectl, built from their modules (programs/go.mod), and Debian's containerd
// (1.6 of Debian 12, 2.1 of the next release) and runc. Images are made here, so no registry is needed.
//
// The cluster of TestKubernetes has namespaces of its own on this machine (init.sh), with the machine's kernel and cgroup v1, and ends with
// the test. GPUs and HCAs are stand-ins: a fake of NVIDIA's library, and device nodes that a device plugin of the test, or a driver of
// resource claims (programs/dradriver), hands out.
//
// The cluster of TestSystemd is in a guest with cgroup v2 and systemd, as kubeadm makes it. Its HCA is Soft-RoCE.
//
// The programs are a module of their own, with the dependencies that Kubernetes chose. The tests need no client library: they
// use kubectl, and read objects over HTTPS.
package kubernetes

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/accelscope/accelscope/tests/fakes/authority"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const (
	nodeName  = "node-1"    // as init.sh sets it
	nodeIP    = "10.99.0.1" // as init.sh sets it
	criSocket = "/run/containerd/containerd.sock"

	startTimeout = 5 * time.Minute // of a program, on a busy machine

	// signed is how long a certificate of the kubelet is valid that it requests itself. As it is valid from 5 minutes before, too, the
	// kubelet requests the next one after 51 seconds at most.
	signed = 90 * time.Second
)

// cluster is a running cluster.
type cluster struct {
	dir      string // certificates, configuration, logs
	programs string
	systemd  bool // cgroup v2 with the driver systemd, in a guest; otherwise v1 with cgroupfs, on this machine
	ca       *authority.Authority
	admin    *http.Client // with the certificate of the administrator

	etcd, apiserver, controllers, scheduler, containerd, kubelet *daemon
}

// start starts the programs and waits until the node is ready.
func (c *cluster) start(ctx context.Context) error {
	if err := os.MkdirAll(c.pki(""), 0o700); err != nil {
		return err
	}
	var err error
	if c.ca, err = authority.In(c.pki("")); err != nil {
		return err
	}
	containerd := func(ctx context.Context) error { return c.startContainerd(ctx, "/usr/bin") } // Debian's, of this release
	kubelet := func(ctx context.Context) error { return c.startKubelet(ctx) }
	for _, step := range []func(context.Context) error{c.startControlPlane, containerd, kubelet} {
		limited, cancel := context.WithTimeout(ctx, startTimeout)
		err := step(limited)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// daemon returns a program with its log.
func (c *cluster) daemon(name string, args ...string) *daemon {
	path := name
	if built := filepath.Join(c.programs, name); exists(built) {
		path = built
	}
	return &daemon{log: filepath.Join(c.dir, name+".log"), args: append([]string{path}, args...)}
}

func (c *cluster) pki(name string) string { return filepath.Join(c.dir, "pki", name) }

func (c *cluster) startControlPlane(ctx context.Context) error {
	for _, cert := range []struct {
		name, user, group string
		hosts             []string
	}{
		{"apiserver", "kube-apiserver", "", []string{nodeIP, "127.0.0.1", "10.96.0.1", "kubernetes", "kubernetes.default.svc"}},
		{"tokens", "tokens", "", nil},
		{"kubelet-client", "kube-apiserver-kubelet-client", "system:masters", nil},
		{"admin", "admin", "system:masters", nil},
		{"controllers", "system:kube-controller-manager", "", nil},
		{"scheduler", "system:kube-scheduler", "", nil},
		{"kubelet", "system:node:" + nodeName, "system:nodes", []string{nodeName, nodeIP}},
	} {
		if err := c.issue(cert.name, cert.user, cert.group, cert.hosts...); err != nil {
			return err
		}
		if err := c.kubeconfig(cert.name); err != nil {
			return err
		}
	}
	c.etcd = c.daemon("server", "--data-dir="+filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380")
	c.apiserver = c.daemon("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--advertise-address="+nodeIP,
		"--client-ca-file="+c.pki("ca.crt"), "--tls-cert-file="+c.pki("apiserver.crt"), "--tls-private-key-file="+c.pki("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.pki("tokens.crt"),
		"--service-account-signing-key-file="+c.pki("tokens.key"), "--service-cluster-ip-range=10.96.0.0/24",
		"--kubelet-preferred-address-types=InternalIP", "--kubelet-certificate-authority="+c.pki("ca.crt"), "--kubelet-client-certificate="+c.pki("kubelet-client.crt"),
		"--kubelet-client-key="+c.pki("kubelet-client.key"), "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", "--allow-privileged=true")
	c.controllers = c.daemon("kube-controller-manager", "--kubeconfig="+c.pki("controllers.kubeconfig"), "--leader-elect=false",
		"--use-service-account-credentials", "--service-account-private-key-file="+c.pki("tokens.key"), "--root-ca-file="+c.pki("ca.crt"),
		"--cluster-signing-cert-file="+c.pki("ca.crt"), "--cluster-signing-key-file="+c.pki("ca.key"), "--cluster-signing-duration="+signed.String(),
		"--bind-address=127.0.0.1")
	c.scheduler = c.daemon("kube-scheduler", "--kubeconfig="+c.pki("scheduler.kubeconfig"), "--leader-elect=false", "--bind-address=127.0.0.1")
	if err := errors.Join(c.etcd.start(), c.apiserver.start()); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.pki("admin.crt"), c.pki("admin.key"))
	if err != nil {
		return err
	}
	c.admin = c.client(pair)
	if err := c.apiserver.until(ctx, func(ctx context.Context) error { _, err := c.raw(ctx, "/readyz"); return err }); err != nil {
		return err
	}
	return errors.Join(c.controllers.start(), c.scheduler.start())
}

// raw requests a path of the API server.
func (c *cluster) raw(ctx context.Context, path string) ([]byte, error) {
	return request(ctx, c.admin, "https://"+nodeIP+":6443"+path)
}

// get reads an object, or a list of them, from the API server.
func (c *cluster) get(ctx context.Context, path string, into any) error {
	body, err := c.raw(ctx, path)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// kubectl runs a command as the administrator and returns what it printed.
func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectlInput(ctx, "", args...)
}

// kubectlInput runs a command with an input. The error has what the command printed to its standard error.
func (c *cluster) kubectlInput(ctx context.Context, input string, args ...string) (string, error) {
	cmd := child.Command(ctx, filepath.Join(c.programs, "kubectl"), append([]string{"--kubeconfig=" + c.pki("admin.kubeconfig")}, args...)...)
	var out, stderr bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.dir, strings.NewReader(input), &out, &stderr
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out.String(), nil
}

// stop ends all programs. Containers end with the node's first process.
func (c *cluster) stop() {
	for _, d := range []*daemon{c.kubelet, c.containerd, c.scheduler, c.controllers, c.apiserver, c.etcd} {
		if d != nil && d.done != nil {
			d.stop(syscall.SIGKILL)
		}
	}
}

// nodeReady returns an error while the node is not ready.
func (c *cluster) nodeReady(ctx context.Context) error {
	var node corev1.Node
	if err := c.get(ctx, "/api/v1/nodes/"+nodeName, &node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("the node is not ready: %+v", node.Status.Conditions)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
