#include "mps/namespaces.h"

#include <algorithm>

#include "base/text.h"
#include "mps/control_program.h"

namespace gpulet::mps {
namespace {

constexpr const char* kCsvRows = "--format=csv,noheader";

std::string of_server() { return "--server=" + std::string(kServerName); }

}  // namespace

Arguments protocol_help_arguments() { return {"-p", "3", "namespace", "--help"}; }

bool lists_namespace_verbs(const std::string& output) {
  std::vector<std::string> words;
  for (const auto& line : lines_of_output(output)) {
    for (auto& word : text::split(line, ' ')) words.push_back(std::string(text::trim(word)));
  }
  return std::ranges::all_of(std::vector<std::string>{"create", "delete", "list", "set", "get"},
                             [&](const auto& verb) { return std::ranges::count(words, verb) != 0; });
}

Arguments launch_arguments() { return {"-d", "-p", "3", "-m"}; }
Arguments quit_arguments() { return {"-q"}; }
Arguments server_status_arguments() { return {"server", "get", std::string(kServerName), "status"}; }

Arguments create_server_arguments(std::span<const SharedDevice> devices) {
  std::vector<std::string> uuids;
  for (const auto& device : devices) uuids.push_back(device.uuid.str());
  return {"server", "create", std::string(kServerName), "--uid=0",
          "--allowed-devices=" + text::join(uuids, ",")};
}

Arguments smallest_limit_arguments() {
  return {"server", "set", std::string(kServerName), "--active-thread-percentage=1",
          "--pinned-memory-limit=1M"};
}

Arguments create_namespace_arguments(const std::string& name) {
  return {"namespace", "create", name, of_server()};
}

Arguments set_namespace_arguments(const std::string& name, const NamespaceLimits& limits) {
  Arguments arguments{"namespace", "set", name, of_server(),
                      "--active-thread-percentage=" + std::to_string(limits.threads)};
  if (limits.mebibytes != 0)
    arguments.push_back("--pinned-memory-limit=" + std::to_string(limits.mebibytes) + "M");
  return arguments;
}

Arguments get_threads_arguments(const std::string& name) {
  return {"namespace", "get", name, std::string(kServerName), "active-thread-percentage"};
}
Arguments get_memory_arguments(const std::string& name) {
  return {"namespace", "get", name, std::string(kServerName), "pinned-memory-limit"};
}
Arguments list_clients_arguments() { return {"client", "list", of_server(), kCsvRows}; }
Arguments terminate_client_arguments(const std::string& pid) { return {"client", "terminate", pid}; }

bool is_server_ready(const std::string& output) { return text::trim(output) == "Ready"; }

bool holds_threads(const std::string& output, unsigned threads) {
  return lines_of_output(output).size() == 1 && holds_thread_percentage(output, threads);
}

// A size that was rounded down to the unit it is shown in is held too.
bool holds_memory(const std::string& output, std::uint64_t mebibytes) {
  const auto shown = std::string(text::trim(output));
  const auto number = shown.empty()
                          ? std::nullopt
                          : text::parse_unsigned(std::string_view(shown).substr(0, shown.size() - 1));
  if (!number || *number > (std::uint64_t{1} << 40)) return false;
  if (shown.back() == 'G') return *number == mebibytes >> 10;
  return *number == (shown.back() == 'M' ? mebibytes : shown.back() == 'K' ? mebibytes << 10 : ~mebibytes);
}

std::vector<std::string> clients_in(const std::string& output, std::size_t limit) {
  std::vector<std::string> pids;
  for (const auto& line : lines_of_output(output)) {
    auto pid = line.substr(0, line.find(','));
    if (text::parse_unsigned(pid) && pids.size() < limit) pids.push_back(std::move(pid));
  }
  return pids;
}

}  // namespace gpulet::mps
