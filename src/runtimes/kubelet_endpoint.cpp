#include "runtimes/kubelet_endpoint.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::runtimes {
namespace {

constexpr const char* kFlag = "container-runtime-endpoint";
constexpr const char* kOwnSocket = "/run/containerd/containerd.sock";  // the kubelet's default
constexpr const char* kK3sSocket = "/run/k3s/containerd/containerd.sock";
constexpr const char* kK3sDocker = "/run/k3s/cri-dockerd/cri-dockerd.sock";
constexpr const char* kFiles[] = {"/var/lib/kubelet/kubeadm-flags.env",
                                  "/var/lib/kubelet/instance-config.yaml", "/var/lib/kubelet/config.yaml",
                                  "/var/snap/microk8s/current/args/kubelet"};

// "unix:///run/x.sock" is /run/x.sock, as is "/run/x.sock" itself.
std::string socket_of(std::string_view endpoint) {
  constexpr std::string_view kScheme = "unix://";
  while (!endpoint.empty() && (endpoint.front() == '"' || endpoint.front() == '\''))
    endpoint.remove_prefix(1);
  while (!endpoint.empty() && (endpoint.back() == '"' || endpoint.back() == '\'')) endpoint.remove_suffix(1);
  if (endpoint.starts_with(kScheme)) endpoint.remove_prefix(kScheme.size());
  std::string path(endpoint);
  // A snap's own variables, as MicroK8s has them in its arguments.
  for (const auto& [variable, folder] : {std::pair{"${SNAP_COMMON}", "/var/snap/microk8s/common"},
                                         std::pair{"$SNAP_COMMON", "/var/snap/microk8s/common"},
                                         std::pair{"${SNAP_DATA}", "/var/snap/microk8s/current"},
                                         std::pair{"$SNAP_DATA", "/var/snap/microk8s/current"}}) {
    if (path.starts_with(variable)) path = folder + path.substr(std::string_view(variable).size());
  }
  if (path.starts_with("/var/run/")) path.erase(0, std::string_view("/var").size());  // a link to /run
  return path.starts_with('/') ? path : std::string();
}

// The value of "--name value" or "--name=value", with k3s also of "--kubelet-arg=name=value"; empty without
// one.
std::string value_of(const CommandLine& command, const std::string& name) {
  std::string value;  // the last counts
  for (std::size_t i = 0; i < command.size(); ++i) {
    const std::string& word = command[i];
    for (const auto& flag : {"--" + name, "--kubelet-arg=" + name}) {
      if (word.starts_with(flag + "=")) value = word.substr(flag.size() + 1);
      if (word == flag && i + 1 < command.size()) value = command[i + 1];
    }
  }
  return value;
}

CommandLine words_of(const std::string& text) {
  std::string blanks = text;
  std::ranges::replace_if(
      blanks, [](char c) { return c == '\n' || c == '\t' || c == '"' || c == '\''; }, ' ');
  CommandLine words = text::split(blanks, ' ');
  std::erase(words, "");
  return words;
}

// What a file says: arguments, or a KubeletConfiguration.
std::string said_in(const Host& host, const std::string& path) {
  const auto text = host.read(path);
  if (!text || !*text) return {};
  if (!path.ends_with(".yaml")) return socket_of(value_of(words_of(**text), kFlag));
  constexpr std::string_view kKey = "containerRuntimeEndpoint:";
  for (const auto& line : text::split(**text, '\n')) {
    if (!line.starts_with(kKey)) continue;
    const auto value = std::string_view(line).substr(kKey.size());
    return socket_of(text::trim(value.substr(0, value.find(" #"))));
  }
  return {};
}

std::optional<KubeletEndpoint> said_by(const Host& host, const CommandLine& command) {
  const std::string program(text::base_name(command[0]));
  KubeletEndpoint endpoint{socket_of(value_of(command, kFlag)), "the command line of " + program, command[0]};
  if (!endpoint.socket.empty()) return endpoint;
  for (const char* flag : {"config", "kubelet-args-file"}) {
    const auto file = value_of(command, flag);
    if (!file.starts_with('/')) continue;
    endpoint.socket = said_in(host, file);
    endpoint.said_by = file;
    if (!endpoint.socket.empty()) return endpoint;
  }
  endpoint.said_by = program + ", which names no other";
  const bool k3s = program.starts_with("k3s");
  const bool docker = k3s && std::ranges::find(command, "--docker") != command.end();
  if (program == "kubelite") return std::nullopt;
  endpoint.socket = docker ? kK3sDocker : (k3s ? kK3sSocket : kOwnSocket);
  return endpoint;
}

}  // namespace

bool is_kubelet(const CommandLine& command) {
  if (command.empty()) return false;
  // k3s shows its subcommand in the name by which it is called: "/usr/local/bin/k3s server".
  const auto words = words_of(command[0]);
  const std::string program = words.empty() ? std::string() : std::string(text::base_name(words[0]));
  if (program == "kubelet" || program == "kubelite") return true;
  if (program == "k3s-server" || program == "k3s-agent") return true;
  const std::string& sub = words.size() > 1 ? words[1] : (command.size() > 1 ? command[1] : program);
  return program == "k3s" && (sub == "server" || sub == "agent");
}

std::optional<KubeletEndpoint> kubelet_endpoint(const Host& host, std::span<const CommandLine> kubelets) {
  for (const auto& command : kubelets) {
    if (!is_kubelet(command)) continue;
    if (auto said = said_by(host, command)) return said;
  }
  for (const char* file : kFiles) {
    const auto socket = said_in(host, file);
    if (!socket.empty() && host.exists(socket)) return KubeletEndpoint{socket, file, {}};
  }
  return std::nullopt;
}

}  // namespace gpulet::runtimes
