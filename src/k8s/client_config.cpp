#include "k8s/client_config.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include <openssl/evp.h>
#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "base/file.h"
#include "base/host.h"
#include "base/json.h"
#include "base/text.h"
#include "config/yaml.h"
#include "http/certificate.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

// It becomes part of paths.
Status check_node_name(const std::string& name) {
  if (name.empty() || is_dns_subdomain(name)) return {};
  return fail(Code::kFailedPrecondition, "\"" + name + "\" is not the name of a node", "NODE_NAME");
}

constexpr std::size_t kMaxBytes = 1u << 20;

// Empty if the client certificate is not a node's, or cannot be read: the requests report that.
std::string node_of_certificate(const ClientConfig& access) {
  constexpr std::string_view kNodeUser = "system:node:";
  const auto pem = access.certificate_data.empty()
                       ? read_file(access.certificate_file, kMaxBytes).value_or("")
                       : access.certificate_data;
  const auto certificates = http::parse_certificates(pem);
  if (certificates.empty()) return {};
  std::array<char, 512> name{};
  const int size = ::X509_NAME_get_text_by_NID(::X509_get_subject_name(certificates.front().get()),
                                               NID_commonName, name.data(), name.size());
  const std::string_view user(name.data(), static_cast<std::size_t>(std::max(size, 0)));
  return std::string(text::starts_with(user, kNodeUser) ? user.substr(kNodeUser.size()) : "");
}

}  // namespace

Result<std::optional<ClientConfig>> load_in_cluster_config(
    const std::map<std::string, std::string, std::less<>>& environment, const std::string& service_account,
    NodeNamePolicy of_node) {
  auto value = [&](std::string_view name) {
    const auto it = environment.find(name);
    return it == environment.end() ? std::string() : it->second;
  };
  ClientConfig access;
  access.host = value("KUBERNETES_SERVICE_HOST");
  if (access.host.empty()) return std::nullopt;
  if (const std::string port = value("KUBERNETES_SERVICE_PORT"); !port.empty()) {
    const auto number = text::parse_unsigned(port);
    if (!number || *number == 0 || *number > 65'535) {
      return fail(Code::kFailedPrecondition, "\"" + port + "\" is not a port", "KUBERNETES_SERVICE_PORT");
    }
    access.port = static_cast<std::uint16_t>(*number);
  }
  access.node_name = value("NODE_NAME");
  if (access.node_name.empty() && of_node == NodeNamePolicy::kRequired) {
    return fail(Code::kFailedPrecondition, "not set; the Pod's manifest must set it from spec.nodeName",
                "NODE_NAME");
  }
  GPULET_TRY(check_node_name(access.node_name));
  access.ca_file = service_account + "/ca.crt";
  access.token_file = service_account + "/token";
  for (const std::string& file : {access.ca_file, access.token_file}) {
    if (::access(file.c_str(), R_OK) != 0) {
      return fail(Code::kFailedPrecondition,
                  "cannot be read; does the Pod have automountServiceAccountToken?", file);
    }
  }
  if (const auto name_space = read_file(service_account + "/namespace")) {
    if (const auto trimmed = text::trim(*name_space); !trimmed.empty()) access.pod_namespace = trimmed;
  }
  return access;
}

std::string kubeconfig_path(const std::string& list) {
  const auto paths = text::split(list, ':');
  const auto existing =
      std::ranges::find_if(paths, [](const auto& path) { return ::access(path.c_str(), F_OK) == 0; });
  return existing != paths.end() ? *existing : paths.empty() ? std::string() : paths.front();
}

Result<std::optional<ClientConfig>> find_client_config(
    const std::map<std::string, std::string, std::less<>>& environment, NodeNamePolicy of_node) {
  GPULET_TRY_ASSIGN(auto inside, load_in_cluster_config(environment, kServiceAccountDirectory, of_node));
  if (inside) return inside;
  const auto file = environment.find("KUBECONFIG");
  if (file == environment.end() || file->second.empty()) return std::nullopt;
  GPULET_TRY_ASSIGN(ClientConfig access, load_kubeconfig(kubeconfig_path(file->second)));
  if (of_node == NodeNamePolicy::kOptional) return access;
  const auto node = environment.find("NODE_NAME");
  if (node != environment.end() && !node->second.empty()) {
    access.node_name = node->second;
    GPULET_TRY(check_node_name(access.node_name));
    return access;
  }
  access.node_name = node_of_certificate(access);
  if (access.node_name.empty()) {
    access.node_name = text::lower(host_name());
  }
  GPULET_TRY(check_node_name(access.node_name));
  return access;
}

// load_kubeconfig() of client_config.h.

namespace {

using config::yaml::Node;
constexpr std::string_view kExecExtension =
    "client.authentication.k8s.io/exec";  // the extension with a cluster's exec settings

// As in YAML: an unquoted number or boolean has that type.
nlohmann::json yaml_to_json(const Node& node) {
  using nlohmann::json;
  switch (node.kind) {
    case Node::Kind::kNull:
      return nullptr;
    case Node::Kind::kScalar: {
      const auto value = node.plain ? parse_json(node.scalar) : json();
      return value.is_number() || value.is_boolean() ? value : json(node.scalar);
    }
    case Node::Kind::kSequence: {
      json list = json::array();
      for (const auto& item : node.items) list.push_back(yaml_to_json(item));
      return list;
    }
    case Node::Kind::kMapping: {
      json object = json::object();
      for (const auto& [key, position, value] : node.entries) object[key] = yaml_to_json(value);
      return object;
    }
  }
  return nullptr;
}

// One file, with its name for errors and its directory for relative paths.
class KubeconfigFile {
 public:
  static Result<KubeconfigFile> read(std::string path) {
    KubeconfigFile file;
    GPULET_TRY_ASSIGN(const std::string text, read_file(path, kMaxBytes));
    GPULET_TRY_ASSIGN(auto document, config::yaml::parse_yaml(text, path));
    file.path_ = std::move(path);
    file.root_ = std::move(document.root);
    return file;
  }

  const std::string& path() const { return path_; }
  const Node& root() const { return root_; }
  static const Node* find_key(const Node& mapping, std::string_view key) {
    const Node* found = nullptr;
    for (const auto& entry : mapping.entries) {
      if (entry.key == key && entry.value.kind != Node::Kind::kNull) found = &entry.value;
    }
    return found;
  }
  // Empty if there is none.
  static std::string text_value(const Node& mapping, std::string_view key) {
    const Node* found = find_key(mapping, key);
    return found == nullptr ? std::string() : found->scalar;
  }
  tl::unexpected<Error> invalid_value(const Node& node, std::string message,
                                      Code code = Code::kInvalidArgument) const {
    return fail(code, std::move(message), config::yaml::position_text(path_, node.position));
  }

  Result<std::string> required_value(const Node& mapping, const std::string& key) const {
    std::string text = text_value(mapping, key);
    if (text.empty()) return invalid_value(mapping, key + " is missing");
    return text;
  }

  // The entry with this name in a list of {name, <member>}; null without one.
  const Node* find_named_entry(const std::string& list, const char* member, const std::string& name) const {
    const Node* entries = find_key(root_, list);
    if (entries == nullptr) return nullptr;
    for (const Node& entry : entries->items) {
      if (text_value(entry, "name") != name) continue;
      if (const Node* found = find_key(entry, member)) return found;
    }
    return nullptr;
  }

  // Unsupported keys are an error instead of being ignored.
  Status refuse_keys(const Node& mapping, std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      const Node* found = find_key(mapping, key);
      if (found == nullptr || found->scalar == "false") continue;
      return invalid_value(*found, std::string(key) + " is not supported", Code::kUnsupported);
    }
    return {};
  }

  std::string resolve_path(const Node& mapping, std::string_view key) const {
    const std::string file = text_value(mapping, key);
    if (file.empty()) return file;
    return (std::filesystem::path(path_).parent_path() / file).lexically_normal().string();
  }

  Status read_data(const Node& mapping, const std::string& key, std::string& into) const {
    const Node* found = find_key(mapping, key);
    if (found == nullptr || found->scalar.empty()) return {};
    std::string digits = found->scalar;
    std::erase_if(digits, [](char c) { return c == '\n' || c == '\r' || c == ' '; });
    into = text::decode_base64(digits);
    if (into.empty()) return invalid_value(*found, key + " is not base64");
    return {};
  }

  Status read_cluster(const Node& cluster, ClientConfig& access) const {
    GPULET_TRY(refuse_keys(cluster, {"insecure-skip-tls-verify", "proxy-url"}));
    GPULET_TRY_ASSIGN(const std::string server, required_value(cluster, "server"));
    GPULET_TRY(read_server(*find_key(cluster, "server"), server, access));
    access.tls_server_name = text_value(cluster, "tls-server-name");
    access.ca_file = resolve_path(cluster, "certificate-authority");
    return read_data(cluster, "certificate-authority-data", access.ca_data);
  }

  // "https://host:port/path", the host of IPv6 in brackets.
  Status read_server(const Node& where, std::string_view server, ClientConfig& access) const {
    constexpr std::string_view kScheme = "https://";
    if (!text::starts_with(server, kScheme))
      return invalid_value(where, "the server must begin with https://");
    server.remove_prefix(kScheme.size());
    if (server.find_first_of(" \t\r\n?#@") != std::string_view::npos)
      return invalid_value(where, "the server must be https://host:port/path without query or user");
    const auto slash = std::min(server.find('/'), server.size());
    access.base_path = server.substr(slash);
    while (access.base_path.ends_with('/')) access.base_path.pop_back();
    server = server.substr(0, slash);
    std::string_view port;
    if (const auto bracket = server.find(']');
        text::starts_with(server, "[") && bracket != std::string_view::npos) {
      access.host = server.substr(1, bracket - 1);
      port = server.substr(bracket + 1);
    } else {
      const auto colon = std::min(server.find(':'), server.size());
      access.host = server.substr(0, colon);
      port = server.substr(colon);
    }
    if (access.host.empty()) return invalid_value(where, "the server has no host");
    if (port.empty()) return {};
    const auto number = text::parse_unsigned(port.substr(1));
    if (port.front() != ':' || !number || *number == 0 || *number > 65'535) {
      return invalid_value(where, "the server's port is invalid");
    }
    access.port = static_cast<std::uint16_t>(*number);
    return {};
  }

  Status read_user(const Node& user, ClientConfig& access) const {
    GPULET_TRY(refuse_keys(
        user, {"auth-provider", "username", "password", "as", "as-uid", "as-groups", "as-user-extra"}));
    access.token = text_value(user, "token");
    if (access.token.find_first_of("\r\n") != std::string::npos)
      return invalid_value(user, "the token is more than one line");
    access.token_file = resolve_path(user, "tokenFile");
    access.certificate_file = resolve_path(user, "client-certificate");
    access.key_file = resolve_path(user, "client-key");
    GPULET_TRY(read_data(user, "client-certificate-data", access.certificate_data));
    GPULET_TRY(read_data(user, "client-key-data", access.key_data));
    const bool certificate = !access.certificate_data.empty() || !access.certificate_file.empty();
    const bool key = !access.key_data.empty() || !access.key_file.empty();
    if (certificate != key)
      return invalid_value(user, "a client certificate needs its key, and a key its certificate");
    return {};
  }

  // Only commands that a person starts may run the program that a file names.
  Status read_exec(const Node& exec, const std::string& user, const Node& cluster, const ExecPolicy& programs,
                   ClientConfig& access) const {
    if (!programs.allowed) {
      return invalid_value(
          exec,
          "exec names a program, which services never run, only commands that a person starts: "
          "give this user a token, a tokenFile or a client certificate",
          Code::kUnsupported);
    }
    ExecPlugin plugin;
    plugin.source = path_ + ", user \"" + user + "\"";
    GPULET_TRY_ASSIGN(plugin.command, required_value(exec, "command"));
    // A command with a slash is a path relative to this file's directory.
    if (plugin.command.find('/') != std::string::npos) plugin.command = resolve_path(exec, "command");
    GPULET_TRY_ASSIGN(plugin.api_version, required_value(exec, "apiVersion"));
    if (std::ranges::find(kExecVersions, plugin.api_version) == std::end(kExecVersions)) {
      return invalid_value(*find_key(exec, "apiVersion"),
                           "the apiVersion must be " + std::string(kExecVersions[0]) + " or " +
                               kExecVersions[1] + "; a newer " + plugin.command + " writes such a kubeconfig",
                           Code::kUnsupported);
    }
    if (const Node* args = find_key(exec, "args")) {
      for (const auto& argument : args->items) plugin.arguments.push_back(argument.scalar);
    }
    if (const Node* env = find_key(exec, "env")) {
      for (const auto& variable : env->items)
        plugin.environment.emplace_back(text_value(variable, "name"), text_value(variable, "value"));
    }
    plugin.install_hint = text_value(exec, "installHint");
    GPULET_TRY_ASSIGN(plugin.interactive, read_interactive(exec));
    if (text_value(exec, "provideClusterInfo") == "true") {
      GPULET_TRY_ASSIGN(plugin.cluster, cluster_info(cluster, access));
    }
    access.credential = cache_exec_credential(std::move(plugin), programs);
    return {};
  }

  Result<ExecPlugin::Interactive> read_interactive(const Node& exec) const {
    const Node* mode = find_key(exec, "interactiveMode");
    if (mode == nullptr || mode->scalar == "IfAvailable") return ExecPlugin::Interactive::kIfAvailable;
    if (mode->scalar == "Never") return ExecPlugin::Interactive::kNever;
    if (mode->scalar == "Always") return ExecPlugin::Interactive::kAlways;
    return invalid_value(*mode, "interactiveMode must be Never, IfAvailable or Always");
  }

  Result<std::string> cluster_info(const Node& cluster, const ClientConfig& access) const {
    nlohmann::json info{{"server", text_value(cluster, "server")}};
    std::string authority = access.ca_data;
    if (authority.empty() && !access.ca_file.empty()) {
      GPULET_TRY_ASSIGN(authority, read_file(access.ca_file, kMaxBytes));
    }
    if (!authority.empty()) info["certificate-authority-data"] = text::encode_base64(authority);
    if (!access.tls_server_name.empty()) info["tls-server-name"] = access.tls_server_name;
    if (const Node* extensions = find_key(cluster, "extensions")) {
      for (const auto& extension : extensions->items) {
        const Node* config = find_key(extension, "extension");
        if (text_value(extension, "name") == kExecExtension && config != nullptr)
          info["config"] = yaml_to_json(*config);
      }
    }
    return serialize_json(info);
  }

 private:
  KubeconfigFile() = default;

  std::string path_;
  Node root_;
};

// Several files as one, in the order of precedence: of each name, the first entry counts, whole.
class Kubeconfig {
 public:
  // Missing files are skipped, unless all are.
  static Result<Kubeconfig> read(const std::vector<std::string>& paths) {
    Kubeconfig config;
    std::optional<Error> missing;
    for (const auto& path : paths) {
      auto file = KubeconfigFile::read(path);
      if (file) {
        config.files_.push_back(std::move(*file));
      } else if (file.error().code() == Code::kNotFound) {
        if (!missing) missing = std::move(file.error());
      } else {
        return fail(std::move(file.error()));
      }
    }
    if (!config.files_.empty()) return config;
    return missing ? fail(std::move(*missing)) : fail(Code::kNotFound, "no kubeconfig is named");
  }

  // `context_name`: empty for the current one.
  Result<ClientConfig> read_config(const std::string& context_name, const ExecPolicy& programs) const {
    GPULET_TRY_ASSIGN(const std::string named, context_name.empty() ? current_context() : context_name);
    GPULET_TRY_ASSIGN(const Entry context, find_entry("contexts", "context", named));
    GPULET_TRY_ASSIGN(const std::string cluster_name,
                      context.file->required_value(*context.value, "cluster"));
    GPULET_TRY_ASSIGN(const Entry cluster, find_entry("clusters", "cluster", cluster_name));
    ClientConfig access;
    GPULET_TRY(cluster.file->read_cluster(*cluster.value, access));
    if (const auto name_space = KubeconfigFile::text_value(*context.value, "namespace");
        !name_space.empty()) {
      access.pod_namespace = name_space;
    }
    if (const auto user_name = KubeconfigFile::text_value(*context.value, "user"); !user_name.empty()) {
      GPULET_TRY_ASSIGN(const Entry user, find_entry("users", "user", user_name));
      GPULET_TRY(user.file->read_user(*user.value, access));
      if (const Node* exec = KubeconfigFile::find_key(*user.value, "exec");
          exec != nullptr && access.token.empty() && access.token_file.empty())
        GPULET_TRY(user.file->read_exec(*exec, user_name, *cluster.value, programs, access));
    }
    return access;
  }

 private:
  struct Entry {
    const KubeconfigFile* file;
    const Node* value;
  };

  Result<std::string> current_context() const {
    for (const auto& file : files_) {
      if (auto name = KubeconfigFile::text_value(file.root(), "current-context"); !name.empty()) return name;
    }
    return missing_value(files_.front().root(), "current-context is missing");
  }

  Result<Entry> find_entry(const std::string& list, const char* member, const std::string& name) const {
    for (const auto& file : files_) {
      if (const Node* found = file.find_named_entry(list, member, name)) return Entry{&file, found};
    }
    const Node* entries = KubeconfigFile::find_key(files_.front().root(), list);
    return missing_value(entries != nullptr ? *entries : files_.front().root(),
                         list + " has no entry named \"" + name + "\"");
  }

  // What several files lack is not at a position of one: the error names all of them. `node`: of the first.
  tl::unexpected<Error> missing_value(const Node& node, std::string message) const {
    if (files_.size() == 1) return files_.front().invalid_value(node, std::move(message));
    std::vector<std::string> paths;
    for (const auto& file : files_) paths.push_back(file.path());
    return fail(Code::kInvalidArgument, std::move(message), text::join(paths, ":"));
  }

  std::vector<KubeconfigFile> files_;  // at least one
};

}  // namespace

Result<ClientConfig> load_kubeconfig(const std::string& path, const ExecPolicy& programs,
                                     const std::string& context) {
  GPULET_TRY_ASSIGN(const auto kubeconfig, Kubeconfig::read({path}));
  return kubeconfig.read_config(context, programs);
}

Result<ClientConfig> load_kubeconfigs(const std::string& list, const ExecPolicy& programs,
                                      const std::string& context) {
  auto paths = text::split(list, ':');
  std::erase(paths, std::string());
  GPULET_TRY_ASSIGN(const auto kubeconfig, Kubeconfig::read(paths));
  return kubeconfig.read_config(context, programs);
}

}  // namespace gpulet::k8s
