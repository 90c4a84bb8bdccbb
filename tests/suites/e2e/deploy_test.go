// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// manifestsVar names the directory with the image and the rendered overlays.
const manifestsVar = "ACCELSCOPE_MANIFESTS"

var overlays = []string{"privileged", "capabilities"}

// TestDeploy runs the image as the DaemonSet specifies, through containerd's CRI, with both overlays.
func TestDeploy(t *testing.T) {
	runParallel(t)
	for _, n := range nodes([]scenario[node]{{nodes: "6.1"}}) {
		t.Run(n.String(), func(t *testing.T) {
			opts := n.options(t)
			if os.Getenv(binaryVar) == "" {
				dir := t.TempDir()
				opts.Env = append(opts.Env, manifestsVar+"="+dir)
				renderDeploy(t, dir)
			}
			if !guest.Enter(t, opts) {
				return
			}
			d := newDeploy(t, n)
			for _, overlay := range overlays {
				if !t.Run(overlay, func(t *testing.T) { d.mainJob(t, overlay) }) {
					return // a guest is slow
				}
			}
			t.Run("without", d.without)
			touched(t, n, "the image by the CRI, as in both overlays")
		})
	}
}

// renderDeploy copies the image and renders the overlays, outside the guest.
func renderDeploy(t *testing.T, dir string) {
	t.Helper()
	repository, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	sh(t, "cp", filepath.Join(repository, "deploy/README.md"), filepath.Join(dir, guide))
	sh(t, "cp", filepath.Join(repository, "bin/accelscope-image.tar"), filepath.Join(dir, "image.tar")) // of make image
	for _, overlay := range overlays {
		text := sh(t, "go", "run", "-C", "../deploy", "./render", repository, "overlays/"+overlay)
		if err := os.WriteFile(filepath.Join(dir, overlay+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// deploy is a guest with containerd, the image, and two pods. One started before every sensor.
type deploy struct {
	node
	*world

	kubelet guest.Kubelet
	pods    map[string]corev1.PodTemplateSpec // by overlay
	owners  []owner
	count   int            // number of pods, for unique names
	doctors *guest.Running // the pod in which doctor runs
}

func newDeploy(t *testing.T, n node) *deploy {
	t.Helper()
	dir := os.Getenv(manifestsVar)
	d := &deploy{node: n, world: &world{programs: os.Getenv(workloadsVar)}, pods: map[string]corev1.PodTemplateSpec{}}
	sh(t, "mount", "--make-rshared", "/") // as systemd does at boot
	var err error
	for _, begin := range []func() error{
		func() error { d.containerd, err = guest.StartContainerd(t.Context()); return err },
		func() error { d.cri, err = d.containerd.StartCRI(t.Context()); return err },
		func() error { return d.containerd.Load(t.Context(), filepath.Join(dir, "image.tar")) },
	} {
		if err := begin(); err != nil {
			t.Fatal(err)
		}
	}
	files := t.TempDir()
	for name, text := range map[string]string{
		"account/token": "token", "account/ca.crt": "none", "account/namespace": "accelscope", "hosts": "127.0.0.1 localhost\n",
		"termination-log": "",
	} {
		write(t, filepath.Join(files, name), text)
	}
	d.kubelet = guest.Kubelet{
		NodeName: "gpu-node-7", NodeIP: "127.0.0.1", ConfigMaps: map[string]string{},
		Account: filepath.Join(files, "account"), Hosts: filepath.Join(files, "hosts"),
		TerminationLog: filepath.Join(files, "termination-log"),
	}
	for _, overlay := range overlays {
		text, err := os.ReadFile(filepath.Join(dir, overlay+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var objects map[string]json.RawMessage
		if err := json.Unmarshal(text, &objects); err != nil {
			t.Fatal(err)
		}
		for name, object := range objects {
			switch kind, _, _ := strings.Cut(name, "/"); kind {
			case "ConfigMap":
				c := decodeAs[corev1.ConfigMap](t, object)
				d.kubelet.ConfigMaps[c.Name] = filepath.Join(files, c.Name)
				for key, value := range c.Data {
					write(t, filepath.Join(files, c.Name, key), value)
				}
			case "DaemonSet":
				d.pods[overlay] = decodeAs[appsv1.DaemonSet](t, object).Spec.Template
			}
		}
	}
	d.owners = []owner{d.work(t, "default", 0)}
	d.owners[0].early = true
	return d
}

func decodeAs[T any](t *testing.T, text []byte) (out T) {
	t.Helper()
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// work runs a pod that holds objects, as a user.
func (d *deploy) work(t *testing.T, namespace string, user int64) owner {
	t.Helper()
	d.count++
	p := &guest.Pod{Namespace: namespace, Name: fmt.Sprint("train-", d.count)}
	if err := d.cri.RunPod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	m := d.member("worker", 1+d.count)
	m.User = user
	return inPod(p, "worker", d.run(t, p, m), 1+d.count)
}

// deployed is a sensor in its pod.
type deployed struct {
	*sensor
	*guest.Running
}

// begin runs the pod of an overlay, changed by edit, until it is ready.
func (d *deploy) begin(t *testing.T, overlay string, edit func(*corev1.PodSpec)) *deployed {
	t.Helper()
	pod := d.pods[overlay]
	template := *pod.DeepCopy()
	if edit != nil {
		edit(&template.Spec)
	}
	d.count++
	asked, err := d.kubelet.Translate("accelscope", fmt.Sprint("accelscope-", d.count), template)
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.cri.RunTranslation(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the sensor:\n%s", r.Log())
		}
		_, _, _ = r.End(context.Background()) // it has ended before, if all is well
	})
	begin := time.Now()
	if err := r.WaitReady(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, r.Log())
	}
	t.Logf("ready after %v", time.Since(begin).Round(100*time.Millisecond))
	pid, err := d.cri.PID(t.Context(), r.ID)
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return &deployed{&sensor{
		t: t, cmd: &exec.Cmd{Process: process}, url: "http://127.0.0.1:9847", log: &lockedBuffer{}, last: map[string]float64{},
		ports: map[[2]string]float64{}, before: map[[2]string]float64{},
	}, r}
}

type diagnosis struct {
	Verdict string
	Reasons []string
	Checks  []struct{ Area, Name, State, Reason string }
}

// doctor runs inside the container with the arguments of the sensor; the image has no shell.
func (d *deploy) doctor(t *testing.T, r *guest.Running, more ...string) diagnosis {
	t.Helper()
	command := append([]string{"/usr/bin/accelscope", "doctor", "--json"}, r.Container.Args[1:]...)
	out, err := d.cri.Exec(t.Context(), r.ID, append(command, more...)...)
	var report diagnosis
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("doctor: %v\n%s", err, out)
	}
	if (report.Verdict == "yes") != (err == nil) {
		t.Errorf("doctor says %q and ends with %v", report.Verdict, err)
	}
	return report
}

// mainJob: the sensor in its pod has all functions that it has outside, and leaves nothing behind.
func (d *deploy) mainJob(t *testing.T, overlay string) {
	before := programs(t)
	s := d.begin(t, overlay, nil)
	report := d.doctor(t, s.Running)
	if report.Verdict != "yes" {
		t.Errorf("doctor: %q, %v", report.Verdict, report.Reasons)
	}
	refused := false
	for _, c := range report.Checks {
		if c.Area == "source" && c.Name == "kernellog" && overlay == "capabilities" {
			refused = true // only a privileged pod may open /dev/kmsg
			if c.State != "unsupported" || !strings.Contains(c.Reason, "/dev/kmsg: operation not permitted") {
				t.Errorf("source kernellog is %s: %q, want unsupported because of /dev/kmsg", c.State, c.Reason)
			}
			continue
		}
		// The guest has no kubelet and no GPU.
		source := c.Area == "source" && c.Name != "kubelet" && c.State != "absent"
		hook := c.Area == "hook" && d.kernel != "5.10" && (c.State != "unsupported" || inKernel(t, c.Name))
		if (source || hook) && c.State != "ok" {
			t.Errorf("%s %s is %s: %s", c.Area, c.Name, c.State, c.Reason)
		}
		if c.Name == "cgroups" {
			t.Log(c.Reason)
		}
	}
	releasedByNode(t)
	user := int64(0)
	if overlay == "capabilities" {
		if !refused {
			t.Error("doctor does not report the source kernellog")
		}
		user = 1000
	}
	d.owners = append(d.owners, d.work(t, "ml", user))
	eventually(t, 20*time.Second, func() error { return named(s.scrape(), d.owners) })
	m := s.fresh()
	if err := named(m, d.owners); err != nil {
		t.Error(err)
	}
	for _, o := range d.owners {
		if n := m.sum("accelscope_workload_info", "container_id", o.id, "node", d.kubelet.NodeName, "runtime", "containerd"); n != 1 {
			t.Errorf("%s is not of node %s: %v", o.workload, d.kubelet.NodeName, m.all("accelscope_workload_info", "container_id", o.id))
		}
	}
	for i := range d.owners {
		d.owners[i].early = true
	}
	code, took, err := s.End(t.Context())
	if code != 0 || err != nil || took > 20*time.Second {
		t.Errorf("SIGTERM: exit code %d after %v, %v\n%s", code, took, err, s.Log())
	}
	t.Logf("SIGTERM: gone after %v", took.Round(time.Millisecond))
	eventually(t, 30*time.Second, func() error { // the kernel frees the programs a moment later
		if after := programs(t); !slices.Equal(before, after) {
			return fmt.Errorf("BPF programs before %v, after %v", before, after)
		}
		return nil
	})
	if pinned, err := os.ReadDir("/sys/fs/bpf"); err != nil || len(pinned) > 0 {
		t.Errorf("pinned: %v, %v", pinned, err)
	}
}

// releasedByNode runs accelscope gpu on the node, outside of the pod. The guest has no GPU, so nothing is open.
func releasedByNode(t *testing.T) {
	t.Helper()
	out := sh(t, os.Getenv(binaryVar), "gpu", "release", "--for=5m")
	if first, _, _ := strings.Cut(out, "\n"); first != "released: nothing was open" {
		t.Errorf("accelscope gpu release: %q", out)
	}
	if out := sh(t, os.Getenv(binaryVar), "gpu", "resume"); !strings.HasPrefix(out, "absent: ") {
		t.Errorf("accelscope gpu resume: %q", out)
	}
	if info, err := os.Stat("/run/accelscope"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of the socket: %v, %v", info, err)
	}
}

func programs(t *testing.T) (names []string) {
	t.Helper()
	var list []struct{ Type, Name string }
	if err := json.Unmarshal([]byte(sh(t, "bpftool", "-j", "prog", "show")), &list); err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Type != "cgroup_device" { // runc's, of containers
			names = append(names, p.Type+" "+p.Name)
		}
	}
	return names
}
