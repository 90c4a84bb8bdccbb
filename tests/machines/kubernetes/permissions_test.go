// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// own is what every account may do: ask what it may do, and read bundles of certificates of authorities.
var own = map[string]float64{
	"clustertrustbundles.certificates.k8s.io [get list watch]": 1,
	"selfsubjectreviews.authentication.k8s.io [create]":        1, "selfsubjectaccessreviews.authorization.k8s.io [create]": 1,
	"selfsubjectrulesreviews.authorization.k8s.io [create]": 1,
}

const account = "system:serviceaccount:accelscope:accelscope"

// testPermissions asks the API server what the sensor's account may do, and the kubelet with the sensor's token, with the manifests
// alone and with the components that add permissions.
func testPermissions(t *testing.T) {
	const ok, inContainer = http.StatusOK, "/containerLogs/kube-system/none/none"
	least := map[string]int{"/pods": ok, "/runningpods/": ok, "/stats/summary": ok}
	for _, test := range []struct {
		component string
		granted   []string
		kubelet   map[string]int // status of paths that the kubelet does not refuse
	}{
		{"none", []string{"nodes/pods [get]", "nodes/stats [get]"}, least},
		{
			// It also permits what is done in containers: no container has this name.
			"kubelet-before-1.33",
			[]string{"nodes/pods [get]", "nodes/stats [get]", "nodes/proxy [get]"},
			map[string]int{"/pods": ok, "/runningpods/": ok, "/stats/summary": ok, "/configz": ok, "/healthz": ok, inContainer: http.StatusNotFound},
		},
		{"gpu-release", []string{"nodes/pods [get]", "nodes/stats [get]", "nodes [watch]"}, least},
	} {
		t.Run(test.component, func(t *testing.T) {
			apply(t, rendered(t, "privileged", strings.TrimPrefix(test.component, "none")))
			want := maps.Clone(own)
			for _, r := range test.granted {
				want[r] = 1
			}
			same(t, "permissions", func(context.Context) (map[string]float64, error) { return want, nil }, permissions(account))
			token := filepath.Join(t.TempDir(), "token")
			if err := running.writeToken(t.Context(), token); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{
				"/pods", "/runningpods/", "/stats/summary", "/configz", "/healthz", "/metrics", "/metrics/cadvisor", "/metrics/resource",
				"/logs/", inContainer,
			} {
				want := cmp.Or(test.kubelet[path], http.StatusForbidden)
				until(t, path, func(ctx context.Context) error {
					if code, err := askKubelet(ctx, token, path); code != want || err != nil {
						return fmt.Errorf("%s: status %d, want %d: %w", path, code, want, errors.Join(err, os.ErrInvalid))
					}
					return nil
				})
			}
		})
	}
	applyOverlay(t, "privileged") // without the components
}

// permissions returns the resources that kubectl auth can-i lists for an account, with the verbs.
func permissions(account string) func(context.Context) (map[string]float64, error) {
	return func(ctx context.Context) (map[string]float64, error) {
		out, err := running.kubectl(ctx, "auth", "can-i", "--list", "--no-headers", "--as="+account, "--namespace=accelscope")
		all := map[string]float64{}
		for line := range strings.Lines(out) {
			resource, verbs, _ := strings.Cut(line, " ")
			if resource != "" { // else a path, such as /version
				all[resource+" "+verbs[strings.LastIndex(verbs, "["):strings.LastIndex(verbs, "]")+1]] = 1
			}
		}
		return all, err
	}
}

// askKubelet requests a path of the kubelet with a token.
func askKubelet(ctx context.Context, token, path string) (int, error) {
	text, err := os.ReadFile(token)
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+nodeIP+":10250"+path, nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(text)))
	response, err := running.client().Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}
