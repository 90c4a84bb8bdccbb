// SPDX-License-Identifier: Apache-2.0

// Command render prints an overlay of deploy/kubernetes as one JSON object, by KIND/NAME, or with -chart the manifests of the Helm
// chart. It is for tests that cannot use the libraries of kustomize and Helm, such as those in the guest.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"

	deploy "github.com/accelscope/accelscope/tests/suites/deploy"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 4 && args[0] == "-chart" {
		return renderChart(args[1], args[2], args[3])
	}
	if len(args) < 2 {
		return fmt.Errorf("usage: render REPOSITORY DIRECTORY [COMPONENT ...] or render -chart REPOSITORY KUBERNETES VALUES")
	}
	objects, err := deploy.Kustomize(args[0], args[1], args[2:]...)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(objects)
}

// renderChart prints the manifests of the chart for a version of Kubernetes, with values in YAML.
func renderChart(repository, kubernetes, values string) error {
	chart, err := deploy.Chart(repository)
	if err != nil {
		return err
	}
	var v map[string]any
	if err := yaml.Unmarshal([]byte(values), &v); err != nil {
		return err
	}
	text, _, err := deploy.HelmText(chart, v, kubernetes)
	if err == nil {
		_, err = fmt.Print(text)
	}
	return err
}
