// What every command builds on: how it is put on the command line, its exit codes and output, and the options
// that several commands share.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arguments/arguments.h"
#include "base/result.h"
#include "cli/main/output.h"
#include "config/load.h"
#include "k8s/client_config.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace gpulet::cli {

// Exit codes. 0: done, and nothing is wrong.
inline constexpr int kFailed = 1;  // not done, or something is wrong; standard error or the report says what
inline constexpr int kWrongCommand = arguments::kWrongArguments;  // an option or argument is invalid
inline constexpr int kNeedsAction = 3;  // done, and the report has something for the operator to act on

// What a command prints, and its exit code.
struct CommandOutput {
  int exit_code = 0;
  std::string out, err;  // with their newlines
};

// Prints standard error first, in printable form: an argument, a file or a driver may have put any byte into
// it. Returns the exit code.
int print_output(const CommandOutput& output);

// "PROGRAM: ERROR" as one line of standard error. `program` as typed: "gpulet mig plan".
CommandOutput error_output(std::string_view program, std::string_view message, int exit_code = kFailed);
int print_error(std::string_view program, std::string_view message, int exit_code = kFailed);

// kWrongCommand if the error is about an option ("--url", "flag --mig-strategy"), else kFailed.
int error_exit_code(const Error& error);

// Prints the report, or one line with the error. Returns 0, or error_exit_code().
int print_report(std::string_view program, const Result<std::string>& report);

// What the command line has selected: runs it and returns the exit code.
using Run = std::function<int()>;

// Help, as kubectl has it: an imperative line, then details, which are wrapped, then examples, whose lines
// are printed as they are, indented by two.
struct CommandHelp {
  const char* name;
  const char* summary;
  const char* details = "";
  const char* examples = "";
  const char* group = "Commands";  // title in the parent's help
};
// The groups of `gpulet --help`.
inline constexpr const char* kInspectGroup = "Inspect this node";
inline constexpr const char* kChangeGroup = "Change this node";
inline constexpr const char* kPlanGroup = "Diagnose and plan";
inline constexpr const char* kServiceGroup = "Run services";
inline constexpr const char* kOtherGroup = "Other commands";
CLI::App& add_command(CLI::App& parent, const CommandHelp& help);
// For the program itself; its subcommands inherit the form of the help.
void set_help(CLI::App& program, const char* details, const char* examples);

// Groups of options in the help.
inline constexpr const char* kNodeGroup = "Where the node's files are";
inline constexpr const char* kClusterGroup = "How to reach the cluster";

// Options that several commands have; those of the output are in output.h.
void add_driver_root_option(CLI::App& command, std::string& value);
// Of an agent on this node. `value`: agent::kAgentSocket.
CLI::Option* add_socket_option(CLI::App& command, std::string& value);
void add_kubeconfig_option(CLI::App& command, std::string& value);
// The agent's settings that decide which resources a node offers, for a command that reads the driver itself:
// --config-file, --mig-strategy, and at the time of the call the environment, as the agent would take them.
void add_resource_options(CLI::App& command, config::Sources& sources);
using SettingFlags = std::map<std::string, std::vector<std::string>, std::less<>>;
// One option for each setting with a flag, in the order of config/schema.h. `discovery`: also those of
// gpu-feature-discovery alone.
void add_setting_options(CLI::App& command, SettingFlags& given, bool discovery = false);

// Parses `arguments` (argv[0] included). Go's forms, which NVIDIA's programs accept, are "-name" for "--name"
// and "--name=" for an empty value. Returns nullopt when the command may run; else the exit code: 0 after
// help or the version, kWrongCommand after one line on standard error.
std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv, bool go_forms);

// Where the API server is, for a command that a person runs: `kubeconfig`, else the files of KUBECONFIG,
// else ~/.kube/config, else the Pod's service account. A program that the file names (`exec`) runs here with
// this process' environment, within the limits of k8s/client_config.h, and may ask the person at the
// terminal; services use k8s::find_client_config, which runs nothing. `context`: of the file; empty: its
// current one. Errors: those of k8s/client_config.h and of the program; kFailedPrecondition if there is none
// of the files, or no file for the context.
Result<k8s::ClientConfig> find_kubectl_access(const std::string& kubeconfig, const std::string& context = {});

// The host's name in lower case, as the kubelet has it; empty if it has none.
std::string default_node_name();

// The version that CMake knows: "0.1.0".
std::string version();

}  // namespace gpulet::cli
