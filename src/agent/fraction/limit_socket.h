// The Unix socket at which gpulet-hook asks for memory limits. Only processes of one user are answered (the
// kernel says whose they are), one line each. A peer that sends nothing, too much or too slowly is closed; it
// holds up nobody else.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/fraction/limit_request.h"
#include "base/file.h"
#include "base/loop.h"
#include "config/gpulet_settings.h"

namespace gpulet::agent {

inline constexpr std::size_t kMaxLimitConnections = 128;
inline constexpr Duration kLimitRequestLimit = std::chrono::seconds(2);  // for the line to arrive

// The same on the host and in the agent's Pod.
inline std::string limit_socket_path(const config::FractionSettings& settings) {
  return settings.limit_dir + "/agent.sock";
}

// Loop's thread only.
class LimitSocket {
 public:
  using Done = std::function<void(const Status&)>;
  // Calls `done` once, at once or later from the loop.
  using Handler = std::function<void(const LimitRequest&, Done done)>;

  // Listens at `path` (mode 0600), in place of a socket that is there; makes its directory (0700).
  // `allowed_user`: whose processes are answered. Errors: those of bind_unix_socket() and make_directories().
  static Result<std::unique_ptr<LimitSocket>> open_socket(Loop& loop, const std::string& path,
                                                          uid_t allowed_user, Handler handler);
  // Removes the socket, unless it has been replaced; those that wait get no answer.
  ~LimitSocket();
  LimitSocket(const LimitSocket&) = delete;

  std::size_t connections() const { return connections_.size(); }

 private:
  struct Connection {
    FileDescriptor socket;
    std::string received;
    Subscription reading, limit;
  };

  LimitSocket(Loop& loop, std::string path, uid_t allowed_user, Handler handler)
      : loop_(loop), path_(std::move(path)), allowed_user_(allowed_user), handler_(std::move(handler)) {}
  void accept_some();
  void read_some(std::uint64_t id);
  void use_line(std::uint64_t id, const std::string& line);
  void answer(std::uint64_t id, const Status& status);

  Loop& loop_;
  std::string path_;
  uid_t allowed_user_;
  Handler handler_;
  FileDescriptor listener_;
  std::optional<FileIdentity> identity_;  // of the file
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t next_ = 0;
  Subscription accepting_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
