# SPDX-License-Identifier: Apache-2.0
#
# All commands of the project, for people and CI. `make` alone lists them.

SHELL         := /bin/bash
.SHELLFLAGS   := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS     += --no-print-directory

CACHE    ?= $(or $(ACCELSCOPE_CACHE),$(HOME)/.cache/accelscope)
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -s -w -X main.version=$(VERSION)
# Pinned: the committed objects are the output of this compiler, byte for byte.
CLANG    := clang-14
LINT     := $(CACHE)/golangci-lint-v2.15.0
# Results of the linter for unchanged packages. If the cache is kept, it checks only other packages.
export GOLANGCI_LINT_CACHE ?= $(CACHE)/golangci-lint
VULNCHECK := $(CACHE)/govulncheck-v1.9.0
GREMLINS  := $(CACHE)/gremlins-v0.6.0
# The newest version with all modules on the module proxy.
NFPM     := $(CACHE)/nfpm-v2.45.2
export CGO_CFLAGS    ?= -O2 -g -Wno-deprecated-declarations
export BPF2GO_CC     := $(CLANG)
export BPF2GO_STRIP  := llvm-strip-14
export BPF2GO_CFLAGS := -O2 -g -Wall -Werror -I/usr/include/$(shell uname -m)-linux-gnu

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: deps build ## Show accelscope in a guest with Soft-RoCE, two containers and simulated GPUs (DEMO_SECONDS=20 ends it)
	@go build -o bin/demo ./tests/machines/vm/cmd/demo
	@exec bin/demo -accelscope bin/accelscope -- --rdma.datapath=always

.PHONY: run
run: build ## Build the sensor and run it on this machine
	@exec bin/accelscope

.PHONY: build
build: ## Build bin/accelscope, bin/accelscope-tool and the health check of the image
	@CGO_ENABLED=1 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

# For the other architecture: make image ARCH=arm64. For the node that reads the fabric: make image TARGET=fabric.
ARCH   ?= $(shell dpkg --print-architecture)
TARGET ?= accelscope
IMAGE  ?= bin/accelscope-$(if $(filter fabric,$(TARGET)),fabric-)image$(if $(filter $(shell dpkg --print-architecture),$(ARCH)),,-$(ARCH)).tar
.PHONY: image
image: need-buildah need-debootstrap ## Build bin/accelscope-image.tar, for docker load and ctr images import, without a registry
	@VERSION=$(VERSION) CACHE=$(CACHE) ARCH=$(ARCH) TARGET=$(TARGET) deploy/docker/image.sh $(IMAGE)

PACKAGES ?= bin
.PHONY: packages
packages: $(NFPM) ## Build the deb and the rpm into bin (ARCH=arm64: by the cross compiler)
	@[ $(PACKAGES) != bin ] || rm -f bin/accelscope_*_$(ARCH).deb bin/accelscope-*.$(ARCH:amd64=x86_64).rpm # of other commits
	@NFPM=$(NFPM) GOARCH=$(ARCH) deploy/packages/build.sh $(VERSION) $(PACKAGES)

$(NFPM):
	@echo "building nfpm (once)"
	@mkdir -p $(CACHE)
	@GOARCH= GOBIN=$(CACHE)/bin go install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
	@mv $(CACHE)/bin/nfpm $@

.PHONY: generate
generate: need-$(CLANG) need-llvm-strip-14 need-bpf_helpers ## Compile the BPF programs and write the metric reference
	@go generate ./gen
	@go test -count=1 ./pkg/metrics -run TestReference -update >/dev/null

.PHONY: check
check: lint generated security fuzz ## Format, vet, linters, headers, modules, generated files, licenses, fuzzing

# The formatters gofumpt and gci are among the linters.
.PHONY: lint
lint: $(LINT) need-clang-format need-git
	@go vet ./...
	@go vet -tags vm,image,gpu,stores ./...
	@CGO_ENABLED=0 go vet ./cmd/... ./pkg/...
	@$(LINT) run --build-tags vm,image,gpu,stores ./...
	@for module in $(MODULES); do (cd $$module && $(LINT) run ./...); done
	@go run ./tests/tools/layers -linter $(LINT)
	@clang-format --dry-run -Werror bpf/*.[ch] pkg/source/nvidia/nvml/*.[ch] tests/fakes/nvml/fake/*.[ch] tests/suites/gpu/load/*.c
	@go mod tidy -diff
	@go run ./tests/tools/words
	@missing=$$($(SOURCES) | xargs grep -L 'SPDX-License-Identifier: .*Apache-2.0' || true); \
		[ -z "$$missing" ] || { echo "no SPDX-License-Identifier in:"; echo "$$missing"; exit 1; }

# The modules beside the main module. Further modules have one file that links a third-party program, which the linter would compile.
MODULES := deploy/docker/sbom tests/suites/compose tests/suites/deploy tests/suites/pages tests/suites/rules

# Files that people wrote, also before they are committed, without deleted files.
SOURCES = git ls-files -co --exclude-standard '*.go' '*.[ch]' '*.sh' Makefile .ci/run ':!gen/*_bpfel.go' | \
	while read -r f; do [ ! -f "$$f" ] || echo "$$f"; done

$(LINT):
	@echo "building golangci-lint (once)"
	@mkdir -p $(CACHE)
	@GOBIN=$(CACHE)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	@mv $(CACHE)/bin/golangci-lint $@

# gosec is among the linters. Without the internet: the database is a copy of https://vuln.go.dev/vulndb.zip, unpacked.
VULNDB ?=
.PHONY: security
security: build $(VULNCHECK) ## Licenses of what is linked, known vulnerabilities in it (VULNDB=DIR: a copy of Go's database)
	@go test -C deploy/docker/sbom -count=1 ./...
	@out=$$(mktemp -d); trap 'rm -rf $$out' EXIT; go run -C deploy/docker/sbom . -version $(VERSION) -out $$out $(CURDIR)/bin/accelscope $(CURDIR)/bin/accelscope-tool
	@go run ./tests/tools/security -govulncheck $(VULNCHECK) $(if $(VULNDB),-database $(VULNDB))

$(VULNCHECK):
	@echo "building govulncheck (once)"
	@mkdir -p $(CACHE)
	@GOBIN=$(CACHE)/bin go install golang.org/x/vuln/cmd/govulncheck@v1.9.0
	@mv $(CACHE)/bin/govulncheck $@

# Generating the files again must not change the committed files.
.PHONY: generated
generated: need-git generate
	@changed=$$(git status --porcelain -- gen) && [ -z "$$changed" ] || \
		{ echo "generated files differ, commit what make generate wrote:"; echo "$$changed"; exit 1; }

FUZZTIME ?= 30s
.PHONY: fuzz
fuzz:
	@tests/tools/fuzz.sh $(FUZZTIME)

# In CI, if there is time: six targets, chosen by SEED.
.PHONY: fuzz-some
fuzz-some:
	@SEED=$(SEED) tests/tools/fuzz.sh $(FUZZTIME) 6

# The directories of packages that differ from BASE, committed or not, and the packages with golden files, whose results go keeps.
BASE    ?= $(shell git merge-base HEAD main 2>/dev/null || echo HEAD)
CHANGED  = $(shell { git diff --name-only $(BASE); git ls-files -o --exclude-standard; } | grep -E '^(pkg|deploy|tests)/' | \
	sed -E 's,^,./,; s,/[^/]*$$,,; s,/(testdata|templates|assets)(/.*)?$$,,' | sort -u)
GOLDEN   = $(shell grep -rl 'Bool."update"' --include='*_test.go' pkg | sed -E 's,^(.*)/.*,./\1,')

.PHONY: quick
quick: ## After each edit: vet, units of the packages that differ from main (BASE=REF), golden files
	@go vet ./...
	@go test -vet=off $$(go list -e -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $(CHANGED) $(GOLDEN))

# All required tests, in stages that are timed (tests/tools/stages). The stages of a lane, such as "a,b,c", run one after the other,
# lanes side by side, because guests and unit tests wait much of their time. Two lanes keep two CPUs busy; with three lanes,
# guests run longer and take more CPU time. Shared prerequisites are built once, before the stages.
# A stage that passed with the same inputs is not run again; with ALL=1 all stages run.
# CI adds stages: FIRST runs alone, IDLE takes the CPU time that waiting guests leave, and SPARE runs at the end if there is time.
FEW   := $(filter 1 2 3,$(shell nproc))
COMMA := ,
FIRST :=
IDLE  :=
SPARE :=
ALL   :=
.PHONY: test
test: ## Everything that must hold: units, rules, manifests, dashboards, the image, guests with four kernels, the role, the guides
	@ROLE=TestPackage go run ./tests/tools/stages $(if $(ALL),-all) -first deps,$(FIRST) -idle '$(IDLE)' -spare '$(SPARE)' -built deps,build,image,packages \
		test-guest test-binary,test-unit,test-rules,test-dashboards,test-pages$(if $(FEW),$(COMMA), )test-ansible,test-guides,test-image,test-deploy

.PHONY: artifacts
artifacts: build image packages

# Only packages with goroutines run with the race detector, which makes tests several times slower. make lint runs vet.
BINARY  = ./cmd/accelscope
UNRACED = ./deploy/... ./tests/... ./pkg/attribution/... ./pkg/config ./pkg/format ./pkg/model ./pkg/mountinfo \
	./pkg/procfile ./pkg/source/drm ./pkg/source/link/module ./pkg/top
RACED   = $(shell go list ./... | grep -vxF "$$(go list $(UNRACED) $(BINARY))")

.PHONY: test-unit
test-unit: deps tracefs ## Units: the tests of all packages but the program's
	@go test -vet=off -race -timeout 15m -p 3 $(RACED) # several packages wait for minutes
	@go test -vet=off -timeout 15m $(UNRACED)
	@CGO_ENABLED=0 go test -vet=off -timeout 15m ./pkg/source/nvidia # as built without a C compiler

.PHONY: test-binary
test-binary: deps tracefs ## The program: the real binary on fake nodes, GPUs and fabrics
	@# -parallel: most tests wait for a refresh or for a limit. -count=1: files of accelscope-tool do not count for the cache.
	@go test -vet=off -count=1 -race -timeout 30m -parallel 4 -v $(BINARY)

.PHONY: coverage
coverage: deps tracefs ## Statements that the tests of units and of the program run, by package (docs/internals/coverage.md has the list)
	@mkdir -p bin
	@go test -vet=off -timeout 40m -coverprofile=bin/coverage.out ./cmd/... ./pkg/... >bin/coverage.log || { cat bin/coverage.log; exit 1; }
	@go run ./tests/tools/coverage bin/coverage.out

# On a busy machine: two busy loops per CPU while the tests run.
.PHONY: stress
stress: deps tracefs ## Units and program during two busy loops per CPU
	@for i in $$(seq $$((2 * $$(nproc)))); do (exec timeout 45m sh -c 'while :; do :; done') & done; \
		trap 'kill $$(jobs -p)' EXIT; \
		go test -vet=off -count=1 -race -timeout 30m $(BINARY) $(RACED); go test -vet=off -count=1 -timeout 30m $(UNRACED)

# The first two archives differ only by the tools: they also show that a build can be repeated.
.PHONY: test-image
test-image: deps image ## The image: contents, start, bill of materials; compose
	@$(MAKE) image TARGET=fabric
	@$(MAKE) image ARCH=$(if $(filter amd64,$(ARCH)),arm64,amd64)
	@go test -tags image -count=1 -v ./tests/suites/image
	@go test -C tests/suites/compose -count=1 ./...

# A module of its own, for the libraries of kustomize and Helm.
.PHONY: test-deploy
test-deploy: deps ## Manifests for Kubernetes: rendered, decoded strictly, the same by kustomize and Helm
	@go test -C tests/suites/deploy -count=1 ./... # files outside a module do not count for its cache

.PHONY: test-kubernetes
test-kubernetes: deps build image ## The real Kubernetes 1.37, on this machine and in a guest: names, devices, claims, manifests, permissions (first builds its programs)
	@go test -tags vm -count=1 -timeout 120m -v ./tests/machines/kubernetes

.PHONY: test-gpu
test-gpu: build ## A real NVIDIA GPU (as root, with nvidia-smi and gcc): figures, owners, faults, release; no setting is changed
	@ACCELSCOPE_BINARY=$(CURDIR)/bin/accelscope go test -tags gpu -count=1 -timeout 10m -v ./tests/suites/gpu

.PHONY: generate-deploy
generate-deploy: ## Write conditions into the rules of Prometheus, the rules into the manifests, and the version of the chart into all
	@go test -count=1 -run TestRules ./pkg/verdict -update >/dev/null
	@go test -C tests/suites/deploy -count=1 -run 'TestRules|TestVersion' -update . >/dev/null

# deploy/ansible: what it is, and what it does to a copy of this machine. ROLE: the tests to run.
ROLE ?= .
.PHONY: test-ansible
test-ansible: deps packages ## The Ansible role: lint, syntax, and applied with the deb to a copy of this machine
	@cd deploy/ansible && ansible-lint --offline -q -p && ansible-playbook --syntax-check install.yaml remove.yaml >/dev/null
	@go test -tags vm -count=1 -timeout 2m ./tests/machines/machine
	@go test -tags vm -count=1 -timeout 20m -v -run '$(ROLE)' ./tests/suites/ansible # alone: of several packages go shows nothing before their end

.PHONY: test-guides
test-guides: deps tracefs ## The commands of README.md, docs and deploy/README.md as printed, make demo among them; the support matrix
	@go test -tags vm -count=1 -run 'TestMatrix|TestParts' ./tests/suites/e2e
	@go test -tags vm -count=1 -timeout 20m -v ./tests/suites/guides

# BPF tracepoints are attached through tracefs, which not every machine mounts.
.PHONY: tracefs
tracefs:
	@[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing

.PHONY: test-rules
test-rules: deps ## Rules and alerts of Prometheus: promtool, names, documents
	@go test -C tests/suites/rules -count=1 -v -skip TestMutants . # files outside a module do not count for its cache

# In CI if there is time, with MUTANTS=3: only three kinds of changes, chosen at random, unless rules or their tests changed within a day.
MUTANTS :=
.PHONY: test-mutants
test-mutants: deps ## That the tests of the alerts notice changes of the alerts
	@$(if $(MUTANTS),! git diff --quiet "$$(git rev-list -1 --before='1 day ago' HEAD)" -- deploy/prometheus tests/suites/rules || \
		export ACCELSCOPE_MUTANTS=$(MUTANTS);) go test -C tests/suites/rules -count=1 -timeout 25m -v -run TestMutants . # -v: a stage that prints nothing ends

# The packages that attribute. A change takes 5 seconds of CPU time in the smallest, pkg/model, so only a tenth of the changes is tried.
ATTRIBUTING = pkg/attribution pkg/attribution/traffic pkg/verdict pkg/model pkg/identity pkg/source/cgroup pkg/source/gpumemory pkg/source/datapath
SAMPLE ?= 0.1
.PHONY: mutate
mutate: $(GREMLINS) tracefs ## Change operators of the packages that attribute: the tests must notice 85 % (SAMPLE=1: all changes; SEED=n repeats)
	@go run ./tests/tools/mutate -gremlins $(GREMLINS) -sample $(SAMPLE) $(if $(SEED),-seed $(SEED)) $(ATTRIBUTING)

$(GREMLINS):
	@echo "building gremlins (once)"
	@mkdir -p $(CACHE)
	@GOBIN=$(CACHE)/bin go install github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0
	@mv $(CACHE)/bin/gremlins $@

# How many guests at once: each has two CPUs, waits a third of the time, and takes up to 3 GiB.
GUESTS ?= $(shell n=$$(($$(nproc) / 2)); echo $$(( n < 1 ? 1 : n < 4 ? n : 4 )))

.PHONY: test-guest
test-guest: deps build image ## Guests: each scenario on one of four kernels, on cgroup v1, with tracepoints
	@go test -tags vm -count=1 -timeout 75m -parallel $(GUESTS) -v -skip 'TestObserve|TestFleet|TestMatrix|TestParts' ./tests/suites/e2e

# It needs both CPUs of its guest: beside other work the tools of the fabric take longer than they may.
.PHONY: test-observe
test-observe: deps build ## Rules, alerts and dashboards by Prometheus on the sensor's metrics in a guest, the fleet page on two, alone (6 minutes)
	@go test -tags vm -count=1 -timeout 30m -v -run 'TestObserve|TestFleet' ./tests/suites/e2e

# Unit tests check the form of the dashboards. A separate module checks their queries with Prometheus's parser.
.PHONY: test-dashboards
test-dashboards: deps ## Dashboards: well-formed, up to date, every metric and label in the reference, the numbers of each panel on known series
	@go test -count=1 ./tests/tools/dashboards/...
	@go test -C tests/suites/rules -count=1 ./reference ./dashboards # files outside a module do not count for its cache

# A module of its own, for the library that drives the browser.
.PHONY: test-pages
test-pages: deps build ## The pages in Chromium: search, keyboard, contrast, hostile names, without JavaScript
	@ACCELSCOPE_BINARY=$(CURDIR)/bin/accelscope go test -C tests/suites/pages -count=1 -timeout 15m -v ./... # files outside a module do not count for its cache

.PHONY: test-thousand
test-thousand: deps build ## The page of 1,000 nodes, and of a job with a member on each, in Chromium (10 minutes, 4 GiB)
	@ACCELSCOPE_THOUSAND=1 ACCELSCOPE_BINARY=$(CURDIR)/bin/accelscope go test -C tests/suites/pages -count=1 -timeout 30m -v -run TestThousandNodes ./...

.PHONY: screens
screens: ## Take the pictures of the pages, of a simulated node (docs/screens)
	@ACCELSCOPE_SCREENS=$(CURDIR)/docs/screens go test -C tests/suites/pages -tags screens -count=1 -timeout 10m -run TestScreens ./...

.PHONY: test-kernels
test-kernels: deps build image ## The guest suite at full length on 5.10, 6.1, 6.12 and 7, with forced tiers, on cgroup v1, with preempt=full
	@ACCELSCOPE_NODES=5.10,6.1,6.12,6.1/tracepoint,6.12/fentry,6.1//v1 \
		go test -tags vm -count=1 -timeout 180m -parallel $(GUESTS) -v -run 'TestNode|TestNames|TestDeploy' ./tests/suites/e2e
	@ACCELSCOPE_NODES=7,6.12/preempt go test -tags vm -count=1 -timeout 60m -parallel $(GUESTS) -v -run TestNode ./tests/suites/e2e
	@ACCELSCOPE_NODES=6.1 go test -tags vm -count=1 -timeout 60m -v -run 'TestPadded|TestPackage|TestPCIe|TestManagers' ./tests/suites/e2e
	@ACCELSCOPE_NODES=6.12 go test -tags vm -count=1 -timeout 60m -v -run TestDMABuf ./tests/suites/e2e
	@go test -tags vm -count=1 -timeout 60m -v ./tests/machines/vm/...
	@$(MAKE) test-observe test-slurm

.PHONY: test-debug
test-debug: deps build ## Scenarios of probes and objects on a Linux 6.1 that checks locks and memory (first builds it: half an hour)
	@failed=0; for part in 0/4 1/4 2/4 3/4; do ACCELSCOPE_NODES=6.1/debug ACCELSCOPE_PART=$$part \
		go test -tags vm -count=1 -timeout 70m -v -run TestNode ./tests/suites/e2e || failed=1; done; exit $$failed

RINGS ?= 10
.PHONY: test-ring
test-ring: deps build ## A slow rank, or path, of a ring of eight over Soft-RoCE is named: RINGS (10) times four faults (5 minutes each)
	@ACCELSCOPE_RINGS=$(RINGS) ACCELSCOPE_NODES=6.12 go test -tags vm -count=1 -timeout 120m -v -run 'TestNode/^6.12$$/^ring$$' ./tests/suites/e2e

# In CI, if there is time: each day of the year another eighth of the scenarios of test-kernels on another node.
DAY ?= $(shell date +%-j)
.PHONY: test-kernels-part
test-kernels-part: deps build ## One of 64 parts of the guest suite at full length (DAY=1 to 366)
	@nodes=(5.10 6.1 6.12 7 6.1/tracepoint 6.12/fentry 6.1//v1 6.12/preempt); \
		export ACCELSCOPE_NODES=$${nodes[$(DAY) % 8]} ACCELSCOPE_PART=$$(($(DAY) / 8 % 8))/8; echo "stage: DAY=$(DAY)"; \
		go test -tags vm -count=1 -timeout 60m -v -run TestNode ./tests/suites/e2e

# Raised together with a run of test-kernels, which shows what a newer kernel changes.
.PHONY: raise-kernels
raise-kernels: ## Pin the newest kernels of Debian for the guests (tests/machines/vm/kernels.txt)
	@go run ./tests/machines/vm/cmd/kernels

.PHONY: test-slurm
test-slurm: deps ## Slurm: Debian's slurmctld and slurmd in a guest, on cgroup v2 and v1, the sensor beside squeue, scontrol and sstat
	@ACCELSCOPE_NODES=6.1,6.1//v1 go test -tags vm -count=1 -timeout 120m -parallel $(GUESTS) -v -run TestSlurm ./tests/suites/e2e

.PHONY: test-compose
test-compose: deps image ## Docker Compose: the services of deploy/docker by Debian's docker-compose and Docker Engine, in a guest
	@ACCELSCOPE_NODES=6.1 go test -tags vm -count=1 -timeout 60m -v -run TestCompose ./tests/suites/e2e

# In CI, if there is time.
.PHONY: test-harness
test-harness: deps ## What the tests stand on: a guest that hangs or crashes ends with a report
	@go test -tags vm -count=1 -timeout 12m -v -run 'TestSilent|TestUnanswered' ./tests/machines/vm/guest
	@go test -tags vm -count=1 -timeout 12m -v -run 'TestHung|TestCrashed|TestProgramsWarning' ./tests/machines/vm

# ACCELSCOPE_QEMU=qemu-system-x86_64: with the QEMU of the machine.
STORMS ?= 50
.PHONY: test-storm
test-storm: ## Kernel text is patched as often as it can be while the other CPU runs it, without our programs: which guests crash (10 minutes)
	@ACCELSCOPE_STORMS=$(STORMS) go test -tags vm -count=1 -timeout 90m -v -run TestStorm ./tests/machines/vm

.PHONY: test-churn
test-churn: build ## The lives of 500 containers must all arrive as events (a quarter of an hour)
	@ACCELSCOPE_CHURN=500 go test -tags vm -count=1 -timeout 60m -v -run 'TestNames' ./tests/suites/e2e

# Debian's Prometheus is older than start timestamps. Without the service discovery of clouds it takes some six minutes to build.
PROMETHEUS := $(CACHE)/prometheus-v0.316.0
$(PROMETHEUS):
	@echo "building Prometheus (once)"
	@mkdir -p $(CACHE)
	@GOBIN=$(CACHE)/bin go install -tags remove_all_sd github.com/prometheus/prometheus/cmd/prometheus@v0.316.0
	@mv $(CACHE)/bin/prometheus $@

.PHONY: test-starts
test-starts: $(PROMETHEUS) ## Whether increase() of 1,000 workloads of 5 s adds up to what they did, on Prometheus, Thanos and VictoriaMetrics
	@ACCELSCOPE_PROMETHEUS=$(PROMETHEUS) go test -count=1 -timeout 60m -v ./tests/suites/starts

SOAK ?= 30m
.PHONY: soak
soak: deps build ## A guest with 200 containers and random faults for half an hour (SOAK=24h; SEED=n replays the faults)
	@ACCELSCOPE_SOAK=$(SOAK) ACCELSCOPE_SEED=$(SEED) go test -tags vm -count=1 -timeout 0 -v -run 'TestSoak$$' ./tests/suites/e2e

.PHONY: bench
bench: build tracefs ## What a scrape, a verb and the sensor itself cost
	@go run ./tests/bench
	@$(MAKE) --no-print-directory bench-growth
	@$(MAKE) --no-print-directory bench-links
	@echo; echo "What a call and a drain cost on this kernel (tracepoints: it has no InfiniBand)"
	@go test -run '^$$' -bench 'Call|Drain' -benchtime 2000x ./pkg/source/probe | grep ns/op
	@echo; echo "What probes of the data path cost a process: a poll that finds nothing, a post (counted, not chosen, of another; without)"
	@go test -run '^$$' -bench Hit -benchtime 20000x ./pkg/source/datapath | grep ns/op
	@echo; echo "What a process that only polls keeps of its throughput in a survey, and between surveys"
	@go test -run '^$$' -bench Survey -benchtime 1x ./pkg/source/datapath | grep throughput
	@echo; echo "A job of PROCESSESxCONTEXTS on the data path: launch within 2 s, idle, a scrape, end (FAKE provider, no InfiniBand: the"
	@echo "test inserts the contexts and sends the events that the hooks in the kernel would, into the real maps and ring buffer)"
	@go test -run '^$$' -bench Launch -benchtime 1x -timeout 30m ./pkg/source/datapath | grep launch
	@echo; echo "10,000 queue pairs and 200,000 memory regions held, more than fit, on 10 HCAs (FAKE netlink; the test fills the maps)"
	@go test -run '^$$' -bench Held -benchtime 1x ./pkg/source/probe | grep held
	@echo; echo "One dump of 200,000 memory regions, parsed (FAKE kernel)"
	@go test -run '^$$' -bench Dump -benchtime 5x ./pkg/source/rdma/nldev | grep ns/op
	@echo; echo "What it costs to list the open files of a node, and to look for drivers"
	@go test -run '^$$' -bench 'Files|Look' -benchtime 200x ./pkg/source/access | grep ns/op
	@echo; echo "What a cgroup costs that comes and goes beside 20,000 others, with the bench's own mkdir and rmdir"
	@go test -run '^$$' -bench Storm -benchtime 200x ./pkg/source/cgroup | grep ns/op
	@echo; echo "What probes cost a call that allocates GPU memory (FAKE library, which takes nanoseconds)"
	@go test -run '^$$' -bench Call -benchtime 20000x ./pkg/source/gpumemory | grep ns/op
	@echo; echo "What a probe costs a launch of a collective (FAKE library, which takes nanoseconds)"
	@go test -run '^$$' -bench Call -benchtime 20000x ./pkg/source/collective | grep ns/op
	@echo; echo "An ioctl of a GPU driver with --collector.gpudriver: time in the programs, without the two kprobes (FAKE files)"
	@go test -run '^$$' -bench Programs -benchtime 100000x ./pkg/source/gpudriver | grep ns/op
	@echo; echo "Calls into NVML for 8 H100 with 18 links each: of a round (5 s by default; FAKE library, which counts them), of a scrape"
	@go test -run '^$$' -bench Calls -benchtime 1x ./pkg/source/nvidia/nvml | grep calls
	@echo; echo "A request for the labels of the node, every 5 minutes with --gpu.release-on-node-labels (with the FAKE API server)"
	@go test -run '^$$' -bench Request -benchtime 50x ./pkg/source/nvidia/unload | grep cpu-ms
	@CGO_ENABLED=0 go build -o bin/tiers ./tests/bench/tiers && echo && bin/tiers

.PHONY: bench-growth
bench-growth: build ## How the cost of a scrape grows, beside cAdvisor, node_exporter and a minimal exporter, drawn in docs/growth (20 minutes)
	@go build -o bin/bench ./tests/bench && bin/bench -growth -plots docs/growth -accelscope bin/accelscope

.PHONY: bench-links
bench-links: build ## What the state of links costs per port and minute, in a guest (10 minutes)
	@go build -o bin/bench ./tests/bench && bin/bench -links -accelscope bin/accelscope

# NODES and MINUTES for a smaller one. A thousand nodes take 4 GiB of memory, and some ten minutes of CPU time of an idle machine.
NODES   ?= 1000
MINUTES ?= 60
.PHONY: bench-fleet
bench-fleet: need-prometheus ## What NODES (1000) cost Prometheus with the series of rules and dashboards, and 50 with all series, for MINUTES (60)
	@go run ./tests/suites/fleet -nodes $(NODES) -minutes $(MINUTES) -listen 127.0.0.1:9097 -measure
	@echo; go run ./tests/suites/fleet -all -nodes $$(( $(NODES) < 50 ? $(NODES) : 50 )) -minutes $(MINUTES) -listen 127.0.0.1:9097 -measure

.PHONY: test-stores
test-stores: need-prometheus ## All nodes on Thanos over two Prometheus servers, and on VictoriaMetrics (first builds both: a quarter of an hour)
	@go test -tags stores -count=1 -timeout 60m -v -run 'TestThanos|TestVictoria' ./tests/suites/fleet

# Debian packages that are needed, and are not installed.
MISSING = $(shell for p in $$(sed 's/\#.*//' tests/packages.txt); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done)

.PHONY: deps
deps: ## Install the Debian packages that the demo and the tests need (as root)
	@missing="$(MISSING)"; [ -z "$$missing" ] || { echo "installing $$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; }

need-%:
	@command -v $* >/dev/null || { echo "$* is missing: apt-get install $(or $(PACKAGE_$*),$*), or make deps"; exit 1; }
PACKAGE_llvm-strip-14 := llvm-14
PACKAGE_promtool := prometheus
PACKAGE_qemu-aarch64-static := qemu-user-static

.PHONY: need-bpf_helpers
need-bpf_helpers:
	@[ -f /usr/include/bpf/bpf_helpers.h ] || { echo "bpf_helpers.h is missing: apt-get install libbpf-dev, or make deps"; exit 1; }
