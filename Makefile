# SPDX-License-Identifier: Apache-2.0
#
# Everything that a person or CI calls. `make` alone tells what there is.

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
export CGO_CFLAGS    ?= -O2 -g -Wno-deprecated-declarations
export BPF2GO_CC     := $(CLANG)
export BPF2GO_STRIP  := llvm-strip-14
export BPF2GO_CFLAGS := -O2 -g -Wall -Werror -I/usr/include/$(shell uname -m)-linux-gnu

.PHONY: help
help: ## Tell what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: deps build ## Who uses which HCA: a guest with Soft-RoCE, two containers, accelscope (DEMO_SECONDS=20 ends it)
	@go build -o bin/demo ./tests/vm/cmd/demo
	@exec bin/demo -accelscope bin/accelscope -- --rdma.datapath=always

.PHONY: run
run: build ## Build the sensor and run it on this machine
	@exec bin/accelscope

.PHONY: build
build: ## Build bin/accelscope
	@CGO_ENABLED=1 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/accelscope ./cmd/accelscope

.PHONY: generate
generate: need-$(CLANG) need-llvm-strip-14 need-bpf_helpers ## Compile the BPF programs and write the metric reference
	@go generate ./gen
	@go test -count=1 ./pkg/collector -run TestReference -update >/dev/null

.PHONY: check
check: lint generated fuzz ## Format, vet, linters, headers, modules, generated files, fuzzing

# The formatters gofumpt and gci are among the linters.
.PHONY: lint
lint: $(LINT) need-clang-format need-git
	@go vet ./...
	@go vet -tags vm ./...
	@CGO_ENABLED=0 go vet ./cmd/... ./pkg/...
	@$(LINT) run --build-tags vm ./...
	@clang-format --dry-run -Werror bpf/*.[ch] pkg/source/nvidia/*.[ch] tests/nvml/fake/*.[ch]
	@go mod tidy -diff
	@missing=$$($(SOURCES) | xargs grep -L 'SPDX-License-Identifier: .*Apache-2.0' || true); \
		[ -z "$$missing" ] || { echo "no SPDX-License-Identifier in:"; echo "$$missing"; exit 1; }

# What people wrote, also before it is committed. xargs gets no name that is deleted.
SOURCES = git ls-files -co --exclude-standard '*.go' '*.[ch]' '*.sh' Makefile .ci/run ':!gen/*_bpfel.go' | \
	while read -r f; do [ ! -f "$$f" ] || echo "$$f"; done

$(LINT):
	@echo "building golangci-lint (once)"
	@mkdir -p $(CACHE)
	@GOBIN=$(CACHE)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	@mv $(CACHE)/bin/golangci-lint $@

# Generated again, the files must be the ones that are committed.
.PHONY: generated
generated: need-git generate
	@changed=$$(git status --porcelain -- gen) && [ -z "$$changed" ] || \
		{ echo "generated files differ, commit what make generate wrote:"; echo "$$changed"; exit 1; }

FUZZTIME ?= 30s
.PHONY: fuzz
fuzz:
	@tests/fuzz.sh $(FUZZTIME)

.PHONY: test
test: test-unit test-guest ## Everything that must hold: unit, race, golden, BPF on this kernel, the guest on 6.1

.PHONY: test-unit
test-unit: tracefs
	@go test -race -timeout 20m ./...

# BPF tracepoints are attached through tracefs, which not every machine mounts.
.PHONY: tracefs
tracefs:
	@[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing

.PHONY: test-guest
test-guest: build
	@go test -tags vm -count=1 -timeout 30m -v -run 'TestNode|TestNames|TestDataPath' ./tests/e2e

.PHONY: test-kernels
test-kernels: build ## The guest suite on 5.10, 6.1 and 6.12, with tracepoints and with fentry forced, on cgroup v1; bytes by port on 7
	@ACCELSCOPE_NODES=5.10,6.1,6.12,6.1/tracepoint,6.12/fentry,6.1//v1 \
		go test -tags vm -count=1 -timeout 120m -v -run 'TestNode|TestNames|TestDataPath' ./tests/e2e
	@ACCELSCOPE_NODES=7 go test -tags vm -count=1 -timeout 30m -v -run TestDataPath ./tests/e2e

.PHONY: test-churn
test-churn: build ## The lives of 500 containers, all of which must arrive as events (a quarter of an hour)
	@ACCELSCOPE_CHURN=500 go test -tags vm -count=1 -timeout 60m -v -run 'TestNames' ./tests/e2e

.PHONY: bench
bench: build tracefs ## What a scrape, a verb and the sensor itself cost
	@go run ./tests/bench
	@echo; echo "What a call and a drain cost on this kernel (tracepoints: it has no InfiniBand)"
	@go test -run '^$$' -bench 'Call|Drain' -benchtime 2000x ./pkg/source/probe | grep ns/op
	@echo; echo "What probes of the data path cost a process: a poll that finds nothing, a post (counted, not chosen, of another; without)"
	@go test -run '^$$' -bench Hit -benchtime 20000x ./pkg/source/datapath | grep ns/op
	@echo; echo "What a process that only polls keeps of its throughput, with a budget of 1 % and without a limit (2 minutes)"
	@go test -run '^$$' -bench Budget -benchtime 1x ./pkg/source/datapath | grep throughput
	@echo; echo "What it costs to list the open files of a node, and to look for drivers"
	@go test -run '^$$' -bench 'Files|Look' -benchtime 200x ./pkg/source/access | grep ns/op
	@CGO_ENABLED=0 go build -o bin/tiers ./tests/bench/tiers && echo && bin/tiers

# Debian packages that are needed, and are not installed.
MISSING = $(shell for p in $$(sed 's/\#.*//' tests/packages.txt); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done)

.PHONY: deps
deps: ## Install the Debian packages that the demo and the tests need (as root)
	@missing="$(MISSING)"; [ -z "$$missing" ] || { echo "installing $$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; }

need-%:
	@command -v $* >/dev/null || { echo "$* is missing: apt-get install $(or $(PACKAGE_$*),$*), or make deps"; exit 1; }
PACKAGE_llvm-strip-14 := llvm-14

.PHONY: need-bpf_helpers
need-bpf_helpers:
	@[ -f /usr/include/bpf/bpf_helpers.h ] || { echo "bpf_helpers.h is missing: apt-get install libbpf-dev, or make deps"; exit 1; }
