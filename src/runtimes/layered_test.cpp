#include <algorithm>

#include <gtest/gtest.h>

#include "runtimes/crio.h"
#include "runtimes/ours.h"
#include "runtimes/podman.h"
#include "runtimes/test_files.h"

namespace gpulet::runtimes {
namespace {

Target target(Engine engine, std::optional<Version> version) {
  return {.version = version,
          .config = std::string(facts(engine).config),
          .drop_in = std::string(facts(engine).drop_in)};
}
LayeredSetting setting(const Target& target, Engine engine) {
  return engine == Engine::kCrio ? crio::setting(target) : podman::setting(target);
}
Result<Plan> configure(const TestFiles& host, Engine engine, std::optional<Version> version) {
  const Target it = target(engine, version);
  return configure_layered(setting(it, engine), it, host.reader());
}
bool fit(const TestFiles& host, Engine engine, std::optional<Version> version) {
  const Target it = target(engine, version);
  const auto findings = judge_layered(setting(it, engine), it, host.reader());
  EXPECT_TRUE(findings) << findings.error().text();
  return std::ranges::all_of(*findings, &Finding::fit);
}

const std::string kCrioOwn = "/etc/crio/crio.conf.d/99-gpulet.conf";
const std::string kPodmanOwn = "/etc/containers/containers.conf.d/99-gpulet.conf";

TEST(Crio, NothingByDefault) {
  const TestFiles host{{{"/etc/crio/crio.conf", "[crio]\n[crio.runtime]\n#cdi_spec_dirs = []\n"}}};
  EXPECT_TRUE(configure(host, Engine::kCrio, Version{1, 30, 0})->changes.empty());
  EXPECT_TRUE(fit(host, Engine::kCrio, Version{1, 30, 0}));
  EXPECT_FALSE(fit(host, Engine::kCrio, Version{1, 22, 0}));
  EXPECT_EQ(configure(host, Engine::kCrio, Version{1, 22, 0}).error().text(),
            "CRI-O: 1.22.0 has no CDI; 1.23.0 or later would do");
}

TEST(Crio, ADropInWhereAFolderIsMissing) {
  TestFiles host{{{"/etc/crio/crio.conf", "[crio.runtime]\ncdi_spec_dirs = [\n  '/a',\n]\n"},
                  {"/etc/crio/crio.conf.d/10-x", "[crio.runtime]\ncdi_spec_dirs = ['/var/run/cdi']\n"}}};
  const auto before = host.files;
  EXPECT_FALSE(fit(host, Engine::kCrio, Version{1, 30, 0}));
  host.apply(*configure(host, Engine::kCrio, Version{1, 30, 0}));
  EXPECT_EQ(host.files[kCrioOwn],
            std::string(kOurHeader) + "[crio.runtime]\ncdi_spec_dirs = [\"/var/run/cdi\", \"/etc/cdi\"]\n");
  EXPECT_TRUE(fit(host, Engine::kCrio, Version{1, 30, 0}));
  EXPECT_TRUE(configure(host, Engine::kCrio, Version{1, 30, 0})->changes.empty());
  host.apply(*remove_layered(target(Engine::kCrio, {}), host.reader()));
  EXPECT_EQ(host.files, before);
}

TEST(Crio, WhenTheVersionIsNotKnownTheDropInSaysItAll) {
  TestFiles host;
  host.apply(*configure(host, Engine::kCrio, std::nullopt));
  EXPECT_TRUE(host.files.contains(kCrioOwn));
}

TEST(Crio, RefusesALaterFileThatUndoesIt) {
  const TestFiles host{{{"/etc/crio/crio.conf.d/zz.conf", "\n[crio.runtime]\ncdi_spec_dirs = []\n"}}};
  EXPECT_EQ(configure(host, Engine::kCrio, Version{1, 30, 0}).error().about(),
            "/etc/crio/crio.conf.d/zz.conf:3");
}

TEST(Crio, RefusesAMalformedOrForeignFile) {
  const TestFiles broken{{{"/etc/crio/crio.conf", "[crio\n"}}};
  EXPECT_EQ(configure(broken, Engine::kCrio, Version{1, 30, 0}).error().text(),
            "/etc/crio/crio.conf:1: `]` is missing");
  const TestFiles wrong{{{"/etc/crio/crio.conf", "[crio.runtime]\ncdi_spec_dirs = '/etc/cdi'\n"}}};
  EXPECT_EQ(configure(wrong, Engine::kCrio, Version{1, 30, 0}).error().text(),
            "/etc/crio/crio.conf:2: cdi_spec_dirs is no list of folders");
  const TestFiles foreign{{{kCrioOwn, "[crio]\n"}}};
  EXPECT_FALSE(configure(foreign, Engine::kCrio, Version{1, 30, 0}));
  EXPECT_FALSE(remove_layered(target(Engine::kCrio, {}), foreign.reader()));
}

TEST(Podman, BuiltInUntil55ThenASetting) {
  TestFiles host{{{"/etc/containers/containers.conf", "[engine]\ncdi_spec_dirs = ['/nowhere']\n"}}};
  EXPECT_TRUE(fit(host, Engine::kPodman, Version{4, 3, 1}));  // does not read it
  EXPECT_FALSE(fit(host, Engine::kPodman, Version{5, 6, 0}));
  EXPECT_TRUE(configure(host, Engine::kPodman, Version{4, 3, 1})->changes.empty());
  host.files.clear();
  EXPECT_TRUE(fit(host, Engine::kPodman, Version{5, 6, 0}));
  EXPECT_FALSE(fit(host, Engine::kPodman, Version{5, 5, 1}));
  EXPECT_FALSE(fit(host, Engine::kPodman, Version{4, 0, 0}));
  host.apply(*configure(host, Engine::kPodman, Version{5, 5, 1}));
  EXPECT_EQ(host.files[kPodmanOwn],
            std::string(kOurHeader) + "[engine]\ncdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n");
  EXPECT_TRUE(fit(host, Engine::kPodman, Version{5, 5, 1}));
}

TEST(Podman, AListThatAppendsAddsToWhatWasBefore) {
  const TestFiles host{
      {{"/etc/containers/containers.conf", "[engine]\ncdi_spec_dirs = ['/x', {append=true}]\n"}}};
  EXPECT_TRUE(fit(host, Engine::kPodman, Version{5, 6, 0}));
}

TEST(Engine, VersionsAsProgramsSayThem) {
  const auto version = [](std::string_view text) { return parse_version(text).value_or(Version{}).str(); };
  EXPECT_EQ(version("containerd github.com/containerd/containerd/v2 2.3.6+unknown \n"), "2.3.6");
  EXPECT_EQ(
      version("containerd github.com/containerd/containerd v1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da"),
      "1.7.27");
  EXPECT_EQ(version("containerd containerd.io 1.6.33 d2d58213f83a351ca8f528a95fbd145f5654e957"), "1.6.33");
  EXPECT_EQ(version("crio version 1.31.0\nVersion:        1.31.0\n"), "1.31.0");
  EXPECT_EQ(version("Docker version 28.2.2, build 45873be"), "28.2.2");
  EXPECT_EQ(version("podman version 5.5.0-dev"), "5.5.0");
  EXPECT_EQ(version("podman version 4.3"), "4.3.0");
  EXPECT_FALSE(parse_version("v2 nothing x1.2"));
  EXPECT_FALSE(parse_version(""));
  EXPECT_FALSE(parse_version("99999999999999999999.1"));
}

}  // namespace
}  // namespace gpulet::runtimes
