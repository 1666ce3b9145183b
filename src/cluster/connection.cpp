#include "cluster/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <limits>
#include <optional>

#include "base/file.h"

namespace gpulet::cluster {
namespace {

namespace http = boost::beast::http;

constexpr int kMostReads = 64;  // in one turn of the loop

// A server that went away without a word, or a firewall that forgot the connection, is noticed within a
// minute.
void keep_alive(int fd) {
  auto set = [fd](int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

// Starts connecting; the socket becomes writable when that has ended.
Result<FileDescriptor> connect_to(const Address& address) {
  FileDescriptor fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fail(errno_error("cannot make a socket", errno));
  keep_alive(fd.get());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(fd.get(), generic, address.size) != 0 && errno != EINPROGRESS) {
    return fail(Code::kUnavailable, errno_error("cannot connect", errno).message());
  }
  return fd;
}

class SocketConnection final : public Connection {
 public:
  SocketConnection(Loop& loop, std::unique_ptr<Channel> channel, FileDescriptor socket, std::string peer,
                   Done done)
      : loop_(loop),
        channel_(std::move(channel)),
        socket_(std::move(socket)),
        peer_(std::move(peer)),
        done_(std::move(done)) {
    await(EPOLLOUT);
  }

  void start(std::string request, StreamListener listener) override {
    request_ = std::move(request);
    listener_ = std::move(listener);
    streaming_ = false;
    parser_.emplace();
    // Not boost::none: Beast 1.74 takes it for less than every length where a head ends what has come so far.
    parser_->body_limit(listener_.piece ? std::numeric_limits<std::uint64_t>::max() : kMaxResponseBytes);
    parser_->eager(true);
    buffer_.clear();
    if (secure_) advance();
  }
  bool reusable() const override { return secure_ && !ended_; }
  bool connected() const override { return connected_; }

 private:
  void await(std::uint32_t events) {
    if (awaited_ == events && ready_) return;
    ready_.reset();
    awaited_ = events;
    ready_ = loop_.watch(socket_.get(), events, [this](std::uint32_t) { on_ready(); });
  }

  void on_ready() {
    if (!connected_) {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return end(fail(Code::kUnavailable, errno_error("cannot connect", error).message()));
      connected_ = true;
    }
    if (auto got = receive(); !got) return end(fail(got.error()));
    advance();
  }

  // As far as it goes without waiting.
  void advance() {
    if (!secure_) {
      const auto shaken = channel_->handshake();
      if (!shaken) {
        static_cast<void>(flush());  // the server is told why
        return end(fail(shaken.error()));
      }
      secure_ = *shaken;
    }
    if (secure_ && !request_.empty()) {
      if (auto written = channel_->write(request_); !written) return end(fail(written.error()));
      request_.clear();
    }
    if (secure_) {
      if (auto answer = read_response(); !answer || *answer) {
        if (!answer) return end(fail(answer.error()));
        return done_(std::move(**answer));
      }
    }
    if (auto flushed = flush(); !flushed) return end(fail(flushed.error()));
    if (ended_) return end(fail(Code::kUnavailable, peer_ + " closed the connection"));
    await(outgoing_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  }

  Status receive() {
    std::array<char, 16'384> bytes;
    // A fast sender waits its turn: the socket stays readable.
    for (int i = 0; i < kMostReads; ++i) {
      const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (got > 0) {
        channel_->received({bytes.data(), static_cast<std::size_t>(got)});
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return {};
      if (got < 0) return fail(Code::kUnavailable, errno_error("cannot receive", errno).message());
      ended_ = true;
      return {};
    }
    return {};
  }

  Status flush() {
    outgoing_ += channel_->to_send();
    while (!outgoing_.empty()) {
      const ssize_t put = ::send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0 && errno == EAGAIN) return {};
      if (put < 0) return fail(Code::kUnavailable, errno_error("cannot send", errno).message());
      outgoing_.erase(0, static_cast<std::size_t>(put));
    }
    return {};
  }

  // nullopt until the whole response is there.
  Result<std::optional<ApiResponse>> read_response() {
    bool over = false;
    GPULET_TRY_ASSIGN(const std::string plain, channel_->read(over));
    if (over) ended_ = true;
    if (!parser_) {
      if (!plain.empty())
        ended_ = true;  // it speaks without being asked: not to be trusted with another request
      return std::nullopt;
    }
    buffer_ += plain;
    boost::beast::error_code error;
    while (!buffer_.empty() && !parser_->is_done()) {
      const std::size_t used = parser_->put(boost::asio::buffer(buffer_), error);
      buffer_.erase(0, used);
      if (error && error != http::error::need_more) {
        return fail(Code::kIo, "not an HTTP response: " + error.message());
      }
      GPULET_TRY(pass_on());
      // An eager parser of Beast 1.74 forgets its own limit for a body of known length.
      const auto length = parser_->is_header_done() ? parser_->content_length() : boost::none;
      if (!streaming_ && length && *length > kMaxResponseBytes) return fail(too_large());
      if (error || used == 0) break;
    }
    if (ended_ && !parser_->is_done() && parser_->is_header_done()) {
      error = {};
      parser_->put_eof(error);  // a body without a length ends with the connection
      if (error) return fail(Code::kUnavailable, peer_ + " closed the connection within its response");
    }
    if (!parser_->is_done()) return std::nullopt;
    ApiResponse response{static_cast<int>(parser_->get().result_int()), std::move(parser_->get().body())};
    if (!parser_->get().keep_alive() || !buffer_.empty()) ended_ = true;
    parser_.reset();
    await(EPOLLIN);
    return response;
  }

  Error too_large() const { return Error(Code::kIo, peer_ + "'s response is too large"); }

  // To the listener, what there is of a successful response's body. A parser that is to stream has no limit
  // of its own; any other body is held to it here.
  Status pass_on() {
    if (!listener_.piece || !parser_->is_header_done()) return {};
    if (parser_->get().result_int() / 100 != 2) {
      return parser_->get().body().size() > kMaxResponseBytes ? Status(fail(too_large())) : Status();
    }
    if (!std::exchange(streaming_, true) && listener_.begun) listener_.begun();
    const std::string piece = std::exchange(parser_->get().body(), {});
    return piece.empty() ? Status() : listener_.piece(piece);
  }

  void end(Result<ApiResponse> result) {
    ended_ = true;
    ready_.reset();
    if (!parser_) return;  // between two requests: the next one finds it closed
    parser_.reset();
    done_(std::move(result));
  }

  Loop& loop_;
  std::unique_ptr<Channel> channel_;
  FileDescriptor socket_;
  const std::string peer_;
  Done done_;
  StreamListener listener_;
  bool connected_ = false, secure_ = false, ended_ = false, streaming_ = false;
  std::string request_, outgoing_, buffer_;
  std::optional<http::response_parser<http::string_body>> parser_;
  std::uint32_t awaited_ = 0;
  Subscription ready_;
};

}  // namespace

Result<std::unique_ptr<Connection>> Connection::open(Loop& loop, std::unique_ptr<Channel> channel,
                                                     const Address& address, std::string peer, Done done) {
  GPULET_TRY_ASSIGN(auto socket, connect_to(address));
  return std::unique_ptr<Connection>(std::make_unique<SocketConnection>(
      loop, std::move(channel), std::move(socket), std::move(peer), std::move(done)));
}

}  // namespace gpulet::cluster
