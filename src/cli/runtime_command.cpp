#include "cli/runtime_command.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/text_table.h"
#include "runtimes/configure.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;
using runtimes::Engine;

int failed(const char* command, const Error& error) {
  std::cerr << "gpulet runtime " << command << ": " << error.text() << '\n';
  return error.code() == Code::kInvalidArgument ? 2 : 1;
}

// JSON with what is no UTF-8 replaced: a path may hold any byte.
void print(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

Result<runtimes::Host> open_host(const std::string& root) {
  // "/host/" and "/host" are the same; "" is what a shell makes of an unset variable.
  std::string path = root;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!path.starts_with('/')) {
    return fail(Code::kInvalidArgument, "no absolute path; the folder where the host's / is mounted would do",
                "--host-root '" + root + "'");
  }
  return runtimes::Host::open({.root = path, .inside = path == "/"});
}

struct Done {
  runtimes::Outcome outcome;
  bool restarted = false;
  std::optional<Error> restart_error;
};

const char* verb(const runtimes::Change& change, bool dry_run) {
  if (!change.text) return dry_run ? "would remove" : "removed";
  return dry_run ? "would write" : "wrote";
}

std::string restart_line(const RuntimeConfigureOptions& options, const Done& done, Engine engine) {
  if (!done.outcome.restart_needed) return {};
  const auto unit = runtimes::facts(engine).unit;
  if (done.restarted) return "restarted " + std::string(unit);
  std::string line = options.dry_run ? "a restart would be needed: " : "a restart is needed: ";
  line += "`" + runtimes::Host::restart_command(unit) + "`";
  if (engine == Engine::kDocker) line += " (it stops containers unless live-restore is on)";
  return line;
}

void print_text(const RuntimeConfigureOptions& options, const Done& done, Engine engine) {
  const auto& outcome = done.outcome;
  if (outcome.changes.empty()) {
    std::cout << "nothing to do" << (outcome.say.empty() ? "" : ": " + outcome.say) << '\n';
    return;
  }
  for (const auto& change : outcome.changes) {
    std::cout << verb(change, options.dry_run) << ' ' << change.path << '\n';
    if (!options.dry_run || !change.text) continue;
    std::cout << *change.text << (change.text->ends_with('\n') ? "" : "\n") << "---\n";
  }
  const std::string line = restart_line(options, done, engine);
  if (!line.empty()) std::cout << line << '\n';
}

void print_json(const RuntimeConfigureOptions& options, const Done& done, Engine engine) {
  const auto& outcome = done.outcome;
  Json changes = Json::array();
  for (const auto& change : outcome.changes) {
    Json json{{"path", change.path}, {"action", change.text ? "write" : "remove"}};
    if (change.text) json["content"] = *change.text;
    changes.push_back(std::move(json));
  }
  print(Json{{"runtime", runtimes::facts(engine).name},
             {"version", outcome.version ? Json(outcome.version->str()) : Json()},
             {"dryRun", options.dry_run},
             {"changed", !options.dry_run && !outcome.changes.empty()},
             {"changes", std::move(changes)},
             {"message", outcome.say},
             {"restartNeeded", outcome.restart_needed && !done.restarted},
             {"restarted", done.restarted}});
}

void print_text(const std::vector<runtimes::EngineReport>& reports) {
  for (const auto& report : reports) {
    const auto& facts = runtimes::facts(report.engine);
    std::cout << facts.title << (report.distribution.empty() ? "" : " of " + report.distribution)
              << (report.version ? " " + report.version->str() : "") << ": "
              << (report.fit() ? "fit" : "not fit") << '\n';
    std::vector<std::vector<std::string>> rows;
    rows.push_back({"  ", "program", report.program.value_or("not in the usual folders")});
    rows.push_back({"  ", "socket",
                    report.socket.value_or(
                        report.distribution.empty() ? "none at " + std::string(facts.socket) : "none")});
    rows.push_back({"  ", "config", report.config + (report.has_config ? "" : ", not there")});
    for (const auto& finding : report.findings) {
      rows.push_back({finding.fit ? "ok" : "!!", finding.what, finding.say});
      if (!finding.fit && !finding.remedy.empty()) rows.push_back({"", "", "→ " + finding.remedy});
    }
    std::cout << text_table(rows);
  }
}

void print_json(const std::vector<runtimes::EngineReport>& reports) {
  const auto or_null = [](const std::optional<std::string>& text) { return text ? Json(*text) : Json(); };
  Json engines = Json::array();
  for (const auto& report : reports) {
    Json findings = Json::array();
    for (const auto& finding : report.findings) {
      Json json{{"what", finding.what}, {"fit", finding.fit}, {"found", finding.say}};
      if (!finding.fit) json["remedy"] = finding.remedy;
      findings.push_back(std::move(json));
    }
    engines.push_back({{"runtime", runtimes::facts(report.engine).name},
                       {"distribution", report.distribution},
                       {"fit", report.fit()},
                       {"version", report.version ? Json(report.version->str()) : Json()},
                       {"program", or_null(report.program)},
                       {"socket", or_null(report.socket)},
                       {"config", report.config},
                       {"configExists", report.has_config},
                       {"findings", std::move(findings)}});
  }
  print(Json{{"engines", std::move(engines)}});
}

}  // namespace

int runtime_configure(const RuntimeConfigureOptions& options) {
  const auto engine = runtimes::engine_of(options.runtime);
  if (!engine) {
    return failed("configure", Error(Code::kInvalidArgument, "containerd, crio, docker or podman would do",
                                     "--runtime '" + options.runtime + "'"));
  }
  const auto host = open_host(options.host_root);
  if (!host) return failed("configure", host.error());
  auto outcome = runtimes::configure(*host, {.engine = *engine,
                                             .remove = options.remove,
                                             .dry_run = options.dry_run,
                                             .config = options.config,
                                             .drop_in = options.drop_in});
  if (!outcome) return failed("configure", outcome.error());
  Done done{.outcome = std::move(*outcome), .restarted = false, .restart_error = {}};
  if (options.restart && done.outcome.restart_needed && !options.dry_run) {
    const auto restarted = host->restart(runtimes::facts(*engine).unit);
    done.restarted = restarted.has_value();
    if (!restarted) done.restart_error = restarted.error();
  }
  options.output == "json" ? print_json(options, done, *engine) : print_text(options, done, *engine);
  return done.restart_error ? failed("configure", *done.restart_error) : 0;
}

int runtime_check(const RuntimeCheckOptions& options) {
  const auto host = open_host(options.host_root);
  if (!host) return failed("check", host.error());
  const auto reports = runtimes::check(*host);
  options.output == "json" ? print_json(reports) : print_text(reports);
  if (reports.empty()) {
    return failed("check",
                  Error(Code::kNotFound, "no container engine found: containerd, CRI-O, Docker or Podman",
                        options.host_root));
  }
  return std::ranges::all_of(reports, &runtimes::EngineReport::fit) ? 0 : 1;
}

}  // namespace gpulet::cli
