#include "web/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <cstring>

namespace gpulet::web {
namespace {

namespace http = boost::beast::http;

// What a client may still send after an answer that ends the connection: closing before it is read would
// reset the connection, and the client might lose the answer.
constexpr std::size_t kMaxDrainBytes = 256u << 10;
constexpr std::size_t kFirstBuffer = 1024;  // most requests are smaller
constexpr char kTlsHandshake = 0x16;        // the first byte of whoever speaks TLS
constexpr std::size_t kMostParts = 4;       // written at once

Answer refusal(int status, std::string why) {
  return {.status = status, .body = std::make_shared<const std::string>(std::move(why))};
}

Answer too_large(std::size_t limit) {
  return {.status = 431,
          .body = std::make_shared<const std::string>("the request's head is larger than " +
                                                      std::to_string(limit) + " bytes\n")};
}

Answer body_refusal(std::size_t limit) {
  if (limit == 0) return refusal(413, "a request here has no body\n");
  return {.status = 413,
          .body = std::make_shared<const std::string>("the request's body is larger than " +
                                                      std::to_string(limit) + " bytes\n")};
}

Answer refusal_of(const boost::beast::error_code& error, std::size_t limit) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return too_large(limit);
  return refusal(400, "not an HTTP request\n");
}

}  // namespace

struct Connection::Parser : http::request_parser<http::string_body> {
  explicit Parser(const ServerLimits& limits) {
    header_limit(static_cast<std::uint32_t>(limits.head_bytes));
    body_limit(limits.body_bytes);
    eager(false);
  }
  std::string_view field(http::field name) {
    const auto value = get()[name];
    return {value.data(), value.size()};
  }
};

Connection::Connection(Loop& loop, FileDescriptor socket, Service& service, Door& door,
                       const ServerLimits& limits, std::function<void()> closed)
    : loop_(loop),
      socket_(std::move(socket)),
      service_(service),
      door_(door),
      generation_(door.generation()),
      limits_(limits),
      closed_(std::move(closed)) {
  start_limit(limits_.exchange);
}

Connection::~Connection() = default;

void Connection::start_limit(Duration limit) {
  timeout_ = loop_.after(limit, [this] { close(); });
}

void Connection::await(std::uint32_t events) {
  if (awaited_ == events && ready_) return;
  ready_.reset();
  awaited_ = events;
  ready_ = loop_.watch(socket_.get(), events, [this](std::uint32_t) { on_ready(); });
}

void Connection::on_ready() {
  if (!serve()) close();
}

void Connection::close() {
  const auto closed = closed_;  // a copy: it destroys this object
  closed();
}

bool Connection::serve() {
  if (!transport_) {
    if (!choose_transport()) return false;
    if (!transport_) return true;
  }
  for (;;) {
    if (!out_.empty()) {
      if (!flush()) return false;
      if (!out_.empty()) return true;  // the socket takes no more now
    }
    if (filled_ > 0 && !lingering_ && !watching_) {
      if (!parse()) return false;
      if (answering_) return true;
      if (!out_.empty()) continue;
    }
    switch (fill()) {
      case Transport::Outcome::kMoved:
        break;
      case Transport::Outcome::kWantsRead:
        await(EPOLLIN);
        return true;
      case Transport::Outcome::kWantsWrite:
        await(EPOLLOUT);
        return true;
      case Transport::Outcome::kEnded:
        return false;
    }
  }
}

bool Connection::choose_transport() {
  if (!door_.encrypted()) {
    transport_ = plain_transport(socket_.get());
    return true;
  }
  char first = 0;
  const ssize_t seen = ::recv(socket_.get(), &first, 1, MSG_PEEK);
  if (seen < 0 && (errno == EAGAIN || errno == EINTR)) {
    await(EPOLLIN);
    return true;
  }
  if (seen <= 0) return false;
  if (first == kTlsHandshake) {
    transport_ = door_.accept(socket_.get());
    return transport_ != nullptr;
  }
  transport_ = plain_transport(socket_.get());
  reply(refusal(400, std::string(kSpeaksHttps)), false, false);
  return true;
}

Transport::Outcome Connection::fill() {
  if (filled_ == buffer_.size()) {
    buffer_.resize(std::min(limits_.head_bytes, std::max(kFirstBuffer, buffer_.size() * 2)));
  }
  const auto moved = transport_->read(buffer_.data() + filled_, buffer_.size() - filled_);
  if (moved.outcome != Transport::Outcome::kMoved) return moved.outcome;
  if (!lingering_ && !watching_) {
    filled_ += moved.bytes;
    return moved.outcome;
  }
  filled_ = 0;
  drained_ += moved.bytes;
  return drained_ <= kMaxDrainBytes ? Transport::Outcome::kMoved : Transport::Outcome::kEnded;
}

bool Connection::parse() {
  if (!parser_) {
    parser_ = std::make_unique<Parser>(limits_);
    start_limit(limits_.exchange);
  }
  boost::beast::error_code error;
  // The head first, then as much of a body as is there.
  for (std::size_t used = 1; used != 0 && !error && filled_ > 0 && !parser_->is_done();) {
    used = parser_->put(boost::asio::buffer(buffer_.data(), filled_), error);
    filled_ -= used;
    std::memmove(buffer_.data(), buffer_.data() + used, filled_);
    if (limits_.body_bytes == 0 && parser_->is_header_done()) break;
  }
  if (error == http::error::body_limit) {
    reply(body_refusal(limits_.body_bytes), false, false);
    return true;
  }
  if (error == http::error::need_more) {
    if (filled_ == limits_.head_bytes) reply(too_large(limits_.head_bytes), false, false);
    return true;
  }
  if (error) {
    reply(refusal_of(error, limits_.head_bytes), false, false);
    return true;
  }
  if (!parser_->is_header_done()) return true;
  const auto& request = parser_->get();
  const auto length = parser_->content_length();
  if (limits_.body_bytes == 0 && (parser_->chunked() || (length && *length > 0))) {
    reply(body_refusal(0), false, false);
    return true;
  }
  if (!parser_->is_done()) return true;
  ask(request.method() == http::verb::head, request.keep_alive());
  return true;
}

void Connection::ask(bool head_only, bool keep_alive) {
  switch (door_.check(parser_->field(http::field::authorization), loop_.now())) {
    case Passwords::Verdict::kRight:
      break;
    case Passwords::Verdict::kWrong: {
      Answer refused = refusal(401, "a name and its password are needed\n");
      refused.asks_password = true;
      return reply(std::move(refused), head_only, keep_alive && current());
    }
    case Passwords::Verdict::kLater:
      return reply(refusal(429, "too many passwords are being tried; later\n"), head_only,
                   keep_alive && current());
  }
  const auto view = [](auto text) { return std::string_view(text.data(), text.size()); };
  const auto& parsed = parser_->get();
  const std::string client = transport_->client();
  Request request{.method = view(parsed.method_string()),
                  .target = view(parsed.target()),
                  .accept = parser_->field(http::field::accept),
                  .accept_encoding = parser_->field(http::field::accept_encoding),
                  .client = client,
                  .fields = {},
                  .body = parsed.body()};
  for (const auto& field : parsed)
    request.fields.emplace_back(view(field.name_string()), view(field.value()));
  start_limit(limits_.exchange);
  answering_ = asking_ = true;
  service_.serve(request, loop_.now(),
                 [this, alive = std::weak_ptr(alive_), head_only, keep_alive](Answer answer) {
                   if (!alive.expired()) on_answer(std::move(answer), head_only, keep_alive);
                 });
  asking_ = false;
  // What comes of further requests waits in the socket.
  if (answering_) ready_.reset();
}

void Connection::on_answer(Answer answer, bool head_only, bool keep_alive) {
  answering_ = false;
  const bool events = answer.events && !head_only;
  if (events) watch();
  if (events && !watching_)
    answer = refusal(503, "as many watch already as may: " + std::to_string(limits_.watchers) + "\n");
  const bool stays = keep_alive && !answer.events && current();
  reply(std::move(answer), head_only, stays);
  if (!asking_) on_ready();
}

void Connection::watch() {
  watching_ = service_.live()->join([this](const SharedText& text) { on_told(text); }, limits_.watchers);
}

void Connection::on_told(const SharedText& text) {
  std::size_t behind = text->size();
  for (const auto& waiting : out_) behind += waiting->size();
  if (out_.size() >= kMaxBehind || (out_.size() > 1 && behind > kMaxBehindBytes)) return close();
  if (out_.empty()) start_limit(limits_.exchange);
  out_.push_back(text);
  if (out_.size() == 1 && !flush()) close();
}

void Connection::reply(Answer answer, bool head_only, bool keep_alive) {
  out_.push_back(std::make_shared<const std::string>(head_of(answer, keep_alive, door_.headers())));
  if (!head_only && !answer.body->empty()) out_.push_back(std::move(answer.body));
  sent_ = 0;
  keep_alive_ = keep_alive;
  parser_.reset();
  start_limit(limits_.exchange);
}

// Writes what is left. False when the connection is over; something is left when the socket takes no more
// now.
bool Connection::flush() {
  while (!out_.empty()) {
    std::array<iovec, kMostParts> parts{};
    std::size_t count = 0;
    for (; count < std::min(out_.size(), kMostParts); ++count) {
      const std::size_t from = count == 0 ? sent_ : 0;
      parts[count] = {const_cast<char*>(out_[count]->data()) + from, out_[count]->size() - from};
    }
    const auto moved = transport_->write(parts.data(), count);
    switch (moved.outcome) {
      case Transport::Outcome::kMoved:
        break;
      case Transport::Outcome::kWantsRead:
        await(EPOLLIN);
        return true;
      case Transport::Outcome::kWantsWrite:
        await(EPOLLOUT);
        return true;
      case Transport::Outcome::kEnded:
        return false;
    }
    sent_ += moved.bytes;
    while (!out_.empty() && sent_ >= out_.front()->size()) {
      sent_ -= out_.front()->size();
      out_.pop_front();
    }
  }
  if (watching_) {
    timeout_.reset();  // the next heartbeat shows whether it is there
    await(EPOLLIN);
    return true;
  }
  start_limit(keep_alive_ ? limits_.idle : limits_.exchange);
  if (!keep_alive_) {
    transport_->finish();
    lingering_ = true;
    filled_ = 0;
  }
  return true;
}

}  // namespace gpulet::web
