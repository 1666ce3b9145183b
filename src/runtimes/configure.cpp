#include "runtimes/configure.h"

#include <algorithm>

#include "runtimes/containerd.h"
#include "runtimes/crio.h"
#include "runtimes/distributions.h"
#include "runtimes/docker.h"
#include "runtimes/podman.h"

namespace gpulet::runtimes {
namespace {

Result<Plan> plan_of(const Request& request, const Target& target, const Reader& reader) {
  switch (request.engine) {
    case Engine::kContainerd:
      return request.remove ? containerd::remove(target, reader) : containerd::configure(target, reader);
    case Engine::kDocker:
      return request.remove ? docker::remove(target, reader) : docker::configure(target, reader);
    case Engine::kCrio:
      return request.remove ? remove_layered(target, reader)
                            : configure_layered(crio::setting(target), target, reader);
    case Engine::kPodman:
      return request.remove ? remove_layered(target, reader)
                            : configure_layered(podman::setting(target), target, reader);
  }
  return fail(Code::kInternal, "an engine without a plan");
}

Result<std::vector<Finding>> findings_of(Engine engine, const Target& target, const Reader& reader) {
  switch (engine) {
    case Engine::kContainerd:
      return containerd::judge(target, reader);
    case Engine::kDocker:
      return docker::judge(target, reader);
    case Engine::kCrio:
      return judge_layered(crio::setting(target), target, reader);
    case Engine::kPodman:
      return judge_layered(podman::setting(target), target, reader);
  }
  return fail(Code::kInternal, "an engine without a judge");
}

std::optional<Version> version_of(const Host& host, const std::optional<std::string>& program) {
  if (!program) return std::nullopt;
  const auto version = host.version(*program);
  return version ? std::optional(*version) : std::nullopt;
}

// With the files that were read for it.
std::vector<Finding> judged(Engine engine, const Target& target, const Host& host,
                            std::vector<std::string>& files) {
  auto reader = host.reader();
  reader.read = [read = reader.read, &files](const std::string& path) {
    auto text = read(path);
    if (text && *text && std::ranges::find(files, path) == files.end()) files.push_back(path);
    return text;
  };
  auto findings = findings_of(engine, target, reader);
  if (findings) return std::move(*findings);
  return {{.what = "config",
           .fit = false,
           .say = findings.error().text(),
           .remedy = "correct that file; the engine reads it too"}};
}

// Nothing where the distribution is not on the host.
std::optional<EngineReport> look_at(const Host& host, const Distribution& distribution) {
  EngineReport report{.engine = Engine::kContainerd,
                      .distribution = std::string(distribution.name),
                      .program = {},
                      .config = std::string(distribution.config),
                      .has_config = host.exists(distribution.config),
                      .endpoint = std::string(distribution.socket),
                      .socket = {},
                      .version = {},
                      .files = {},
                      .findings = {}};
  if (!report.has_config) return std::nullopt;
  if (host.exists(distribution.program)) report.program = std::string(distribution.program);
  if (host.exists(distribution.socket)) report.socket = std::string(distribution.socket);
  report.version = version_of(host, report.program);
  const auto config = host.read(report.config);
  const std::string text = config ? config->value_or("") : "";
  const Target target{
      .version = report.version, .config = report.config, .drop_in = drop_in_of(distribution, text)};
  report.findings = judged(report.engine, target, host, report.files);
  for (auto& finding : report.findings) {
    if (finding.remedy == configure_command(report.engine)) finding.remedy = remedy(distribution, text);
  }
  return report;
}

}  // namespace

Result<Outcome> configure(const Host& host, const Request& request) {
  const auto& engine = facts(request.engine);
  if (engine.drop_in.empty() && !request.drop_in.empty()) {
    return fail(Code::kInvalidArgument, std::string(engine.title) + " reads no drop-ins", "--drop-in-config");
  }
  Target target{.version = version_of(host, host.program(engine.program)),
                .config = request.config.empty() ? std::string(engine.config) : request.config,
                .drop_in = request.drop_in.empty() ? std::string(engine.drop_in) : request.drop_in};
  if (!target.config.starts_with('/')) {
    return fail(Code::kInvalidArgument, "not an absolute path on the host", target.config);
  }
  GPULET_TRY_ASSIGN(Plan plan, plan_of(request, target, host.reader()));
  if (!request.dry_run) GPULET_TRY(host.apply(plan.changes));
  const bool restart = !plan.changes.empty() && !engine.unit.empty();
  return Outcome{.changes = std::move(plan.changes),
                 .version = target.version,
                 .say = std::move(plan.say),
                 .restart_needed = restart};
}

bool EngineReport::fit() const {
  return std::ranges::all_of(findings, [](const Finding& finding) { return finding.fit; });
}

std::vector<EngineReport> check(const Host& host) {
  std::vector<EngineReport> reports;
  for (const Engine engine : kEngines) {
    const auto& known = facts(engine);
    EngineReport report{.engine = engine,
                        .distribution = {},
                        .program = host.program(known.program),
                        .config = std::string(known.config),
                        .has_config = host.exists(known.config),
                        .endpoint = std::string(known.socket),
                        .socket = {},
                        .version = {},
                        .files = {},
                        .findings = {}};
    if (host.exists(known.socket)) report.socket = std::string(known.socket);
    // Podman's main file comes with libraries that other programs use too: alone it says nothing.
    const bool config_counts = report.has_config && engine != Engine::kPodman;
    if (!report.program && !report.socket && !config_counts) continue;
    report.version = version_of(host, report.program);
    const Target target{
        .version = report.version, .config = report.config, .drop_in = std::string(known.drop_in)};
    report.findings = judged(engine, target, host, report.files);
    reports.push_back(std::move(report));
  }
  for (const auto& distribution : distributions()) {
    if (auto report = look_at(host, distribution)) reports.push_back(std::move(*report));
  }
  return reports;
}

}  // namespace gpulet::runtimes
