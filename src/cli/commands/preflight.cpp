#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/driver_library.h"
#include "base/text.h"
#include "cli/main/command_line.h"
#include "preflight/checks.h"

namespace gpulet::cli {
namespace {

constexpr std::uint64_t kMostMemoryMib = 1 << 20;

struct PreflightOptions {
  OutputOptions output{};
  std::string gpu;
  std::vector<std::string> peers, checks;
  std::string timeout = "30s", driver_root = "/";
  std::uint64_t memory_mib = 4096;
};

std::string preflight_text(const preflight::Report& report, const TableStyle& style) {
  std::string text;
  if (style.headers) text = report.gpu + (report.model.empty() ? "" : " (" + report.model + ")") + "\n";
  for (const auto& check : report.checks)
    text += std::string(enum_name(check.outcome)) + "  " + preflight::describe_check(check) + "\n";
  return wrap_lines(text, style.columns);
}

// Failed and slow: for the operator. No check could run: not done.
int preflight_exit_code(const preflight::Report& report) {
  using Kind = preflight::Verdict::Kind;
  const auto verdict = preflight::judge_run(
      {.ended = preflight::RunResult::Ended::kReported, .output = preflight::format_report(report)},
      report.gpu, false);
  if (verdict.kind == Kind::kFailed || verdict.kind == Kind::kSlow) return kNeedsAction;
  return verdict.kind == Kind::kPassed ? 0 : kFailed;
}

Result<preflight::CheckOptions> check_options(const PreflightOptions& options) {
  const auto limit = parse_duration(options.timeout);
  if (!limit || limit->count() <= 0)
    return fail(Code::kInvalidArgument, "--timeout: expected a duration such as 30s", options.timeout);
  preflight::CheckOptions wanted{.library = find_driver_library(options.driver_root, {}, "libcuda.so.1"),
                                 .gpu = options.gpu,
                                 .peers = options.peers,
                                 .memory_mib = options.memory_mib,
                                 .limit = std::chrono::duration_cast<std::chrono::milliseconds>(*limit)};
  if (wanted.library.empty()) wanted.library = "libcuda.so.1";
  for (const auto& name : options.checks) {
    if (const auto check = preflight::parse_check(name)) wanted.checks.push_back(*check);
  }
  if (wanted.checks.empty()) {
    using preflight::Check;
    wanted.checks = {Check::kMemory, Check::kCompute, Check::kHostCopy, Check::kPeerCopy};
  }
  return wanted;
}

int run_preflight(const PreflightOptions& options) {
  const auto wanted = check_options(options);
  if (!wanted) return print_error("gpulet preflight", wanted.error().full_message(), kWrongCommand);
  ::setenv("CUDA_VISIBLE_DEVICES", preflight::visible_devices(*wanted).c_str(), 1);
  ::setenv("CUDA_CACHE_DISABLE", "1", 1);  // nothing is written
  const auto report = preflight::run_checks(*wanted);
  const auto text = render_output(
      options.output,
      [&] { return document_text(nlohmann::ordered_json::parse(preflight::format_report(report))); },
      [&](const TableStyle& style) { return preflight_text(report, style); });
  return print_output({.exit_code = preflight_exit_code(report), .out = text, .err = ""});
}

}  // namespace

void add_preflight(CLI::App& app, Run& run) {
  auto& command = add_command(
      app, {.name = "preflight",
            .summary = "Check the memory, results and copies of an idle GPU",
            .details =
                "Uses the CUDA driver. Nothing else may use the GPU. Exits with 3 if a check fails or copies "
                "are slow, and with 1 if no check can run.",
            .examples = "  gpulet preflight GPU-5a1c0a3e-7f43-4d67-9c2e-0b6f1f2d3c4b\n"
                        "  gpulet preflight GPU-5a1c… --checks memory,compute --memory 65536",
            .group = kPlanGroup});
  const auto options = std::make_shared<PreflightOptions>();
  command.add_option("GPU", options->gpu, "UUID, as `gpulet list` shows it")->required();
  command.add_option("--checks", options->checks, "memory, compute, host-copy, peer-copy (default all)")
      ->delimiter(',')
      ->check(CLI::IsMember({"memory", "compute", "host-copy", "peer-copy"}));
  command.add_option("--peer", options->peers, "UUIDs of GPUs for peer-copy, which are idle too")
      ->delimiter(',');
  command.add_option("--memory", options->memory_mib, "memory to check, in MiB (default 4096)")
      ->check(CLI::Range(std::uint64_t{64}, kMostMemoryMib));
  command.add_option("--timeout", options->timeout, "checks that have not begun by then do not run (30s)");
  add_output_options(command, options->output);
  add_driver_root_option(command, options->driver_root);
  command.callback([options, &run] { run = [options] { return run_preflight(*options); }; });
}

}  // namespace gpulet::cli
