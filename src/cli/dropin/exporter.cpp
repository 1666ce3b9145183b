#include "cli/dropin/exporter.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include <CLI/CLI.hpp>

#include "cli/dropin/programs.h"
#include "cli/main/command.h"
#include "config/exporter_options.h"

namespace gpulet::cli {
namespace {

using config::ExporterOption;

constexpr std::string_view kPodResourcesSocket = "/pod-resources/kubelet.sock";

// Options that the agent itself has under another name: their notes say so, and here they are obeyed.
constexpr std::array<std::string_view, 4> kTranslated = {"debug", "log-format", "kubernetes",
                                                         "pod-resources-kubelet-socket"};

bool is_off(const ExporterOption& option, const std::string& value) {
  return value.empty() || (option.is_switch && (value == "false" || value == "0"));
}

std::string named(const ExporterOption& option, bool by_flag) {
  return by_flag ? "--" + std::string(option.flag) : std::string(option.variable);
}

Status translate(const ExporterOption& option, const std::string& value, bool by_flag,
                 Environment& environment) {
  if (option.flag == "debug") environment.try_emplace("GPULET_LOG_LEVEL", "debug");
  if (option.flag == "log-format") environment.try_emplace("GPULET_LOG_FORMAT", value);
  if (option.flag != "pod-resources-kubelet-socket") return {};
  if (!value.ends_with(kPodResourcesSocket)) {
    return fail(Code::kInvalidArgument,
                "'" + value + "' is not supported; expected DIRECTORY" + std::string(kPodResourcesSocket),
                named(option, by_flag));
  }
  environment.try_emplace("GPULET_KUBELET_DIR", value.substr(0, value.size() - kPodResourcesSocket.size()));
  return {};
}

// What the exporter does not do, whatever the node's other containers are told.
void switch_off(Environment& environment) {
  for (const char* variable : {"GPULET_STATE_DIR", "GPULET_SOCKET", "GPULET_KERNEL_LOG"})
    environment[variable] = "";
  environment["FAIL_ON_INIT_ERROR"] = "false";
}

}  // namespace

Result<ExporterSettings> exporter_settings(const std::map<std::string, std::string>& flags,
                                           Environment environment) {
  ExporterSettings settings;
  for (const auto& option : config::exporter_options()) {
    const auto flag = flags.find(std::string(option.flag));
    const bool by_flag = flag != flags.end();
    const auto variable = environment.find(option.variable);
    if (!by_flag && variable == environment.end()) continue;
    const std::string value = by_flag ? flag->second : variable->second;
    if (by_flag) environment[std::string(option.variable)] = value;
    if (is_off(option, value)) continue;
    if (std::ranges::find(kTranslated, option.flag) != kTranslated.end()) {
      GPULET_TRY(translate(option, value, by_flag, environment));
    } else if (!option.note.empty()) {
      settings.notes.push_back(named(option, by_flag) + " is not used: " + std::string(option.note));
    }
  }
  switch_off(environment);
  settings.sources.environment = std::move(environment);
  settings.sources.drop_in = settings.sources.exporter = true;
  return settings;
}

int dcgm_exporter_main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  {
    CLI::App app{"Serve GPU metrics of this node to Prometheus", "dcgm-exporter"};
    set_help(app, "Takes the flags and environment of NVIDIA's program.", "");
    app.set_version_flag("--version,-v", version());
    for (const auto& option : config::exporter_options()) {
      const bool is_short = option.letter.size() == 1;
      std::string names = "--" + std::string(option.flag);
      if (!option.letter.empty()) names += (is_short ? ",-" : ",--") + std::string(option.letter);
      const auto help =
          (option.note.empty() ? std::string() : "not used: " + std::string(option.note) + " ") + "[$" +
          std::string(option.variable) + "]";
      auto* added = app.add_option_function<std::vector<std::string>>(
          names,
          [&flags, flag = std::string(option.flag), is_switch = option.is_switch](const auto& values) {
            const bool bare = values.empty() || values.back().empty();
            flags[flag] = bare && is_switch ? "true" : (values.empty() ? "" : values.back());
          },
          help);
      added->expected(option.is_switch ? 0 : 1, 1);
      added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    if (const auto code = parse_arguments(app, argc, argv, true)) return *code;
  }
  auto settings = exporter_settings(flags, config::process_environment());
  if (!settings) return print_error("dcgm-exporter", settings.error().full_message());
  return run_agent(std::move(settings->sources), settings->notes);
}

bool is_exporter_container(const Environment& environment, const std::string& device_plugins) {
  const bool is_told =
      environment.contains("DCGM_EXPORTER_KUBERNETES") || environment.contains("DCGM_EXPORTER_LISTEN");
  return is_told && ::access(device_plugins.c_str(), F_OK) != 0;
}

}  // namespace gpulet::cli
