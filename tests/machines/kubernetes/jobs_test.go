// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const jobsYAML = `apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: jobs}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  template:
    spec: {restartPolicy: Never, terminationGracePeriodSeconds: 1, containers: [{name: main, IMAGE, SLEEP}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: store, namespace: jobs}
spec:
  replicas: 2
  serviceName: store
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: store}}
  template:
    metadata: {labels: {app: store}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, IMAGE, SLEEP}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: jobs}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, IMAGE, SLEEP}]}
`

// testJobs compares the jobs of workloads with the owners that the controllers of Kubernetes give pods, and their ranks with the host
// names that these give them: JOB-INDEX. A Deployment is no job.
func testJobs(t *testing.T) {
	const ns = "jobs"
	makeNamespace(t, ns)
	startSensor(t)
	t.Cleanup(func() {
		if _, err := running.kubectl(context.Background(), "--namespace="+ns, "delete", "statefulsets", "--all", "--timeout=2m"); err != nil {
			t.Error(err)
		}
		removePods(t, ns)
	})
	apply(t, withImage(jobsYAML))
	same(t, "jobs", func(ctx context.Context) (map[string]float64, error) { return jobs(ctx, ns) }, func(ctx context.Context) (map[string]float64, error) {
		f, err := scrape(ctx)
		out := map[string]float64{}
		for key, v := range f.values("accelscope_workload_info", "namespace", "pod", "container", "job_kind", "job_name", "rank") {
			if strings.HasPrefix(key, ns+" ") && strings.Contains(key, " main ") {
				out[key] = v
			}
		}
		return out, err
	})
}

// jobs returns the containers of the five pods of jobsYAML, once all run, as "NAMESPACE POD CONTAINER KIND NAME RANK".
func jobs(ctx context.Context, namespace string) (map[string]float64, error) {
	pods, err := running.pods(ctx)
	out := map[string]float64{}
	for i := range pods {
		p := &pods[i]
		if p.Namespace != namespace || len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].State.Running == nil {
			continue
		}
		kind, name, rank := "", "", ""
		if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind != "ReplicaSet" {
			kind, name, rank = owner.Kind, owner.Name, strings.TrimPrefix(p.Spec.Hostname, owner.Name+"-")
		}
		out[strings.Join([]string{namespace, p.Name, p.Spec.Containers[0].Name, kind, name, rank}, " ")] = 1
	}
	if len(out) != 5 {
		err = errors.Join(err, fmt.Errorf("%d pods run, want 5", len(out)))
	}
	return out, err
}
