// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// TestSystemd runs the DaemonSet on a node as kubeadm makes it: cgroup v2, the driver systemd. Two pods exchange messages over an HCA
// that a device plugin shares among them. Linux 7, because only its Soft-RoCE counts the bytes of a port.
func TestSystemd(t *testing.T) {
	opts := vm.Options{Kernel: "7", Devices: 1, Systemd: true, Timeout: 40 * time.Minute}
	if os.Getenv(programsVar) == "" {
		programs, err := buildPrograms(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		opts.Env = []string{programsVar + "=" + programs}
	}
	if !guest.Enter(t, opts) {
		return
	}
	c := &cluster{dir: "/run/kubernetes", programs: os.Getenv(programsVar), systemd: true}
	if err := prepareNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	startCluster(t, c)
	image := startDaemonSet(t)
	t.Logf("rolled out: %s", image)

	const ns = "training"
	makeNamespace(t, ns)
	plugin := &devicePlugin{resource: "rdma/shared", nodes: map[string]string{"rxe0-0": uverbs, "rxe0-1": uverbs}}
	if err := plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plugin.stop)
	pods := trafficPod(ns, "train-0", "trap exit TERM; while :; do "+traffic+"; done") +
		trafficPod(ns, "train-1", "while :; do "+traffic+" 10.70.0.1 || sleep 0.2; done")
	until(t, "pods are made", func(ctx context.Context) error { // a busy API server does not complete requests in time
		_, err := running.kubectlInput(ctx, pods, "apply", "--server-side", "--validate=strict", "--filename=-")
		return err
	})
	ready(t, ns, "pod/train-0", "pod/train-1")
	t.Cleanup(func() {
		for _, pod := range []string{"train-0", "train-1"} {
			if t.Failed() {
				out, err := running.kubectl(context.Background(), "--namespace="+ns, "logs", "--tail=20", pod)
				t.Logf("%s: %v\n%s", pod, err, out)
			}
		}
	})
	driven(t)

	t.Run("names", func(t *testing.T) { same(t, "containers", running.running, shown) })
	t.Run("bytes", func(t *testing.T) { bytesOf(t, ns) })
	t.Run("new container", func(t *testing.T) {
		before, err := running.running(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := running.kubectl(t.Context(), "--namespace="+ns, "exec", "train-0", "--", "/bin/busybox", "kill", "1"); err != nil {
			t.Fatal(err)
		}
		until(t, "the kubelet starts the container again", func(ctx context.Context) error {
			now, err := running.running(ctx)
			if err == nil && (len(now) != len(before) || maps.Equal(now, before)) {
				err = fmt.Errorf("%v: %w", now, os.ErrNotExist)
			}
			return err
		})
		same(t, "containers", running.running, shown)
		bytesOf(t, ns)
	})
}

const (
	uverbs  = "/dev/infiniband/uverbs0"
	traffic = "ib_send_bw -F -d rxe0 -x 1 -D 5 -s 65536" // -F: perftest does not trust the clock of an emulated CPU
)

// prepareNode gives the guest what a node has before kubeadm: its name, an address, file systems for images and pods.
func prepareNode(ctx context.Context) error {
	_, err := output(ctx, "/", "sh", "-ec", `
		mkdir -p /run/kubernetes
		hostname `+nodeName+`
		ip link add node0 type veth peer name node1
		ip address add `+nodeIP+`/24 dev node0
		ip link set node0 up
		ip link set node1 up
		ip route add default dev node0
		for own in kubelet containerd; do mkdir -p /var/lib/$own; mount -t tmpfs tmpfs /var/lib/$own; done
		mkdir -p /var/log/pods /var/log/containers
		sysctl -qw vm.overcommit_memory=1 vm.panic_on_oom=0 kernel.panic=10 kernel.panic_on_oops=1 \
			kernel.keys.root_maxkeys=1000000 kernel.keys.root_maxbytes=25000000
		mount --make-rshared /`)
	return err
}

// startDaemonSet runs the image of make image as the DaemonSet of the overlay, with states of all containers and exact bytes of
// pods that share an HCA.
func startDaemonSet(t *testing.T) (image string) {
	t.Helper()
	overlay := rendered(t, "privileged", "")
	image = regexp.MustCompile(`\bimage: (accelscope:\S+)`).FindStringSubmatch(overlay)[1]
	if _, err := running.ctr(t.Context(), "images", "import", filepath.Join(repository(), "bin/accelscope-image.tar")); err != nil {
		t.Fatalf("%v: make image", err)
	}
	const format = "log.format: json"
	apply(t, strings.Replace(overlay, format, format+"\n    container.scope: all\n    kubelet.interval: 1s\n    rdma.datapath: always", 1))
	if out, err := running.kubectl(t.Context(), "--namespace="+accelscope, "rollout", "status", "daemonset/accelscope", "--timeout=10m"); err != nil {
		pods, _ := running.kubectl(t.Context(), "--namespace="+accelscope, "describe", "pods")
		t.Fatalf("%v: %s%s", err, out, pods)
	}
	return image
}

// trafficPod is a pod whose programs are the guest's.
func trafficPod(namespace, name, script string) string {
	return podYAML(namespace, name, `  hostNetwork: true
  containers:
  - {name: worker, IMAGE, command: [bash, -c, "`+script+`"], resources: {limits: {rdma/shared: 1}},
     securityContext: {capabilities: {add: [IPC_LOCK]}},
     volumeMounts: [{name: usr, mountPath: /usr, readOnly: true}, {name: providers, mountPath: /etc/libibverbs.d, readOnly: true}]}
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: providers, hostPath: {path: /etc/libibverbs.d}}
`)
}

// driven: containerd has asked systemd for a scope of each container, below the slice of the kubelet.
func driven(t *testing.T) {
	t.Helper()
	all, err := running.running(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for key := range all {
		id := strings.Fields(key)[3]
		scopes, err := filepath.Glob("/sys/fs/cgroup/kubepods.slice/*/*/cri-containerd-" + id + ".scope")
		guaranteed, _ := filepath.Glob("/sys/fs/cgroup/kubepods.slice/*/cri-containerd-" + id + ".scope") // the pattern is right
		if len(scopes)+len(guaranteed) != 1 || err != nil {
			t.Errorf("%s: scopes %v %v, %v", key, scopes, guaranteed, err)
		}
	}
}

// bytesOf: both pods have the shared HCA, by its device node, and bytes: train-1 sends, train-0 receives. In each scrape the bytes of
// workloads, with the unattributed rest, add up to the counter of the port.
func bytesOf(t *testing.T, namespace string) {
	t.Helper()
	want := map[string]float64{namespace + " train-0 worker rxe0 device_node": 1, namespace + " train-1 worker rxe0 device_node": 1}
	same(t, "allocated", func(context.Context) (map[string]float64, error) { return want, nil },
		func(ctx context.Context) (map[string]float64, error) {
			f, err := scrape(ctx)
			return f.values("container_rdma_allocated", "namespace", "pod", "container", "device", "method"), err
		})
	const most = 1 << 20 // of bytes that a round of 5 s moves: there are several
	first := families(nil)
	until(t, "the pods exchange bytes", func(ctx context.Context) error {
		f, err := scrape(ctx)
		if err != nil {
			return err
		}
		if first == nil {
			first = f
		}
		moved := map[string]float64{}
		for _, direction := range []string{"transmit", "receive"} {
			name := "container_rdma_" + direction + "_bytes_total"
			shares, port := 0.0, f.values("infiniband_port_"+direction+"_data_bytes_total", "device")["rxe0"]
			for _, share := range f.values(name, "namespace", "pod", "workload", "method") {
				shares += share
			}
			if shares != port {
				t.Errorf("%s: the shares add up to %v bytes, the port has %v", direction, shares, port)
			}
			was := first.values(name, "namespace", "pod")
			for pod, share := range f.values(name, "namespace", "pod") {
				moved[direction+" "+pod] = share - was[pod]
			}
		}
		if moved["transmit "+namespace+" train-1"] < most || moved["receive "+namespace+" train-0"] < most {
			return fmt.Errorf("%v: %w", moved, os.ErrNotExist)
		}
		t.Logf("bytes: %v", moved)
		return nil
	})
}
