// Fuzzes engine settings, TOML and JSON: a rejected text is reported with a line; an accepted one is
// configured, idempotently, and restored byte by byte.
#include <cstdlib>

#include "runtimes/containerd.h"
#include "runtimes/docker.h"
#include "runtimes/layered_config.h"
#include "runtimes/nvidia_runtime.h"
#include "runtimes/test_root.h"

namespace {

using namespace gpulet::runtimes;

void require_true(bool holds) {
  if (!holds) std::abort();
}

template <class Configure, class Remove, class Judge>
void set_up_and_remove(const std::string& path, const std::string& text, Configure configure, Remove remove,
                       Judge judge) {
  const TestFiles before{{{path, text}}};
  TestFiles host = before;
  static_cast<void>(judge(host.make_reader()));
  const auto plan = configure(host.make_reader());
  if (!plan) return require_true(!plan.error().message().empty());
  host.apply_plan(*plan);
  const auto findings = judge(host.make_reader());
  require_true(findings.has_value());
  for (const auto& finding : *findings) require_true(finding.is_met);
  const auto again = configure(host.make_reader());
  require_true(again && again->changes.empty());
  // Without a change there is nothing to undo.
  if (plan->changes.empty()) return;
  const auto back = remove(host.make_reader());
  require_true(back.has_value());
  host.apply_plan(*back);
  require_true(host.files == before.files);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  // Skip files that already contain gpulet's entry.
  if (text.find("gpulet") != std::string::npos) return 0;
  for (const auto version : {EngineVersion{1, 7, 27}, EngineVersion{2, 3, 6}}) {
    const Target target{.version = version,
                        .config = "/etc/containerd/config.toml",
                        .drop_in = "/etc/containerd/conf.d/99-gpulet.toml"};
    set_up_and_remove(
        target.config, text, [&](const Reader& reader) { return containerd::plan_setup(target, reader); },
        [&](const Reader& reader) { return containerd::plan_removal(target, reader); },
        [&](const Reader& reader) { return containerd::collect_findings(target, reader); });
  }
  const Target docker{.version = EngineVersion{25, 0, 0}, .config = "/etc/docker/daemon.json"};
  set_up_and_remove(
      docker.config, text, [&](const Reader& reader) { return docker::plan_setup(docker, reader); },
      [&](const Reader& reader) { return docker::plan_removal(docker, reader); },
      [&](const Reader& reader) { return docker::collect_findings(docker, reader); });
  const Target crio{.version = EngineVersion{1, 30, 0},
                    .config = "/etc/crio/crio.conf",
                    .drop_in = "/etc/crio/crio.conf.d/99-gpulet.conf"};
  set_up_and_remove(
      crio.config, text,
      [&](const Reader& reader) { return plan_layered_setup(crio::crio_config(crio), crio, reader); },
      [&](const Reader& reader) { return plan_layered_removal(crio, reader); },
      [&](const Reader& reader) { return layered_findings(crio::crio_config(crio), crio, reader); });
  set_up_and_remove(
      nvidia::kPackageConfig, text, [](const Reader& reader) { return nvidia::plan_denial({}, reader); },
      [](const Reader& reader) { return nvidia::plan_acceptance({}, reader); },
      [](const Reader& reader) -> gpulet::Result<std::vector<Finding>> {
        const auto config = nvidia::read_runtime_config(reader);
        if (!config) return gpulet::fail(config.error());
        return std::vector<Finding>{
            {.subject = "variable",
             .is_met = !config->accepts_images_variable && config->accepts_volume_mounts,
             .detail = ""}};
      });
  return 0;
}
