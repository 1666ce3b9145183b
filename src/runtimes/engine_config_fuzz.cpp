// Settings of an engine from anywhere, TOML and JSON: what is refused is told with a line, what is accepted
// is edited to be fit, is the same when edited again, and taken back to the very bytes.
#include <cstdlib>

#include "runtimes/containerd.h"
#include "runtimes/crio.h"
#include "runtimes/docker.h"
#include "runtimes/test_files.h"

namespace {

using namespace gpulet::runtimes;

void demand(bool holds) {
  if (!holds) std::abort();
}

template <class Configure, class Remove, class Judge>
void turn(const std::string& path, const std::string& text, Configure configure, Remove remove, Judge judge) {
  const TestFiles before{{{path, text}}};
  TestFiles host = before;
  static_cast<void>(judge(host.reader()));
  const auto plan = configure(host.reader());
  if (!plan) return demand(!plan.error().message().empty());
  host.apply(*plan);
  const auto findings = judge(host.reader());
  demand(findings.has_value());
  for (const auto& finding : *findings) demand(finding.fit);
  const auto again = configure(host.reader());
  demand(again && again->changes.empty());
  // Without a change there is nothing to take back, and what was there before of ours is not in doubt.
  if (plan->changes.empty()) return;
  const auto back = remove(host.reader());
  demand(back.has_value());
  host.apply(*back);
  demand(host.files == before.files);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  // Files that hold our own entry already are another's business.
  if (text.find("gpulet") != std::string::npos) return 0;
  for (const auto version : {Version{1, 7, 27}, Version{2, 3, 6}}) {
    const Target target{.version = version,
                        .config = "/etc/containerd/config.toml",
                        .drop_in = "/etc/containerd/conf.d/99-gpulet.toml"};
    turn(
        target.config, text, [&](const Reader& reader) { return containerd::configure(target, reader); },
        [&](const Reader& reader) { return containerd::remove(target, reader); },
        [&](const Reader& reader) { return containerd::judge(target, reader); });
  }
  const Target docker{.version = Version{25, 0, 0}, .config = "/etc/docker/daemon.json"};
  turn(
      docker.config, text, [&](const Reader& reader) { return docker::configure(docker, reader); },
      [&](const Reader& reader) { return docker::remove(docker, reader); },
      [&](const Reader& reader) { return docker::judge(docker, reader); });
  const Target crio{.version = Version{1, 30, 0},
                    .config = "/etc/crio/crio.conf",
                    .drop_in = "/etc/crio/crio.conf.d/99-gpulet.conf"};
  turn(
      crio.config, text,
      [&](const Reader& reader) { return configure_layered(crio::setting(crio), crio, reader); },
      [&](const Reader& reader) { return remove_layered(crio, reader); },
      [&](const Reader& reader) { return judge_layered(crio::setting(crio), crio, reader); });
  return 0;
}
