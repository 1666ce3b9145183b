#include "cli/top/client.h"

#include <unistd.h>

#include "base/text.h"

namespace gpulet::cli {
namespace {

constexpr BackoffLimits kReconnectBackoff{std::chrono::milliseconds(250), std::chrono::seconds(5)};
constexpr std::string_view kScheme = "http://";
constexpr std::uint16_t kPort = 9400;
constexpr std::size_t kMaxHistoryBytes = 16u << 20;

}  // namespace

Error explain_connection_error(const Error& error, const TopTarget& target) {
  if (target.socket.empty()) {
    const std::string where = target.host + ":" + std::to_string(target.port);
    return Error(error.code(), error.message(), where);
  }
  switch (error.code()) {
    case Code::kNotFound:
      return Error(error.code(),
                   "no such socket; no agent is running on this node, or it uses another socket (--socket, "
                   "gpulet.socket)",
                   target.socket);
    case Code::kPermissionDenied:
      return Error(error.code(), "permission denied. Run as root, or grant access with gpulet.socketMode",
                   target.socket);
    case Code::kUnavailable:
      return Error(error.code(), error.message() + "; the agent has exited or is starting", target.socket);
    default:
      return Error(error.code(), error.message(), target.socket);
  }
}

Result<TopTarget> parse_top_url(const std::string& url) {
  const auto bad = [&](const char* why) { return fail(Code::kInvalidArgument, why, url); };
  if (url.starts_with("https://")) {
    return bad(
        "https is not supported; use the socket on the node, or `kubectl port-forward` to an "
        "agent without TLS");
  }
  if (!url.starts_with(kScheme)) return bad("invalid URL; expected http://HOST:PORT");
  std::string host = url.substr(kScheme.size());
  if (host.ends_with('/')) host.pop_back();
  if (host.find_first_of("/?#@ ") != std::string::npos)
    return bad("expected http://HOST:PORT without a path");
  TopTarget target{.socket = {}, .host = host, .port = kPort};
  const auto colon = host.rfind(':');
  const bool bracketed = host.starts_with('[') && host.find(']') != std::string::npos;
  if (colon != std::string::npos && !(bracketed && colon < host.find(']'))) {
    const auto port = text::parse_unsigned(host.substr(colon + 1));
    if (!port || *port == 0 || *port > 65'535) return bad("invalid port");
    target.port = static_cast<std::uint16_t>(*port);
    target.host = host.substr(0, colon);
  }
  if (bracketed) target.host = target.host.substr(1, target.host.size() - 2);
  if (target.host.empty() || (!bracketed && target.host.find(':') != std::string::npos))
    return bad("invalid host; an IPv6 address must be in brackets");
  return target;
}

TopClient::TopClient(Loop& loop, TopTarget target, Hooks hooks)
    : loop_(loop),
      target_(std::move(target)),
      hooks_(std::move(hooks)),
      backoff_(kReconnectBackoff, static_cast<std::uint64_t>(::getpid())) {
  if (target_.socket.empty()) resolver_ = std::make_unique<http::Resolver>(loop_, target_.host, target_.port);
  reconnect_ = loop_.after(Duration::zero(), [this] { connect_to_agent(); });
}

void TopClient::connect_to_agent() {
  if (!resolver_) {
    const auto where = http::unix_address(target_.socket);
    return where ? open_event_stream(*where) : handle_disconnect(where.error());
  }
  resolver_->resolve([this](Result<http::SocketAddresses> found) {
    if (!found) return handle_disconnect(found.error());
    if (found->empty()) return handle_disconnect(Error(Code::kUnavailable, "the name has no address"));
    const auto& address = (*found)[address_++ % found->size()];
    open_event_stream(address);
  });
}

void TopClient::open_event_stream(const http::SocketAddress& where) {
  endpoint_ = where;
  parser_ = {};
  auto fetch = http::HttpGet::start_get(
      loop_, where, "localhost", "/api/events",
      {.on_head = [this] { hooks_.connected(); },
       .on_piece = [this](std::string_view piece) -> Status {
         GPULET_TRY_ASSIGN(const auto events, parser_.parse_bytes(piece));
         for (const auto& event : events) GPULET_TRY(hooks_.received(event));
         if (!events.empty()) backoff_.reset();
         return {};
       },
       .on_end =
           [this](Status status) {
             const Error error =
                 status ? Error(Code::kUnavailable, "the agent closed the connection") : status.error();
             events_.reset();
             handle_disconnect(error);
           }});
  if (!fetch) return handle_disconnect(fetch.error());
  events_ = std::move(*fetch);
}

void TopClient::handle_disconnect(const Error& error) {
  reconnect_ = loop_.after(backoff_.next_delay(), [this] { connect_to_agent(); });
  hooks_.disconnected(explain_connection_error(error, target_));
}

void TopClient::fetch_history(std::function<void(Result<std::string>)> done) {
  if (!endpoint_) return;
  history_text_.clear();
  auto fetch = http::HttpGet::start_get(
      loop_, *endpoint_, "localhost", "/api/history",
      {.on_piece = [this](std::string_view piece) -> Status {
         history_text_ += piece;
         if (history_text_.size() > kMaxHistoryBytes) return fail(Code::kIo, "the history is too large");
         return {};
       },
       .on_end =
           [this, done = std::move(done)](Status status) {
             std::string text = std::move(history_text_);
             history_.reset();
             done(status ? Result<std::string>(std::move(text)) : fail(status.error()));
           }});
  if (fetch) history_ = std::move(*fetch);
}

TopSession::TopSession(Loop& loop, TopTarget target, TopView view, Hooks hooks)
    : loop_(loop),
      view_(std::move(view)),
      hooks_(std::move(hooks)),
      client_(loop, std::move(target),
              {.connected =
                   [this] {
                     const bool first = !std::exchange(connected_once_, true);
                     view_.disconnected_since.reset();
                     has_history_ = false;
                     hooks_.connection_changed(first);
                   },
               .received = [this](const http::ServerSentEvent& event) { return receive_event(event); },
               .disconnected =
                   [this](const Error& error) {
                     if (!view_.disconnected_since)
                       view_.disconnected_since = unix_milliseconds(loop_.wall_now());
                     view_.disconnect_reason = error.full_message();
                     hooks_.connection_changed(!connected_once_);
                   }}) {}

Status TopSession::receive_event(const http::ServerSentEvent& event) {
  if (view_.paused) {
    pending_[event.name] = event.data;
    return {};
  }
  GPULET_TRY(apply_document(event.name, event.data));
  hooks_.changed(event.name);
  return {};
}

Status TopSession::apply_document(const std::string& name, const std::string& document) {
  if (name == "node") return model_.apply_node_document(document);
  if (name == "now") return model_.apply_sample_document(document);
  if (name == "use") return model_.apply_usage_document(document);
  return {};  // from a newer agent
}

void TopSession::set_paused(bool paused) {
  view_.paused = paused;
  if (paused) return;
  // In this order: metrics refer to GPUs.
  for (const char* name : {"node", "now", "use"}) {
    // An invalid document is reported with the next one, which closes the connection.
    if (const auto document = pending_.find(name); document != pending_.end())
      static_cast<void>(apply_document(name, document->second));
  }
  pending_.clear();
}

void TopSession::request_history() {
  // Its samples refer to GPUs of the node.
  if (model_.node_document() == nullptr || view_.disconnected_since || std::exchange(has_history_, true))
    return;
  client_.fetch_history([this](const Result<std::string>& text) {
    // Without it the history starts now.
    if (text && model_.apply_history_document(*text)) hooks_.changed("history");
  });
}

}  // namespace gpulet::cli
