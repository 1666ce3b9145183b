// One client's connection to the Server: reads a request, has it answered, writes the answer, and again; or,
// once it watches, writes what is told.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/loop.h"
#include "web/door.h"
#include "web/server.h"
#include "web/transport.h"

namespace gpulet::web {

// What a watcher may be behind: more, and it is dropped. It comes again and gets the newest.
inline constexpr std::size_t kMaxBehind = 8;  // texts
inline constexpr std::size_t kMaxBehindBytes = 1u << 20;

class Connection {
 public:
  // `closed` is called from the loop, once, when there is nothing left to do; it destroys this object.
  Connection(Loop& loop, FileDescriptor socket, Service& service, Door& door, const ServerLimits& limits,
             std::function<void()> closed);
  ~Connection();

  // Reads what is there already. False when the connection is over.
  bool serve();
  bool watching() const { return static_cast<bool>(watching_); }

 private:
  struct Parser;  // Beast's, behind a pointer: its headers are heavy

  void on_ready();
  // Plain or TLS, by the door and the client's first byte. False when the connection is over; no transport
  // yet when the client has not said anything.
  bool choose_transport();
  // Reads once. kMoved also for what is only thrown away.
  Transport::Outcome fill();
  // Takes what is in the buffer. False when the connection is over.
  bool parse();
  // Has it answered: now, or later by on_answer().
  void ask(bool head_only, bool keep_alive);
  void on_answer(Answer answer, bool head_only, bool keep_alive);
  // It came in by the rules that are in force.
  bool current() const { return generation_ == door_.generation(); }
  void watch();
  void on_told(const SharedText& text);
  void reply(Answer answer, bool head_only, bool keep_alive);
  bool flush();
  void await(std::uint32_t events);
  void start_limit(Duration limit);
  void close();

  Loop& loop_;
  FileDescriptor socket_;
  Service& service_;
  Door& door_;
  std::uint64_t generation_;  // of the door when this came in
  const ServerLimits& limits_;
  std::function<void()> closed_;

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Parser> parser_;
  std::string buffer_;  // grows to limits_.head_bytes
  std::size_t filled_ = 0;

  std::deque<SharedText> out_;
  std::size_t sent_ = 0;  // of the first of them
  bool keep_alive_ = false, lingering_ = false;
  bool asking_ = false, answering_ = false;  // inside the service's call; until it has answered
  std::size_t drained_ = 0;
  Subscription watching_;

  std::uint32_t awaited_ = 0;
  Subscription ready_, timeout_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::web
