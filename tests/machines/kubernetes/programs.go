// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// programs are the packages of a cluster's programs, in the versions of programs/go.mod. The last element of the path, without a
// version, is the name of the program: etcd's is server.
var programs = []string{
	"k8s.io/kubernetes/cmd/kubelet",
	"k8s.io/kubernetes/cmd/kube-apiserver",
	"k8s.io/kubernetes/cmd/kube-controller-manager",
	"k8s.io/kubernetes/cmd/kube-scheduler",
	"k8s.io/kubernetes/cmd/kubectl",
	"go.etcd.io/etcd/server/v3",
}

// here is the directory of this package's source.
func here() string {
	_, self, _, _ := runtime.Caller(0)
	return filepath.Dir(self)
}

// buildPrograms returns the directory of the cluster's programs. They are built once for each version of programs/go.mod, one package
// at a time and with a low priority: on two CPUs this takes some minutes.
func buildPrograms(ctx context.Context) (string, error) {
	module := filepath.Join(here(), "programs")
	return vm.Built("kubernetes", os.DirFS(module), []string{"go.mod", "go.sum"}, func(dir string) error {
		return buildModule(ctx, module, dir)
	})
}

// buildDriver returns the driver of dynamic resource allocation that is made in that module.
func buildDriver(ctx context.Context) (string, error) {
	module := filepath.Join(here(), "programs")
	return vm.Built("dradriver", os.DirFS(module), []string{"go.mod", "go.sum", "dradriver/main.go"}, func(path string) error {
		_, err := output(ctx, module, "nice", "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./dradriver")
		return err
	})
}

// buildModule builds the programs into dir.
func buildModule(ctx context.Context, module, dir string) error {
	version, err := output(ctx, module, "go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	version = strings.TrimSpace(version)
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	const variable = " -X k8s.io/component-base/version.git"
	flags := "-s -w" + variable + "Version=" + version + variable + "Major=" + numbers[0] + variable + "Minor=" + numbers[1]
	for _, program := range programs {
		start := time.Now()
		if _, err := output(ctx, module, "nice", "go", "build", "-p", "1", "-trimpath", "-ldflags="+flags, "-o", dir+"/", program); err != nil {
			return err
		}
		fmt.Printf("%s: built in %s\n", program, time.Since(start).Round(time.Second))
	}
	return nil
}

// download returns the directory of a module's source, MODULE@VERSION.
func download(ctx context.Context, module string) (string, error) {
	text, err := output(ctx, "", "go", "mod", "download", "-json", module)
	if err != nil {
		return "", err
	}
	var of struct{ Dir string }
	return of.Dir, json.Unmarshal([]byte(text), &of)
}

// output runs a program and returns what it printed. The error contains what it printed to its standard error.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := child.Command(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}
