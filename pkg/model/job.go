// SPDX-License-Identifier: Apache-2.0

package model

import "strings"

// Job is the job of a workload. The author of a pod writes the pod's labels and can claim another job of the same
// namespace: a job is only unique together with the workload's namespace.
type Job struct {
	Kind string // kind of the Kubernetes object, such as JobSet, or Slurm; empty without a known job
	Name string // of the object, or the number of the Slurm job
	// Queue is the local queue that admitted the pod.
	Queue string
	// Rank is the place in the job, from the controller's numbers (worker-3) or the environment of processes.
	Rank string
}

// PodController is the pod's owner reference with controller set.
type PodController struct{ Group, Kind, Name string }

// The limits of names are Kubernetes' for objects, the limits of ranks Kubernetes' for label values.
const (
	maxJobName   = 253
	maxRankPart  = 63
	maxRankIndex = 10
)

// A jobRow is a kind of job. A pod is a member if its controller's kind is in owners, or if it has the label name.
type jobRow struct {
	kind   string            // label job_kind; empty: only by kinds
	group  string            // API group of the controller
	owners map[string]string // from the kind of the controller to job_kind
	name   string            // label with the name of the job
	with   string            // another label that a member must have
	by     string            // label whose value decides the kind, by kinds
	kinds  map[string]string
	// rank are the labels that number the pod. The last label is an index; without an index the rank is unknown.
	rank []string
}

// jobRows lists the kinds of jobs, outermost first: the first match wins. A pod has the labels of all controllers above
// it, but only the innermost owner reference. Comments name the source of the labels.
var jobRows = []jobRow{
	{ // argo-workflows, workflow/common/common.go: LabelKeyWorkflow
		kind: "Workflow", group: "argoproj.io", owners: map[string]string{"Workflow": "Workflow"},
		name: "workflows.argoproj.io/workflow",
	},
	{ // kuberay, controllers/ray/utils/constant.go: RayOriginatedFromCRNameLabelKey, where pods have it
		name: "ray.io/originated-from-cr-name", by: "ray.io/originated-from-crd",
		kinds: map[string]string{"RayJob": "RayJob", "RayService": "RayService"},
	},
	{ // kuberay, controllers/ray/utils/constant.go: RayClusterLabelKey
		kind: "RayCluster", group: "ray.io", owners: map[string]string{"RayCluster": "RayCluster"}, name: "ray.io/cluster",
	},
	{ // kubeflow trainer, pkg/constants/constants.go: LabelTrainJobAncestor. A TrainJob makes a JobSet with its own name.
		kind: "TrainJob", name: "jobset.sigs.k8s.io/jobset-name", with: "trainer.kubeflow.org/trainjob-ancestor-step",
		rank: jobSetRank,
	},
	{ // jobset, api/jobset/v1alpha2/jobset_types.go: JobSetNameKey
		kind: "JobSet", name: "jobset.sigs.k8s.io/jobset-name", rank: jobSetRank,
	},
	{ // lws, api/leaderworkerset/v1/leaderworkerset_types.go: SetNameLabelKey
		kind: "LeaderWorkerSet", name: "leaderworkerset.sigs.k8s.io/name",
		rank: []string{"leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index"},
	},
	{ // training-operator, pkg/apis/kubeflow.org/v1/common_types.go: JobNameLabel; mpi-operator has the same labels
		kind: "KubeflowJob", group: "kubeflow.org",
		owners: map[string]string{
			"PyTorchJob": "PyTorchJob", "MPIJob": "MPIJob", "TFJob": "TFJob", "XGBoostJob": "XGBoostJob", "JAXJob": "JAXJob",
			"PaddleJob": "PaddleJob",
		},
		name: "training.kubeflow.org/job-name", by: "training.kubeflow.org/operator-name",
		kinds: map[string]string{
			"pytorchjob-controller": "PyTorchJob", "mpijob-controller": "MPIJob", "mpi-operator": "MPIJob",
			"tfjob-controller": "TFJob", "xgboostjob-controller": "XGBoostJob", "jaxjob-controller": "JAXJob",
			"paddlejob-controller": "PaddleJob",
		},
		rank: []string{"training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"},
	},
	{ // volcano apis, pkg/apis/batch/v1alpha1/labels.go: JobNameKey, a label and an annotation
		kind: "VolcanoJob", group: "batch.volcano.sh", owners: map[string]string{"Job": "VolcanoJob"},
		name: "volcano.sh/job-name", rank: []string{"volcano.sh/task-spec", "volcano.sh/task-index"},
	},
	{ // kubernetes, staging/src/k8s.io/api/batch/v1/types.go: JobNameLabel, JobCompletionIndexAnnotation
		kind: "Job", group: "batch", owners: map[string]string{"Job": "Job"}, name: "batch.kubernetes.io/job-name",
		rank: []string{completionIndex},
	},
	{ // kubernetes, staging/src/k8s.io/api/apps/v1/types.go: PodIndexLabel, since 1.28
		group: "apps", owners: map[string]string{"StatefulSet": "StatefulSet"}, rank: []string{"apps.kubernetes.io/pod-index"},
	},
}

const completionIndex = "batch.kubernetes.io/job-completion-index"

var jobSetRank = []string{"jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index", completionIndex}

// queueLabels have the name of a queue. kueue, pkg/controller/constants/constants.go: QueueLabel, and LocalQueueLabel
// for pods of jobs; volcano apis, pkg/apis/batch/v1alpha1/labels.go: QueueNameKey.
var queueLabels = []string{"kueue.x-k8s.io/local-queue-name", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name"}

// JobOf returns the job of a pod from its controller, labels and annotations.
func JobOf(controller PodController, labels, annotations map[string]string) Job {
	get := func(name string) string {
		value, ok := labels[name]
		if !ok {
			value = annotations[name]
		}
		if !isJobName(value, maxJobName) {
			return ""
		}
		return value
	}
	var job Job
	for _, l := range queueLabels {
		if job.Queue == "" {
			job.Queue = get(l)
		}
	}
	for i := range jobRows {
		r := &jobRows[i]
		if r.with != "" && get(r.with) == "" {
			continue
		}
		if job.Kind, job.Name = r.match(controller, get); job.Kind != "" {
			job.Rank = rankOf(r.rank, get)
			return job
		}
	}
	return job
}

// match returns the kind and the name of the pod's job, or "". The label names the outermost object; an owner reference
// may name an object in between.
func (r *jobRow) match(controller PodController, get func(string) string) (kind, name string) {
	owner := ""
	if controller.Group == r.group && isJobName(controller.Name, maxJobName) {
		owner = r.owners[controller.Kind]
	}
	kind, name = r.kind, get(r.name)
	if owner != "" {
		kind = owner
		if name == "" {
			name = controller.Name
		}
	} else if r.by != "" {
		if k := r.kinds[get(r.by)]; k != "" {
			kind = k
		}
	}
	if kind == "" || name == "" {
		return "", ""
	}
	return kind, name
}

// rankOf joins the parts of a rank like the pod names of controllers: worker-3.
func rankOf(labels []string, get func(string) string) string {
	parts := make([]string, 0, len(labels))
	for i, l := range labels {
		part := get(l)
		if i == len(labels)-1 && (!IsDigits(part) || len(part) > maxRankIndex) {
			return ""
		}
		if part != "" && len(part) <= maxRankPart {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "-")
}

// isJobName reports whether a text has only characters of names and label values, and at most limit.
func isJobName(s string, limit int) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return true
}

// IsDigits reports whether a text consists of digits and is not empty.
func IsDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
