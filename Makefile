# What a person types. `make help` lists it; CMakePresets.json and scripts/ hold the how.
.DEFAULT_GOAL := help
.PHONY: help build demo test lint fuzz bench scale soak operators image image-arm64 image-docker manifests docs clean bootstrap-demo bootstrap-docs bootstrap-arm64 bootstrap-test
export GPULET_CACHE ?= $(HOME)/.cache/gpulet
OUT := out
JOBS ?= $(shell nproc)
# Go, promtool and NVML's clients as scripts/bootstrap fetched them.
export PATH := $(PATH):$(GPULET_CACHE)/bin:$(GPULET_CACHE)/go/bin

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

bootstrap-demo:
	@scripts/bootstrap --for demo
bootstrap-docs:
	@scripts/bootstrap --for docs
bootstrap-arm64:
	@scripts/bootstrap --for arm64
bootstrap-test:
	@scripts/bootstrap --for test

build: bootstrap-demo ## the release, in out/bin and out/lib
	@[ $(OUT)/build/release/build.ninja -nt CMakePresets.json ] || cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS)
	@cmake --install $(OUT)/build/release --prefix $(OUT) --strip >/dev/null

demo: build ## a simulated node with 8 H100, from discovery to a broken and healed GPU, in a minute
	@$(OUT)/bin/gpulet demo

test: bootstrap-test ## everything that .ci/run runs; ends in `N passed, N failed`
	@scripts/test

lint: bootstrap-test ## the rules of the house, then clang-tidy
	@tools/tidy/check
	@cmake --preset lint >/dev/null
	@cmake --build --preset lint -j $(JOBS)

fuzz: bootstrap-test ## every libFuzzer target for FUZZ_SECONDS (60) each, growing its corpus
	@scripts/fuzz

bench: bootstrap-test build ## the table of latencies, memory and size
	@scripts/bench

scale: bootstrap-test build ## the extender with 500 to 5,000 nodes by kwok, behind the real kube-scheduler; takes a quarter of an hour
	@tests/cluster/scale.py

soak: bootstrap-test build ## twenty minutes of Pods, faults and reloads: memory, descriptors and threads of the agents stay flat
	@tests/cluster/soak.py

operators: bootstrap-test build ## what is made for Kubeflow's and Prometheus' operators, by the real ones
	@tests/cluster/run.py --only operators

image: bootstrap-test build ## out/image/gpulet.tar, an OCI archive, without a Docker engine
	@deploy/image/build

image-arm64: bootstrap-arm64 ## out/image/gpulet-arm64.tar, cross-built, and run by an emulator on a simulated node
	@[ $(OUT)/build/release-arm64/build.ninja -nt CMakePresets.json ] || cmake --preset release-arm64 >/dev/null
	@cmake --build --preset release-arm64 -j $(JOBS)
	@cmake --install $(OUT)/build/release-arm64 --prefix $(OUT)/arm64 --strip >/dev/null
	@deploy/image/build --arch arm64
	@tests/packaging/arm64.py

image-docker: image ## deploy/image/Dockerfile by Podman, held to out/image/gpulet.tar; takes a whole build
	@tests/packaging/dockerfile.py $(PODMAN_BUILD)

manifests: bootstrap-test ## deploy/static and what else is made of the chart
	@tests/cluster/testbed/tb build helm
	@HELM=$$(tests/cluster/testbed/tb bin)/helm deploy/generate

docs: bootstrap-docs ## the docs site, in out/docs: open index.html
	@NO_MKDOCS_2_WARNING=1 $(GPULET_CACHE)/docs/bin/mkdocs build --strict

clean: ## remove out/; what scripts/bootstrap fetched stays
	@rm -rf $(OUT)
