// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// writeImage writes an image of one layer with a shell, as "docker save" does. Its labels imitate another pod's labels
// and nerdctl's.
func writeImage(t *testing.T, name, file string) {
	t.Helper()
	archive := func(files map[string][]byte, order ...string) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range order {
			w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))})
			w.Write(files[name])
		}
		w.Close()
		return b.Bytes()
	}
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	layer := archive(map[string][]byte{"bin/sh": busybox, "bin/sleep": busybox}, "bin/sh", "bin/sleep")
	config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","config":{"Cmd":["/bin/sleep","1000"],"Labels":{`+
		`"io.kubernetes.pod.name":"db-0","io.kubernetes.pod.namespace":"victim","io.kubernetes.pod.uid":"u-1","io.kubernetes.container.name":"db",`+
		`"io.cri-containerd.kind":"sandbox","nerdctl/name":"db","nerdctl/namespace":"k8s.io","team":"red"}},"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`, sha256.Sum256(layer))
	manifest := fmt.Appendf(nil, `[{"Config":"c.json","RepoTags":[%q],"Layers":["l.tar"]}]`, name)
	image := archive(map[string][]byte{"manifest.json": manifest, "c.json": config, "l.tar": layer}, "manifest.json", "c.json", "l.tar")
	if err := os.WriteFile(file, image, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPods creates pods through the CRI of a real containerd, and follows it by its own API and by the CRI at the same
// time: the reports are equal.
func TestPods(t *testing.T) {
	t.Parallel()
	const image = "example.test/train:1"
	d := startDaemon(t, `[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "example.test/train:1"
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "`+t.TempDir()+`"
`)
	file := filepath.Join(d.dir, "image.tar")
	writeImage(t, image, file)
	ctr := func(args ...string) {
		t.Helper()
		if out, err := child.Command(context.Background(), "ctr", append([]string{"-a", d.socket(), "-n", "k8s.io"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	ctr("image", "import", file)
	cri := api.NewRuntimeServiceClient(d.conn)
	pod := &api.PodSandboxConfig{
		Metadata: &api.PodSandboxMetadata{Name: "train-0", Namespace: "ml", Uid: podUID, Attempt: 1},
		Labels: map[string]string{
			labelPodName: "train-0", labelPodNamespace: "ml", labelPodUID: podUID, "team": "vision",
		},
		Annotations:  map[string]string{"owner": "alice"},
		LogDirectory: d.dir,
		Linux: &api.LinuxPodSandboxConfig{
			CgroupParent:    "/" + filepath.Base(d.dir),
			SecurityContext: &api.LinuxSandboxSecurityContext{NamespaceOptions: &api.NamespaceOption{Network: api.NamespaceMode_NODE}},
		},
	}
	sandbox, err := cri.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Config: pod})
	d.must(err)
	run := func(name, script string) string {
		got, err := cri.CreateContainer(t.Context(), &api.CreateContainerRequest{
			PodSandboxId: sandbox.PodSandboxId, SandboxConfig: pod,
			Config: &api.ContainerConfig{
				Metadata: &api.ContainerMetadata{Name: name, Attempt: 2},
				Image:    &api.ImageSpec{Image: image},
				Command:  []string{"/bin/sh", "-c", script},
				Labels:   map[string]string{labelPodName: "train-0", labelPodNamespace: "ml", labelPodUID: podUID, labelContainerName: name},
				Devices:  []*api.Device{{ContainerPath: "/dev/infiniband/uverbs9", HostPath: "/dev/null", Permissions: "rw"}},
				Linux:    &api.LinuxContainerConfig{},
			},
		})
		d.must(err)
		_, err = cri.StartContainer(t.Context(), &api.StartContainerRequest{ContainerId: got.ContainerId})
		d.must(err)
		return got.ContainerId
	}
	run("before", "sleep 1000")
	o := func(kind model.RuntimeAPI) Options {
		return Options{Sockets: []Socket{{kind, d.socket()}}, Labels: []string{"team", "owner"}}
	}
	native, other := open(t, o("containerd")), open(t, o("cri"))
	listed(t, native)
	listed(t, other)
	r, r2 := record1(native), record1(other)
	id := run("after", "exit 7")
	same := func() bool {
		a, b := resolved(native), resolved(other)
		return len(a) == 3 && len(b) == 3 && a[id].Status == "exited" && b[id].Status == "exited"
	}
	eventually(t, soon, "both know all", same)
	ignore := cmp.Options{
		// The CRI does not report the process and the image of a sandbox. containerd does not report a start before the
		// subscription.
		cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Started" || p.Last().String() == ".Finished" }, cmp.Ignore()),
		cmp.FilterValues(func(a, b model.Container) bool { return a.Sandbox && b.Sandbox },
			cmp.Transformer("sandbox", func(c model.Container) model.Container {
				c.Sandbox, c.PID, c.Image, c.Devices = false, 0, "", nil
				return c
			})),
		cmpopts.EquateApproxTime(time.Second),
	}
	if d := cmp.Diff(resolved(native), resolved(other), ignore); d != "" {
		t.Errorf("native, CRI:\n%s", d)
	}
	got := resolved(native)[id]
	restarts := uint64(2)
	if d := cmp.Diff(model.Container{
		ID: id, Runtime: "containerd", Name: "after", Namespace: "ml", Pod: "train-0", PodUID: podUID, Image: image, ImageID: got.ImageID,
		Labels: map[string]string{"team": "vision", "owner": "alice"}, Devices: []string{"/dev/infiniband/uverbs9"},
		Status: "exited", ExitCode: new(uint32(7)), Restarts: &restarts, Created: got.Created, Started: got.Started, Finished: got.Finished,
	}, got); d != "" {
		t.Errorf("want, got:\n%s", d)
	}
	if d := cmp.Diff([]string{"create " + id + " created", "start " + id + " running", "exit " + id + " exited code=7"}, r.of(id)); d != "" {
		t.Error(d)
	}
	if events := r2.of(id); events[len(events)-1] != "exit "+id+" exited code=7 R" {
		t.Errorf("by CRI: %q", events)
	}

	// Other containers of the image get neither a pod nor a name from it.
	ctr("container", "create", image, "evil")
	ctr("container", "create", image, appID)
	eventually(t, soon, "ctr's containers", func() bool { return len(resolved(native)) == 5 })
	for _, id := range []string{"k8s.io/evil", appID} {
		c := resolved(native)[id]
		if c.Pod != "" || c.Namespace != "" || c.PodUID != "" || c.Sandbox || c.Restarts != nil || c.Name == "db" || c.Image != image {
			t.Errorf("%+v", c)
		}
	}
	d.delete("k8s.io", "evil")
	d.delete("k8s.io", appID)
	_, err = cri.RemovePodSandbox(t.Context(), &api.RemovePodSandboxRequest{PodSandboxId: sandbox.PodSandboxId})
	d.must(err)
	eventually(t, soon, "all are gone", func() bool {
		empty := true
		for _, s := range []*Source{native, other} {
			s.Snapshot(func(all []model.Container) { empty = empty && len(all) == 0 })
		}
		return empty
	})
}
