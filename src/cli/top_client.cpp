#include "cli/top_client.h"

#include <unistd.h>

#include "base/text.h"

namespace gpulet::cli {
namespace {

constexpr BackoffLimits kAgain{std::chrono::milliseconds(250), std::chrono::seconds(5)};
constexpr std::string_view kScheme = "http://";
constexpr std::uint16_t kPort = 9400;
constexpr std::size_t kMaxHistory = 16u << 20;

// What to do about a socket that does not take us.
Error explained(const Error& error, const TopTarget& target) {
  if (target.socket.empty()) {
    const std::string where = target.host + ":" + std::to_string(target.port);
    return Error(error.code(), error.message(), where);
  }
  switch (error.code()) {
    case Code::kNotFound:
      return Error(error.code(),
                   "no such socket: no agent runs on this node, or it serves elsewhere (--socket; "
                   "gpulet.socket of the agent)",
                   target.socket);
    case Code::kPermissionDenied:
      return Error(
          error.code(),
          "permission denied: root may, and who else its mode lets in (gpulet.socketMode of the agent)",
          target.socket);
    case Code::kUnavailable:
      return Error(error.code(), error.message() + ": the agent has ended, or is being started",
                   target.socket);
    default:
      return Error(error.code(), error.message(), target.socket);
  }
}

}  // namespace

Result<TopTarget> parse_top_url(const std::string& url) {
  const auto bad = [&](const char* why) { return fail(Code::kInvalidArgument, why, url); };
  if (url.starts_with("https://")) {
    return bad(
        "https is not spoken; on the node use the socket, from elsewhere `kubectl port-forward` to an "
        "agent without TLS");
  }
  if (!url.starts_with(kScheme)) return bad("not a URL; it must be http://HOST:PORT");
  std::string host = url.substr(kScheme.size());
  if (host.ends_with('/')) host.pop_back();
  if (host.find_first_of("/?#@ ") != std::string::npos) return bad("only http://HOST:PORT, without a path");
  TopTarget target{.socket = {}, .host = host, .port = kPort};
  const auto colon = host.rfind(':');
  const bool bracketed = host.starts_with('[') && host.find(']') != std::string::npos;
  if (colon != std::string::npos && !(bracketed && colon < host.find(']'))) {
    const auto port = text::parse_unsigned(host.substr(colon + 1));
    if (!port || *port == 0 || *port > 65'535) return bad("its port is none");
    target.port = static_cast<std::uint16_t>(*port);
    target.host = host.substr(0, colon);
  }
  if (bracketed) target.host = target.host.substr(1, target.host.size() - 2);
  if (target.host.empty() || (!bracketed && target.host.find(':') != std::string::npos))
    return bad("its host is none; an IPv6 address must be in brackets");
  return target;
}

TopClient::TopClient(Loop& loop, TopTarget target, Hooks hooks)
    : loop_(loop),
      target_(std::move(target)),
      hooks_(std::move(hooks)),
      backoff_(kAgain, static_cast<std::uint64_t>(::getpid())) {
  if (target_.socket.empty())
    resolver_ = std::make_unique<cluster::Resolver>(loop_, target_.host, target_.port);
  again_ = loop_.after(Duration::zero(), [this] { connect(); });
}

void TopClient::connect() {
  if (!resolver_) {
    const auto where = web::endpoint_of(target_.socket);
    return where ? open(*where) : lost(where.error());
  }
  resolver_->resolve([this](Result<cluster::Addresses> found) {
    if (!found) return lost(found.error());
    if (found->empty()) return lost(Error(Code::kUnavailable, "has no address"));
    const auto& address = (*found)[address_++ % found->size()];
    open({.address = address.storage, .size = address.size});
  });
}

void TopClient::open(const web::Endpoint& where) {
  where_ = where;
  parser_ = {};
  auto fetch = web::Fetch::start(
      loop_, where, "localhost", "/api/events",
      {.begun = [this] { hooks_.connected(); },
       .piece = [this](std::string_view piece) -> Status {
         GPULET_TRY_ASSIGN(const auto events, parser_.take(piece));
         for (const auto& event : events) GPULET_TRY(hooks_.event(event));
         if (!events.empty()) backoff_.reset();
         return {};
       },
       .ended =
           [this](Status status) {
             const Error error =
                 status ? Error(Code::kUnavailable, "the agent has ended the connection") : status.error();
             events_.reset();
             lost(error);
           }});
  if (!fetch) return lost(fetch.error());
  events_ = std::move(*fetch);
}

void TopClient::lost(const Error& error) {
  again_ = loop_.after(backoff_.next(), [this] { connect(); });
  hooks_.away(explained(error, target_));
}

void TopClient::fetch_history(std::function<void(Result<std::string>)> done) {
  if (!where_) return;
  history_text_.clear();
  auto fetch =
      web::Fetch::start(loop_, *where_, "localhost", "/api/history",
                        {.piece = [this](std::string_view piece) -> Status {
                           history_text_ += piece;
                           if (history_text_.size() > kMaxHistory)
                             return fail(Code::kIo, "the history is too large");
                           return {};
                         },
                         .ended =
                             [this, done = std::move(done)](Status status) {
                               std::string text = std::move(history_text_);
                               history_.reset();
                               done(status ? Result<std::string>(std::move(text)) : fail(status.error()));
                             }});
  if (fetch) history_ = std::move(*fetch);
}

}  // namespace gpulet::cli
