#include "sim/mps/control.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "base/text.h"

namespace gpulet::sim::mps {
namespace {

std::vector<std::string> split_words(const std::string& line) {
  std::vector<std::string> words;
  for (const auto& part : text::split(line, ' ')) {
    const auto word = text::trim(part);
    if (!word.empty()) words.emplace_back(word);
  }
  return words;
}

std::string with_newline(const std::string& text) { return text + "\n"; }

}  // namespace

Result<std::uint64_t> parse_memory(const std::string& text) {
  const auto number =
      text.empty() ? std::nullopt : text::parse_unsigned(std::string_view(text).substr(0, text.size() - 1));
  if (number && text.back() == 'M') return *number;
  if (number && text.back() == 'G' && *number < (1u << 20)) return *number * 1024;
  return fail(Code::kInvalidArgument, "expected a number followed by M or G, not '" + text + "'");
}

std::string memory_text(std::uint64_t mib) {
  return mib >= 1024 ? std::to_string(mib / 1024) + "G" : std::to_string(mib) + "M";
}

Result<std::map<std::string, std::uint64_t>> parse_memory_limits(const std::string& text) {
  std::map<std::string, std::uint64_t> limits;
  for (const auto& part : text::split(text, ',')) {
    const auto equals = part.find('=');
    if (equals == std::string::npos) {
      return fail(Code::kInvalidArgument, "expected DEVICE=LIMIT, not '" + part + "'");
    }
    GPULET_TRY_ASSIGN(limits[part.substr(0, equals)], parse_memory(part.substr(equals + 1)));
  }
  return limits;
}

Result<double> parse_percentage(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value > 0 && value <= 100) return value;
  return fail(Code::kInvalidArgument, "expected a percentage above 0 and up to 100, not '" + text + "'");
}

std::string percentage_text(double percentage) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", percentage);
  return text;
}

Control::Control(std::vector<VisibleDevice> devices, ServerProcesses processes, bool has_sm_partitions)
    : devices_(std::move(devices)), processes_(std::move(processes)) {
  if (!has_sm_partitions) return;
  std::vector<PartitionableDevice> partitionable;
  for (const auto& device : devices_) partitionable.push_back({device.uuid, device.sms, device.sms_of_chunk});
  partitions_.emplace(std::move(partitionable));
}

bool Control::has_device(const std::string& device) const {
  if (const auto ordinal = text::parse_unsigned(device)) return *ordinal < devices_.size();
  return std::ranges::any_of(devices_, [&](const VisibleDevice& d) { return d.uuid == device; });
}

const Control::Server* Control::find(const std::string& pid) const {
  const auto number = text::parse_unsigned(pid);
  const auto found = number ? servers_.find(static_cast<pid_t>(*number)) : servers_.end();
  return found == servers_.end() ? nullptr : &found->second;
}
Control::Server* Control::find(const std::string& pid) {
  return const_cast<Server*>(std::as_const(*this).find(pid));
}

std::string Control::execute_command(const std::string& text) {
  const Words words = split_words(text);
  if (words.empty()) return {};
  const std::string& command = words.front();
  if (command == "get_server_list") return server_list();
  if (command == "get_server_status") {
    return words.size() == 2 && find(words[1]) != nullptr ? "ACTIVE\n"
                                                          : with_newline("Server does not exist");
  }
  if (command == "start_server") return start_server(words);
  if (command == "get_client_list") return client_list(words);
  if (command == "get_device_client_list") return device_client_list(words);
  if (command == "ps") return process_list();
  if (command == "terminate_client") return terminate_client(words);
  if (command == "set_default_active_thread_percentage") return thread_percentage(words, true, false);
  if (command == "get_default_active_thread_percentage") return thread_percentage(words, false, false);
  if (command == "set_active_thread_percentage") return thread_percentage(words, true, true);
  if (command == "get_active_thread_percentage") return thread_percentage(words, false, true);
  if (command == "set_default_device_pinned_mem_limit") return memory_limit(words, true, false);
  if (command == "get_default_device_pinned_mem_limit") return memory_limit(words, false, false);
  if (command == "set_device_pinned_mem_limit") return memory_limit(words, true, true);
  if (command == "get_device_pinned_mem_limit") return memory_limit(words, false, true);
  if (command == "sm_partition" || command == "lspart") return sm_partition(words);
  if (command == "quit") {
    const bool timed = words.size() == 3 && words[1] == "-t" && text::parse_unsigned(words[2]);
    if (words.size() != 1 && !timed) return with_newline("Invalid command: " + text);
    for (const auto& [pid, server] : servers_) processes_.end(pid);
    servers_.clear();
    quitting_ = true;
    return {};
  }
  return with_newline("Unknown command: " + command);
}

Result<pid_t> Control::spawn_server(uid_t user) {
  GPULET_TRY_ASSIGN(const pid_t pid, processes_.start(user));
  servers_[pid] = Server{user, defaults_, {}};
  return pid;
}

std::string Control::start_server(const Words& words) {
  const auto user = words.size() == 3 && words[1] == "-uid" ? text::parse_unsigned(words[2]) : std::nullopt;
  if (!user) return with_newline("Usage: start_server -uid <user id>");
  for (const auto& [pid, server] : servers_) {
    if (server.user == *user) return with_newline("Server already exists");
  }
  const auto made = spawn_server(static_cast<uid_t>(*user));
  return made ? std::string() : with_newline(made.error().full_message());
}

std::string Control::server_list() const {
  std::string list;
  for (const auto& [pid, server] : servers_) list += with_newline(std::to_string(pid));
  return list;
}

std::string Control::client_list(const Words& words) const {
  const Server* server = words.size() == 2 ? find(words[1]) : nullptr;
  if (server == nullptr) return with_newline("Server does not exist");
  std::string list;
  for (const auto& client : server->clients) list += with_newline(std::to_string(client.pid));
  return list;
}

std::string Control::device_client_list(const Words& words) const {
  std::string list;
  for (const auto& device : devices_) {
    std::string clients;
    for (const auto& [pid, server] : servers_) {
      if (words.size() == 2 && words[1] != std::to_string(pid)) continue;
      for (const auto& client : server.clients) clients += " " + std::to_string(client.pid);
    }
    list += with_newline(device.uuid + clients);
  }
  return list;
}

std::string Control::process_list() const {
  std::string table = with_newline("PID       ID    SERVER    DEVICE                NAMESPACE    COMMAND");
  std::size_t id = 0;
  for (const auto& [pid, server] : servers_) {
    for (const auto& client : server.clients) {
      char row[160];
      std::snprintf(row, sizeof row, "%-9d %-5zu %-9d %-21.20s %-12s %s\n", client.pid, ++id, pid,
                    devices_.front().uuid.c_str(), "-", "-");
      table += row;
    }
  }
  return table;
}

std::string Control::thread_percentage(const Words& words, bool set, bool of_server) {
  const std::size_t first = of_server ? 2 : 1;
  if (words.size() != first + (set ? 1 : 0))
    return with_newline("Invalid command: " + text::join(words, " "));
  Server* server = of_server ? find(words[1]) : nullptr;
  if (of_server && server == nullptr) return with_newline("Server does not exist");
  Limits& limits = server != nullptr ? server->limits : defaults_;
  if (set) {
    const auto value = parse_percentage(words[first]);
    if (!value) return with_newline("Invalid active thread percentage: " + value.error().message());
    limits.threads = *value;
  }
  return with_newline(percentage_text(limits.threads));
}

std::string Control::memory_limit(const Words& words, bool set, bool of_server) {
  const std::size_t first = of_server ? 2 : 1;
  // NVIDIA's own examples omit the device in queries: device 0.
  const bool of_first = !set && words.size() == first;
  if (words.size() != first + (set ? 2 : 1) && !of_first) {
    return with_newline("Invalid command: " + text::join(words, " "));
  }
  Server* server = of_server ? find(words[1]) : nullptr;
  if (of_server && server == nullptr) return with_newline("Server does not exist");
  const std::string device = of_first ? "0" : words[first];
  if (!has_device(device)) return with_newline("Invalid device: " + device);
  auto& limits = (server != nullptr ? server->limits : defaults_).memory_mib;
  if (set) {
    const auto value = parse_memory(words[first + 1]);
    if (!value) return with_newline("Invalid device pinned memory limit: " + value.error().message());
    limits[device] = *value;
    return {};
  }
  const auto found = limits.find(device);
  return found == limits.end() ? std::string() : with_newline(memory_text(found->second));
}

std::string Control::terminate_client(const Words& words) {
  Server* server = words.size() == 3 ? find(words[1]) : nullptr;
  if (server == nullptr) return with_newline("Server does not exist");
  const auto is_named = [&](const Client& client) { return std::to_string(client.pid) == words[2]; };
  for (const auto& client : server->clients) {
    if (is_named(client)) leave_partition(client);
  }
  const auto gone = std::erase_if(server->clients, is_named);
  if (gone == 0) return with_newline("Client does not exist");
  terminated_.push_back(static_cast<pid_t>(*text::parse_unsigned(words[2])));
  return {};
}

std::string Control::sm_partition(const Words& words) {
  if (!partitions_) return with_newline("Static SM partitioning is not enabled");
  if (words[0] == "lspart" && words.size() == 1) return partitions_->list_partitions();
  if (words.size() == 4 && words[1] == "add") return partitions_->add_partition(words[2], words[3]);
  if (words.size() == 4 && words[1] == "rm") return partitions_->remove_partition(words[2], words[3]);
  return with_newline("Invalid command: " + text::join(words, " "));
}

void Control::leave_partition(const Client& client) {
  if (partitions_) partitions_->remove_client(client.sm_partition);
}

Result<Limits> Control::add_client(uid_t user, const Client& client) {
  // One user's server at a time: an idle server of another user ends.
  for (auto it = servers_.begin(); it != servers_.end();) {
    if (it->second.user != user && !it->second.clients.empty()) {
      return fail(Code::kUnavailable,
                  "the server of user " + std::to_string(it->second.user) + " has clients");
    }
    const bool other = it->second.user != user;
    if (other) processes_.end(it->first);
    it = other ? servers_.erase(it) : std::next(it);
  }
  if (servers_.empty()) GPULET_TRY(spawn_server(user));
  Server& server = servers_.begin()->second;
  if (server.clients.size() >= kMaxClients) {
    return fail(Code::kFailedPrecondition, "the server has " + std::to_string(kMaxClients) + " clients");
  }
  Limits allowed;
  if (partitions_) {
    const auto sms = partitions_->add_client(client.sm_partition);
    if (!sms) return fail(Code::kFailedPrecondition, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION");
    allowed.sms = *sms;
  }
  server.clients.push_back(client);
  allowed.threads = std::min(server.limits.threads, client.limits.threads);
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const std::string ordinal = std::to_string(i);
    std::optional<std::uint64_t> least;
    for (const Limits* limits : {&std::as_const(server.limits), &client.limits}) {
      const auto found = limits->memory_mib.find(ordinal);
      if (found != limits->memory_mib.end()) least = std::min(least.value_or(found->second), found->second);
    }
    if (least) allowed.memory_mib[ordinal] = *least;
  }
  return allowed;
}

void Control::remove_client(pid_t pid) {
  for (auto& [server_pid, server] : servers_) {
    for (const auto& client : server.clients) {
      if (client.pid == pid) leave_partition(client);
    }
    std::erase_if(server.clients, [pid](const Client& client) { return client.pid == pid; });
  }
}

void Control::remove_server(pid_t server) { servers_.erase(server); }

}  // namespace gpulet::sim::mps
