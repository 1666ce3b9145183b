// access_from_kubeconfig of access.h.
#include <openssl/evp.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "cluster/exec_plugin.h"
#include "cluster/objects.h"
#include "config/yaml.h"

namespace gpulet::cluster {
namespace {

using config::yaml::Node;
constexpr std::size_t kMaxBytes = 1u << 20;
constexpr std::string_view kExecExtension = "client.authentication.k8s.io/exec";  // what a cluster has for it

std::optional<std::string> decoded(std::string_view base64) {
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  std::size_t padding = 0, digits = 0;
  for (const char c : base64) {
    if (c == '\n' || c == '\r' || c == ' ') continue;
    ++digits;
    if (c == '=') {
      ++padding;
      continue;
    }
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const auto value = kDigits.find(c);
    if (value == std::string_view::npos || padding > 0) return std::nullopt;
    bits = (bits << 6 | static_cast<std::uint32_t>(value)) & 0xFFFFFF;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xFF));
  }
  if (digits % 4 != 0 || padding > 2) return std::nullopt;
  return bytes;
}

std::string encoded(const std::string& bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // it writes a zero behind
  const int size =
      ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                        reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

// As YAML means it: what is not in quotes and looks like a number or a boolean is one.
nlohmann::json json_of(const Node& node) {
  using nlohmann::json;
  switch (node.kind) {
    case Node::Kind::kNull:
      return nullptr;
    case Node::Kind::kScalar: {
      const auto value = node.plain ? json::parse(node.scalar, nullptr, false) : json();
      return value.is_number() || value.is_boolean() ? value : json(node.scalar);
    }
    case Node::Kind::kSequence: {
      json list = json::array();
      for (const auto& item : node.items) list.push_back(json_of(item));
      return list;
    }
    case Node::Kind::kMapping: {
      json object = json::object();
      for (const auto& [key, position, value] : node.entries) object[key] = json_of(value);
      return object;
    }
  }
  return nullptr;
}

// Reads one file; knows its name for errors and its folder for the paths in it.
class Kubeconfig {
 public:
  Kubeconfig(std::string path, const Programs& programs) : path_(std::move(path)), programs_(programs) {}

  Result<Access> read() {
    GPULET_TRY_ASSIGN(const std::string text, read_file(path_, kMaxBytes));
    GPULET_TRY_ASSIGN(const auto document, config::yaml::parse(text, path_));
    const Node& root = document.root;
    GPULET_TRY_ASSIGN(const std::string current, required(root, "current-context"));
    GPULET_TRY_ASSIGN(const Node* context, named(root, "contexts", "context", current));
    GPULET_TRY_ASSIGN(const std::string cluster_name, required(*context, "cluster"));
    GPULET_TRY_ASSIGN(const Node* cluster, named(root, "clusters", "cluster", cluster_name));
    Access access;
    GPULET_TRY(read_cluster(*cluster, access));
    if (const std::string name_space = value(*context, "namespace"); !name_space.empty()) {
      access.pod_namespace = name_space;
    }
    if (const std::string user_name = value(*context, "user"); !user_name.empty()) {
      GPULET_TRY_ASSIGN(const Node* user, named(root, "users", "user", user_name));
      GPULET_TRY(read_user(*user, access));
      if (const Node* exec = find(*user, "exec");
          exec != nullptr && access.token.empty() && access.token_file.empty())
        GPULET_TRY(read_exec(*exec, user_name, *cluster, access));
    }
    return access;
  }

 private:
  static const Node* find(const Node& mapping, std::string_view key) {
    const Node* found = nullptr;
    for (const auto& entry : mapping.entries) {
      if (entry.key == key && entry.value.kind != Node::Kind::kNull) found = &entry.value;
    }
    return found;
  }
  // Empty where there is none.
  static std::string value(const Node& mapping, std::string_view key) {
    const Node* found = find(mapping, key);
    return found == nullptr ? std::string() : found->scalar;
  }
  tl::unexpected<Error> wrong(const Node& node, std::string message,
                              Code code = Code::kInvalidArgument) const {
    return fail(code, std::move(message), config::yaml::place(path_, node.position));
  }

  Result<std::string> required(const Node& mapping, const std::string& key) const {
    std::string text = value(mapping, key);
    if (text.empty()) return wrong(mapping, key + " is missing");
    return text;
  }

  // The entry of a list of {name, <member>} that has this name.
  Result<const Node*> named(const Node& root, const std::string& list, const char* member,
                            const std::string& name) const {
    const Node* entries = find(root, list);
    if (entries != nullptr) {
      for (const Node& entry : entries->items) {
        if (value(entry, "name") != name) continue;
        if (const Node* found = find(entry, member)) return found;
      }
    }
    return wrong(entries != nullptr ? *entries : root, list + " has none that is called \"" + name + "\"");
  }

  // Neither is a way that we go; better said than left out.
  Status refuse(const Node& mapping, std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      const Node* found = find(mapping, key);
      if (found == nullptr || found->scalar == "false") continue;
      return wrong(*found, std::string(key) + " is not supported", Code::kUnsupported);
    }
    return {};
  }

  std::string path_of(const Node& mapping, std::string_view key) const {
    const std::string file = value(mapping, key);
    if (file.empty()) return file;
    return (std::filesystem::path(path_).parent_path() / file).lexically_normal().string();
  }

  Status read_data(const Node& mapping, const std::string& key, std::string& into) const {
    const Node* found = find(mapping, key);
    if (found == nullptr || found->scalar.empty()) return {};
    const auto bytes = decoded(found->scalar);
    if (!bytes || bytes->empty()) return wrong(*found, key + " is not base64");
    into = *bytes;
    return {};
  }

  Status read_cluster(const Node& cluster, Access& access) const {
    GPULET_TRY(refuse(cluster, {"insecure-skip-tls-verify", "proxy-url"}));
    GPULET_TRY_ASSIGN(const std::string server, required(cluster, "server"));
    GPULET_TRY(read_server(*find(cluster, "server"), server, access));
    access.tls_server_name = value(cluster, "tls-server-name");
    access.ca_file = path_of(cluster, "certificate-authority");
    return read_data(cluster, "certificate-authority-data", access.ca_text);
  }

  // "https://host:port/path", the host of IPv6 in brackets.
  Status read_server(const Node& where, std::string_view server, Access& access) const {
    constexpr std::string_view kScheme = "https://";
    if (!text::starts_with(server, kScheme)) return wrong(where, "the server must begin with https://");
    server.remove_prefix(kScheme.size());
    if (server.find_first_of(" \t\r\n?#@") != std::string_view::npos)
      return wrong(where, "the server is no plain URL");
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
    if (access.host.empty()) return wrong(where, "the server has no host");
    if (port.empty()) return {};
    const auto number = text::parse_unsigned(port.substr(1));
    if (port.front() != ':' || !number || *number == 0 || *number > 65'535) {
      return wrong(where, "the server's port is none");
    }
    access.port = static_cast<std::uint16_t>(*number);
    return {};
  }

  Status read_user(const Node& user, Access& access) const {
    GPULET_TRY(refuse(
        user, {"auth-provider", "username", "password", "as", "as-uid", "as-groups", "as-user-extra"}));
    access.token = value(user, "token");
    if (access.token.find_first_of("\r\n") != std::string::npos)
      return wrong(user, "the token is more than one line");
    access.token_file = path_of(user, "tokenFile");
    access.certificate_file = path_of(user, "client-certificate");
    access.key_file = path_of(user, "client-key");
    GPULET_TRY(read_data(user, "client-certificate-data", access.certificate_text));
    GPULET_TRY(read_data(user, "client-key-data", access.key_text));
    const bool certificate = !access.certificate_text.empty() || !access.certificate_file.empty();
    const bool key = !access.key_text.empty() || !access.key_file.empty();
    if (certificate != key)
      return wrong(user, "a client certificate needs its key, and a key its certificate");
    return {};
  }

  // Whoever is not a person's own command must not run what a file names.
  Status read_exec(const Node& exec, const std::string& user, const Node& cluster, Access& access) const {
    if (!programs_.allowed) {
      return wrong(
          exec,
          "exec names a program, which only a command that a person starts runs, and never a service: "
          "give this user a token, a tokenFile or a client certificate",
          Code::kUnsupported);
    }
    ExecPlugin plugin;
    plugin.about = path_ + ", user \"" + user + "\"";
    GPULET_TRY_ASSIGN(plugin.command, required(exec, "command"));
    // With a slash it is a file, from this file's own folder on.
    if (plugin.command.find('/') != std::string::npos) plugin.command = path_of(exec, "command");
    GPULET_TRY_ASSIGN(plugin.api_version, required(exec, "apiVersion"));
    if (std::ranges::find(kExecVersions, plugin.api_version) == std::end(kExecVersions)) {
      return wrong(*find(exec, "apiVersion"),
                   "the apiVersion must be " + std::string(kExecVersions[0]) + " or " + kExecVersions[1] +
                       "; a newer " + plugin.command + " writes such a kubeconfig",
                   Code::kUnsupported);
    }
    if (const Node* args = find(exec, "args")) {
      for (const auto& argument : args->items) plugin.arguments.push_back(argument.scalar);
    }
    if (const Node* env = find(exec, "env")) {
      for (const auto& variable : env->items)
        plugin.environment.emplace_back(value(variable, "name"), value(variable, "value"));
    }
    plugin.install_hint = value(exec, "installHint");
    GPULET_TRY_ASSIGN(plugin.interactive, read_interactive(exec));
    if (value(exec, "provideClusterInfo") == "true") {
      GPULET_TRY_ASSIGN(plugin.cluster, cluster_info(cluster, access));
    }
    access.credential = remembered(std::move(plugin), programs_);
    return {};
  }

  Result<ExecPlugin::Interactive> read_interactive(const Node& exec) const {
    const Node* mode = find(exec, "interactiveMode");
    if (mode == nullptr || mode->scalar == "IfAvailable") return ExecPlugin::Interactive::kIfAvailable;
    if (mode->scalar == "Never") return ExecPlugin::Interactive::kNever;
    if (mode->scalar == "Always") return ExecPlugin::Interactive::kAlways;
    return wrong(*mode, "interactiveMode must be Never, IfAvailable or Always");
  }

  Result<std::string> cluster_info(const Node& cluster, const Access& access) const {
    nlohmann::json info{{"server", value(cluster, "server")}};
    std::string authority = access.ca_text;
    if (authority.empty() && !access.ca_file.empty()) {
      GPULET_TRY_ASSIGN(authority, read_file(access.ca_file, kMaxBytes));
    }
    if (!authority.empty()) info["certificate-authority-data"] = encoded(authority);
    if (!access.tls_server_name.empty()) info["tls-server-name"] = access.tls_server_name;
    if (const Node* extensions = find(cluster, "extensions")) {
      for (const auto& extension : extensions->items) {
        const Node* config = find(extension, "extension");
        if (value(extension, "name") == kExecExtension && config != nullptr)
          info["config"] = json_of(*config);
      }
    }
    return body_of(info);
  }

  std::string path_;
  const Programs& programs_;
};

}  // namespace

Result<Access> access_from_kubeconfig(const std::string& path, const Programs& programs) {
  return Kubeconfig(path, programs).read();
}

}  // namespace gpulet::cluster
