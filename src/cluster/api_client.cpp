#include "cluster/api_client.h"

#include <netdb.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <optional>

#include "base/file.h"
#include "base/text.h"
#include "cluster/tls.h"

namespace gpulet::cluster {
namespace {

namespace http = boost::beast::http;

// Starts connecting; the socket becomes writable when that has ended.
Result<FileDescriptor> connect_to(const Access& access) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;  // never asks a name server, which would block
  addrinfo* found = nullptr;
  if (::getaddrinfo(access.host.c_str(), std::to_string(access.port).c_str(), &hints, &found) != 0) {
    return fail(Code::kInvalidArgument, "not a numeric address", access.host);
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  FileDescriptor fd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fail(errno_error("cannot make a socket", errno, access.host));
  if (::connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return fail(Code::kUnavailable, errno_error("cannot connect", errno).message(), access.host);
  }
  return fd;
}

std::string host_field(const Access& access) {
  const bool six = access.host.find(':') != std::string::npos;
  return (six ? "[" + access.host + "]" : access.host) + ":" + std::to_string(access.port);
}

std::string serialized(const ApiRequest& request, const Access& access, std::string_view token) {
  std::string text = request.method + " " + request.path + " HTTP/1.1\r\nHost: " + host_field(access);
  text.append("\r\nUser-Agent: gpulet\r\nAccept: application/json\r\nAuthorization: Bearer ").append(token);
  text.append("\r\nContent-Type: ").append(request.content_type);
  text.append("\r\nContent-Length: ").append(std::to_string(request.body.size())).append("\r\n\r\n");
  return text + request.body;
}

}  // namespace

// One TLS connection: connecting, handshake, then a request and its response at a time.
class ApiClient::Connection {
 public:
  static Result<std::unique_ptr<Connection>> open(Loop& loop, const Access& access,
                                                  std::function<void(Result<ApiResponse>)> done) {
    GPULET_TRY_ASSIGN(auto tls, TlsClient::create(access.host, access.ca_file));
    GPULET_TRY_ASSIGN(auto socket, connect_to(access));
    return std::unique_ptr<Connection>(new Connection(loop, std::move(tls), std::move(socket), std::move(done)));
  }

  // The response comes to `done`; an error ends the connection.
  void start(std::string request) {
    request_ = std::move(request);
    parser_.emplace();
    parser_->body_limit(kMaxResponseBytes);
    parser_->eager(true);
    buffer_.clear();
    if (secure_) advance();
  }
  bool reusable() const { return secure_ && !ended_; }

 private:
  Connection(Loop& loop, std::unique_ptr<TlsClient> tls, FileDescriptor socket,
             std::function<void(Result<ApiResponse>)> done)
      : loop_(loop), tls_(std::move(tls)), socket_(std::move(socket)), done_(std::move(done)) {
    await(EPOLLOUT);
  }

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
      const auto shaken = tls_->handshake();
      if (!shaken) {
        static_cast<void>(flush());  // the server is told why
        return end(fail(shaken.error()));
      }
      secure_ = *shaken;
    }
    if (secure_ && !request_.empty()) {
      if (auto written = tls_->write(request_); !written) return end(fail(written.error()));
      request_.clear();
    }
    if (secure_) {
      if (auto answer = read_response(); !answer || *answer) {
        if (!answer) return end(fail(answer.error()));
        return done_(std::move(**answer));
      }
    }
    if (auto flushed = flush(); !flushed) return end(fail(flushed.error()));
    if (ended_) return end(fail(Code::kUnavailable, "the API server closed the connection"));
    await(outgoing_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  }

  Status receive() {
    std::array<char, 16'384> bytes;
    for (;;) {
      const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (got > 0) {
        tls_->received({bytes.data(), static_cast<std::size_t>(got)});
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return {};
      if (got < 0) return fail(Code::kUnavailable, errno_error("cannot receive", errno).message());
      ended_ = true;
      return {};
    }
  }

  Status flush() {
    outgoing_ += tls_->to_send();
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
    GPULET_TRY_ASSIGN(const std::string plain, tls_->read(over));
    if (over) ended_ = true;
    if (!parser_) {
      if (!plain.empty()) ended_ = true;  // it speaks without being asked: not to be trusted with another request
      return std::nullopt;
    }
    buffer_ += plain;
    boost::beast::error_code error;
    while (!buffer_.empty() && !parser_->is_done()) {
      const std::size_t used = parser_->put(boost::asio::buffer(buffer_), error);
      buffer_.erase(0, used);
      if (error == http::error::need_more || (!error && used == 0)) break;
      if (error) return fail(Code::kIo, "not an HTTP response: " + error.message());
      // An eager parser of Beast 1.74 forgets its own limit for a body of known length.
      const auto length = parser_->content_length();
      if (length && *length > kMaxResponseBytes) return fail(Code::kIo, "the API server's response is too large");
    }
    if (ended_ && !parser_->is_done() && parser_->is_header_done()) {
      error = {};
      parser_->put_eof(error);  // a body without a length ends with the connection
      if (error) return fail(Code::kUnavailable, "the API server closed the connection within its response");
    }
    if (!parser_->is_done()) return std::nullopt;
    ApiResponse response{static_cast<int>(parser_->get().result_int()), std::move(parser_->get().body())};
    if (!parser_->get().keep_alive() || !buffer_.empty()) ended_ = true;
    parser_.reset();
    await(EPOLLIN);
    return response;
  }

  void end(Result<ApiResponse> result) {
    ended_ = true;
    ready_.reset();
    if (!parser_) return;  // between two requests: the next one finds it closed
    parser_.reset();
    done_(std::move(result));
  }

  Loop& loop_;
  std::unique_ptr<TlsClient> tls_;
  FileDescriptor socket_;
  std::function<void(Result<ApiResponse>)> done_;
  bool connected_ = false, secure_ = false, ended_ = false;
  std::string request_, outgoing_, buffer_;
  std::optional<http::response_parser<http::string_body>> parser_;
  std::uint32_t awaited_ = 0;
  Subscription ready_;
};

ApiClient::ApiClient(Loop& loop, Access access, Duration limit)
    : loop_(loop), access_(std::move(access)), limit_(limit) {}
ApiClient::~ApiClient() = default;

void ApiClient::request(ApiRequest request, Done done) {
  done_ = std::move(done);
  timeout_ = loop_.after(limit_,
                         [this] { finish(fail(Code::kDeadlineExceeded, "the API server did not answer in time")); });
  auto give_up = [this](const Error& error) {
    connection_.reset();
    later_ = loop_.after(Duration::zero(), [this, error] { finish(fail(error)); });
  };
  const auto token = read_file(access_.token_file, 1u << 16);
  if (!token) return give_up(token.error());
  if (!connection_ || !connection_->reusable()) {
    connection_.reset();
    auto opened = Connection::open(loop_, access_, [this](Result<ApiResponse> result) { finish(std::move(result)); });
    if (!opened) return give_up(opened.error());
    connection_ = std::move(*opened);
  }
  connection_->start(serialized(request, access_, text::trim(*token)));
}

void ApiClient::finish(Result<ApiResponse> result) {
  timeout_.reset();
  // From a turn of its own: the connection, from which this call comes, may then be closed.
  later_ = loop_.after(Duration::zero(), [this, result = std::move(result)]() mutable {
    if (!result) connection_.reset();
    const Done done = std::move(done_);
    done_ = nullptr;
    done(std::move(result));
  });
}

void ApiClient::close() { connection_.reset(); }

}  // namespace gpulet::cluster
