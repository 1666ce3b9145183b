// State and commands of a simulated MPS control daemon of protocol 3: servers, their namespaces and clients.
// Commands are arguments of the control program ("namespace create a --server=s"); modules that only
// partition SMs or account memory are not simulated. Source: NVIDIA, "MPS v3 Interface" and "MPS v3
// Namespaces" (driver 615); measured by NVIDIA Dynamo, "Per-GPU Compute and Memory Limits with MPS". Exit
// codes and the texts of refusals are this simulation's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/mps/control.h"

namespace gpulet::sim::mps {

inline constexpr std::size_t kMaxNameLength = 64;  // of a server or namespace
inline constexpr std::string_view kDefaultNamespace = "default";

// Of one run of the control program.
struct Answer {
  int code = 0;
  std::string text;  // with line ends
};

class NamespaceControl {
 public:
  // `devices`: those that the daemon can see. `pipe_directory`: for the columns of lists.
  NamespaceControl(std::vector<VisibleDevice> devices, std::string pipe_directory, bool is_multi_user,
                   ServerProcesses processes);

  // `user`: who runs the control program.
  Answer execute_command(uid_t user, const std::vector<std::string>& arguments);
  void quit();
  bool is_quitting() const { return is_quitting_; }

  // Where clients connect, below the pipe directory: "SERVER" and "SERVER/NAMESPACE".
  std::vector<std::string> client_directories() const;
  // Adds a process that starts to use CUDA to the namespace of that directory; "": to the default one of the
  // first server. Its limits: the namespace's percentage whatever the client asks for, and the lower of both
  // memory limits. Errors: kUnavailable without the server or namespace; kPermissionDenied for another user
  // than the server's, unless the daemon is multi-user; kFailedPrecondition with kMaxClients clients.
  Result<Limits> add_client(const std::string& directory, uid_t user, const Client& client);
  void remove_client(pid_t client);
  // As Control's.
  std::vector<pid_t> take_terminated() { return std::exchange(terminated_, {}); }
  void remove_server(pid_t process);

 private:
  struct NamespaceLimits {
    std::optional<unsigned> threads;
    std::optional<std::uint64_t> memory;  // bytes
    unsigned priority = 0;
  };
  struct Namespace {
    NamespaceLimits limits;
    std::vector<pid_t> clients;
  };
  struct Server {
    uid_t user = 0;
    pid_t process = 0;
    std::vector<std::string> allowed_devices;
    std::map<std::string, Namespace> namespaces;
  };
  struct Command {
    std::string verb;
    std::vector<std::string> names;              // positional arguments
    std::map<std::string, std::string> options;  // "server" → "s"; of a flag: ""
  };

  Answer execute_server(uid_t user, const Command& command);
  Answer create_server(uid_t user, const Command& command);
  Answer delete_server(const Command& command);
  Answer execute_namespace(const Command& command);
  Answer list_namespaces(const Command& command) const;
  Answer execute_client(const Command& command);
  Answer list_devices(const Command& command) const;
  Answer terminate_client(const std::string& pid);
  void end_clients(const Namespace& space);
  std::vector<std::string> server_row(const std::string& name, const Server& server) const;
  std::vector<std::string> namespace_row(const std::string& server, const std::string& name,
                                         const Namespace& space) const;

  std::vector<VisibleDevice> devices_;
  std::string pipe_directory_;
  bool is_multi_user_;
  ServerProcesses processes_;
  std::map<std::string, Server> servers_;
  std::vector<pid_t> terminated_;
  bool is_quitting_ = false;
};

// "4G", "512M", "1024K" in bytes. Errors: kInvalidArgument.
Result<std::uint64_t> parse_memory_size(const std::string& text);
// In the greatest unit that has no rest.
std::string memory_size_text(std::uint64_t bytes);

}  // namespace gpulet::sim::mps
