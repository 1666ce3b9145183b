#include "cli/commands/commands.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include <CLI/CLI.hpp>

#include "base/text.h"
#include "cli/main/command_line.h"
#include "doctor/collect.h"
#include "runtimes/configure.h"

namespace gpulet::cli {
namespace {

constexpr std::size_t kFindingIndent = 15;  // behind "ok  spec dirs  "

using Json = nlohmann::ordered_json;
using runtimes::Engine;

int print_failure(const char* command, const Error& error) {
  return print_error(std::string("gpulet runtime ") + command, error.full_message(),
                     error.code() == Code::kInvalidArgument ? kWrongCommand : kFailed);
}

Result<runtimes::Host> open_host(const std::string& root) {
  // "/host/" and "/host" are the same; "" is the value of an unset shell variable.
  std::string path = root;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!path.starts_with('/')) {
    return fail(Code::kInvalidArgument, "not an absolute path; expected the mount point of the host's /",
                "--host-root '" + root + "'");
  }
  return runtimes::Host::open_host({.root = path, .is_own_root = path == "/"});
}

struct ConfigureResult {
  runtimes::ConfigureOutcome outcome;
  bool restarted = false;
  std::optional<Error> restart_error;
};

const char* change_verb(const runtimes::Change& change, bool dry_run) {
  if (!change.text) return dry_run ? "would remove" : "removed";
  return dry_run ? "would write" : "wrote";
}

// Without an engine: of NVIDIA's container runtime.
using ConfiguredEngine = std::optional<Engine>;

std::string restart_line(const RuntimeConfigureOptions& options, const ConfigureResult& done,
                         ConfiguredEngine engine) {
  if (!done.outcome.restart_needed || !engine) return {};
  const auto unit = runtimes::engine_facts(*engine).unit;
  if (done.restarted) return "restarted " + std::string(unit);
  std::string line = options.dry_run ? "a restart would be needed: " : "a restart is needed: ";
  line += "`" + runtimes::Host::restart_command(unit) + "`";
  if (engine == Engine::kDocker) line += " (it stops containers unless live-restore is on)";
  return line;
}

std::string configure_text(const RuntimeConfigureOptions& options, const ConfigureResult& done,
                           ConfiguredEngine engine, const TableStyle& style) {
  const auto& outcome = done.outcome;
  if (outcome.changes.empty())
    return "nothing to do" + (outcome.message.empty() ? "" : ": " + outcome.message) + "\n";
  std::string text;
  for (const auto& change : outcome.changes) {
    text += std::string(change_verb(change, options.dry_run)) + " " + change.path + "\n";
    if (!options.dry_run || !change.text) continue;
    text += *change.text + (change.text->ends_with('\n') ? "" : "\n") + "---\n";
  }
  for (const auto& line : {restart_line(options, done, engine), outcome.message}) {
    if (!line.empty()) text += wrap_lines(line, style.columns) + "\n";
  }
  return text;
}

std::string configure_json(const RuntimeConfigureOptions& options, const ConfigureResult& done,
                           ConfiguredEngine engine) {
  const auto& outcome = done.outcome;
  Json changes = Json::array();
  for (const auto& change : outcome.changes) {
    Json json{{"path", change.path}, {"action", change.text ? "write" : "remove"}};
    if (change.text) json["content"] = *change.text;
    changes.push_back(std::move(json));
  }
  return document_text({{"runtime", engine ? runtimes::engine_facts(*engine).name : "nvidia"},
                        {"version", outcome.version ? Json(outcome.version->str()) : Json()},
                        {"dryRun", options.dry_run},
                        {"changed", !options.dry_run && !outcome.changes.empty()},
                        {"changes", std::move(changes)},
                        {"message", outcome.message},
                        {"restartNeeded", outcome.restart_needed && !done.restarted},
                        {"restarted", done.restarted}});
}

std::string check_text(const std::vector<runtimes::EngineReport>& reports, const TableStyle& style) {
  std::string text;
  for (const auto& report : reports) {
    const auto& facts = runtimes::engine_facts(report.engine);
    if (style.headers) {
      text += std::string(facts.title) + (report.distribution.empty() ? "" : " of " + report.distribution) +
              (report.version ? " " + report.version->str() : "") + ": " +
              (report.is_ready() ? "ready" : "not ready") + "\n";
    }
    TableRows rows;
    rows.push_back({"  ", "program", report.program.value_or("not in the usual directories")});
    rows.push_back({"  ", "socket",
                    report.socket.value_or(
                        report.distribution.empty() ? "none at " + std::string(facts.socket) : "none")});
    rows.push_back({"  ", "config", report.config + (report.has_config ? "" : ", not found")});
    for (const auto& finding : report.findings) {
      rows.push_back({finding.is_met ? "ok" : "!!", finding.subject, finding.detail});
      if (!finding.is_met && !finding.advice.empty()) rows.push_back({"", "", "→ " + finding.advice});
    }
    text += wrap_lines(render_table(rows), style.columns, kFindingIndent);
  }
  return text;
}

std::string check_json(const std::vector<runtimes::EngineReport>& reports) {
  const auto or_null = [](const std::optional<std::string>& text) { return text ? Json(*text) : Json(); };
  Json engines = Json::array();
  for (const auto& report : reports) {
    Json findings = Json::array();
    for (const auto& finding : report.findings) {
      Json json{{"what", finding.subject}, {"fit", finding.is_met}, {"found", finding.detail}};
      if (!finding.is_met) json["remedy"] = finding.advice;
      findings.push_back(std::move(json));
    }
    engines.push_back({{"runtime", runtimes::engine_facts(report.engine).name},
                       {"distribution", report.distribution},
                       {"fit", report.is_ready()},
                       {"version", report.version ? Json(report.version->str()) : Json()},
                       {"program", or_null(report.program)},
                       {"socket", or_null(report.socket)},
                       {"config", report.config},
                       {"configExists", report.has_config},
                       {"findings", std::move(findings)}});
  }
  return document_text({{"engines", std::move(engines)}});
}

}  // namespace

int run_runtime_configure(const RuntimeConfigureOptions& options) {
  const auto engine = runtimes::engine_by_name(options.runtime);
  if (!engine && !options.deny_visible_devices_env) {
    return print_failure("configure",
                         Error(Code::kInvalidArgument, "expected containerd, crio, docker or podman",
                               "--runtime '" + options.runtime + "'"));
  }
  const auto host = open_host(options.host_root);
  if (!host) return print_failure("configure", host.error());
  auto outcome = runtimes::configure_engine(*host, {.engine = engine,
                                                    .remove = options.remove,
                                                    .dry_run = options.dry_run,
                                                    .config = options.config,
                                                    .drop_in = options.drop_in});
  if (!outcome) {
    return print_error("gpulet runtime configure", outcome.error().full_message(),
                       error_exit_code(outcome.error()));
  }
  ConfigureResult done{.outcome = std::move(*outcome), .restarted = false, .restart_error = {}};
  if (engine && options.restart && done.outcome.restart_needed && !options.dry_run) {
    const auto restarted = host->restart_unit(runtimes::engine_facts(*engine).unit);
    done.restarted = restarted.has_value();
    if (!restarted) done.restart_error = restarted.error();
  }
  std::cout << render_output(
      options.output, [&] { return configure_json(options, done, engine); },
      [&](const TableStyle& style) { return configure_text(options, done, engine, style); });
  return done.restart_error ? print_failure("configure", *done.restart_error) : 0;
}

int run_runtime_check(const RuntimeCheckOptions& options) {
  const auto host = open_host(options.host_root);
  if (!host) return print_failure("check", host.error());
  const auto reports = runtimes::check_engines(*host);
  const bool needs_none = reports.empty() && doctor::is_simulated_root(options.driver_root);
  std::cout << render_output(
      options.output, [&] { return check_json(reports); },
      [&](const TableStyle& style) {
        return needs_none ? "no container engine found; a simulated node (gpulet-sim) needs none\n"
                          : check_text(reports, style);
      });
  if (reports.empty() && !needs_none) {
    return print_failure(
        "check", Error(Code::kNotFound, "no container engine found: containerd, CRI-O, Docker or Podman",
                       options.host_root));
  }
  return std::ranges::all_of(reports, &runtimes::EngineReport::is_ready) ? 0 : 1;
}

void add_runtime(CLI::App& app, Run& run) {
  auto& command = add_command(
      app, {.name = "runtime",
            .summary = "Check or configure CDI in containerd, CRI-O, Docker, Podman",
            .examples = "  gpulet runtime check\n  gpulet runtime configure --runtime containerd --restart",
            .group = kChangeGroup});
  command.require_subcommand(1);
  const auto add_common = [](CLI::App& made, std::string& host_root, OutputOptions& output) {
    made.add_option("--host-root", host_root, "mount point of the host's / (default /)")->group(kNodeGroup);
    add_output_options(made, output);
  };

  auto& configure = add_command(
      command, {.name = "configure",
                .summary = "Enable CDI in a container engine, or undo that",
                .details = "With --deny-visible-devices-env: keep NVIDIA's container runtime from giving "
                           "all GPUs to a\ncontainer whose image sets NVIDIA_VISIBLE_DEVICES=all.",
                .examples = "  gpulet runtime configure --runtime containerd --restart\n"
                            "  gpulet runtime configure --runtime docker --dry-run\n"
                            "  gpulet runtime configure --runtime containerd --remove\n"
                            "  gpulet runtime configure --deny-visible-devices-env --dry-run"});
  const auto options = std::make_shared<RuntimeConfigureOptions>();
  auto* engine = configure.add_option("--runtime", options->runtime, "containerd, crio, docker or podman")
                     ->check(CLI::IsMember({"containerd", "crio", "docker", "podman"}));
  auto* denial =
      configure
          .add_flag("--deny-visible-devices-env", options->deny_visible_devices_env,
                    "instead of --runtime: set NVIDIA's runtime to ignore NVIDIA_VISIBLE_DEVICES of "
                    "unprivileged containers and accept volume mounts")
          ->excludes(engine);
  configure.add_flag("--dry-run", options->dry_run, "show the changes and make none");
  configure.add_flag("--remove", options->remove, "undo the changes of an earlier call");
  configure.add_flag("--restart", options->restart, "restart the engine if needed");
  configure.add_option("--config", options->config, "the main config file, as a path on the host")
      ->group(kNodeGroup);
  configure
      .add_option("--drop-in-config", options->drop_in, "gpulet's own config file, as a path on the host")
      ->group(kNodeGroup)
      ->excludes(denial);
  add_common(configure, options->host_root, options->output);
  configure.callback([options, engine, denial, &run] {
    if (engine->count() + denial->count() == 0) throw CLI::RequiredError("--runtime");
    run = [options] { return run_runtime_configure(*options); };
  });

  auto& check = add_command(
      command,
      {.name = "check",
       .summary = "Check that the container engines of this node support CDI",
       .details = "Exits with 1 if an engine is not ready or none is found. A simulated node needs none.",
       .examples = "  gpulet runtime check\n  gpulet runtime check --host-root /host -o json"});
  const auto checked = std::make_shared<RuntimeCheckOptions>();
  add_common(check, checked->host_root, checked->output);
  add_driver_root_option(check, checked->driver_root);
  check.callback([checked, &run] { run = [checked] { return run_runtime_check(*checked); }; });
}

}  // namespace gpulet::cli
