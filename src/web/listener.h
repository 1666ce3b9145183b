// The listener child: the only process of ours that the network can reach. It is this program started again,
// so nothing of the agent's memory is in it; it drops to a user of its own without capabilities, and runs
// under a seccomp filter with no file but its listening sockets and one end of a socket pair, through which
// the agent pushes who may connect and what it may say. It can be killed at any time: the agent starts
// another and nothing else notices but who watches, and the history of the last minutes. The child is
// listener_child.cpp.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "http/access_gate.h"
#include "http/socket.h"

namespace gpulet::web {

// What the child serves. Each page is complete and small (a few MiB at most).
struct Pages {
  bool healthy = true;        // /healthz: 200 or 503
  std::string health_text{};  // what is wrong, one line each
  bool ready = false;         // /readyz
  std::string ready_text{};
  std::string metrics{};       // /metrics, Prometheus text format 0.0.4
  std::string open_metrics{};  // the same as OpenMetrics 1.0, for who asks for it; empty: there is none
  // JSON of one line each for the node page: what changes rarely, the numbers of one sample, and who used
  // what in it. Empty: nothing is known yet. A change is sent to all subscribers.
  std::string node{};
  std::string now{};
  std::string use{};
  // `node` and `use` without names of processes, for clients that are not authenticated (http::Request). No
  // other page may have such names.
  std::string public_node{};
  std::string public_use{};
  // JSON of one line: the history of the samples for long ranges (agent/observe/sample_trends.h). No event.
  std::string trends{};
  // JSON of one line: what Pods and namespaces have used (agent/observe/usage_json.h). No event.
  std::string usage{};
  // Whether `metrics` and `open_metrics` are written. If not, a request for /metrics calls
  // ListenerOptions::on_metrics_wanted and waits for pages that have them.
  bool has_metrics = true;
};

// Pages older than this are no longer believed: every endpoint answers 503.
inline constexpr Duration kPagesMaxAge = std::chrono::seconds(10);
// All pages together. Larger ones are not published; the child goes on with the last until they are stale.
inline constexpr std::size_t kMaxPagesBytes = 16u << 20;

struct ListenerOptions {
  std::string program = "/proc/self/exe";  // what is executed as the child, by the name kListenerName
  Duration max_age = kPagesMaxAge;
  http::AccessRules access_rules{};  // from the first connection on; must be one that web::check takes
  // The same pages are served here too, without TLS and passwords: its file's mode says who may connect.
  std::shared_ptr<const http::LocalSocket> local{};
  // How many watch, on the loop, whenever that changes; 0 when the child is gone. May be empty. Must not
  // destroy the Listener.
  std::function<void(unsigned)> on_subscribers{};
  // A client asks for /metrics, and the pages last published have none, on the loop. May be empty. Must not
  // destroy the Listener.
  std::function<void()> on_metrics_wanted{};
};
// main() of that program calls run_listener_child() when it is called by this name.
inline constexpr const char* kListenerName = "gpulet-listener";

class Listener {
 public:
  // Binds `address` and starts the child. Restarts it with backoff from 100 ms to 10 s when it dies or
  // takes nothing any more; the socket stays open here, so that connections wait meanwhile instead of being
  // refused. `address`: "127.0.0.1:8080", "[::1]:8080", "localhost:8080", or ":8080" for every address of
  // the host; port 0 for any; empty where `options.local` is all. Errors: kInvalidArgument for a bad
  // address, kIo or kPermissionDenied when it cannot be bound or the child not started.
  static Result<std::unique_ptr<Listener>> start_listener(Loop& loop, const std::string& address,
                                                          ListenerOptions options = {});
  // Kills the child.
  virtual ~Listener() = default;

  // Hands the child what to serve from now on. Never blocks: a slow child gets the newest. A child that has
  // heard nothing for kPagesMaxAge answers 503, so that a stuck agent is seen as such.
  virtual void publish_pages(Pages pages) = 0;
  // Says that the pages last published still hold, for another kPagesMaxAge: a message of a few bytes. Does
  // nothing before the first publish_pages().
  virtual void confirm_pages() = 0;
  // Who may connect from now on. Connections made before get one more answer by their old terms.
  // Errors: as web::check; then the one before stays in force.
  virtual Status set_access_rules(http::AccessRules access) = 0;
  virtual std::uint16_t listening_port() const = 0;  // 0 without an address
  virtual pid_t child_pid() const = 0;               // 0 while there is none
  virtual std::uint64_t restarts() const = 0;        // since start
};

// The child's main: never returns. Its descriptors are 4 (socket pair), and 3 (the address's listening
// socket) and 5 (the node's own), of which one may be missing.
[[noreturn]] void run_listener_child();

// Gives up for good every right that the listener child does not need: user, groups, capabilities, the view
// of the file system, further descriptors and processes, and all system calls but those that serve an open
// socket.

// The child's user and group when the agent is root: its own, so that no other unprivileged process may
// signal it.
inline constexpr uid_t kListenerUser = 65'533;

// From here on: no privilege can be gained, no capability is held, the file system is empty where the
// kernel lets us have one of our own, at most `descriptors` are open at a time, and a system call outside
// the list kills the process. Dies with `parent`. A process that is not root keeps its user. Errors:
// whatever the kernel refuses, except the empty file system, which is done without (nothing can be opened
// anyway), and those of `start_threads`. That one is called where only the limits on system calls and
// processes are missing: the threads that it starts are in the sandbox too, and none can be started later.
Status enter_sandbox(pid_t parent, unsigned descriptors, const std::function<Status()>& start_threads = {});

}  // namespace gpulet::web
