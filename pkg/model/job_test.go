// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestJobOf has the metadata that each controller gives its pods, according to its source. No controller runs here.
func TestJobOf(t *testing.T) {
	jobSet := map[string]string{
		"jobset.sigs.k8s.io/jobset-name": "llm", "jobset.sigs.k8s.io/replicatedjob-name": "node", "jobset.sigs.k8s.io/job-index": "1",
		"jobset.sigs.k8s.io/job-global-index": "1", "batch.kubernetes.io/job-name": "llm-node-1", "job-name": "llm-node-1",
		"batch.kubernetes.io/job-completion-index": "3", "kueue.x-k8s.io/local-queue-name": "research",
	}
	trainJob := map[string]string{"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
	maps.Copy(trainJob, jobSet)
	for name, tt := range map[string]struct {
		controller          PodController
		labels, annotations map[string]string
		want                Job
	}{
		"nothing":    {},
		"Deployment": {controller: PodController{"apps", "ReplicaSet", "web-5d"}, labels: map[string]string{"app": "web"}},
		"Job": {
			controller:  PodController{"batch", "Job", "prep"},
			annotations: map[string]string{"batch.kubernetes.io/job-completion-index": "4"},
			want:        Job{Kind: "Job", Name: "prep", Rank: "4"},
		},
		"Job, not indexed": {
			controller: PodController{"batch", "Job", "prep"}, labels: map[string]string{"batch.kubernetes.io/job-name": "prep"},
			want: Job{Kind: "Job", Name: "prep"},
		},
		"JobSet": {
			controller: PodController{"batch", "Job", "llm-node-1"}, labels: jobSet,
			want: Job{Kind: "JobSet", Name: "llm", Queue: "research", Rank: "node-1-3"},
		},
		"TrainJob": {
			controller: PodController{"batch", "Job", "llm-node-1"}, labels: trainJob,
			want: Job{Kind: "TrainJob", Name: "llm", Queue: "research", Rank: "node-1-3"},
		},
		"LeaderWorkerSet, worker": {
			controller: PodController{"apps", "StatefulSet", "vllm-0"},
			labels: map[string]string{
				"leaderworkerset.sigs.k8s.io/name": "vllm", "leaderworkerset.sigs.k8s.io/group-index": "0",
				"leaderworkerset.sigs.k8s.io/worker-index": "3", "apps.kubernetes.io/pod-index": "3",
			},
			want: Job{Kind: "LeaderWorkerSet", Name: "vllm", Rank: "0-3"},
		},
		"PyTorchJob": {
			controller: PodController{"kubeflow.org", "PyTorchJob", "bert"},
			labels: map[string]string{
				"training.kubeflow.org/job-name": "bert", "training.kubeflow.org/operator-name": "pytorchjob-controller",
				"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "0",
			},
			want: Job{Kind: "PyTorchJob", Name: "bert", Rank: "worker-0"},
		},
		"MPIJob, launcher": { // the launcher is a Job of the MPIJob
			controller: PodController{"batch", "Job", "hpl-launcher"},
			labels: map[string]string{
				"batch.kubernetes.io/job-name": "hpl-launcher", "training.kubeflow.org/job-name": "hpl",
				"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-role": "launcher",
			},
			want: Job{Kind: "MPIJob", Name: "hpl"},
		},
		"operator without a row": {
			labels: map[string]string{"training.kubeflow.org/job-name": "new", "training.kubeflow.org/operator-name": "newjob-controller"},
			want:   Job{Kind: "KubeflowJob", Name: "new"},
		},
		"Volcano": {
			controller: PodController{"batch.volcano.sh", "Job", "mpi"},
			labels:     map[string]string{"volcano.sh/job-name": "mpi", "volcano.sh/queue-name": "default"},
			annotations: map[string]string{
				"volcano.sh/job-name": "mpi", "volcano.sh/task-spec": "worker", "volcano.sh/task-index": "1",
			},
			want: Job{Kind: "VolcanoJob", Name: "mpi", Queue: "default", Rank: "worker-1"},
		},
		"RayCluster": {
			controller: PodController{"ray.io", "RayCluster", "tune"}, labels: map[string]string{"ray.io/cluster": "tune"},
			want: Job{Kind: "RayCluster", Name: "tune"},
		},
		"RayJob": {
			controller: PodController{"ray.io", "RayCluster", "tune-x7b2k"},
			labels: map[string]string{
				"ray.io/cluster": "tune-x7b2k", "ray.io/originated-from-cr-name": "tune", "ray.io/originated-from-crd": "RayJob",
			},
			want: Job{Kind: "RayJob", Name: "tune"},
		},
		"Argo": {
			controller: PodController{"argoproj.io", "Workflow", "etl-9"}, labels: map[string]string{"workflows.argoproj.io/workflow": "etl-9"},
			want: Job{Kind: "Workflow", Name: "etl-9"},
		},
		"StatefulSet": {
			controller: PodController{"apps", "StatefulSet", "db"}, labels: map[string]string{"apps.kubernetes.io/pod-index": "2"},
			want: Job{Kind: "StatefulSet", Name: "db", Rank: "2"},
		},
		"plain pod in a queue": {
			labels: map[string]string{"kueue.x-k8s.io/queue-name": "users"}, want: Job{Queue: "users"},
		},
		"a Job of another group": {controller: PodController{"example.com", "Job", "x"}},
		"hostile": {
			controller:  PodController{"batch", "Job", strings.Repeat("a", 254)},
			labels:      map[string]string{"jobset.sigs.k8s.io/jobset-name": "a\"} 1\n", "kueue.x-k8s.io/queue-name": "\xff"},
			annotations: map[string]string{"volcano.sh/job-name": strings.Repeat("b", 1<<20)},
		},
		"hostile index": {
			controller: PodController{"batch", "Job", "a"},
			labels:     map[string]string{"batch.kubernetes.io/job-completion-index": "12345678901"},
			want:       Job{Kind: "Job", Name: "a"},
		},
		"hostile part of a rank": {
			controller: PodController{"batch", "Job", "a"},
			labels: map[string]string{
				"jobset.sigs.k8s.io/jobset-name": "llm", "jobset.sigs.k8s.io/replicatedjob-name": strings.Repeat("a", 64),
				"jobset.sigs.k8s.io/job-index": "1", "batch.kubernetes.io/job-completion-index": "3",
			},
			want: Job{Kind: "JobSet", Name: "llm", Rank: "1-3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, JobOf(tt.controller, tt.labels, tt.annotations)); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// FuzzJobOf checks that the labels of a job are short and have only characters of names, for any metadata of a pod.
func FuzzJobOf(f *testing.F) {
	f.Add([]byte(`{"Labels":{"jobset.sigs.k8s.io/jobset-name":"llm"},"Controller":{"Group":"batch","Kind":"Job","Name":"x"}}`))
	f.Add([]byte(`{"Annotations":{"volcano.sh/job-name":"a b","volcano.sh/task-spec":"x","volcano.sh/task-index":"1"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var pod struct {
			Controller          PodController
			Labels, Annotations map[string]string
		}
		if json.Unmarshal(text, &pod) != nil {
			return
		}
		job := JobOf(pod.Controller, pod.Labels, pod.Annotations)
		for _, s := range []string{job.Kind, job.Name, job.Queue, job.Rank} {
			if s != "" && !isJobName(s, maxJobName) {
				t.Errorf("%q", s)
			}
		}
		if (job.Kind == "") != (job.Name == "") {
			t.Errorf("%+v", job)
		}
	})
}
