// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestValues: the schema accepts valid values, and rejects unknown or wrong ones.
func TestValues(t *testing.T) {
	c, err := Chart(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for text, good := range map[string]bool{
		"":                        true,
		"mode: capabilities":      true,
		"mode: Privileged":        false,
		"mod: privileged":         false,
		"capabilities: [BPF]":     true,
		"capabilities: [CAP_BPF]": false,
		"capabilities: BPF":       false,
		"image: {tag: v1}":        true,
		"image: {tag: 1}":         false,
		"image: {digest: x}":      false,
		"image: {digest: \"sha256:0123456789012345678901234567890123456789012345678901234567890123\"}": true,
		"podMonitor: {enabled: true, sampleLimit: 5}":                                                  true,
		"podMonitor: {enabled: true, sampleLimit: x}":                                                  false,
		"image: {pullPolicy: Always}":                                                                  true,
		"image: {pullPolicy: always}":                                                                  false,
		"config: {collector.node: false, workload.labels: [a, b], grace: 5m}":                          true,
		"config: {collector: {node: false}}":                                                           false,
		"extraArgs: [--strict]":                                                                        true,
		"extraArgs: [strict]":                                                                          false,
		"extraEnv: [{name: A, value: b}]":                                                              true,
		"extraEnv: [{name: A, valu: b}]":                                                               false,
		"resources: {requests: {cpu: 1, memory: 1Gi}, limits: {memory: 1Gi}}":                          true,
		"resources: null":                                                                              false,
		"tolerations: []":                                                                              true,
		"affinity: {nodeAffinity: {}}":                                                                 true,
		"maxUnavailable: 3":                                                                            true,
		"maxUnavailable: 0":                                                                            false,
		"maxUnavailable: 25%":                                                                          true,
		"maxUnavailable: 0%":                                                                           false,
		"gpu: {releaseOnNodeLabels: true}":                                                             true,
		"gpu: {releaseOnNodeLabels: 1}":                                                                false,
		"kubelet: {nodesProxy: true}":                                                                  true,
		"kubelet: {nodesproxy: true}":                                                                  false,
		"web: {configSecret: s}":                                                                       true,
		"web: {config: s}":                                                                             false,
		"events: {otlpEndpoint: 'otel:4317'}":                                                          true,
		"events: {otlpEndpoint: otel}":                                                                 false,
		"events: {otlpEndpoint: 'a:1', secret: s, secretKeys: [ca.crt]}":                               true,
		"events: {otlpEndpoint: 'a:1', secretKeys: [ca.crt]}":                                          false, // no such file: the sensor would not start
		"events: {secret: s, secretKeys: [ca.crt]}":                                                    false,
		"events: {otlpEndpoint: 'a:1', secret: s, secretKeys: [tls.crt]}":                              false,
		"config: {web.listen-address: ':9900'}":                                                        false, // the probes would use another port
		"config: {web.config.file: /x}":                                                                false,
		"port: 9900":                                                                                   true,
		"port: '9900'":                                                                                 false,
		"events: {secret: s, secretKeys: [ca.pem]}":                                                    false,
		"podMonitor: {enabled: true, interval: 15s}":                                                   true,
		"podMonitor: {enabled: true, interval: 15}":                                                    false,
		"podMonitor: {enabled: yes please}":                                                            false,
		"serviceMonitor: {enabled: true, scheme: https}":                                               true,
		"serviceMonitor: {enabled: true, scheme: HTTPS}":                                               false,
		"prometheusRule: {enabled: true, labels: {a: b}}":                                              true,
		"networkPolicy: {enabled: true, from: []}":                                                     false,
		"fabric: {enabled: true, extraArgs: [--fabric.port=mlx5_0/1]}":                                 true,
		"fleet: {enabled: true, prometheus: 'https://p.example/prometheus'}":                           true,
		"fleet: {enabled: true, prometheus: 'p.example:9090'}":                                         false,
		"fleet: {enabled: true, nodeURL: 'https://{host}:9847/'}":                                      true,
		"fleet: {enabled: true, nodeURL: 'https://node:9847/'}":                                        false,
		"fleet: {enabled: true, sensorURL: 'https://{host}:9847/', sensorConfigSecret: s}":             true,
		"fleet: {enabled: true, sensorURL: 'https://u:p@{host}:9847/'}":                                false,
		"fleet: {enabled: true, grafanaURL: 'javascript:alert(1)'}":                                    false,
		"fleet: {enabled: true, namespacesHeader: X-Namespaces, linkKeySecret: s}":                     true,
		"fleet: {enabled: true, namespacesHeader: 'X-Namespaces: ml'}":                                 false,
		"fleet: {enabled: true, token: x}":                                                             false,
		"fabric: {enable: true}":                                                                       false,
	} {
		if _, _, err := Helm(c, values(t, text)); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Without a token there is nothing that a kubelet or the API server would accept.
func TestWithoutToken(t *testing.T) {
	o := helm(t, "kubelet: {token: false}")
	if p := sensor(t, o); p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken {
		t.Error("the token is mounted")
	}
	released := sensor(t, helm(t, "{kubelet: {token: false}, gpu: {releaseOnNodeLabels: true}}"))
	if env := released.Containers[0].Env; slices.ContainsFunc(env, func(e corev1.EnvVar) bool { return e.Name == "NODE_IP" }) {
		t.Error("with the token for the node the sensor would ask the kubelet")
	}
	for name := range o {
		if strings.HasPrefix(name, "ClusterRole") {
			t.Errorf("there is %s", name)
		}
	}
}

// An image by its digest has no tag.
func TestDigest(t *testing.T) {
	const digest = "sha256:0123456789012345678901234567890123456789012345678901234567890123"
	for name, o := range map[string]Objects{
		"chart": helm(t, "image: {repository: r/a, digest: \""+digest+"\"}"),
		"kustomize": ofUser(t, map[string]string{"kustomization.yaml": "resources: [../accelscope/deploy/kubernetes/overlays/privileged]\n" +
			"images: [{name: accelscope, newName: r/a, digest: \"" + digest + "\"}]\n"}),
	} {
		if image := sensor(t, o).Containers[0].Image; image != "r/a@"+digest {
			t.Errorf("%s: the image is %s", name, image)
		}
	}
}

// TestOptions: the values change the objects as described.
func TestOptions(t *testing.T) {
	o := helm(t, `
image: {repository: r/a, tag: v9}
runtimeClassName: nvidia
mode: capabilities
imagePullSecrets: [{name: pull}]
extraArgs: [--strict]
extraEnv: [{name: A, value: b}]
podAnnotations: {c: d}
config: {log.level: debug}
affinity: {nodeAffinity: {}}
web: {configSecret: web}
events: {otlpEndpoint: "otel:4317", secret: otel, secretKeys: [ca.crt, headers]}
podMonitor: {enabled: true, interval: 30s, scheme: https, labels: {release: prom}, tlsConfig: {insecureSkipVerify: true}}
fabric: {enabled: true}
fleet: {enabled: true, prometheus: "https://p.example", configSecret: prom, nodeURL: "https://{host}:9847/", sensorURL: "https://{host}:9847/", sensorConfigSecret: sensors, namespacesHeader: X-Namespaces, linkKeySecret: links}
`)
	p := sensor(t, o)
	c := p.Containers[0]
	for _, arg := range []string{
		"--strict", "--events.otlp-endpoint=otel:4317", "--events.otlp-ca-file=/etc/accelscope-events/ca.crt",
		"--events.otlp-headers-file=/etc/accelscope-events/headers",
	} {
		if !slices.Contains(c.Args, arg) {
			t.Errorf("no %s in %v", arg, c.Args)
		}
	}
	if c.Image != "r/a:v9" || *p.RuntimeClassName != "nvidia" || p.ImagePullSecrets[0].Name != "pull" || p.Affinity == nil {
		t.Errorf("%+v", p)
	}
	env := map[string]string{}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	if env["A"] != "b" || env["NVIDIA_VISIBLE_DEVICES"] != "all" || env["ACCELSCOPE_WEB_CONFIG_FILE"] != "/etc/accelscope-web/web.yaml" {
		t.Errorf("environment %v", env)
	}
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		if at := probe.HTTPGet; at == nil || !slices.Contains(c.Args, fmt.Sprintf("--web.probe-address=%s:%d", at.Host, at.Port.IntValue())) {
			t.Errorf("a probe elsewhere, where TLS or a password may refuse it: %+v", probe)
		}
	}
	for _, name := range []string{"web", "otel"} {
		if !slices.ContainsFunc(p.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == name }) {
			t.Errorf("no volume of the secret %s", name)
		}
	}
	if text := get[*corev1.ConfigMap](t, o, "ConfigMap/accelscope").Data["accelscope.yaml"]; !strings.Contains(text, "log.level: debug") {
		t.Errorf("configuration %q", text)
	}
	m := get[*monitoring.PodMonitor](t, o, "PodMonitor/accelscope")
	if e := m.Spec.PodMetricsEndpoints[0]; m.Labels["release"] != "prom" || e.Interval != "30s" || *e.Scheme != "https" {
		t.Errorf("%+v", m)
	}
	if f := get[*appsv1.Deployment](t, o, "Deployment/accelscope-fabric").Spec.Template.Spec.Containers[0]; f.Image != "r/a:v9-fabric" {
		t.Errorf("%+v", f)
	}
	fleet := get[*appsv1.Deployment](t, o, "Deployment/accelscope-fleet").Spec.Template.Spec
	for _, arg := range []string{
		"--prometheus=https://p.example", "--prometheus.config.file=/etc/accelscope-prometheus/http.yaml", "--fleet.node-url=https://{host}:9847/",
		"--web.config.file=/etc/accelscope-web/web.yaml", "--fleet.sensor-url=https://{host}:9847/",
		"--fleet.sensor.config.file=/etc/accelscope-sensors/http.yaml", "--fleet.namespaces-header=X-Namespaces",
		"--fleet.link-key-file=/etc/accelscope-links/key",
	} {
		if c := fleet.Containers[0]; c.Image != "r/a:v9" || !slices.Contains(c.Args, arg) {
			t.Errorf("no %s in %+v", arg, c)
		}
	}
	var secrets []string
	for _, v := range fleet.Volumes {
		secrets = append(secrets, v.Secret.SecretName)
	}
	if !slices.Equal(secrets, []string{"prom", "sensors", "links", "web"}) {
		t.Errorf("volumes of the fleet: %+v", fleet.Volumes)
	}
	other := helm(t, "config: {log.level: info}")
	sum := func(o Objects) string {
		return get[*appsv1.DaemonSet](t, o, "DaemonSet/accelscope").Spec.Template.Annotations["checksum/config"]
	}
	if sum(o) == sum(other) {
		t.Error("another configuration does not roll out")
	}
}

// TestPort: a port other than 9847 is set in all manifests that use it.
func TestPort(t *testing.T) {
	for _, web := range []string{"", "\nweb: {configSecret: x}"} {
		o := helm(t, "port: 9900"+web)
		c := sensor(t, o).Containers[0]
		if !slices.Contains(c.Env, corev1.EnvVar{Name: "ACCELSCOPE_WEB_LISTEN_ADDRESS", Value: ":9900"}) || c.Ports[0].ContainerPort != 9900 {
			t.Errorf("%+v, %+v", c.Env, c.Ports)
		}
		if port := get[*corev1.Service](t, o, "Service/accelscope").Spec.Ports[0].Port; port != 9900 {
			t.Errorf("the service's is %d", port)
		}
	}
}

// TestAppArmorAnnotation: before Kubernetes 1.30, an annotation sets the AppArmor profile.
func TestAppArmorAnnotation(t *testing.T) {
	c, err := Chart(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for version, field := range map[string]bool{"v1.29.9": false, "v1.30.0": true, "v1.33.1-eks-1": true} {
		o, _, err := helmFor(c, values(t, "mode: capabilities"), version)
		if err != nil {
			t.Fatal(err)
		}
		template := get[*appsv1.DaemonSet](t, o, "DaemonSet/accelscope").Spec.Template
		annotated := template.Annotations["container.apparmor.security.beta.kubernetes.io/accelscope"] == "unconfined"
		if has := template.Spec.Containers[0].SecurityContext.AppArmorProfile != nil; has != field || annotated == field {
			t.Errorf("%s: field %v, annotation %v", version, has, annotated)
		}
	}
}

// TestNotes: the notes name the installed objects.
func TestNotes(t *testing.T) {
	c, err := Chart(root(t))
	if err != nil {
		t.Fatal(err)
	}
	_, notes, err := Helm(c, nil)
	if err != nil || !strings.Contains(notes, "kubectl -n accelscope exec ds/accelscope -- accelscope doctor") {
		t.Errorf("%v\n%s", err, notes)
	}
	const warning = "run commands in every pod of the cluster"
	if strings.Contains(notes, warning) {
		t.Error("the notes warn of a permission that is not given")
	}
	if _, notes, err = Helm(c, values(t, "kubelet: {nodesProxy: true}")); err != nil || !strings.Contains(notes, warning) {
		t.Errorf("no warning: %v\n%s", err, notes)
	}
}

// TestWarning: what offers nodes/proxy warns of what it permits.
func TestWarning(t *testing.T) {
	const warning = "commands in every pod"
	space := regexp.MustCompile(`[\s#]+`) // lines of text and comments as one line
	for _, file := range []string{
		"deploy/README.md", "deploy/kubernetes/README.md", "deploy/helm/accelscope/README.md", "deploy/helm/accelscope/values.yaml",
		"deploy/kubernetes/base/rbac.yaml", "deploy/kubernetes/components/kubelet-before-1.33/kustomization.yaml",
	} {
		data, err := os.ReadFile(filepath.Join(root(t), file))
		if err != nil {
			t.Fatal(err)
		}
		text := space.ReplaceAllString(string(data), " ")
		offers := regexp.MustCompile(`nodes/?[pP]roxy`).FindAllStringIndex(text, -1)
		if len(offers) == 0 {
			t.Errorf("%s does not offer it", file)
		}
		for _, at := range offers {
			if around := text[max(at[0]-300, 0):min(at[1]+300, len(text))]; !strings.Contains(around, warning) {
				t.Errorf("%s has no warning near: %s", file, around)
			}
		}
	}
}

// TestArguments: the program accepts the arguments and the configuration file of every pod. The test makes it exit
// right afterwards, with a file that does not exist.
func TestArguments(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "accelscope")
	run := func(name string, args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), name, args...) //nolint:forbidigo // tests/tools/child is in another module
		cmd.Dir = root(t)
		cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, 5*time.Second
		return cmd.CombinedOutput()
	}
	if out, err := run("go", "build", "-o", filepath.Dir(binary), "./cmd/..."); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const missing = "/nonexistent/web.yaml"
	ends := func(args []string) string {
		out, err := run(binary, append(args, "--web.config.file="+missing)...)
		if err == nil {
			t.Errorf("%v ends well", args)
		}
		return string(out)
	}
	for name, o := range map[string]Objects{
		"overlay": kustomize(t, "overlays/privileged"), "chart": helm(t, ""),
		"fleet": kustomize(t, "overlays/fleet"), "chart's fleet": helm(t, "fleet: {enabled: true, configSecret: x, nodeURL: 'http://{instance}/', grafanaURL: 'https://g.example', sensorURL: 'http://{instance}/'}"),
		"fabric": kustomize(t, "overlays/fabric"), "chart's fabric": helm(t, "fabric: {enabled: true, extraArgs: [--fabric.parallel=8]}"),
		"chart with more": helm(t, "config: {collector.node: false, workload.labels: [a, b]}\nextraArgs: [--strict]\n"+
			"events: {otlpEndpoint: 'a:1', insecure: true, secret: x, secretKeys: [ca.crt, tls.crt, tls.key, headers]}"),
	} {
		config := filepath.Join(t.TempDir(), "accelscope.yaml")
		for _, object := range o {
			if c, ok := object.(*corev1.ConfigMap); ok {
				if err := os.WriteFile(config, []byte(c.Data["accelscope.yaml"]), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		var pods []*corev1.PodSpec
		for _, object := range o {
			switch x := object.(type) {
			case *appsv1.DaemonSet:
				pods = append(pods, &x.Spec.Template.Spec)
			case *appsv1.Deployment:
				pods = append(pods, &x.Spec.Template.Spec)
			}
		}
		for _, p := range pods {
			var args []string
			for _, a := range p.Containers[0].Args {
				args = append(args, strings.Replace(a, "/etc/accelscope/accelscope.yaml", config, 1))
			}
			if out := ends(args); !strings.Contains(out, missing) {
				t.Errorf("%s: %v\n%s", name, args, out)
			}
			if out := ends(append(args, "--no-such-flag")); strings.Contains(out, missing) {
				t.Errorf("%s: a flag that does not exist is taken", name)
			}
		}
	}
}
