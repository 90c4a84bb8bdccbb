// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestVersion: the overlays and compose.yaml name the tag that the chart has. With -update it writes them.
func TestVersion(t *testing.T) {
	chart, err := Chart(root(t))
	if err != nil {
		t.Fatal(err)
	}
	version := chart.Metadata.AppVersion
	for file, place := range map[string]struct{ pattern, want string }{
		"kubernetes/overlays/privileged/kustomization.yaml":   {`\bnewTag: .*`, "newTag: " + version},
		"kubernetes/overlays/capabilities/kustomization.yaml": {`\bnewTag: .*`, "newTag: " + version},
		"kubernetes/overlays/fleet/kustomization.yaml":        {`\bnewTag: .*`, "newTag: " + version},
		"kubernetes/overlays/taint/kustomization.yaml":        {`\bnewTag: .*`, "newTag: " + version},
		"kubernetes/overlays/fabric/kustomization.yaml":       {`\bnewTag: .*`, "newTag: " + version + "-fabric"},
		"docker/compose.yaml":                                 {`\bACCELSCOPE_IMAGE:-.*`, "ACCELSCOPE_IMAGE:-accelscope:" + version + "}"},
	} {
		file = filepath.Join(root(t), "deploy", file)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pattern := regexp.MustCompile(place.pattern)
		if *update {
			text = pattern.ReplaceAllLiteral(text, []byte(place.want))
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := pattern.FindAllString(string(text), -1); len(got) != 1 || got[0] != place.want {
			t.Errorf("%s has %q, want %q (make generate-deploy)", file, got, place.want)
		}
	}
}

// named reports whether an image has a tag other than latest, or a digest.
func named(image string) bool {
	name, digest, _ := strings.Cut(image, "@")
	_, tag, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	return digest != "" || tag != "" && tag != "latest" && !strings.HasPrefix(tag, "latest-")
}

// TestImages: every container has an image with a tag or a digest.
func TestImages(t *testing.T) {
	for image, want := range map[string]bool{
		"a": false, "r:5000/a": false, "a:latest": false, "a:latest-fabric": false, "a:v1": true, "r:5000/a:v1": true, "a@sha256:0": true,
	} {
		if named(image) != want {
			t.Errorf("%s: %v", image, !want)
		}
	}
	images := map[string]string{} // what has it
	for name, o := range map[string]Objects{
		"privileged": kustomize(t, "overlays/privileged"), "capabilities": kustomize(t, "overlays/capabilities", components...),
		"fabric": kustomize(t, "overlays/fabric"), "fleet": kustomize(t, "overlays/fleet"),
		"chart": helm(t, "fabric: {enabled: true}\nfleet: {enabled: true}\n"+monitors),
	} {
		for object := range o {
			var pod *corev1.PodSpec
			switch x := o[object].(type) {
			case *appsv1.DaemonSet:
				pod = &x.Spec.Template.Spec
			case *appsv1.Deployment:
				pod = &x.Spec.Template.Spec
			default:
				continue
			}
			for _, c := range append(pod.InitContainers, pod.Containers...) {
				images[name+" "+object+" "+c.Name] = c.Image
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(root(t), "deploy/docker/compose*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v: %v", files, err)
	}
	byDefault := regexp.MustCompile(`^\$\{\w+:-(.*)\}$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var project struct {
			Services map[string]struct {
				Image string `json:"image"`
			} `json:"services"`
		}
		if err := yaml.Unmarshal(text, &project); err != nil {
			t.Fatal(err)
		}
		for service, s := range project.Services {
			if s.Image != "" {
				images[file+" "+service] = byDefault.ReplaceAllString(s.Image, "$1")
			}
		}
	}
	if len(images) != 9 {
		t.Errorf("%d images, want those of 7 pods and 2 services: %v", len(images), images)
	}
	for of, image := range images {
		if !named(image) {
			t.Errorf("%s has the image %s, whose tag may name another one tomorrow", of, image)
		}
	}
}

// TestLatest: no manifest and no guide names the tag latest.
func TestLatest(t *testing.T) {
	latest := regexp.MustCompile(`:latest\b|(?i:tag|appVersion)["']?[:=]\s*["']?latest\b`)
	for _, text := range []string{"a:latest", "newTag: latest-fabric", `tag: "latest"`, "image.tag=latest", "appVersion: latest"} {
		if !latest.MatchString(text) {
			t.Errorf("%q is not found", text)
		}
	}
	seen := 0
	look := func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen++
		for i, line := range strings.Split(string(text), "\n") {
			if latest.MatchString(line) {
				t.Errorf("%s:%d: %s", path, i+1, line)
			}
		}
		return nil
	}
	for _, path := range []string{"deploy", "docs", "README.md", "Dockerfile"} {
		if err := filepath.WalkDir(filepath.Join(root(t), path), look); err != nil {
			t.Fatal(err)
		}
	}
	if seen < 100 {
		t.Errorf("only %d files", seen)
	}
}
