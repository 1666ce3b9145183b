#include "http/client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <array>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <limits>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::http {
namespace {

namespace beast = boost::beast::http;

constexpr int kMaxReadsPerTurn = 64;  // of the loop

// Notices within a minute that a server vanished, or that a firewall forgot the connection.
void enable_keep_alive(int fd) {
  auto set = [fd](int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

// Starts connecting; the socket becomes writable when the attempt has ended.
Result<FileDescriptor> connect_to(const SocketAddress& address) {
  const bool local = address.storage.ss_family == AF_UNIX;
  FileDescriptor fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return fail(errno_error("cannot make a socket", errno));
  if (!local) enable_keep_alive(fd.get());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.storage);
  if (::connect(fd.get(), generic, address.size) == 0 || errno == EINPROGRESS) return fd;
  if (local && errno == EAGAIN) return fail(Code::kUnavailable, "too many clients are waiting to connect");
  const Error error = errno_error("cannot connect", errno);
  if (local) return fail(error);
  return fail(Code::kUnavailable, error.message());
}

std::string serialize_request(const ClientRequest& request) {
  std::string text = request.method + " " + request.path + " HTTP/1.1\r\nHost: " + request.host;
  const auto add = [&text](std::string_view name, std::string_view value) {
    if (!value.empty()) text.append("\r\n").append(name).append(": ").append(value);
  };
  add("User-Agent", "gpulet");
  add("Accept", request.accept);
  add("Authorization", request.authorization);
  add("Content-Type", request.content_type);
  add("Content-Length", std::to_string(request.body.size()));
  if (request.close) add("Connection", "close");
  return text + "\r\n\r\n" + request.body;
}

class SocketConnection final : public ClientConnection {
 public:
  SocketConnection(Loop& loop, FileDescriptor socket, std::unique_ptr<Transport> transport, std::string peer,
                   Done done)
      : loop_(loop),
        socket_(std::move(socket)),
        transport_(std::move(transport)),
        peer_(std::move(peer)),
        done_(std::move(done)) {
    await_events(EPOLLOUT);
  }

  void start_request(const ClientRequest& request, BodyReceiver receiver) override {
    outgoing_ = serialize_request(request);
    receiver_ = std::move(receiver);
    streaming_ = cut_ = false;
    parser_.emplace();
    // Beast 1.74 treats boost::none as less than any length if the bytes so far end with the header.
    parser_->body_limit(receiver_.on_piece ? std::numeric_limits<std::uint64_t>::max() : kMaxResponseBytes);
    parser_->eager(true);
    buffer_.clear();
    if (connected_) advance();
  }
  bool is_reusable() const override { return connected_ && !ended_; }
  bool is_connected() const override { return connected_; }

 private:
  void await_events(std::uint32_t events) {
    if (awaited_ == events && ready_) return;
    ready_.reset();
    awaited_ = events;
    ready_ = loop_.watch_descriptor(socket_.get(), events, [this](std::uint32_t) { on_ready(); });
  }

  void on_ready() {
    if (!connected_) {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0)
        return end_request(fail(Code::kUnavailable, errno_error("cannot connect", error).message()));
      connected_ = true;
    }
    advance();
  }

  // Reads and writes as far as possible without blocking. Received bytes are read first: the server may have
  // refused the request and closed the connection before all of it is written.
  void advance() {
    wants_write_ = false;
    if (auto read = read_available(); !read) return end_request(fail(read.error()));
    if (is_complete()) return finish_response();
    if (!ended_) {
      if (auto written = write_outgoing(); !written) return end_request(fail(written.error()));
    }
    if (ended_) return end_request(fail(Code::kUnavailable, peer_ + " closed the connection"));
    await_events(wants_write_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }

  Status read_available() {
    std::array<char, 16'384> bytes;
    // After this number of reads, other connections are served; the socket stays readable.
    for (int i = 0; i < kMaxReadsPerTurn && !ended_; ++i) {
      const auto read = transport_->read_some(bytes.data(), bytes.size());
      switch (read.outcome) {
        case Transport::Outcome::kTransferred:
          GPULET_TRY(parse_bytes({bytes.data(), read.bytes}));
          if (is_complete()) return {};
          break;
        case Transport::Outcome::kWantsRead:
          return {};
        case Transport::Outcome::kWantsWrite:
          wants_write_ = true;
          return {};
        case Transport::Outcome::kEnded:
          ended_ = true;
          GPULET_TRY(transport_->end_reason());
          return parse_end();
      }
    }
    return {};
  }

  Status write_outgoing() {
    while (!outgoing_.empty()) {
      const iovec part{outgoing_.data(), outgoing_.size()};
      const auto written = transport_->write_some(&part, 1);
      switch (written.outcome) {
        case Transport::Outcome::kTransferred:
          outgoing_.erase(0, written.bytes);
          break;
        case Transport::Outcome::kWantsRead:
          return {};
        case Transport::Outcome::kWantsWrite:
          wants_write_ = true;
          return {};
        case Transport::Outcome::kEnded:
          ended_ = true;
          return transport_->end_reason();
      }
    }
    return {};
  }

  Status parse_bytes(std::string_view bytes) {
    if (!parser_) {
      ended_ = true;  // bytes without a request: the connection is not reused
      return {};
    }
    buffer_ += bytes;
    boost::beast::error_code error;
    while (!buffer_.empty() && !is_complete()) {
      const std::size_t used = parser_->put(boost::asio::buffer(buffer_), error);
      buffer_.erase(0, used);
      if (error && error != beast::error::need_more) {
        return fail(Code::kIo, "not an HTTP response: " + error.message());
      }
      GPULET_TRY(deliver_body());
      // An eager parser of Beast 1.74 ignores its limit for a body of known length.
      const auto length = parser_->is_header_done() ? parser_->content_length() : boost::none;
      if (!streaming_ && !receiver_.error_body_limit && length && *length > kMaxResponseBytes)
        return fail(too_large());
      if (error || used == 0) break;
    }
    return {};
  }

  // A body without a length ends with the connection.
  Status parse_end() {
    if (!parser_ || parser_->is_done() || !parser_->is_header_done()) return {};
    boost::beast::error_code error;
    parser_->put_eof(error);
    if (error) return fail(Code::kUnavailable, peer_ + " closed the connection within its response");
    return {};
  }

  bool is_complete() const { return parser_ && (parser_->is_done() || cut_); }

  Error too_large() const { return Error(Code::kIo, peer_ + "'s response is too large"); }

  // Passes on the body of a successful response. The parser of a streamed response has no limit of its own,
  // so the body of an unsuccessful one is limited here.
  Status deliver_body() {
    if (!receiver_.on_piece || !parser_->is_header_done()) return {};
    std::string& body = parser_->get().body();
    if (parser_->get().result_int() / 100 != 2) {
      if (receiver_.error_body_limit) {
        cut_ = body.size() >= *receiver_.error_body_limit;
        return {};
      }
      return body.size() > kMaxResponseBytes ? Status(fail(too_large())) : Status();
    }
    if (!std::exchange(streaming_, true) && receiver_.on_head) receiver_.on_head();
    const std::string piece = std::exchange(body, {});
    return piece.empty() ? Status() : receiver_.on_piece(piece);
  }

  void finish_response() {
    ClientResponse response{static_cast<int>(parser_->get().result_int()), std::move(parser_->get().body())};
    if (cut_) response.body.resize(*receiver_.error_body_limit);
    if (cut_ || !parser_->get().keep_alive() || !buffer_.empty()) ended_ = true;
    parser_.reset();
    await_events(EPOLLIN);
    done_(std::move(response));
  }

  void end_request(Result<ClientResponse> result) {
    ended_ = true;
    ready_.reset();
    if (!parser_) return;  // between two requests: the next one finds the connection closed
    parser_.reset();
    done_(std::move(result));
  }

  Loop& loop_;
  FileDescriptor socket_;
  std::unique_ptr<Transport> transport_;
  const std::string peer_;
  Done done_;
  BodyReceiver receiver_;
  bool connected_ = false, ended_ = false, wants_write_ = false;
  bool streaming_ = false, cut_ = false;  // of the current response
  std::string outgoing_, buffer_;
  std::optional<beast::response_parser<beast::string_body>> parser_;
  std::uint32_t awaited_ = 0;
  Subscription ready_;
};

class ConnectionGet final : public HttpGet {
 public:
  ConnectionGet(Loop& loop, Callbacks callbacks) : loop_(loop), callbacks_(std::move(callbacks)) {}

  Status begin(const SocketAddress& address, const std::string& host, const std::string& path) {
    GPULET_TRY_ASSIGN(connection_,
                      ClientConnection::open_connection(
                          loop_, plain_client(), address, "the agent",
                          [this](const Result<ClientResponse>& response) { on_response(response); }));
    restart_timer(kGetHeadLimit, "no response");
    connection_->start_request({.path = path, .host = host, .close = true},
                               {.on_head =
                                    [this] {
                                      restart_timer(kGetIdleLimit, "no data");
                                      if (callbacks_.on_head) callbacks_.on_head();
                                    },
                                .on_piece =
                                    [this](std::string_view piece) {
                                      restart_timer(kGetIdleLimit, "no data");
                                      return callbacks_.on_piece(piece);
                                    },
                                .error_body_limit = kMaxErrorBodyBytes});
    return {};
  }

 private:
  void restart_timer(Duration limit, const char* what) {
    timer_ = loop_.after(limit, [this, limit, what] {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit).count();
      finish(fail(Code::kUnavailable, std::string(what) + " for " + std::to_string(seconds) + " s"));
    });
  }

  // In a later turn of the loop: only then may the connection, which calls this, be closed.
  void on_response(const Result<ClientResponse>& response) {
    timer_ = loop_.after(Duration::zero(),
                         [this, outcome = response ? response_outcome(*response)
                                                   : Status(fail(response.error()))] { finish(outcome); });
  }

  static Status response_outcome(const ClientResponse& response) {
    if (response.status == 200) return {};
    std::string reason(text::trim(response.body));
    if (reason.empty() || reason.find('\n') != std::string::npos)
      reason = "the agent answered " + std::to_string(response.status);
    return fail(Code::kFailedPrecondition, text::printable(reason));
  }

  void finish(Status status) {
    connection_.reset();
    timer_.reset();
    const auto on_end = std::move(callbacks_.on_end);  // it may destroy this object
    on_end(std::move(status));
  }

  Loop& loop_;
  Callbacks callbacks_;
  std::unique_ptr<ClientConnection> connection_;
  Subscription timer_;
};

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

std::string host_field(const std::string& host, std::uint16_t port) {
  const bool six = host.find(':') != std::string::npos;
  return (six ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<std::unique_ptr<ClientConnection>> ClientConnection::open_connection(Loop& loop,
                                                                            const TransportFactory& transport,
                                                                            const SocketAddress& address,
                                                                            std::string peer, Done done) {
  GPULET_TRY_ASSIGN(auto socket, connect_to(address));
  GPULET_TRY_ASSIGN(auto bytes, transport(socket.get()));
  return std::unique_ptr<ClientConnection>(std::make_unique<SocketConnection>(
      loop, std::move(socket), std::move(bytes), std::move(peer), std::move(done)));
}

Result<std::unique_ptr<HttpGet>> HttpGet::start_get(Loop& loop, const SocketAddress& address,
                                                    const std::string& host, const std::string& path,
                                                    Callbacks callbacks) {
  auto get = std::make_unique<ConnectionGet>(loop, std::move(callbacks));
  GPULET_TRY(get->begin(address, host, path));
  return std::unique_ptr<HttpGet>(std::move(get));
}

Result<std::vector<ServerSentEvent>> EventStreamParser::parse_bytes(std::string_view bytes) {
  std::vector<ServerSentEvent> events;
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const auto end = bytes.find_first_of("\r\n");
    line_.append(bytes.substr(0, end));
    if (line_.size() + data_.size() > kMaxEventBytes) {
      return fail(Code::kInvalidArgument,
                  "an event is larger than " + std::to_string(kMaxEventBytes >> 20) + " MiB");
    }
    if (end == std::string_view::npos) break;
    after_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line(events);
  }
  return events;
}

void EventStreamParser::end_line(std::vector<ServerSentEvent>& events) {
  std::string_view line = line_;
  if (std::exchange(first_line_, false) && line.starts_with(kByteOrderMark))
    line.remove_prefix(kByteOrderMark.size());
  if (line.empty()) {
    if (has_data_) {
      if (name_.empty()) name_ = "message";
      events.push_back({std::move(name_), std::move(data_)});
    }
    name_.clear();
    data_.clear();
    has_data_ = false;
  } else {
    const auto colon = line.find(':');
    const auto field = line.substr(0, colon);
    auto value = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (field == "event") name_ = value;
    if (field == "data") {
      if (std::exchange(has_data_, true)) data_ += '\n';
      data_ += value;
    }
  }
  line_.clear();
}

}  // namespace gpulet::http
