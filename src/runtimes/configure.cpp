#include "runtimes/configure.h"

#include <algorithm>

#include "base/text.h"
#include "runtimes/containerd.h"
#include "runtimes/docker.h"
#include "runtimes/engine.h"
#include "runtimes/layered_config.h"
#include "runtimes/nvidia_runtime.h"

namespace gpulet::runtimes {
namespace {

Result<Plan> make_plan(Engine engine, bool remove, const Target& target, const Reader& reader) {
  switch (engine) {
    case Engine::kContainerd:
      return remove ? containerd::plan_removal(target, reader) : containerd::plan_setup(target, reader);
    case Engine::kDocker:
      return remove ? docker::plan_removal(target, reader) : docker::plan_setup(target, reader);
    case Engine::kCrio:
      return remove ? plan_layered_removal(target, reader)
                    : plan_layered_setup(crio::crio_config(target), target, reader);
    case Engine::kPodman:
      return remove ? plan_layered_removal(target, reader)
                    : plan_layered_setup(podman::podman_config(target), target, reader);
  }
  return fail(Code::kInternal, "no plan for this engine");
}

Result<std::vector<Finding>> engine_findings(Engine engine, const Target& target, const Reader& reader) {
  switch (engine) {
    case Engine::kContainerd:
      return containerd::collect_findings(target, reader);
    case Engine::kDocker:
      return docker::collect_findings(target, reader);
    case Engine::kCrio:
      return layered_findings(crio::crio_config(target), target, reader);
    case Engine::kPodman:
      return layered_findings(podman::podman_config(target), target, reader);
  }
  return fail(Code::kInternal, "no findings for this engine");
}

std::optional<EngineVersion> detect_version(const Host& host, const std::optional<std::string>& program) {
  if (!program) return std::nullopt;
  const auto version = host.program_version(*program);
  return version ? std::optional(*version) : std::nullopt;
}

// Adds the files that were read.
std::vector<Finding> with_findings(Engine engine, const Target& target, const Host& host,
                                   std::vector<std::string>& files) {
  auto reader = host.make_reader();
  reader.read = [read = reader.read, &files](const std::string& path) {
    auto text = read(path);
    if (text && *text && std::ranges::find(files, path) == files.end()) files.push_back(path);
    return text;
  };
  auto findings = engine_findings(engine, target, reader);
  if (findings) return std::move(*findings);
  return {{.subject = "config",
           .is_met = false,
           .detail = findings.error().full_message(),
           .advice = "correct the file; the engine reads it too"}};
}

// Returns nullopt if the distribution is not on the host.
std::optional<EngineReport> inspect_engine(const Host& host, const Distribution& distribution) {
  EngineReport report{.engine = Engine::kContainerd,
                      .distribution = std::string(distribution.name),
                      .program = {},
                      .config = std::string(distribution.config),
                      .has_config = host.has_file(distribution.config),
                      .endpoint = std::string(distribution.socket),
                      .socket = {},
                      .version = {},
                      .files = {},
                      .findings = {}};
  if (!report.has_config) return std::nullopt;
  if (host.has_file(distribution.program)) report.program = std::string(distribution.program);
  if (host.has_file(distribution.socket)) report.socket = std::string(distribution.socket);
  report.version = detect_version(host, report.program);
  const auto config = host.read_settings(report.config);
  const std::string text = config ? config->value_or("") : "";
  const Target target{
      .version = report.version, .config = report.config, .drop_in = drop_in_path(distribution, text)};
  report.findings = with_findings(report.engine, target, host, report.files);
  for (auto& finding : report.findings) {
    if (finding.advice == configure_command(report.engine)) finding.advice = cdi_advice(distribution, text);
  }
  return report;
}

}  // namespace

Result<ConfigureOutcome> configure_engine(const Host& host, const ConfigureRequest& request) {
  if (!request.config.empty() && !request.config.starts_with('/')) {
    return fail(Code::kInvalidArgument, "not an absolute path on the host", request.config);
  }
  const auto reader = host.make_reader();
  const auto apply = [&](Plan plan, std::optional<EngineVersion> version,
                         bool needs_restart) -> Result<ConfigureOutcome> {
    if (!request.dry_run) GPULET_TRY(host.apply_changes(plan.changes));
    const bool restart = needs_restart && !plan.changes.empty();
    return ConfigureOutcome{.changes = std::move(plan.changes),
                            .version = version,
                            .message = std::move(plan.message),
                            .restart_needed = restart};
  };
  if (!request.engine) {
    GPULET_TRY_ASSIGN(Plan plan, request.remove ? nvidia::plan_acceptance(request.config, reader)
                                                : nvidia::plan_denial(request.config, reader));
    return apply(std::move(plan), std::nullopt, false);
  }
  const auto& engine = engine_facts(*request.engine);
  if (engine.drop_in.empty() && !request.drop_in.empty()) {
    return fail(Code::kInvalidArgument, std::string(engine.title) + " has no drop-ins", "--drop-in-config");
  }
  const Target target{.version = detect_version(host, host.find_program(engine.program)),
                      .config = request.config.empty() ? std::string(engine.config) : request.config,
                      .drop_in = request.drop_in.empty() ? std::string(engine.drop_in) : request.drop_in};
  GPULET_TRY_ASSIGN(Plan plan, make_plan(*request.engine, request.remove, target, reader));
  return apply(std::move(plan), target.version, !engine.unit.empty());
}

bool EngineReport::is_ready() const {
  return std::ranges::all_of(findings, [](const Finding& finding) { return finding.is_met; });
}

std::vector<EngineReport> check_engines(const Host& host) {
  std::vector<EngineReport> reports;
  for (const Engine engine : kEngines) {
    const auto& known = engine_facts(engine);
    EngineReport report{.engine = engine,
                        .distribution = {},
                        .program = host.find_program(known.program),
                        .config = std::string(known.config),
                        .has_config = host.has_file(known.config),
                        .endpoint = std::string(known.socket),
                        .socket = {},
                        .version = {},
                        .files = {},
                        .findings = {}};
    if (host.has_file(known.socket)) report.socket = std::string(known.socket);
    // Podman's main file is also installed by libraries of other programs: alone it proves nothing.
    const bool config_counts = report.has_config && engine != Engine::kPodman;
    if (!report.program && !report.socket && !config_counts) continue;
    report.version = detect_version(host, report.program);
    const Target target{
        .version = report.version, .config = report.config, .drop_in = std::string(known.drop_in)};
    report.findings = with_findings(engine, target, host, report.files);
    reports.push_back(std::move(report));
  }
  for (const auto& distribution : distributions()) {
    if (auto report = inspect_engine(host, distribution)) reports.push_back(std::move(*report));
  }
  return reports;
}

namespace {

constexpr const char* kFlag = "container-runtime-endpoint";
constexpr const char* kOwnSocket = "/run/containerd/containerd.sock";  // the kubelet's default
constexpr const char* kK3sSocket = "/run/k3s/containerd/containerd.sock";
constexpr const char* kK3sDocker = "/run/k3s/cri-dockerd/cri-dockerd.sock";
constexpr const char* kFiles[] = {"/var/lib/kubelet/kubeadm-flags.env",
                                  "/var/lib/kubelet/instance-config.yaml", "/var/lib/kubelet/config.yaml",
                                  "/var/snap/microk8s/current/args/kubelet"};

// Returns the path of "unix:///run/x.sock" or "/run/x.sock".
std::string endpoint_socket(std::string_view endpoint) {
  constexpr std::string_view kScheme = "unix://";
  while (!endpoint.empty() && (endpoint.front() == '"' || endpoint.front() == '\''))
    endpoint.remove_prefix(1);
  while (!endpoint.empty() && (endpoint.back() == '"' || endpoint.back() == '\'')) endpoint.remove_suffix(1);
  if (endpoint.starts_with(kScheme)) endpoint.remove_prefix(kScheme.size());
  std::string path(endpoint);
  // Snap variables in MicroK8s' arguments.
  for (const auto& [variable, directory] : {std::pair{"${SNAP_COMMON}", "/var/snap/microk8s/common"},
                                            std::pair{"$SNAP_COMMON", "/var/snap/microk8s/common"},
                                            std::pair{"${SNAP_DATA}", "/var/snap/microk8s/current"},
                                            std::pair{"$SNAP_DATA", "/var/snap/microk8s/current"}}) {
    if (path.starts_with(variable)) path = directory + path.substr(std::string_view(variable).size());
  }
  if (path.starts_with("/var/run/")) path.erase(0, std::string_view("/var").size());  // a link to /run
  return path.starts_with('/') ? path : std::string();
}

// Returns the value of "--name value" or "--name=value", for k3s also of "--kubelet-arg=name=value"; ""
// without one.
std::string flag_value(const CommandLine& command, const std::string& name) {
  std::string value;  // the last wins
  for (std::size_t i = 0; i < command.size(); ++i) {
    const std::string& word = command[i];
    for (const auto& flag : {"--" + name, "--kubelet-arg=" + name}) {
      if (word.starts_with(flag + "=")) value = word.substr(flag.size() + 1);
      if (word == flag && i + 1 < command.size()) value = command[i + 1];
    }
  }
  return value;
}

CommandLine split_words(const std::string& text) {
  std::string blanks = text;
  std::ranges::replace_if(
      blanks, [](char c) { return c == '\n' || c == '\t' || c == '"' || c == '\''; }, ' ');
  CommandLine words = text::split(blanks, ' ');
  std::erase(words, "");
  return words;
}

// Returns the endpoint in a file of arguments or a KubeletConfiguration.
std::string endpoint_in_file(const Host& host, const std::string& path) {
  const auto text = host.read_settings(path);
  if (!text || !*text) return {};
  if (!path.ends_with(".yaml")) return endpoint_socket(flag_value(split_words(**text), kFlag));
  constexpr std::string_view kKey = "containerRuntimeEndpoint:";
  for (const auto& line : text::split(**text, '\n')) {
    if (!line.starts_with(kKey)) continue;
    const auto value = std::string_view(line).substr(kKey.size());
    return endpoint_socket(text::trim(value.substr(0, value.find(" #"))));
  }
  return {};
}

std::optional<KubeletEndpoint> endpoint_of_command(const Host& host, const CommandLine& command) {
  const std::string program(text::base_name(command[0]));
  KubeletEndpoint endpoint{endpoint_socket(flag_value(command, kFlag)), "the command line of " + program,
                           command[0]};
  if (!endpoint.socket.empty()) return endpoint;
  for (const char* flag : {"config", "kubelet-args-file"}) {
    const auto file = flag_value(command, flag);
    if (!file.starts_with('/')) continue;
    endpoint.socket = endpoint_in_file(host, file);
    endpoint.source = file;
    if (!endpoint.socket.empty()) return endpoint;
  }
  endpoint.source = program + " (default)";
  const bool k3s = program.starts_with("k3s");
  const bool docker = k3s && std::ranges::find(command, "--docker") != command.end();
  if (program == "kubelite") return std::nullopt;
  endpoint.socket = docker ? kK3sDocker : (k3s ? kK3sSocket : kOwnSocket);
  return endpoint;
}

}  // namespace

bool is_kubelet(const CommandLine& command) {
  if (command.empty()) return false;
  // k3s shows its subcommand in argv[0]: "/usr/local/bin/k3s server".
  const auto words = split_words(command[0]);
  const std::string program = words.empty() ? std::string() : std::string(text::base_name(words[0]));
  if (program == "kubelet" || program == "kubelite") return true;
  if (program == "k3s-server" || program == "k3s-agent") return true;
  const std::string& sub = words.size() > 1 ? words[1] : (command.size() > 1 ? command[1] : program);
  return program == "k3s" && (sub == "server" || sub == "agent");
}

std::optional<KubeletEndpoint> find_kubelet_endpoint(const Host& host,
                                                     std::span<const CommandLine> kubelets) {
  for (const auto& command : kubelets) {
    if (!is_kubelet(command)) continue;
    if (auto endpoint = endpoint_of_command(host, command)) return endpoint;
  }
  for (const char* file : kFiles) {
    const auto socket = endpoint_in_file(host, file);
    if (!socket.empty() && host.has_file(socket)) return KubeletEndpoint{socket, file, {}};
  }
  return std::nullopt;
}

}  // namespace gpulet::runtimes
