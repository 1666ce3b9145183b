#include <algorithm>

#include <gtest/gtest.h>

#include "runtimes/engine.h"
#include "runtimes/layered_config.h"
#include "runtimes/test_root.h"

namespace gpulet::runtimes {
namespace {

Target crio_target(Engine engine, std::optional<EngineVersion> version) {
  return {.version = version,
          .config = std::string(engine_facts(engine).config),
          .drop_in = std::string(engine_facts(engine).drop_in)};
}
LayeredConfig layered_config(const Target& target, Engine engine) {
  return engine == Engine::kCrio ? crio::crio_config(target) : podman::podman_config(target);
}
Result<Plan> set_up_layered(const TestFiles& host, Engine engine, std::optional<EngineVersion> version) {
  const Target it = crio_target(engine, version);
  return plan_layered_setup(layered_config(it, engine), it, host.make_reader());
}
bool is_layered_ready(const TestFiles& host, Engine engine, std::optional<EngineVersion> version) {
  const Target it = crio_target(engine, version);
  const auto findings = layered_findings(layered_config(it, engine), it, host.make_reader());
  EXPECT_TRUE(findings) << findings.error().full_message();
  return std::ranges::all_of(*findings, &Finding::is_met);
}

const std::string kCrioOwn = "/etc/crio/crio.conf.d/99-gpulet.conf";
const std::string kPodmanOwn = "/etc/containers/containers.conf.d/99-gpulet.conf";

TEST(Crio, NeedsNothingByDefault) {
  const TestFiles host{{{"/etc/crio/crio.conf", "[crio]\n[crio.runtime]\n#cdi_spec_dirs = []\n"}}};
  EXPECT_TRUE(set_up_layered(host, Engine::kCrio, EngineVersion{1, 30, 0})->changes.empty());
  EXPECT_TRUE(is_layered_ready(host, Engine::kCrio, EngineVersion{1, 30, 0}));
  EXPECT_FALSE(is_layered_ready(host, Engine::kCrio, EngineVersion{1, 22, 0}));
  EXPECT_EQ(set_up_layered(host, Engine::kCrio, EngineVersion{1, 22, 0}).error().full_message(),
            "CRI-O: 1.22.0 does not support CDI; 1.23.0 or later is required");
}

TEST(Crio, AddsADropInForAMissingDirectory) {
  TestFiles host{{{"/etc/crio/crio.conf", "[crio.runtime]\ncdi_spec_dirs = [\n  '/a',\n]\n"},
                  {"/etc/crio/crio.conf.d/10-x", "[crio.runtime]\ncdi_spec_dirs = ['/var/run/cdi']\n"}}};
  const auto before = host.files;
  EXPECT_FALSE(is_layered_ready(host, Engine::kCrio, EngineVersion{1, 30, 0}));
  host.apply_plan(*set_up_layered(host, Engine::kCrio, EngineVersion{1, 30, 0}));
  EXPECT_EQ(host.files[kCrioOwn],
            std::string(kFileHeader) + "[crio.runtime]\ncdi_spec_dirs = [\"/var/run/cdi\", \"/etc/cdi\"]\n");
  EXPECT_TRUE(is_layered_ready(host, Engine::kCrio, EngineVersion{1, 30, 0}));
  EXPECT_TRUE(set_up_layered(host, Engine::kCrio, EngineVersion{1, 30, 0})->changes.empty());
  host.apply_plan(*plan_layered_removal(crio_target(Engine::kCrio, {}), host.make_reader()));
  EXPECT_EQ(host.files, before);
}

TEST(Crio, WritesAllDirectoriesForAnUnknownVersion) {
  TestFiles host;
  host.apply_plan(*set_up_layered(host, Engine::kCrio, std::nullopt));
  EXPECT_TRUE(host.files.contains(kCrioOwn));
}

TEST(Crio, RefusesALaterFileThatOverridesIt) {
  const TestFiles host{{{"/etc/crio/crio.conf.d/zz.conf", "\n[crio.runtime]\ncdi_spec_dirs = []\n"}}};
  EXPECT_EQ(set_up_layered(host, Engine::kCrio, EngineVersion{1, 30, 0}).error().subject(),
            "/etc/crio/crio.conf.d/zz.conf:3");
}

TEST(Crio, RefusesAMalformedOrForeignFile) {
  const TestFiles broken{{{"/etc/crio/crio.conf", "[crio\n"}}};
  EXPECT_EQ(set_up_layered(broken, Engine::kCrio, EngineVersion{1, 30, 0}).error().full_message(),
            "/etc/crio/crio.conf:1: expected `]`");
  const TestFiles wrong{{{"/etc/crio/crio.conf", "[crio.runtime]\ncdi_spec_dirs = '/etc/cdi'\n"}}};
  EXPECT_EQ(set_up_layered(wrong, Engine::kCrio, EngineVersion{1, 30, 0}).error().full_message(),
            "/etc/crio/crio.conf:2: cdi_spec_dirs is not a list of directories");
  const TestFiles foreign{{{kCrioOwn, "[crio]\n"}}};
  EXPECT_FALSE(set_up_layered(foreign, Engine::kCrio, EngineVersion{1, 30, 0}));
  EXPECT_FALSE(plan_layered_removal(crio_target(Engine::kCrio, {}), foreign.make_reader()));
}

TEST(Podman, ReadsTheSettingSince55) {
  TestFiles host{{{"/etc/containers/containers.conf", "[engine]\ncdi_spec_dirs = ['/nowhere']\n"}}};
  EXPECT_TRUE(is_layered_ready(host, Engine::kPodman, EngineVersion{4, 3, 1}));  // does not read it
  EXPECT_FALSE(is_layered_ready(host, Engine::kPodman, EngineVersion{5, 6, 0}));
  EXPECT_TRUE(set_up_layered(host, Engine::kPodman, EngineVersion{4, 3, 1})->changes.empty());
  host.files.clear();
  EXPECT_TRUE(is_layered_ready(host, Engine::kPodman, EngineVersion{5, 6, 0}));
  EXPECT_FALSE(is_layered_ready(host, Engine::kPodman, EngineVersion{5, 5, 1}));
  EXPECT_FALSE(is_layered_ready(host, Engine::kPodman, EngineVersion{4, 0, 0}));
  host.apply_plan(*set_up_layered(host, Engine::kPodman, EngineVersion{5, 5, 1}));
  EXPECT_EQ(host.files[kPodmanOwn],
            std::string(kFileHeader) + "[engine]\ncdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n");
  EXPECT_TRUE(is_layered_ready(host, Engine::kPodman, EngineVersion{5, 5, 1}));
}

TEST(Podman, AppendsToThePreviousList) {
  const TestFiles host{
      {{"/etc/containers/containers.conf", "[engine]\ncdi_spec_dirs = ['/x', {append=true}]\n"}}};
  EXPECT_TRUE(is_layered_ready(host, Engine::kPodman, EngineVersion{5, 6, 0}));
}

TEST(Engine, ParsesVersionOutput) {
  const auto version = [](std::string_view text) {
    return parse_engine_version(text).value_or(EngineVersion{}).str();
  };
  EXPECT_EQ(version("containerd github.com/containerd/containerd/v2 2.3.6+unknown \n"), "2.3.6");
  EXPECT_EQ(
      version("containerd github.com/containerd/containerd v1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da"),
      "1.7.27");
  EXPECT_EQ(version("containerd containerd.io 1.6.33 d2d58213f83a351ca8f528a95fbd145f5654e957"), "1.6.33");
  EXPECT_EQ(version("crio version 1.31.0\nVersion:        1.31.0\n"), "1.31.0");
  EXPECT_EQ(version("Docker version 28.2.2, build 45873be"), "28.2.2");
  EXPECT_EQ(version("podman version 5.5.0-dev"), "5.5.0");
  EXPECT_EQ(version("podman version 4.3"), "4.3.0");
  EXPECT_FALSE(parse_engine_version("v2 nothing x1.2"));
  EXPECT_FALSE(parse_engine_version(""));
  EXPECT_FALSE(parse_engine_version("99999999999999999999.1"));
}

}  // namespace
}  // namespace gpulet::runtimes
