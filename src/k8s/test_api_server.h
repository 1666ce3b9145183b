// An HTTPS server for tests: a thread for each connection, OpenSSL, certificates made on the spot, answers
// at will, whole or as a stream of chunks.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/test_certificate.h"

namespace gpulet::k8s {

struct Received {
  std::string head, body;
  std::string client;  // the common name of the client's certificate, empty without one

  // "GET /api/v1/nodes?watch=true"
  std::string line() const { return head.substr(0, head.find(" HTTP/1.1\r\n")); }
};

class TestApiServer {
 public:
  enum class Act { kRespond, kHang, kClose, kNoLength };

  // The body of a response in the making.
  class Stream {
   public:
    Stream(SSL* ssl, int fd, int stop) : ssl_(ssl), fd_(fd), stop_(stop) {}
    // One chunk. False when the client is gone.
    bool chunk(const std::string& bytes) {
      char size[32];
      std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
      return raw(size + bytes + "\r\n");
    }
    bool raw(const std::string& bytes) {
      open_ = open_ && SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())) > 0;
      return open_;
    }
    // False, at the latest after `milliseconds`, when the client has closed or the test is over.
    bool wait_open(int milliseconds) {
      pollfd both[2] = {{fd_, POLLIN, 0}, {stop_, POLLIN, 0}};
      open_ = open_ && ::poll(both, 2, milliseconds) == 0;
      return open_;
    }

   private:
    SSL* ssl_;
    int fd_, stop_;
    bool open_ = true;
  };
  // Writes the chunks; true ends the response properly, false closes the connection as it is.
  using Script = std::function<bool(Stream&)>;

  struct Reply {
    int status = 201;
    std::string body = "{}";
    Act act = Act::kRespond;
    Script script{};  // instead of the body
  };
  // Called for each request, one at a time, on a connection's thread.
  using Handler = std::function<Reply(const Received&)>;

  // With `clients`, whoever shows a certificate must have one that it signed.
  TestApiServer(const Certificate& certificate, Handler handler, const Certificate* clients = nullptr)
      : handler_(std::move(handler)) {
    context_.reset(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
    SSL_CTX_use_certificate(context_.get(), certificate.certificate.get());
    SSL_CTX_use_PrivateKey(context_.get(), certificate.key.get());
    if (clients != nullptr) {
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), clients->certificate.get());
      SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    }
    listening_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listening_.get(), 16), 0);
    ::getsockname(listening_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { accept_connections(); });
  }
  ~TestApiServer() {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
    for (auto& connection : threads_) connection.join();
  }

  std::uint16_t port() const { return port_; }
  std::vector<Received> received_requests() {
    std::lock_guard lock(mutex_);
    return received_;
  }
  int connections() {
    std::lock_guard lock(mutex_);
    return connections_;
  }

 private:
  // False when the test is over.
  bool readable(int fd) {
    pollfd both[2] = {{fd, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    while (::poll(both, 2, -1) < 0) {
    }
    return both[1].revents == 0;
  }

  void accept_connections() {
    sigset_t broken_pipe;  // a client that closed first is no reason to end
    ::sigemptyset(&broken_pipe);
    ::sigaddset(&broken_pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    while (readable(listening_.get())) {
      auto socket =
          std::make_shared<FileDescriptor>(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      const int on = 1;  // as Go's servers do: else a short answer waits for an acknowledgement, 40 ms
      ::setsockopt(socket->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      {
        std::lock_guard lock(mutex_);
        ++connections_;
      }
      join_ended();
      threads_.emplace_back();
      threads_.back() = std::thread([this, socket, own = std::prev(threads_.end())] {
        serve_connection(socket->get());
        std::lock_guard lock(mutex_);
        ended_.push_back(own);
      });
    }
  }

  // Until then a thread keeps its stack.
  void join_ended() {
    std::vector<std::list<std::thread>::iterator> ended;
    {
      std::lock_guard lock(mutex_);
      ended.swap(ended_);
    }
    for (const auto thread : ended) {
      thread->join();
      threads_.erase(thread);
    }
  }

  void serve_connection(int fd) {
    const std::shared_ptr<SSL> ssl(SSL_new(context_.get()), SSL_free);
    SSL_set_fd(ssl.get(), fd);
    if (accept_tls(ssl.get(), fd)) {
      while (serve_request(ssl.get(), fd)) {
      }
    }
    ERR_clear_error();
    ::shutdown(fd, SHUT_RDWR);
  }

  // A client that never begins must not hold the end of the test up.
  bool accept_tls(SSL* ssl, int fd) { return readable(fd) && SSL_accept(ssl) == 1; }

  static std::string client_common_name(SSL* ssl) {
    const std::shared_ptr<X509> certificate(SSL_get1_peer_certificate(ssl), X509_free);
    char name[128] = "";
    if (certificate) {
      X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name, sizeof name);
    }
    return name;
  }

  bool serve_request(SSL* ssl, int fd) {
    std::string bytes;
    std::size_t head = std::string::npos, size = 0;
    while (head == std::string::npos || bytes.size() < head + size) {
      if (SSL_pending(ssl) == 0 && !readable(fd)) return false;
      char buffer[4096];
      const int got = SSL_read(ssl, buffer, sizeof buffer);
      if (got <= 0) return false;
      bytes.append(buffer, static_cast<std::size_t>(got));
      head = bytes.find("\r\n\r\n");
      if (head == std::string::npos) continue;
      head += 4;
      size = std::stoul(bytes.substr(bytes.find("Content-Length: ") + 16));
    }
    const Received request{bytes.substr(0, head), bytes.substr(head, size), client_common_name(ssl)};
    {
      std::lock_guard lock(mutex_);
      received_.push_back(request);
    }
    Reply reply;
    {
      std::lock_guard lock(handling_);
      reply = handler_(request);
    }
    if (reply.act == Act::kClose) return false;
    if (reply.act == Act::kHang) {
      readable(-1);
      return false;
    }
    std::string text =
        "HTTP/1.1 " + std::to_string(reply.status) + " X\r\nContent-Type: application/json\r\n";
    if (reply.script) {
      text += "Transfer-Encoding: chunked\r\n\r\n";
      Stream stream(ssl, fd, stop_.get());
      return stream.raw(text) && reply.script(stream) && stream.raw("0\r\n\r\n");
    }
    if (reply.act == Act::kRespond) text += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
    text += "\r\n" + reply.body;
    SSL_write(ssl, text.data(), static_cast<int>(text.size()));
    return reply.act == Act::kRespond;
  }

  Handler handler_;
  std::shared_ptr<SSL_CTX> context_;
  FileDescriptor listening_;
  FileDescriptor stop_{::eventfd(0, EFD_CLOEXEC)};
  std::uint16_t port_ = 0;
  std::mutex mutex_, handling_;
  std::vector<Received> received_;
  int connections_ = 0;
  std::list<std::thread> threads_;  // of the connections; only the accepting thread changes it
  std::vector<std::list<std::thread>::iterator> ended_;
  std::thread thread_;
};

}  // namespace gpulet::k8s
