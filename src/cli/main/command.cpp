#include "cli/main/command.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>

#include "arguments/arguments.h"
#include "arguments/command_doc.h"
#include "base/host.h"
#include "base/text.h"
#include "config/load.h"
#include "config/schema.h"

namespace gpulet::cli {
namespace {

// Groups of the agent's settings in the help, by the beginning of their paths in the config file.
constexpr std::pair<std::string_view, const char*> kSettingGroups[] = {
    {"flags.", "Resources and containers (NVIDIA's names)"},
    {"imex.", "Resources and containers (NVIDIA's names)"},
    {"gpulet.placement", "Placement"},
    {"gpulet.podChoices", "Placement"},
    {"gpulet.publishGpuNode", "The Node in the cluster"},
    {"gpulet.startupTaint", "The Node in the cluster"},
    {"gpulet.health.", "Health"},
    {"gpulet.faults.eviction", "Eviction of Pods from faulty GPUs"},
    {"gpulet.faults.", "Report of faults to the cluster"},
    {"gpulet.repair.", "Repair of faulty GPUs"},
    {"gpulet.preflight.", "Checks of idle GPUs"},
    {"gpulet.rebalance.", "Rebalancing of shared GPUs"},
    {"gpulet.metrics.", "Metrics"},
    {"gpulet.labels.", "Labels"},
    {"gpulet.mig.", "MIG and MPS"},
    {"gpulet.mps.", "MIG and MPS"},
    {"gpulet.cdi", "CDI"},
    {"gpulet.dra.", "Claims (Dynamic Resource Allocation)"},
    {"gpulet.fraction.", "Memory limits on shared GPUs"}};

const char* setting_group(const config::Setting& setting) {
  for (const auto& [start, title] : kSettingGroups) {
    if (setting.path.starts_with(start)) return title;
  }
  return "Agent";
}

std::string flag_names(const config::Setting& setting) {
  std::string names = "--" + std::string(setting.flag);
  for (const auto alias : setting.flag_aliases) {
    names += (alias.size() == 1 ? ",-" : ",--") + std::string(alias);
  }
  return names;
}

std::string flag_help(const config::Setting& setting) {
  std::string help(setting.help);
  if (setting.default_text && !setting.default_text->empty() && help.find("(default") == std::string::npos) {
    help += " (default " + std::string(*setting.default_text) + ")";
  }
  for (const auto variable : setting.environment) help += " [$" + std::string(variable) + "]";
  return help;
}

// Arguments as CLI11 takes them: the last first.
std::vector<std::string> normalize_arguments(int argc, char** argv, bool go_forms) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (go_forms && argument.size() > 2 && argument[0] == '-' && argument.find_first_not_of('-') <= 2) {
      const auto name = argument.substr(argument.find_first_not_of('-'));
      const auto end = std::min(name.find('='), name.size());
      argument = (end == 1 ? "-" : "--") + name;
      if (end == 1 && name.size() > 1) {  // "-o=FILE"
        arguments.push_back("-" + name.substr(0, 1));
        argument = name.substr(2);
      }
    }
    const auto equals = argument.find('=');
    if (argument.starts_with("--") && equals == argument.size() - 1) {
      arguments.push_back(argument.substr(0, equals));
      arguments.emplace_back();
    } else {
      arguments.push_back(std::move(argument));
    }
  }
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

// Runs the program of the kubeconfig now, so that no request's time limit includes it. `load`:
// k8s::load_kubeconfig of one file or k8s::load_kubeconfigs of a list.
Result<k8s::ClientConfig> interactive_access(decltype(k8s::load_kubeconfig)& load, const std::string& files,
                                             const std::string& context,
                                             std::map<std::string, std::string, std::less<>> environment) {
  const k8s::ExecPolicy programs{.allowed = true, .environment = std::move(environment)};
  GPULET_TRY_ASSIGN(auto access, load(files, programs, context));
  if (access.credential) GPULET_TRY(access.credential());
  return access;
}

}  // namespace

int print_output(const CommandOutput& output) {
  std::cerr << arguments::printable_text(output.err) << std::flush;
  std::cout << output.out << std::flush;
  return output.exit_code;
}

CommandOutput error_output(std::string_view program, std::string_view message, int exit_code) {
  return {exit_code, {}, std::string(program) + ": " + std::string(message) + "\n"};
}

int print_error(std::string_view program, std::string_view message, int exit_code) {
  return print_output(error_output(program, message, exit_code));
}

int error_exit_code(const Error& error) {
  const auto message = error.full_message();
  return message.starts_with("--") || message.starts_with("flag --") ? kWrongCommand : kFailed;
}

int print_report(std::string_view program, const Result<std::string>& report) {
  if (!report) return print_error(program, report.error().full_message(), error_exit_code(report.error()));
  return print_output({0, *report, {}});
}

void set_help(CLI::App& program, const char* details, const char* examples) {
  arguments::use_help_text(program);
  arguments::set_help_texts(program, details, examples);
}

CLI::App& add_command(CLI::App& parent, const CommandHelp& help) {
  auto* command = parent.add_subcommand(help.name, help.summary);
  command->group(help.group);
  arguments::set_help_texts(*command, help.details, help.examples);
  return *command;
}

void add_driver_root_option(CLI::App& command, std::string& value) {
  command.add_option("--driver-root", value, "root directory of the driver's files (default /)")
      ->envname("DRIVER_ROOT_CTR_PATH")
      ->group(kNodeGroup);
}

CLI::Option* add_socket_option(CLI::App& command, std::string& value) {
  return command.add_option("--socket", value, "agent socket (default /run/gpulet/agent.sock)")
      ->envname("GPULET_SOCKET");
}

void add_kubeconfig_option(CLI::App& command, std::string& value) {
  command.add_option("--kubeconfig", value, "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
      ->group(kClusterGroup);
}

void add_resource_options(CLI::App& command, config::Sources& sources) {
  sources.environment = config::process_environment();
  const std::pair<const char*, const char*> flags[] = {
      {"config-file", "the agent's config file, which decides what resources there are"},
      {"mig-strategy", "the agent's MIG strategy: none, single or mixed"}};
  for (const auto& [name, help] : flags) {
    command.add_option_function<std::string>(
        "--" + std::string(name),
        [&sources, flag = std::string(name)](const std::string& value) { sources.flags[flag] = {value}; },
        help);
  }
}

void add_setting_options(CLI::App& command, SettingFlags& given, bool discovery) {
  for (const auto& setting : config::settings()) {
    if (setting.flag.empty() || (setting.discovery_only && !discovery)) continue;
    auto* option = command.add_option_function<std::vector<std::string>>(
        flag_names(setting),
        [&given, flag = std::string(setting.flag)](const std::vector<std::string>& values) {
          given[flag] = values;
        },
        flag_help(setting));
    option->expected(setting.kind == config::Kind::kBool ? 0 : 1, 1);
    option->group(setting_group(setting));
    if (setting.kind == config::Kind::kChoice) {
      const std::vector<std::string> choices(setting.choices.begin(), setting.choices.end());
      option->type_name("{" + text::join(choices, ",") + "}");
    }
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    // CLI11 uses a default as the value of an option without one: "--gds-enabled" would be false.
    if (setting.default_text && setting.kind != config::Kind::kBool) {
      option->default_str(std::string(*setting.default_text));
    }
  }
}

std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv, bool go_forms) {
  arguments::refuse_malformed_numbers(app);
  try {
    app.parse(normalize_arguments(argc, argv, go_forms));
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const auto find_setting = [](std::string_view option) {
      return std::string(config::find_path_by_foreign_name(option));
    };
    return print_error(arguments::command_path(app),
                       arguments::describe_parse_error(app, error, find_setting), kWrongCommand);
  }
}

Result<k8s::ClientConfig> find_kubectl_access(const std::string& kubeconfig, const std::string& context) {
  auto environment = config::process_environment();
  if (!kubeconfig.empty())
    return interactive_access(k8s::load_kubeconfig, kubeconfig, context, std::move(environment));
  if (const auto files = environment["KUBECONFIG"]; !files.empty())
    return interactive_access(k8s::load_kubeconfigs, files, context, std::move(environment));
  const std::string file = environment["HOME"] + "/.kube/config";
  if (::access(file.c_str(), R_OK) == 0)
    return interactive_access(k8s::load_kubeconfig, file, context, std::move(environment));
  GPULET_TRY_ASSIGN(auto inside, k8s::load_in_cluster_config(environment, k8s::kServiceAccountDirectory,
                                                             k8s::NodeNamePolicy::kOptional));
  if (inside && context.empty()) return *inside;
  return fail(Code::kFailedPrecondition,
              "no kubeconfig found; name one with --kubeconfig FILE or the variable KUBECONFIG");
}

std::string default_node_name() { return text::lower(host_name()); }

std::string version() { return GPULET_VERSION; }

}  // namespace gpulet::cli
