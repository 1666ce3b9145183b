#include "web/transport.h"

#include <sys/socket.h>

#include <cerrno>

namespace gpulet::web {
namespace {

class Plain final : public Transport {
 public:
  explicit Plain(int socket) : socket_(socket) {}

  Moved read(char* into, std::size_t size) override {
    ssize_t got;
    do {
      got = ::recv(socket_, into, size, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN) return {Outcome::kWantsRead};
    if (got <= 0) return {Outcome::kEnded};
    return {Outcome::kMoved, static_cast<std::size_t>(got)};
  }

  Moved write(const iovec* parts, std::size_t count) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = count;
    ssize_t put;
    do {
      put = ::sendmsg(socket_, &message, MSG_NOSIGNAL);
    } while (put < 0 && errno == EINTR);
    if (put < 0 && errno == EAGAIN) return {Outcome::kWantsWrite};
    if (put <= 0) return {Outcome::kEnded};
    return {Outcome::kMoved, static_cast<std::size_t>(put)};
  }

  void finish() override { ::shutdown(socket_, SHUT_WR); }

 private:
  int socket_;
};

}  // namespace

std::unique_ptr<Transport> plain_transport(int socket) { return std::make_unique<Plain>(socket); }

}  // namespace gpulet::web
