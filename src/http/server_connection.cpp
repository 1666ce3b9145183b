#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "http/server.h"

namespace gpulet::http {
namespace {

namespace beast = boost::beast::http;

// Bytes that a client may still send after a response that ends the connection: closing before they are read
// would reset the connection, and the client might lose the response.
constexpr std::size_t kMaxDrainBytes = 256u << 10;
constexpr std::size_t kFirstBuffer = 1024;  // most requests are smaller
constexpr char kTlsHandshake = 0x16;        // the first byte of a TLS client
constexpr std::size_t kMaxParts = 4;        // written at once
// A client that sends or reads less than this at a time is as idle as one that does nothing.
constexpr std::size_t kProgressBytes = 64u << 10;

Response error_response(int status, std::string why) {
  return {.status = status, .body = std::make_shared<const std::string>(std::move(why))};
}

Response too_large(std::size_t limit) {
  return {.status = 431,
          .body = std::make_shared<const std::string>("the request's head is larger than " +
                                                      std::to_string(limit) + " bytes\n")};
}

Response body_error_response(std::size_t limit) {
  if (limit == 0) return error_response(413, "a request here has no body\n");
  return {.status = 413,
          .body = std::make_shared<const std::string>("the request's body is larger than " +
                                                      std::to_string(limit) + " bytes\n")};
}

Response parse_error_response(const boost::beast::error_code& error, std::size_t limit) {
  if (error == beast::error::header_limit || error == beast::error::buffer_overflow) return too_large(limit);
  return error_response(400, "not an HTTP request\n");
}

}  // namespace

struct ServerConnection::Parser : beast::request_parser<beast::string_body> {
  explicit Parser(const ServerLimits& limits) {
    header_limit(static_cast<std::uint32_t>(limits.head_bytes));
    body_limit(limits.body_bytes);
    eager(false);
  }
  std::string_view field(beast::field name) {
    const auto value = get()[name];
    return {value.data(), value.size()};
  }
};

ServerConnection::ServerConnection(Server& server, std::uint64_t id, FileDescriptor socket,
                                   PeerAddress address)
    : server_(server),
      id_(id),
      loop_(server.loop_),
      socket_(std::move(socket)),
      address_(std::move(address)),
      service_(server.service_),
      gate_(server.gate_),
      generation_(gate_.generation()),
      limits_(server.limits_),
      progressed_at_(loop_.now()) {
  start_limit(limits_.exchange);
}

ServerConnection::~ServerConnection() = default;

void ServerConnection::start_limit(Duration limit) {
  timeout_ = loop_.after(limit, [this] { close_connection(); });
}

void ServerConnection::await_events(std::uint32_t events) {
  if (awaited_ == events && ready_) return;
  ready_.reset();
  awaited_ = events;
  ready_ = loop_.watch_descriptor(socket_.get(), events, [this](std::uint32_t) { on_ready(); });
}

std::optional<bool> ServerConnection::await_transport(Transport::Outcome outcome) {
  switch (outcome) {
    case Transport::Outcome::kTransferred:
      return std::nullopt;
    case Transport::Outcome::kWantsRead:
      await_events(EPOLLIN);
      return true;
    case Transport::Outcome::kWantsWrite:
      await_events(EPOLLOUT);
      return true;
    case Transport::Outcome::kEnded:
      return false;
  }
  return false;
}

void ServerConnection::on_ready() {
  if (!serve_requests()) close_connection();
}

void ServerConnection::close_connection() { server_.remove_connection(id_); }

std::size_t ServerConnection::body_bytes() const {
  std::size_t bytes = parser_ ? parser_->get().body().size() : 0;
  for (const auto& text : out_) bytes += text->size();
  return bytes - std::min(bytes, sent_);
}

void ServerConnection::record_progress(std::size_t bytes) {
  progressed_ += bytes;
  if (progressed_ < kProgressBytes) return;
  progressed_ = 0;
  progressed_at_ = loop_.now();
}

bool ServerConnection::serve_requests() {
  if (!transport_) {
    if (!choose_transport()) return false;
    if (!transport_) return true;
  }
  bool responded = false;
  for (std::size_t read = 0; read <= kMaxTurnBytes;) {
    if (!out_.empty()) {
      if (!flush()) return false;
      if (!out_.empty()) return true;  // the socket takes no more now
    }
    if (filled_ > 0 && !lingering_ && !subscription_) {
      if (responded) break;
      if (!parse_request()) return false;
      if (answering_) return true;
      responded = !out_.empty();
      if (responded) continue;
    }
    const auto moved = read_more();
    if (const auto goes_on = await_transport(moved.outcome)) return *goes_on;
    read += moved.bytes;
  }
  end_turn();
  return true;
}

// What remains may be in the buffer or in the transport, of which the socket shows nothing.
void ServerConnection::end_turn() {
  ready_.reset();
  server_.delay_connection(id_);
}

bool ServerConnection::choose_transport() {
  if (!gate_.is_encrypted()) {
    transport_ = make_plain_transport(socket_.get());
    return true;
  }
  char first = 0;
  const ssize_t seen = ::recv(socket_.get(), &first, 1, MSG_PEEK);
  if (seen < 0 && (errno == EAGAIN || errno == EINTR)) {
    await_events(EPOLLIN);
    return true;
  }
  if (seen <= 0) return false;
  if (first == kTlsHandshake) {
    transport_ = gate_.accept_tls(socket_.get());
    return transport_ != nullptr;
  }
  transport_ = make_plain_transport(socket_.get());
  send_response(error_response(400, std::string(kHttpsRequiredBody)), false, false);
  return true;
}

Transport::IoResult ServerConnection::read_more() {
  if (filled_ == buffer_.size()) {
    buffer_.resize(std::min(limits_.head_bytes, std::max(kFirstBuffer, buffer_.size() * 2)));
  }
  const auto moved = transport_->read_some(buffer_.data() + filled_, buffer_.size() - filled_);
  if (moved.outcome != Transport::Outcome::kTransferred) return moved;
  if (!lingering_ && !subscription_) {
    filled_ += moved.bytes;
    record_progress(moved.bytes);
    return moved;
  }
  filled_ = 0;
  drained_ += moved.bytes;
  return drained_ <= kMaxDrainBytes ? moved : Transport::IoResult{Transport::Outcome::kEnded};
}

bool ServerConnection::parse_request() {
  if (!parser_) {
    parser_ = std::make_unique<Parser>(limits_);
    progressed_at_ = loop_.now();
    start_limit(limits_.exchange);
  }
  boost::beast::error_code error;
  // The header first, then as much of the body as has arrived.
  for (std::size_t used = 1; used != 0 && !error && filled_ > 0 && !parser_->is_done();) {
    used = parser_->put(boost::asio::buffer(buffer_.data(), filled_), error);
    filled_ -= used;
    std::memmove(buffer_.data(), buffer_.data() + used, filled_);
    if (limits_.body_bytes == 0 && parser_->is_header_done()) break;
  }
  if (error == beast::error::body_limit) {
    send_response(body_error_response(limits_.body_bytes), false, false);
    return true;
  }
  if (error == beast::error::need_more) {
    if (filled_ == limits_.head_bytes) send_response(too_large(limits_.head_bytes), false, false);
    return true;
  }
  if (error) {
    send_response(parse_error_response(error, limits_.head_bytes), false, false);
    return true;
  }
  if (!parser_->is_header_done()) return true;
  if (!server_.make_body_room(id_, 0)) {
    send_response(error_response(503, "too many bodies are in flight; later\n"), false, false);
    return true;
  }
  const auto& request = parser_->get();
  const auto length = parser_->content_length();
  if (limits_.body_bytes == 0 && (parser_->chunked() || (length && *length > 0))) {
    send_response(body_error_response(0), false, false);
    return true;
  }
  if (!parser_->is_done()) return true;
  dispatch_request(request.method() == beast::verb::head, request.keep_alive());
  return true;
}

void ServerConnection::dispatch_request(bool head_only, bool keep_alive) {
  start_limit(limits_.exchange);
  answering_ = handling_ = true;
  gate_.check_credentials(parser_->field(beast::field::authorization), address_, loop_.now(),
                          [this, alive = lifetime_.watch(), head_only, keep_alive](auto verdict) {
                            if (alive) on_verdict(verdict, head_only, keep_alive);
                          });
  handling_ = false;
  // Further requests wait in the socket.
  if (answering_) ready_.reset();
}

void ServerConnection::on_verdict(PasswordChecker::Verdict verdict, bool head_only, bool keep_alive) {
  switch (verdict) {
    case PasswordChecker::Verdict::kAccepted:
      return handle_request(head_only, keep_alive);
    case PasswordChecker::Verdict::kRejected: {
      Response refused = error_response(401, "a name and its password are needed\n");
      refused.requests_password = true;
      return on_handler_response(std::move(refused), head_only, keep_alive);
    }
    case PasswordChecker::Verdict::kThrottled:
      return on_handler_response(error_response(429, "too many passwords are being tried; later\n"),
                                 head_only, keep_alive);
  }
}

void ServerConnection::handle_request(bool head_only, bool keep_alive) {
  const auto view = [](auto text) { return std::string_view(text.data(), text.size()); };
  const auto& parsed = parser_->get();
  const std::string client = transport_->client_name();
  Request request{.method = view(parsed.method_string()),
                  .target = view(parsed.target()),
                  .accept = parser_->field(beast::field::accept),
                  .accept_encoding = parser_->field(beast::field::accept_encoding),
                  .client = client,
                  .is_authenticated = is_authenticated(),
                  .fields = {},
                  .body = parsed.body()};
  for (const auto& field : parsed)
    request.fields.emplace_back(view(field.name_string()), view(field.value()));
  start_limit(limits_.exchange);
  // A response may be as large as its request.
  if (!request.body.empty()) static_cast<void>(server_.make_body_room(id_, request.body.size()));
  const bool nested = std::exchange(handling_, true);
  service_.handle_request(request, loop_.now(),
                          [this, alive = lifetime_.watch(), head_only, keep_alive](Response answer) {
                            if (alive) on_handler_response(std::move(answer), head_only, keep_alive);
                          });
  handling_ = nested;
  if (!nested && !answering_) on_ready();
}

void ServerConnection::on_handler_response(Response answer, bool head_only, bool keep_alive) {
  answering_ = false;
  const bool events = answer.is_event_stream && !head_only;
  if (events) subscribe();
  if (events && !subscription_)
    answer = error_response(
        503, "the maximum number of subscribers is connected: " + std::to_string(limits_.subscribers) + "\n");
  const bool stays = keep_alive && !answer.is_event_stream && has_current_rules();
  send_response(std::move(answer), head_only, stays);
  if (!handling_) on_ready();
}

bool ServerConnection::is_authenticated() const {
  return address_.empty() || gate_.requires_password() || transport_->has_verified_client();
}

void ServerConnection::subscribe() {
  server_.make_subscriber_room(address_);
  subscription_ = service_.event_subscribers()->subscribe([this](const SharedText& text) { on_event(text); },
                                                          is_authenticated(), limits_.subscribers);
}

void ServerConnection::on_event(const SharedText& text) {
  std::size_t behind = text->size();
  for (const auto& waiting : out_) behind += waiting->size();
  if (out_.size() >= kMaxQueuedEvents || (out_.size() > 1 && behind > kMaxQueuedEventBytes))
    return close_connection();
  if (out_.empty()) start_limit(limits_.exchange);
  out_.push_back(text);
  if (out_.size() == 1 && !flush()) close_connection();
}

void ServerConnection::send_response(Response answer, bool head_only, bool keep_alive) {
  out_.push_back(std::make_shared<const std::string>(response_head(answer, keep_alive, gate_.headers())));
  if (!head_only && !answer.body->empty()) out_.push_back(std::move(answer.body));
  sent_ = 0;
  keep_alive_ = keep_alive;
  parser_.reset();
  static_cast<void>(server_.make_body_room(id_, 0));
  start_limit(limits_.exchange);
}

// Writes the remaining bytes. Returns false if the connection has ended; bytes remain if the socket accepts
// no more now, or the turn is over.
bool ServerConnection::flush() {
  std::size_t written = 0;
  while (!out_.empty()) {
    if (written > kMaxTurnBytes) {
      await_events(EPOLLOUT);
      return true;
    }
    std::array<iovec, kMaxParts> parts{};
    std::size_t count = 0;
    for (; count < std::min(out_.size(), kMaxParts); ++count) {
      const std::size_t from = count == 0 ? sent_ : 0;
      parts[count] = {const_cast<char*>(out_[count]->data()) + from, out_[count]->size() - from};
    }
    const auto moved = transport_->write_some(parts.data(), count);
    if (const auto goes_on = await_transport(moved.outcome)) return *goes_on;
    written += moved.bytes;
    record_progress(moved.bytes);
    sent_ += moved.bytes;
    while (!out_.empty() && sent_ >= out_.front()->size()) {
      sent_ -= out_.front()->size();
      out_.pop_front();
    }
  }
  if (subscription_) {
    timeout_.reset();  // the next heartbeat shows whether the client is still connected
    await_events(EPOLLIN);
    return true;
  }
  start_limit(keep_alive_ ? limits_.idle : limits_.exchange);
  if (!keep_alive_) {
    transport_->shut_down_writing();
    lingering_ = true;
    filled_ = 0;
  }
  return true;
}

}  // namespace gpulet::http
