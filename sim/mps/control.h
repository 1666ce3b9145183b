// What a simulated MPS control daemon keeps and how it answers: the commands of nvidia-cuda-mps-control, one
// line each, in the real one's form. No socket and no process here: sim/mps/daemon.h has those.
// Source: nvidia-cuda-mps-control(1) and NVIDIA's MPS documentation; forms of answers as users report them.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::sim::mps {

// A GPU or MIG device that the daemon sees; its ordinal is its place in the list.
struct VisibleDevice {
  std::string uuid;
  bool exclusive = false;  // compute mode EXCLUSIVE_PROCESS
};

// What a client, or each client of a server, may use at most.
struct Limits {
  double threads = 100;
  // MiB by device as it was named: "0", or a UUID. One that was named by its UUID is kept and shown, and
  // holds nobody back: so it is with the real one.
  std::map<std::string, std::uint64_t> memory_mib{};
};

struct Client {
  pid_t pid = 0;
  Limits limits;  // as it asks for them in its environment
};

// Starts and ends server processes.
struct ServerProcesses {
  std::function<Result<pid_t>(uid_t)> start;
  std::function<void(pid_t)> end;
};

inline constexpr std::size_t kMaxClients = 48;  // of one server

class Control {
 public:
  Control(std::vector<VisibleDevice> devices, ServerProcesses processes);

  // What is printed for the command, with its line ends.
  std::string answer(const std::string& line);
  bool quitting() const { return quitting_; }

  // A process that begins to use CUDA: the server of its user serves it, a new one where there is none.
  // Returns what it may use. Errors: kUnavailable while another user's clients are served;
  // kFailedPrecondition with kMaxClients there already.
  Result<Limits> attach(uid_t user, const Client& client);
  void detach(pid_t client);
  void server_ended(pid_t server);

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
  std::string processes() const;
  std::string threads(const Words& words, bool set, bool of_server);
  std::string memory(const Words& words, bool set, bool of_server);
  std::string terminate_client(const Words& words);
  Result<pid_t> new_server(uid_t user);
  Server* find(const std::string& pid);
  const Server* find(const std::string& pid) const;
  bool knows(const std::string& device) const;

  std::vector<VisibleDevice> devices_;
  ServerProcesses processes_;
  Limits defaults_;
  std::map<pid_t, Server> servers_;
  bool quitting_ = false;
};

// "4096M", "3G" → MiB; kInvalidArgument for anything else.
Result<std::uint64_t> parse_memory(const std::string& text);
// As the real one shows it: from 1 GiB on in whole GiB, rounded down.
std::string show_memory(std::uint64_t mib);
// "0=4096M,1=3G" of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT.
Result<std::map<std::string, std::uint64_t>> parse_memory_limits(const std::string& text);
// Above 0, up to 100.
Result<double> parse_percentage(const std::string& text);
// "25.0"
std::string show_percentage(double percentage);

}  // namespace gpulet::sim::mps
