#include "sim/mps/namespaces.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/text.h"

namespace gpulet::sim::mps {
namespace {

constexpr std::size_t kMaxPositional = 3;
constexpr unsigned kMaxPercentage = 100;
constexpr unsigned kMebibyteShift = 20;

Answer refused(const std::string& why) { return {1, "Error: " + why + "\n"}; }
Answer line_of(const std::string& text) { return {0, text + "\n"}; }

bool is_valid_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameLength && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Options of each verb, and how many names it takes.
struct Verb {
  std::string_view module, verb;
  std::size_t min_names, max_names;
  std::set<std::string_view> options;
};
const std::vector<Verb>& verbs() {
  static const std::vector<Verb> all{
      {"server", "create", 1, 1, {"uid", "allowed-devices", "locality-domains"}},
      {"server", "delete", 1, 1, {"force"}},
      {"server", "list", 0, 1, {"format"}},
      {"server",
       "set",
       1,
       1,
       {"uid", "pinned-memory-limit", "active-thread-percentage", "locality-domains", "client-priority"}},
      {"server", "get", 2, 2, {}},
      {"namespace", "create", 1, 1, {"server"}},
      {"namespace", "delete", 1, 1, {"server", "force"}},
      {"namespace", "list", 0, 1, {"server", "format"}},
      {"namespace",
       "set",
       1,
       1,
       {"server", "pinned-memory-limit", "active-thread-percentage", "client-priority"}},
      {"namespace", "get", 3, 3, {}},
      {"client", "list", 0, 0, {"server", "all", "format"}},
      {"client", "get", 2, 2, {}},
      {"client", "terminate", 1, 1, {}},
      {"device", "list", 0, 0, {"server", "format"}},
  };
  return all;
}

std::string help_of(const std::string& module) {
  std::string text = "usage: nvidia-cuda-mps-control " + module + " VERB\n";
  for (const auto& verb : verbs()) {
    if (verb.module == module) text += "  " + std::string(verb.verb) + "\n";
  }
  return text;
}

std::string rows_text(const std::vector<std::string>& header,
                      const std::vector<std::vector<std::string>>& rows, const std::string& format) {
  const std::string separator = format.starts_with("csv") ? "," : "  ";
  std::string text = format == "csv,noheader" ? "" : text::join(header, separator) + "\n";
  for (const auto& row : rows) text += text::join(row, separator) + "\n";
  return text;
}

std::string two_decimals(unsigned percentage) { return std::to_string(percentage) + ".00"; }

template <class Fields>
Answer field_of(const Fields& header, const std::vector<std::string>& row, const std::string& field) {
  const auto found = std::ranges::find(header, field);
  if (found == header.end()) return refused("unknown field '" + field + "'");
  return line_of(row[static_cast<std::size_t>(found - header.begin())]);
}

const std::vector<std::string> kServerFields{"name",           "uid", "pid", "status", "pipe-directory",
                                             "allowed-devices"};
const std::vector<std::string> kNamespaceFields{"name",
                                                "server",
                                                "server-status",
                                                "pipe-directory",
                                                "pinned-memory-limit",
                                                "active-thread-percentage",
                                                "client-priority"};
const std::vector<std::string> kClientFields{"pid", "server", "device", "namespace", "command"};

// Adds the limits of the options. The reason why one is refused; empty: none.
template <class Limits3>
std::string read_namespace_options(const std::map<std::string, std::string>& options, Limits3& limits) {
  if (const auto threads = options.find("active-thread-percentage"); threads != options.end()) {
    const auto value = text::parse_unsigned(threads->second);
    if (!value || *value < 1 || *value > kMaxPercentage)
      return "invalid active thread percentage '" + threads->second + "'";
    limits.threads = static_cast<unsigned>(*value);
  }
  if (const auto memory = options.find("pinned-memory-limit"); memory != options.end()) {
    const auto value = parse_memory_size(memory->second);
    if (!value) return value.error().message();
    limits.memory = *value;
  }
  if (const auto priority = options.find("client-priority"); priority != options.end()) {
    if (priority->second != "0" && priority->second != "1") return "invalid client priority";
    limits.priority = priority->second == "1" ? 1 : 0;
  }
  return {};
}

}  // namespace

Result<std::uint64_t> parse_memory_size(const std::string& text) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 30;
  const auto number =
      text.empty() ? std::nullopt : text::parse_unsigned(std::string_view(text).substr(0, text.size() - 1));
  if (number && *number > 0 && *number < kMost) {
    if (text.back() == 'K') return *number << 10;
    if (text.back() == 'M') return *number << kMebibyteShift;
    if (text.back() == 'G') return *number << 30;
  }
  return fail(Code::kInvalidArgument, "invalid memory size '" + text + "'");
}

std::string memory_size_text(std::uint64_t bytes) {
  if (bytes % (std::uint64_t{1} << 30) == 0) return std::to_string(bytes >> 30) + "G";
  if (bytes % (std::uint64_t{1} << kMebibyteShift) == 0) return std::to_string(bytes >> kMebibyteShift) + "M";
  return std::to_string(bytes >> 10) + "K";
}

NamespaceControl::NamespaceControl(std::vector<VisibleDevice> devices, std::string pipe_directory,
                                   bool is_multi_user, ServerProcesses processes)
    : devices_(std::move(devices)),
      pipe_directory_(std::move(pipe_directory)),
      is_multi_user_(is_multi_user),
      processes_(std::move(processes)) {}

Answer NamespaceControl::execute_command(uid_t user, const std::vector<std::string>& arguments) {
  if (arguments.size() < 2) return refused("expected MODULE VERB");
  const auto& module = arguments[0];
  const bool is_known = std::ranges::any_of(verbs(), [&](const Verb& verb) { return verb.module == module; });
  if (!is_known) return refused("unknown module '" + module + "'");
  if (arguments[1] == "help" || arguments[1] == "--help") return {0, help_of(module)};
  const auto verb = std::ranges::find_if(
      verbs(), [&](const Verb& one) { return one.module == module && one.verb == arguments[1]; });
  if (verb == verbs().end()) return refused("unknown verb '" + arguments[1] + "'");
  Command command{arguments[1], {}, {}};
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    if (!argument.starts_with("--")) {
      command.names.push_back(argument);
      continue;
    }
    const auto equals = argument.find('=');
    const auto key = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const bool is_flag = key == "force" || key == "all";
    if (!verb->options.contains(key) || is_flag != (equals == std::string::npos))
      return refused("unknown option '" + argument + "'");
    command.options[key] = is_flag ? "" : argument.substr(equals + 1);
  }
  const auto count = command.names.size();
  if (count < verb->min_names || count > std::min(verb->max_names, kMaxPositional))
    return refused("wrong number of arguments");
  if (module == "server") return execute_server(user, command);
  if (module == "namespace") return execute_namespace(command);
  return module == "client" ? execute_client(command) : list_devices(command);
}

void NamespaceControl::quit() {
  for (const auto& [name, server] : servers_) processes_.end(server.process);
  servers_.clear();
  is_quitting_ = true;
}

std::vector<std::string> NamespaceControl::server_row(const std::string& name, const Server& server) const {
  return {name,    std::to_string(server.user),  std::to_string(server.process),
          "Ready", pipe_directory_ + "/" + name, text::join(server.allowed_devices, ",")};
}

Answer NamespaceControl::execute_server(uid_t user, const Command& command) {
  if (command.verb == "create") return create_server(user, command);
  if (command.verb == "list") {
    std::vector<std::vector<std::string>> rows;
    for (const auto& [name, server] : servers_) {
      if (command.names.empty() || command.names[0] == name) rows.push_back(server_row(name, server));
    }
    const auto format = command.options.find("format");
    return {0, rows_text(kServerFields, rows, format == command.options.end() ? "table" : format->second)};
  }
  const auto found = servers_.find(command.names[0]);
  if (found == servers_.end()) return refused("no server '" + command.names[0] + "'");
  if (command.verb == "get")
    return field_of(kServerFields, server_row(found->first, found->second), command.names[1]);
  if (command.verb == "delete") return delete_server(command);
  if (command.options.empty()) return refused("nothing to set");
  auto limits = found->second.namespaces[std::string(kDefaultNamespace)].limits;
  if (const auto why = read_namespace_options(command.options, limits); !why.empty()) return refused(why);
  found->second.namespaces[std::string(kDefaultNamespace)].limits = limits;
  return {};
}

Answer NamespaceControl::create_server(uid_t user, const Command& command) {
  const auto& name = command.names[0];
  if (!is_valid_name(name)) return refused("invalid name '" + name + "'");
  if (servers_.contains(name)) return refused("server '" + name + "' exists");
  const auto option = [&](const char* key) {
    const auto found = command.options.find(key);
    return found == command.options.end() ? std::string() : found->second;
  };
  Server server{.user = user, .process = 0, .allowed_devices = {}, .namespaces = {}};
  if (const auto text = option("uid"); !text.empty()) {
    const auto number = text::parse_unsigned(text);
    if (!number || (is_multi_user_ && *number != 0)) return refused("invalid user id '" + text + "'");
    server.user = static_cast<uid_t>(*number);
  }
  bool are_there = true;
  for (const auto& device : text::split(option("allowed-devices"), ',')) {
    if (device.empty()) continue;
    const auto ordinal = text::parse_unsigned(device);
    server.allowed_devices.push_back(device);
    are_there =
        are_there && (ordinal ? *ordinal < devices_.size()
                              : std::ranges::any_of(
                                    devices_, [&](const VisibleDevice& one) { return one.uuid == device; }));
  }
  // It is created, ends and is listed no more; nothing says so.
  if (!are_there) return {};
  const auto process = processes_.start(server.user);
  if (!process) return refused(process.error().full_message());
  server.process = *process;
  server.namespaces[std::string(kDefaultNamespace)];
  servers_[name] = std::move(server);
  return {};
}

Answer NamespaceControl::delete_server(const Command& command) {
  auto& server = servers_.at(command.names[0]);
  for (const auto& [name, space] : server.namespaces) {
    if (!space.clients.empty() && !command.options.contains("force")) return refused("it has clients");
  }
  for (const auto& [name, space] : server.namespaces) end_clients(space);
  processes_.end(server.process);
  servers_.erase(command.names[0]);
  return {};
}

void NamespaceControl::end_clients(const Namespace& space) {
  terminated_.insert(terminated_.end(), space.clients.begin(), space.clients.end());
}

std::vector<std::string> NamespaceControl::namespace_row(const std::string& server, const std::string& name,
                                                         const Namespace& space) const {
  const auto& limits = space.limits;
  return {name,
          server,
          "Ready",
          pipe_directory_ + "/" + server + (name == kDefaultNamespace ? "" : "/" + name),
          limits.memory ? memory_size_text(*limits.memory) : "-",
          two_decimals(limits.threads.value_or(kMaxPercentage)),
          std::to_string(limits.priority)};
}

Answer NamespaceControl::list_namespaces(const Command& command) const {
  const auto of_server = command.options.find("server");
  const auto format = command.options.find("format");
  std::vector<std::vector<std::string>> rows;
  for (const auto& [server_name, server] : servers_) {
    if (of_server != command.options.end() && of_server->second != server_name) continue;
    for (const auto& [name, space] : server.namespaces) {
      if (command.names.empty() || command.names[0] == name)
        rows.push_back(namespace_row(server_name, name, space));
    }
  }
  return {0, rows_text(kNamespaceFields, rows, format == command.options.end() ? "table" : format->second)};
}

Answer NamespaceControl::execute_namespace(const Command& command) {
  if (command.verb == "list") return list_namespaces(command);
  const auto& name = command.names[0];
  const auto option = command.options.find("server");
  const auto server_name = command.verb == "get"             ? command.names[1]
                           : option == command.options.end() ? std::string()
                                                             : option->second;
  const auto server = servers_.find(server_name);
  if (server == servers_.end()) return refused("no server '" + server_name + "'");
  auto& spaces = server->second.namespaces;
  if (command.verb == "create") {
    if (!is_valid_name(name)) return refused("invalid name '" + name + "'");
    if (!spaces.try_emplace(name).second) return refused("namespace '" + name + "' exists");
    return {};
  }
  const auto found = spaces.find(name);
  if (found == spaces.end()) return refused("no namespace '" + name + "'");
  if (command.verb == "get")
    return field_of(kNamespaceFields, namespace_row(server_name, name, found->second), command.names[2]);
  if (command.verb == "delete") {
    if (name == kDefaultNamespace) return refused("the default namespace stays");
    if (!found->second.clients.empty() && !command.options.contains("force"))
      return refused("it has clients");
    end_clients(found->second);
    spaces.erase(found);
    return {};
  }
  if (command.options.size() < 2) return refused("nothing to set");
  auto limits = found->second.limits;
  if (const auto why = read_namespace_options(command.options, limits); !why.empty()) return refused(why);
  found->second.limits = limits;
  return {};
}

Answer NamespaceControl::execute_client(const Command& command) {
  if (command.verb == "terminate") return terminate_client(command.names[0]);
  const auto of_server = command.options.find("server");
  std::vector<std::vector<std::string>> rows;
  for (const auto& [server_name, server] : servers_) {
    if (of_server != command.options.end() && of_server->second != server_name) continue;
    for (const auto& [name, space] : server.namespaces) {
      for (const pid_t pid : space.clients)
        rows.push_back({std::to_string(pid), server_name, "0", name, "a,command with commas"});
    }
  }
  if (command.verb == "get") {
    for (const auto& row : rows) {
      if (row[0] == command.names[0]) return field_of(kClientFields, row, command.names[1]);
    }
    return refused("no client '" + command.names[0] + "'");
  }
  const auto format = command.options.find("format");
  return {0, rows_text(kClientFields, rows, format == command.options.end() ? "table" : format->second)};
}

Answer NamespaceControl::terminate_client(const std::string& pid) {
  const auto number = text::parse_unsigned(pid);
  for (auto& [server_name, server] : servers_) {
    for (auto& [name, space] : server.namespaces) {
      if (!number || std::erase(space.clients, static_cast<pid_t>(*number)) == 0) continue;
      terminated_.push_back(static_cast<pid_t>(*number));
      return {};
    }
  }
  return refused("no client '" + pid + "'");
}

Answer NamespaceControl::list_devices(const Command& command) const {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, server] : servers_) {
    for (std::size_t i = 0; i < devices_.size(); ++i)
      rows.push_back({std::to_string(i), name, devices_[i].uuid});
  }
  const auto format = command.options.find("format");
  return {0, rows_text({"Ordinal", "Server", "Device UUID"}, rows,
                       format == command.options.end() ? "table" : format->second)};
}

std::vector<std::string> NamespaceControl::client_directories() const {
  std::vector<std::string> directories;
  for (const auto& [server_name, server] : servers_) {
    directories.push_back(server_name);
    for (const auto& [name, space] : server.namespaces) {
      if (name != kDefaultNamespace) directories.push_back(server_name + "/" + name);
    }
  }
  return directories;
}

Result<Limits> NamespaceControl::add_client(const std::string& directory, uid_t user, const Client& client) {
  const auto slash = directory.find('/');
  const auto server = directory.empty() ? servers_.begin() : servers_.find(directory.substr(0, slash));
  if (server == servers_.end()) return fail(Code::kUnavailable, "there is no server");
  const auto space = server->second.namespaces.find(
      slash == std::string::npos ? std::string(kDefaultNamespace) : directory.substr(slash + 1));
  if (space == server->second.namespaces.end()) return fail(Code::kUnavailable, "there is no namespace");
  if (!is_multi_user_ && user != server->second.user)
    return fail(Code::kPermissionDenied, "CUDA_ERROR_NOT_PERMITTED (800)");
  std::size_t clients = 0;
  for (const auto& [name, one] : server->second.namespaces) clients += one.clients.size();
  if (clients >= kMaxClients)
    return fail(Code::kFailedPrecondition, "the server has " + std::to_string(kMaxClients) + " clients");
  space->second.clients.push_back(client.pid);
  const auto& limits = space->second.limits;
  // Without a limit, everything: the environment's percentage does not count either.
  Limits allowed{.threads = static_cast<double>(limits.threads.value_or(kMaxPercentage))};
  const auto visible =
      server->second.allowed_devices.empty() ? devices_.size() : server->second.allowed_devices.size();
  for (std::size_t i = 0; i < visible; ++i) {
    const auto ordinal = std::to_string(i);
    std::optional<std::uint64_t> least;
    if (limits.memory) least = *limits.memory >> kMebibyteShift;
    const auto own = client.limits.memory_mib.find(ordinal);
    if (own != client.limits.memory_mib.end()) least = std::min(least.value_or(own->second), own->second);
    if (least) allowed.memory_mib[ordinal] = *least;
  }
  return allowed;
}

void NamespaceControl::remove_client(pid_t client) {
  for (auto& [server_name, server] : servers_) {
    for (auto& [name, space] : server.namespaces) std::erase(space.clients, client);
  }
}

void NamespaceControl::remove_server(pid_t process) {
  std::erase_if(servers_, [&](const auto& one) { return one.second.process == process; });
}

}  // namespace gpulet::sim::mps
