// One client's connection to the Server: reads a request, writes its answer, and again.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/loop.h"
#include "web/server.h"

namespace gpulet::web {

class Connection {
 public:
  // `closed` is called from the loop, once, when there is nothing left to do; it destroys this object.
  Connection(Loop& loop, FileDescriptor socket, const Site& site, Duration limit, std::function<void()> closed);
  ~Connection();

  // Reads what is there already. False when the connection is over.
  bool serve();

 private:
  struct Parser;  // Beast's, behind a pointer: its headers are heavy

  void on_ready(std::uint32_t events);
  bool fill();
  // Takes what is in the buffer. False when the connection is over.
  bool parse();
  void reply(Answer answer, bool head_only, bool keep_alive);
  bool flush();
  void await(std::uint32_t events);
  void start_limit();
  void close();

  Loop& loop_;
  FileDescriptor socket_;
  const Site& site_;
  Duration limit_;
  std::function<void()> closed_;

  std::unique_ptr<Parser> parser_;
  std::array<char, kMaxHeadBytes> buffer_;
  std::size_t filled_ = 0;

  std::string head_;
  std::shared_ptr<const std::string> body_;
  std::size_t sent_ = 0;  // of head and body
  bool writing_ = false, keep_alive_ = false, lingering_ = false;
  std::size_t drained_ = 0;

  std::uint32_t awaited_ = 0;
  Subscription ready_, timeout_;
};

}  // namespace gpulet::web
