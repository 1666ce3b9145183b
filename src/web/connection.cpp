#include "web/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <cerrno>
#include <cstring>

namespace gpulet::web {
namespace {

namespace http = boost::beast::http;

// What a client may still send after an answer that ends the connection: closing before it is read would reset the
// connection, and the client might lose the answer.
constexpr std::size_t kMaxDrainBytes = 256u << 10;

Answer refusal(int status, const char* why) {
  return {.status = status, .body = std::make_shared<const std::string>(why)};
}

Answer refusal_of(const boost::beast::error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return refusal(431, "the request's head is larger than 8192 bytes\n");
  }
  return refusal(400, "not an HTTP request\n");
}

}  // namespace

struct Connection::Parser : http::request_parser<http::empty_body> {
  Parser() {
    header_limit(kMaxHeadBytes);
    eager(false);
  }
};

Connection::Connection(Loop& loop, FileDescriptor socket, const Site& site, Duration limit,
                       std::function<void()> closed)
    : loop_(loop), socket_(std::move(socket)), site_(site), limit_(limit), closed_(std::move(closed)) {
  start_limit();
}

Connection::~Connection() = default;

void Connection::start_limit() {
  timeout_ = loop_.after(limit_, [this] { close(); });
}

void Connection::await(std::uint32_t events) {
  if (awaited_ == events && ready_) return;
  ready_.reset();
  awaited_ = events;
  ready_ = loop_.watch(socket_.get(), events, [this](std::uint32_t seen) { on_ready(seen); });
}

void Connection::on_ready(std::uint32_t) {
  if (!serve()) close();
}

void Connection::close() {
  const auto closed = closed_;  // a copy: it destroys this object
  closed();
}

bool Connection::serve() {
  for (;;) {
    if (writing_) {
      if (!flush()) return false;
      if (writing_) return true;  // the socket takes no more now
    }
    if (filled_ > 0 && !lingering_) {
      if (!parse()) return false;
      if (writing_) continue;
    }
    const std::size_t before = filled_;
    if (!fill()) return false;
    if (filled_ == before) {
      await(EPOLLIN);
      return true;
    }
    if (lingering_) filled_ = 0;
  }
}

bool Connection::fill() {
  ssize_t got;
  do {
    got = ::recv(socket_.get(), buffer_.data() + filled_, buffer_.size() - filled_, 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN;
  if (got == 0) return false;
  filled_ += static_cast<std::size_t>(got);
  if (!lingering_) return true;
  drained_ += static_cast<std::size_t>(got);
  return drained_ <= kMaxDrainBytes;
}

bool Connection::parse() {
  if (!parser_) parser_ = std::make_unique<Parser>();
  boost::beast::error_code error;
  const std::size_t used = parser_->put(boost::asio::buffer(buffer_.data(), filled_), error);
  filled_ -= used;
  std::memmove(buffer_.data(), buffer_.data() + used, filled_);
  if (error == http::error::need_more) {
    if (filled_ == buffer_.size()) reply(refusal(431, "the request's head is larger than 8192 bytes\n"), false, false);
    return true;
  }
  if (error) {
    reply(refusal_of(error), false, false);
    return true;
  }
  if (!parser_->is_header_done()) return true;
  const auto& request = parser_->get();
  const auto length = parser_->content_length();
  if (parser_->chunked() || (length && *length > 0)) {
    reply(refusal(413, "a request here has no body\n"), false, false);
    return true;
  }
  const auto method = request.method_string();
  const auto target = request.target();
  Answer answer = site_.answer({method.data(), method.size()}, {target.data(), target.size()}, loop_.now());
  reply(std::move(answer), request.method() == http::verb::head, request.keep_alive());
  return true;
}

void Connection::reply(Answer answer, bool head_only, bool keep_alive) {
  head_ = head_of(answer, keep_alive);
  body_ = head_only ? nullptr : std::move(answer.body);
  sent_ = 0;
  writing_ = true;
  keep_alive_ = keep_alive;
  parser_.reset();
  start_limit();
}

// Writes what is left. False when the connection is over; writing_ stays true when the socket takes no more now.
bool Connection::flush() {
  const std::size_t body_size = body_ ? body_->size() : 0;
  while (sent_ < head_.size() + body_size) {
    std::array<iovec, 2> parts{};
    std::size_t count = 0;
    if (sent_ < head_.size()) parts[count++] = {head_.data() + sent_, head_.size() - sent_};
    const std::size_t of_body = sent_ < head_.size() ? 0 : sent_ - head_.size();
    if (of_body < body_size) parts[count++] = {const_cast<char*>(body_->data()) + of_body, body_size - of_body};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t put = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EAGAIN) {
      await(EPOLLOUT);
      return true;
    }
    if (put <= 0) return false;
    sent_ += static_cast<std::size_t>(put);
  }
  writing_ = false;
  head_.clear();
  body_.reset();
  start_limit();
  if (!keep_alive_) {
    ::shutdown(socket_.get(), SHUT_WR);
    lingering_ = true;
    filled_ = 0;
  }
  return true;
}

}  // namespace gpulet::web
