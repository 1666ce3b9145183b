#include "web/fetch.h"

#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <limits>
#include <optional>

#include "base/file.h"
#include "base/text.h"
#include "base/unix_socket.h"

namespace gpulet::web {
namespace {

namespace http = boost::beast::http;

constexpr int kMostReads = 64;  // in one turn of the loop

class HttpFetch final : public Fetch {
 public:
  HttpFetch(Loop& loop, FileDescriptor socket, std::string request, Hooks hooks)
      : loop_(loop), socket_(std::move(socket)), request_(std::move(request)), hooks_(std::move(hooks)) {
    // Its own limits are below. Beast 1.74 takes no limit for one that every length exceeds.
    parser_.body_limit(std::numeric_limits<std::uint64_t>::max());
    parser_.eager(true);
    limit(kFetchLimit, "no answer");
    ready_ = loop_.watch(socket_.get(), EPOLLOUT, [this](std::uint32_t) { send(); });
  }

 private:
  void limit(Duration time, const char* what) {
    timer_ = loop_.after(time, [this, time, what] {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
      end(fail(Code::kUnavailable, std::string(what) + " for " + std::to_string(seconds) + " s"));
    });
  }

  void send() {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return end(fail(Code::kUnavailable, errno_error("cannot connect", error).message()));
    const ssize_t put = ::send(socket_.get(), request_.data(), request_.size(), MSG_NOSIGNAL);
    if (put < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (put < 0) return end(fail(Code::kUnavailable, errno_error("cannot send", errno).message()));
    request_.erase(0, static_cast<std::size_t>(put));
    if (!request_.empty()) return;
    ready_.reset();
    ready_ = loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t) { receive(); });
  }

  void receive() {
    std::array<char, 16'384> bytes;
    for (int i = 0; i < kMostReads; ++i) {
      const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got < 0) return end(fail(Code::kUnavailable, errno_error("cannot receive", errno).message()));
      if (got == 0) return on_closed();
      buffer_.append(bytes.data(), static_cast<std::size_t>(got));
      if (auto parsed = parse(); !parsed) return end(fail(std::move(parsed.error())));
      if (parser_.is_done()) return end(outcome());
    }
  }

  void on_closed() {
    boost::beast::error_code error;
    if (parser_.is_header_done()) parser_.put_eof(error);
    if (!parser_.is_header_done() || error || !parser_.is_done())
      return end(fail(Code::kUnavailable, "the connection was closed"));
    end(outcome());
  }

  Status parse() {
    while (!buffer_.empty() && !parser_.is_done()) {
      boost::beast::error_code error;
      const std::size_t used = parser_.put(boost::asio::buffer(buffer_), error);
      buffer_.erase(0, used);
      if (error && error != http::error::need_more)
        return fail(Code::kIo, "not an HTTP answer: " + error.message());
      GPULET_TRY(pass_on());
      if (error || used == 0) break;
    }
    return {};
  }

  Status pass_on() {
    if (!parser_.is_header_done()) return {};
    if (parser_.get().result_int() != 200) {
      if (parser_.get().body().size() > kMaxRefusal) return outcome();
      return {};
    }
    limit(kFetchSilence, "nothing was heard");
    if (!std::exchange(begun_, true) && hooks_.begun) hooks_.begun();
    const std::string piece = std::exchange(parser_.get().body(), {});
    return piece.empty() ? Status() : hooks_.piece(piece);
  }

  // Of an answer that is whole.
  Status outcome() {
    if (parser_.get().result_int() == 200) return {};
    std::string words(parser_.get().body().substr(0, kMaxRefusal));
    words = std::string(text::trim(words));
    if (words.empty() || words.find('\n') != std::string::npos)
      words = "the answer is " + std::to_string(parser_.get().result_int());
    for (char& byte : words) {
      if (byte < ' ' || byte > '~') byte = '?';
    }
    return fail(Code::kFailedPrecondition, words);
  }

  void end(Status status) {
    ready_.reset();
    timer_.reset();
    const auto ended = std::move(hooks_.ended);  // it may destroy this object
    ended(std::move(status));
  }

  Loop& loop_;
  FileDescriptor socket_;
  std::string request_, buffer_;
  Hooks hooks_;
  http::response_parser<http::string_body> parser_;
  bool begun_ = false;
  Subscription ready_, timer_;
};

}  // namespace

Result<Endpoint> endpoint_of(const std::string& socket_path) {
  if (socket_path.empty() || socket_path.size() > kMaxSocketPath) {
    return fail(Code::kInvalidArgument,
                "a socket's path has 1 to " + std::to_string(kMaxSocketPath) + " bytes", socket_path);
  }
  Endpoint where;
  auto& address = reinterpret_cast<sockaddr_un&>(where.address);
  address.sun_family = AF_UNIX;
  socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
  where.size = sizeof address;
  return where;
}

Result<std::unique_ptr<Fetch>> Fetch::start(Loop& loop, const Endpoint& where, const std::string& host,
                                            const std::string& path, Hooks hooks) {
  FileDescriptor fd(::socket(where.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fail(errno_error("cannot make a socket", errno));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&where.address), where.size) != 0 &&
      errno != EINPROGRESS) {
    if (errno == EAGAIN) return fail(Code::kUnavailable, "too many wait to connect already");
    return fail(errno_error("cannot connect", errno));
  }
  std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
  return std::unique_ptr<Fetch>(
      std::make_unique<HttpFetch>(loop, std::move(fd), std::move(request), std::move(hooks)));
}

}  // namespace gpulet::web
