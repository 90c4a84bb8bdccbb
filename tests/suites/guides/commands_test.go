// SPDX-License-Identifier: Apache-2.0

//go:build vm

package guides

// A place is where a command is run.
type place int

const (
	here  place = iota + 1 // on this machine, before all others: commands that build, which need the network
	node                   // in a copy of this machine, as on a node
	serve                  // on the node, in the background: it ends with the copy
	watch                  // on the node, for some seconds, because it does not end by itself
	none                   // not run: why has the reason, and the test that checks it instead
)

// A command is a command of a document as printed, without its comment.
type command struct {
	text  string
	place place
	env   string                            // for here: variables that end or shorten the command
	why   string                            // for none
	check func(s *stage, text string) error // checks that are possible without running the command
}

const (
	cluster  = "needs a cluster; TestDeploy runs what it deploys in the guest"
	registry = "needs Docker and a registry; tests/suites/image unpacks the archive, TestDeploy loads it into containerd"
	gpus     = "needs an NVIDIA GPU; TestNVMLChild runs accelscope gpu with a fake library"
	counters = "needs an mlx5 HCA; TestGuestCounters switches auto mode in a guest, TestRemoveBindings has the rules of the kernel"
	modules  = "needs out-of-tree RDMA modules; vm.BuildPadded makes such files with these programs"
	compose  = "needs Docker Compose 2, which Debian 12 has not; TestCompose runs it by docker-compose 1.29, tests/suites/compose reads the file by the library of 2"
)

// documents lists the documents, and every command in them.
var documents = map[string][]command{
	"README.md": {
		{text: "make packages", place: here, env: "COMPRESSION=gzip"},
		{text: "apt-get install -y --no-install-recommends ./bin/accelscope_*_amd64.deb", place: node},
		{text: "make image", place: none, why: "make test-image builds it"},
		{text: "docker load -i bin/accelscope-image.tar", place: none, why: registry},
		{text: "docker compose -f deploy/docker/compose.yaml up -d", place: none, why: compose, check: files},
		{text: "kubectl create namespace accelscope", place: none, why: cluster},
		{text: "kubectl label namespace accelscope pod-security.kubernetes.io/enforce=privileged", place: none, why: cluster},
		{text: "helm upgrade --install accelscope deploy/helm/accelscope " + helmFlags, place: none, why: cluster, check: values},

		{text: "make demo", place: here, env: "DEMO_SECONDS=20"},

		{text: "accelscope doctor", place: node},
		{text: "accelscope top", place: watch},
		{text: "curl -s http://127.0.0.1:9847/readyz", place: node},
		{text: "curl -s http://127.0.0.1:9847/metrics | grep ^accelscope_build_info", place: node},
	},
	"docs/rest.md": {
		{text: "make run", place: serve},
		{text: "curl -s http://127.0.0.1:9847/healthz", place: node},
		{text: "curl -s http://127.0.0.1:9847/rdma", place: node},
	},
	"docs/sizing.md":    {{text: "make bench", place: none, why: "asserts nothing, and needs an idle machine"}},
	"docs/placement.md": {{text: "bin/accelscope topo", place: node}},
	"docs/rdma-bytes.md": {
		{text: "rdma statistic qp set link mlx5_0/1 auto off", place: none, why: counters},
		{text: "rdma statistic qp show link mlx5_0/1", place: none, why: counters},
		{text: "rdma statistic qp unbind link mlx5_0/1 cntn 4", place: none, why: counters},
		{text: "rdma statistic mode link mlx5_0/1", place: none, why: counters},
		{text: "rdma statistic unset link mlx5_0/1 optional-counters", place: none, why: counters},
		{text: "bin/accelscope peers", place: node},
	},
	"docs/support-matrix.md": {
		{text: "make test-kernels", place: none, why: "takes hours"},
		{text: "make test-gpu", place: none, why: "needs an NVIDIA GPU"},
	},
	"docs/troubleshooting.md": {{text: "bin/accelscope doctor", place: node}},
	runbooks: {
		{text: `export PATH="$PWD/bin:$PATH"`, place: node}, // an installed sensor's commands are in the PATH
		{text: "accelscope doctor", place: node},
		{text: "accelscope top", place: watch},
		{text: "accelscope top --once", place: node},
		{text: "accelscope topo", place: node},
		{text: "accelscope peers", place: node},
		{text: "accelscope peers --stalled --qps", place: node},
		{text: "accelscope gpu release --reason=reset", place: none, why: gpus},
		{text: "accelscope gpu resume", place: none, why: gpus},
		{text: "curl -s localhost:9847/api/v1/faults", place: node},
		{text: "curl -s localhost:9847/api/v1/gpu-driver-tasks", place: node},
		{text: "curl -s http://127.0.0.1:9847/rdma", place: node},
		{text: "curl -s http://localhost:9847/healthz", place: node},
	},
	"deploy/README.md": {
		{text: "make build", place: here},
		{text: "bin/accelscope doctor", place: node},
		{text: "make packages", place: here, env: "COMPRESSION=gzip"},
		{text: "make image", place: none, why: "make test-image builds it"},
		{text: "make image TARGET=fabric", place: none, why: "make test-image builds it"},

		{text: "mkdir -p cluster", place: node},
		{text: "cat >cluster/kustomization.yaml <<EOF", place: node},
		{text: "kubectl kustomize cluster", place: node}, // rendered by the library of kustomize, see stage.programs
		{text: "kubectl apply -k cluster", place: none, why: cluster},
		{text: "kubectl -n accelscope rollout status daemonset/accelscope", place: none, why: cluster, check: inManifests},
		{text: "helm template accelscope deploy/helm/accelscope " + helmFlags, place: node},
		{text: "kubectl create namespace accelscope", place: none, why: cluster},
		{text: "kubectl label namespace accelscope pod-security.kubernetes.io/enforce=privileged", place: none, why: cluster},
		{text: "helm upgrade --install accelscope deploy/helm/accelscope " + helmFlags, place: none, why: cluster, check: values},
		{text: "kubectl -n accelscope exec daemonset/accelscope -- accelscope doctor", place: none, why: cluster, check: inManifests},
		{text: "kubectl -n accelscope exec -it daemonset/accelscope -- accelscope top", place: none, why: cluster, check: inManifests},
		{text: "kubectl -n accelscope logs daemonset/accelscope", place: none, why: cluster, check: inManifests},

		{text: "apt-get install -y --no-install-recommends ./bin/accelscope_*_amd64.deb", place: node},
		{text: "systemctl is-active accelscope", place: node},
		{text: "echo 'workload.labels: [team]' >>/etc/accelscope/accelscope.yaml", place: node},
		{text: "accelscope check --config.file=/etc/accelscope/accelscope.yaml", place: node},
		{text: "systemctl restart accelscope", place: node},

		{text: "cd deploy/ansible", place: node},
		{text: "ansible-playbook install.yaml --check --diff " + packageFlag, place: node},
		{text: "ansible-playbook install.yaml " + packageFlag, place: node},

		{text: "docker compose -f deploy/docker/compose.yaml up -d", place: none, why: compose, check: files},
		{text: "docker compose -f deploy/docker/compose.yaml exec accelscope accelscope doctor", place: none, why: compose, check: files},

		{text: "kubectl label node $NODE accelscope/fabric=", place: none, why: cluster},
		{text: "kubectl apply -k deploy/kubernetes/overlays/fabric", place: none, why: cluster, check: files},
		{text: "install -D -m 644 -t /etc/systemd/system/accelscope.service.d /usr/share/accelscope/systemd/fabric.conf", place: node},
		{text: "echo 'collector.fabric: true' >>/etc/accelscope/accelscope.yaml", place: node},
		{text: "systemctl daemon-reload", place: node},

		{text: "apt-get install -y --no-install-recommends dwarves binutils", place: none, why: modules},
		{text: "mkdir -p /etc/accelscope/btf", place: none, why: modules},
		{text: "cp $BUILD/ib_core.ko /etc/accelscope/btf/ib_core", place: none, why: modules},
		{text: "cp $BUILD/ib_uverbs.ko /etc/accelscope/btf/ib_uverbs", place: none, why: modules},
		{text: "pahole -J /etc/accelscope/btf/ib_core", place: none, why: modules},
		{text: "pahole -J /etc/accelscope/btf/ib_uverbs", place: none, why: modules},
		{text: "strip --strip-debug /etc/accelscope/btf/ib_core /etc/accelscope/btf/ib_uverbs", place: none, why: modules},
		{text: "echo 'probe.btf-dir: /etc/accelscope/btf' >>/etc/accelscope/accelscope.yaml", place: none, why: modules},

		{text: "curl -s http://127.0.0.1:9847/healthz", place: node},
		{text: "curl -s http://127.0.0.1:9847/readyz", place: node},
		{text: `curl -s http://127.0.0.1:9847/metrics | grep -E '^accelscope_(build_info|source_state.*state="(failed|stuck)"} 1)'`, place: node},
		{text: "accelscope top --once", place: node},

		{text: "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 30 -subj /CN=accelscope " +
			"-addext subjectAltName=IP:127.0.0.1 -keyout /etc/accelscope/tls.key -out /etc/accelscope/tls.crt 2>/dev/null", place: node},
		{text: "cat >/etc/accelscope/web.yaml <<EOF", place: node},
		{text: "chmod 600 /etc/accelscope/tls.key /etc/accelscope/web.yaml", place: node},
		{text: "echo 'web.config.file: /etc/accelscope/web.yaml' >>/etc/accelscope/accelscope.yaml", place: node},
		{text: curl + "https://127.0.0.1:9847/metrics", place: node},
		{text: curl + `-u "prometheus:$PASSWORD" https://127.0.0.1:9847/metrics`, place: node},

		{text: "cat >prometheus.yml <<'EOF'", place: node},
		{text: "promtool check config prometheus.yml", place: node},
		{text: "promtool check rules deploy/prometheus/rules/*.yaml", place: node},

		{text: "accelscope gpu release --for=30m --reason=maintenance", place: none, why: gpus},
		{text: "nvidia-smi --gpu-reset", place: none, why: gpus},
		{text: "accelscope gpu resume", place: none, why: gpus},
		{text: "kubectl -n accelscope exec $POD -- accelscope gpu release --for=30m", place: none, why: cluster},

		{text: "apt-get purge -y accelscope", place: node},
		{text: "rm -rf /etc/accelscope /etc/systemd/system/accelscope.service.d", place: node},
		{text: "command -v accelscope || echo gone", place: node},
	},
}

const (
	helmFlags   = "--namespace accelscope --set image.repository=$REGISTRY/accelscope --set image.digest=$DIGEST"
	packageFlag = `-e "accelscope_package=$(ls $PWD/../../bin/accelscope_*_amd64.deb)"`
	curl        = `curl -s -o /dev/null -w '%{http_code}\n' --cacert /etc/accelscope/tls.crt `
)
