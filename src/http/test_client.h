// An HTTP client for the tests of HTTP servers, plain or through TLS: blocking, with a limit on every wait.
#pragma once

#include <crypt.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/test_certificate.h"

namespace gpulet::http {

class TestClient {
 public:
  explicit TestClient(std::uint16_t port, int timeout_s = 20)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{timeout_s, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  // To a Unix socket.
  explicit TestClient(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{20, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    connected_ = ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  // Through TLS from now on: showing `certificate` when asked, in one version when it is given. False when
  // the handshake fails.
  bool encrypt(const Certificate* certificate = nullptr, int version = 0) {
    context_.reset(::SSL_CTX_new(::TLS_client_method()), ::SSL_CTX_free);
    ::SSL_CTX_set_security_level(context_.get(), 0);
    if (version != 0) {
      SSL_CTX_set_min_proto_version(context_.get(), version);
      SSL_CTX_set_max_proto_version(context_.get(), version);
    }
    if (certificate != nullptr) {
      ::SSL_CTX_use_certificate(context_.get(), certificate->certificate.get());
      ::SSL_CTX_use_PrivateKey(context_.get(), certificate->key.get());
    }
    ssl_.reset(::SSL_new(context_.get()), ::SSL_free);
    ::SSL_set_fd(ssl_.get(), socket_.get());
    return ::SSL_connect(ssl_.get()) == 1;
  }
  // The common name of the server's certificate.
  std::string server_name() const {
    const std::unique_ptr<X509, decltype(&::X509_free)> shown(::SSL_get1_peer_certificate(ssl_.get()),
                                                              ::X509_free);
    char name[256] = "";
    if (shown)
      ::X509_NAME_get_text_by_NID(::X509_get_subject_name(shown.get()), NID_commonName, name, sizeof name);
    return name;
  }
  bool connected() const { return connected_; }
  int fd() const { return socket_.get(); }

  bool send_bytes(std::string_view bytes) {
    if (ssl_) return ::SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // One answer: its head, and as much body as it announces (none after HEAD). Empty when the connection
  // ended first.
  std::string read_response(bool with_body = true) {
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
  // Until what has come since the last call has `text` in it; what came, or empty when it never does.
  std::string read_until(std::string_view text) {
    while (pending_.find(text) == std::string::npos) {
      if (!receive()) return {};
    }
    return std::exchange(pending_, {});
  }
  // Until the other side closes; false when it does not.
  bool wait_closed() {
    while (receive()) pending_.clear();
    return last_ == 0 || errno == ECONNRESET;
  }

 private:
  bool receive() {
    char buffer[65536];
    last_ = ssl_ ? ::SSL_read(ssl_.get(), buffer, sizeof buffer)
                 : ::recv(socket_.get(), buffer, sizeof buffer, 0);
    if (last_ > 0) pending_.append(buffer, static_cast<std::size_t>(last_));
    return last_ > 0;
  }

  FileDescriptor socket_;
  std::shared_ptr<SSL_CTX> context_;
  std::shared_ptr<SSL> ssl_;
  bool connected_ = false;
  ssize_t last_ = 0;
  std::string pending_;
};

// `where`: a port of this host, or a Unix socket's path.
template <class Where>
std::string get(const Where& where, const std::string& path, const std::string& fields = "") {
  TestClient client(where);
  EXPECT_TRUE(client.connected());
  EXPECT_TRUE(
      client.send_bytes("GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + fields + "\r\n"));
  return client.read_response();
}

// bcrypt's hash of "secret"; `cost` "04" is its least.
inline std::string secret_hash(const std::string& cost = "04") {
  crypt_data data{};
  const char* made =
      ::crypt_rn("secret", ("$2b$" + cost + "$abcdefghijklmnopqrstuu").c_str(), &data, sizeof data);
  return made != nullptr ? made : "";
}

inline int status_code(const std::string& answer) {
  return answer.size() > 12 ? std::stoi(answer.substr(9, 3)) : 0;
}
inline std::string response_body(const std::string& answer) {
  const auto end = answer.find("\r\n\r\n");
  return end == std::string::npos ? std::string() : answer.substr(end + 4);
}

}  // namespace gpulet::http
