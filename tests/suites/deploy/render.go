// SPDX-License-Identifier: Apache-2.0

// Package deploy renders the Kubernetes manifests of deploy/ with the libraries of kustomize and Helm, and decodes them
// strictly into the types of the API: an unknown or duplicate field is an error. It is a separate module, because the
// build of accelscope does not need these libraries.
package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Objects are the rendered objects, by KIND/NAME.
type Objects map[string]runtime.Object

// Names returns the keys of o, sorted.
func (o Objects) Names() []string { return slices.Sorted(maps.Keys(o)) }

// Kustomize renders a directory below root, the top of the repository, as `kubectl kustomize` does. With components it
// renders a kustomization that refers to the directory and to them.
func Kustomize(root, dir string, components ...string) (Objects, error) {
	fs := filesys.MakeFsOnDisk()
	dir = filepath.Join(root, "deploy/kubernetes", dir)
	if len(components) > 0 {
		tmp, err := filesys.NewTmpConfirmedDir()
		if err != nil {
			return nil, err
		}
		defer fs.RemoveAll(tmp.String()) //nolint:errcheck // a temporary directory
		to := func(path string) string {
			rel, _ := filepath.Rel(tmp.String(), path) // cannot fail, as both are absolute
			return rel
		}
		k := fmt.Appendf(nil, "resources: [%s]\ncomponents:\n", to(dir))
		for _, c := range components {
			k = fmt.Appendf(k, "- %s\n", to(filepath.Join(root, "deploy/kubernetes/components", c)))
		}
		if err := fs.WriteFile(tmp.Join("kustomization.yaml"), k); err != nil {
			return nil, err
		}
		dir = tmp.String()
	}
	return build(fs, dir)
}

// build renders a directory with kubectl's default options.
func build(fs filesys.FileSystem, dir string) (Objects, error) {
	o := krusty.MakeDefaultOptions()
	o.LoadRestrictions = types.LoadRestrictionsRootOnly
	m, err := krusty.MakeKustomizer(o).Run(fs, dir)
	if err != nil {
		return nil, err
	}
	text, err := m.AsYaml()
	if err != nil {
		return nil, err
	}
	return Decode(text)
}

// Chart loads the Helm chart.
func Chart(root string) (*chart.Chart, error) {
	return loader.LoadDir(filepath.Join(root, "deploy/helm/accelscope"))
}

// Helm renders the chart as release accelscope in the namespace accelscope, for the newest Kubernetes, after the schema
// has validated the values.
func Helm(c *chart.Chart, values map[string]any) (objects Objects, notes string, err error) {
	return helmFor(c, values, "v1.34.0")
}

func helmFor(c *chart.Chart, values map[string]any, kubernetes string) (objects Objects, notes string, err error) {
	text, notes, err := HelmText(c, values, kubernetes)
	if err != nil {
		return nil, "", err
	}
	objects, err = Decode([]byte(text))
	return objects, notes, err
}

// HelmText renders the chart as Helm does for a version of Kubernetes: the manifests, and the notes.
func HelmText(c *chart.Chart, values map[string]any, kubernetes string) (manifests, notes string, err error) {
	version, err := chartutil.ParseKubeVersion(kubernetes)
	if err != nil {
		return "", "", err
	}
	cluster := chartutil.DefaultCapabilities.Copy()
	cluster.KubeVersion = *version
	release := chartutil.ReleaseOptions{Name: "accelscope", Namespace: "accelscope", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, release, cluster)
	if err != nil {
		return "", "", err
	}
	files, err := engine.Engine{Strict: true}.Render(c, all)
	if err != nil {
		return "", "", err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			notes = files[name]
		} else {
			text.WriteString("\n---\n" + files[name])
		}
	}
	return text.String(), notes, nil
}

// Decode decodes YAML documents strictly.
func Decode(text []byte) (Objects, error) {
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, known, known, json.SerializerOptions{Yaml: true, Strict: true})
	out := Objects{}
	for r := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if onlyComments(doc) {
			continue
		}
		o, kind, err := strict.Decode(doc, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, doc)
		}
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, err
		}
		name := kind.Kind + "/" + m.GetName()
		if out[name] != nil {
			return nil, fmt.Errorf("%s is there twice", name)
		}
		out[name] = o
	}
}

// known are the types of Kubernetes and of the Prometheus operator, by kind.
var known = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(s))
	utilruntime.Must(monitoring.AddToScheme(s))
	return s
}()

func onlyComments(doc []byte) bool {
	for line := range bytes.Lines(doc) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}
