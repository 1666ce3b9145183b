# Everyday commands: `make help` lists them. CMakePresets.json and scripts/ implement them.
.DEFAULT_GOAL := help
.PHONY: help build demo test test-gpu lint fuzz bench scale preemption node-autoscaling reboots claim-switch claim-scale claim-updates memory-audit soak storm claim-storm limit-storm limit-cycles mig-stream exits daily-peak operators workloads image image-operator image-arm64 image-docker package package-arm64 manifests docs clean bootstrap-demo bootstrap-docs bootstrap-arm64 bootstrap-workloads bootstrap-test
export GPULET_CACHE ?= $(HOME)/.cache/gpulet
OUT := out
JOBS ?= $(shell nproc)
# Go, promtool and NVML clients, downloaded by scripts/bootstrap.
export PATH := $(PATH):$(GPULET_CACHE)/bin:$(GPULET_CACHE)/go/bin

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

bootstrap-demo:
	@scripts/bootstrap --for demo
bootstrap-docs:
	@scripts/bootstrap --for docs
bootstrap-arm64:
	@scripts/bootstrap --for arm64
bootstrap-workloads:
	@scripts/bootstrap --for workloads
bootstrap-test:
	@scripts/bootstrap --for test

build: bootstrap-demo ## build the release into out/bin and out/lib
	@JOBS=$(JOBS) scripts/build release
	@cmake --install $(OUT)/build/release --prefix $(OUT) --strip >/dev/null

demo: bootstrap-demo ## run a simulated node with 8 H100: discovery, placement, a fault and the recovery; DETAILS=1
	@JOBS=$(JOBS) scripts/build demo gpulet gpulet-hook gpulet-sim sim_nvidia_ml sim_cuda_driver nvidia-smi nvidia-cuda-mps-control
	@$(OUT)/build/demo/bin/gpulet-sim demo $(if $(DETAILS),--details)

test: bootstrap-test ## run all tests, as .ci/run does; ends in `N passed, N failed`
	@scripts/test

test-gpu: ## check gpulet and the driver on this machine's GPU, with the programs of `make build`; RESULTS=DIR, CHANGES=1
	@tests/gpu/run.py $(if $(RESULTS),--results $(RESULTS)) $(if $(CHANGES),--allow-changes)

lint: bootstrap-test ## check the style rules, then run clang-tidy
	@tools/tidy/check
	@cmake --preset lint >/dev/null
	@cmake --build --preset lint -j $(JOBS)

fuzz: bootstrap-test ## run each libFuzzer target for FUZZ_SECONDS (60) and extend its corpus
	@scripts/fuzz

bench: bootstrap-test build ## measure latencies, memory and size
	@scripts/bench

scale: bootstrap-test build ## measure the extender with 500 to 5,000 kwok nodes and the real kube-scheduler (15 minutes)
	@tests/cluster/scale.py

preemption: bootstrap-test build ## check 200 random preemptions of the real kube-scheduler against a reference (3 minutes)
	@tests/cluster/preemption.py

node-autoscaling: bootstrap-test build ## start and remove GPU nodes by Karpenter for Pods that need them (15 minutes)
	@tests/cluster/node_autoscaling.py $(if $(ROUNDS),--rounds $(ROUNDS))

reboots: bootstrap-test build ## reboot a node under eight Pods ROUNDS (50) times, kubelet and agent in either order (10 minutes)
	@tests/cluster/reboots.py $(if $(ROUNDS),--rounds $(ROUNDS))

claim-switch: bootstrap-test build ## move a node's GPUs to claims and back under PODS (500) Pods, with restarts (10 minutes)
	@tests/cluster/claim_switch.py $(if $(PODS),--pods $(PODS))

claim-scale: bootstrap-test build ## measure claims with NODES (5,000) kwok nodes and the real kube-scheduler, beside NVIDIA's layout (half an hour)
	@tests/cluster/claim_scale.py $(if $(NODES),--nodes $(NODES))

claim-updates: bootstrap-test build ## start PODS (1,000) Pods by claims while the agent is updated again and again (20 minutes)
	@tests/cluster/claim_updates.py $(if $(PODS),--pods $(PODS)) $(if $(KILL),--kill $(KILL))

memory-audit: bootstrap-test build ## measure the audit of memory limits on 30 Pods, and 60 Pods above their limit (7 minutes)
	@tests/cluster/memory_audit.py $(if $(ROUNDS),--rounds $(ROUNDS))

soak: bootstrap-test build ## run Pods, faults and reloads for 20 minutes and check memory, descriptors and threads
	@tests/cluster/soak.py

storm: bootstrap-test build ## as root, inject faults at every step of what an agent does: SEEDS=1000, or one SEED=N
	@JOBS=$(JOBS) scripts/build asan storm
	@$(OUT)/build/asan/bin/storm $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) --operations $(or $(OPERATIONS),1) \
	  --jobs $(JOBS) --programs $(CURDIR)/$(OUT)/bin

claim-storm: bootstrap-test ## prepare and unprepare claims in memory under random faults and kills: SEEDS=1000, or one SEED=N
	@JOBS=$(JOBS) scripts/build asan tests_seeded_test
	@$(if $(SEED),SEED=$(SEED),SEEDS=$(or $(SEEDS),1000)) $(OUT)/build/asan/tests/tests_seeded_test --gtest_filter='ClaimStorm.*'

limit-storm: bootstrap-test ## start containers with memory limits of the driver, in memory, under random faults and kills: SEEDS=1000
	@JOBS=$(JOBS) scripts/build asan tests_seeded_test
	@SEEDS=$(or $(SEEDS),1000) $(OUT)/build/asan/tests/tests_seeded_test --gtest_filter='LimitStorm.*'

limit-cycles: bootstrap-test build ## as root, create and delete CYCLES (10,000) Pods with memory limits under kills and driver reloads (10 minutes)
	@JOBS=$(JOBS) scripts/build bench limit_cycles
	@$(OUT)/build/bench/bench/limit_cycles $(OUT)/bin $$(( $(or $(CYCLES),10000) / 2 ))

mig-stream: bootstrap-test ## compare static MIG layouts with devices cut on demand on simulated days of Pods (minutes)
	@JOBS=$(JOBS) scripts/build bench mig_stream_bench
	@$(OUT)/build/bench/bench/mig_stream_bench

exits: bootstrap-test build ## run list, topo, place, mig plan and mig apply RUNS (100,000) times each and count exit codes (an hour)
	@nice tests/exits/run.py $(if $(RUNS),--runs $(RUNS))

operators: bootstrap-test build ## test the objects for Kubeflow's and Prometheus' operators with the real operators
	@tests/cluster/run.py --only operators

workloads: bootstrap-test bootstrap-workloads build ## run the programs of examples/ with PyTorch and TensorFlow for CPUs, alone and on the test cluster
	@tests/workloads/run.py
	@tests/cluster/run.py --only workloads

daily-peak: bootstrap-test build ## compare an autoscaler with the load forecast and without, in days of minutes (8 minutes)
	@tests/cluster/run.py --only daily-peak

image: bootstrap-test build ## build the image out/image/gpulet.tar (OCI archive) without Docker
	@deploy/image/build

image-operator: bootstrap-test build ## build out/image/gpulet-operator.tar, the variant for the GPU operator's Pods
	@deploy/image/build --operator

image-arm64: bootstrap-arm64 ## cross-build out/image/gpulet-arm64.tar and run it in an emulator
	@JOBS=$(JOBS) scripts/build release-arm64
	@cmake --install $(OUT)/build/release-arm64 --prefix $(OUT)/arm64 --strip >/dev/null
	@deploy/image/build --arch arm64
	@tests/packaging/arm64.py

image-docker: image ## build deploy/image/Dockerfile with Podman and compare it with out/image/gpulet.tar
	@tests/packaging/dockerfile.py $(PODMAN_BUILD)

package: build ## build the Debian package out/package/gpulet_VERSION_ARCH.deb, the agent as a service of its host
	@deploy/package/build

package-arm64: bootstrap-arm64 ## cross-build the Debian package for arm64
	@JOBS=$(JOBS) scripts/build release-arm64
	@cmake --install $(OUT)/build/release-arm64 --prefix $(OUT)/arm64 --strip >/dev/null
	@deploy/package/build --arch arm64

manifests: bootstrap-test ## generate deploy/static and the other manifests from the chart
	@tests/cluster/testbed/tb build helm
	@HELM=$$(tests/cluster/testbed/tb bin)/helm deploy/generate

docs: bootstrap-docs ## build the docs site into out/docs
	@NO_MKDOCS_2_WARNING=1 $(GPULET_CACHE)/docs/bin/mkdocs build --strict

clean: ## remove out/ (keeps the downloads of scripts/bootstrap)
	@rm -rf $(OUT)
