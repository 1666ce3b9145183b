// A plain HTTP client for the tests of this room: blocking, with a limit on every wait.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "base/file.h"

namespace gpulet::web {

class Client {
 public:
  explicit Client(std::uint16_t port, int timeout_s = 20) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{timeout_s, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  bool connected() const { return connected_; }
  int fd() const { return socket_.get(); }

  bool send(std::string_view bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  // One answer: its head, and as much body as it announces (none after HEAD). Empty when the connection ended first.
  std::string answer(bool with_body = true) {
    while (pending_.find("\r\n\r\n") == std::string::npos) {
      if (!receive()) return {};
    }
    const std::size_t head = pending_.find("\r\n\r\n") + 4;
    const std::size_t field = pending_.find("Content-Length: ");
    const std::size_t size = with_body && field < head ? std::stoul(pending_.substr(field + 16)) : 0;
    while (pending_.size() < head + size) {
      if (!receive()) return {};
    }
    const std::string whole = pending_.substr(0, head + size);
    pending_.erase(0, head + size);
    return whole;
  }
  // Until the other side closes; false when it does not.
  bool closed() {
    while (receive()) pending_.clear();
    return last_ == 0 || errno == ECONNRESET;
  }

 private:
  bool receive() {
    char buffer[65536];
    last_ = ::recv(socket_.get(), buffer, sizeof buffer, 0);
    if (last_ > 0) pending_.append(buffer, static_cast<std::size_t>(last_));
    return last_ > 0;
  }

  FileDescriptor socket_;
  bool connected_ = false;
  ssize_t last_ = 0;
  std::string pending_;
};

inline std::string get(std::uint16_t port, const std::string& path) {
  Client client(port);
  EXPECT_TRUE(client.connected());
  EXPECT_TRUE(client.send("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  return client.answer();
}

inline int status_of(const std::string& answer) { return answer.size() > 12 ? std::stoi(answer.substr(9, 3)) : 0; }
inline std::string body_of(const std::string& answer) {
  const auto end = answer.find("\r\n\r\n");
  return end == std::string::npos ? std::string() : answer.substr(end + 4);
}

}  // namespace gpulet::web
