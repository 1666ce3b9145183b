// State and commands of a simulated MPS control daemon: the commands of nvidia-cuda-mps-control, one line
// each, with output like the real one's. Sockets and processes are in sim/mps/daemon.h. Source:
// nvidia-cuda-mps-control(1), NVIDIA's MPS documentation, output in users' reports.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sim/mps/sm_partitions.h"

namespace gpulet::sim::mps {

// A GPU or MIG device that the daemon sees; its ordinal is its index in the list.
struct VisibleDevice {
  std::string uuid;
  bool exclusive = false;  // compute mode EXCLUSIVE_PROCESS
  unsigned sms = 0, sms_of_chunk = 0;
};

// Limits of a client, or of each client of a server.
struct Limits {
  double threads = 100;
  // MiB by device as named in the command: "0", or a UUID. As in the real one, a limit by UUID is shown but
  // not enforced.
  std::map<std::string, std::uint64_t> memory_mib{};
  unsigned sms = 0;  // of its SM partition; 0: none
};

struct Client {
  pid_t pid = 0;
  Limits limits;               // requested in its environment
  std::string sm_partition{};  // CUDA_MPS_SM_PARTITION
};

// Starts and ends server processes.
struct ServerProcesses {
  std::function<Result<pid_t>(uid_t)> start;
  std::function<void(pid_t)> end;
};

inline constexpr std::size_t kMaxClients = 48;  // of one server

class Control {
 public:
  // `has_sm_partitions`: -S.
  Control(std::vector<VisibleDevice> devices, ServerProcesses processes, bool has_sm_partitions = false);

  // Executes a command. Returns its output with line ends.
  std::string execute_command(const std::string& line);
  bool is_quitting() const { return quitting_; }

  // Adds a process that starts to use CUDA to its user's server, which is started if needed. Returns its
  // limits. Errors: kUnavailable while another user's clients are served; kFailedPrecondition with
  // kMaxClients clients, and with -S for one that names no partition.
  Result<Limits> add_client(uid_t user, const Client& client);
  void remove_client(pid_t client);
  // The clients that terminate_client has ended since the last call: their work is over, and they get
  // CUDA_ERROR_MPS_CLIENT_TERMINATED.
  std::vector<pid_t> take_terminated() { return std::exchange(terminated_, {}); }
  void remove_server(pid_t server);

 private:
  struct Server {
    uid_t user = 0;
    Limits limits;
    std::vector<Client> clients;
  };
  using Words = std::vector<std::string>;

  std::string start_server(const Words& words);
  std::string server_list() const;
  std::string client_list(const Words& words) const;
  std::string device_client_list(const Words& words) const;
  std::string process_list() const;
  std::string thread_percentage(const Words& words, bool set, bool of_server);
  std::string memory_limit(const Words& words, bool set, bool of_server);
  std::string terminate_client(const Words& words);
  std::string sm_partition(const Words& words);
  void leave_partition(const Client& client);
  Result<pid_t> spawn_server(uid_t user);
  Server* find(const std::string& pid);
  const Server* find(const std::string& pid) const;
  bool has_device(const std::string& device) const;

  std::vector<VisibleDevice> devices_;
  std::optional<SmPartitions> partitions_;
  ServerProcesses processes_;
  Limits defaults_;
  std::map<pid_t, Server> servers_;
  std::vector<pid_t> terminated_;
  bool quitting_ = false;
};

// Parses "4096M" or "3G" as MiB. Errors: kInvalidArgument.
Result<std::uint64_t> parse_memory(const std::string& text);
// Formats like the real one: whole GiB, rounded down, from 1 GiB on.
std::string memory_text(std::uint64_t mib);
// Parses "0=4096M,1=3G" of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT.
Result<std::map<std::string, std::uint64_t>> parse_memory_limits(const std::string& text);
// Parses a percentage above 0 and up to 100.
Result<double> parse_percentage(const std::string& text);
// "25.0"
std::string percentage_text(double percentage);

}  // namespace gpulet::sim::mps
