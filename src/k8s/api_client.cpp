#include "k8s/api_client.h"

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "http/transport.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

constexpr std::size_t kMaxTokenBytes = 1u << 16;
constexpr std::size_t kMaxPemBytes = 1u << 20;

// Empty if a client certificate authenticates.
Result<std::string> read_token(const ClientConfig& config) {
  if (config.token_file.empty()) return config.token;
  GPULET_TRY_ASSIGN(const std::string token, read_file(config.token_file, kMaxTokenBytes));
  return std::string(text::trim(token));
}

http::ClientRequest make_http_request(const ApiRequest& request, const ClientConfig& config,
                                      const std::string& token) {
  return {.method = request.method,
          .path = config.base_path + request.path,
          .host = http::host_field(config.host, config.port),
          .accept = request.accept,
          .authorization = token.empty() ? "" : "Bearer " + token,
          .content_type = request.content_type,
          .body = request.body};
}

Result<std::string> read_pem(const std::string& text, const std::string& file) {
  if (!text.empty() || file.empty()) return text;
  return read_file(file, kMaxPemBytes);
}

Result<http::TlsClientOptions> make_tls_options(const ClientConfig& config) {
  http::TlsClientOptions options;
  options.server = config.tls_server_name.empty() ? config.host : config.tls_server_name;
  options.authorities_source = config.ca_file;
  options.certificate_source = config.certificate_file;
  options.key_source = config.key_file;
  GPULET_TRY_ASSIGN(options.authorities, read_pem(config.ca_data, config.ca_file));
  GPULET_TRY_ASSIGN(options.certificate, read_pem(config.certificate_data, config.certificate_file));
  GPULET_TRY_ASSIGN(options.key, read_pem(config.key_data, config.key_file));
  // An empty file must not cause the system's authorities to be trusted.
  if (options.authorities.empty() && !config.ca_file.empty()) {
    return fail(Code::kInvalidArgument, "holds no certificate", config.ca_file);
  }
  return options;
}

}  // namespace

ApiClient::ApiClient(Loop& loop, ClientConfig config, Duration limit)
    : loop_(loop), config_(std::move(config)), limit_(limit), resolver_(loop, config_.host, config_.port) {}
ApiClient::~ApiClient() = default;

void ApiClient::send_request(const ApiRequest& request, Done done) {
  begin_request(request, {}, std::move(done));
}

void ApiClient::stream_response(const ApiRequest& request, Duration whole,
                                std::function<Status(std::string_view)> piece, Done done) {
  http::BodyReceiver receiver;
  receiver.on_head = [this, whole] {
    start_deadline(whole, "the API server did not finish its response in time");
  };
  receiver.on_piece = std::move(piece);
  begin_request(request, std::move(receiver), std::move(done));
}

void ApiClient::start_deadline(Duration limit, const char* what) {
  timeout_ = loop_.after(limit, [this, what] { finish_request(fail(Code::kDeadlineExceeded, what)); });
}

void ApiClient::begin_request(const ApiRequest& request, http::BodyReceiver receiver, Done done) {
  done_ = std::move(done);
  if (const auto renewed = renew_credential(); !renewed) return finish_request(fail(renewed.error()));
  start_deadline(limit_, "the API server did not answer in time");
  const auto token = read_token(config_);
  if (!token) {
    connection_.reset();
    return finish_request(fail(token.error()));
  }
  pending_ = Pending{make_http_request(request, config_, *token), std::move(receiver)};
  if (!connection_ || !connection_->is_reusable()) {
    connection_.reset();
    return resolver_.resolve(
        [this](Result<http::SocketAddresses> addresses) { connect_to_server(std::move(addresses)); });
  }
  const Pending pending = std::move(*std::exchange(pending_, std::nullopt));
  connection_->start_request(pending.request, pending.receiver);
}

// Runs before the request's time limit starts: a credential program may take longer.
Status ApiClient::renew_credential() {
  if (!config_.credential) return {};
  GPULET_TRY_ASSIGN(Credential now, config_.credential());
  config_.token = std::move(now.token);
  if (now.certificate == config_.certificate_data) return {};
  config_.certificate_data = std::move(now.certificate);
  config_.key_data = std::move(now.key);
  connection_.reset();  // it is authenticated with the previous certificate
  return {};
}

void ApiClient::connect_to_server(Result<http::SocketAddresses> addresses) {
  if (!pending_) return;  // cancelled
  const Pending pending = std::move(*std::exchange(pending_, std::nullopt));
  if (!addresses) return finish_request(fail(addresses.error()));
  auto connection = open_tls_connection((*addresses)[attempt_ % addresses->size()]);
  if (!connection) {
    ++attempt_;
    return finish_request(fail(connection.error()));
  }
  connection_ = std::move(*connection);
  connection_->start_request(pending.request, pending.receiver);
}

Result<std::unique_ptr<http::ClientConnection>> ApiClient::open_tls_connection(
    const http::SocketAddress& address) {
  GPULET_TRY_ASSIGN(const http::TlsClientOptions options, make_tls_options(config_));
  GPULET_TRY_ASSIGN(const auto transport, http::tls_client(options));
  return http::ClientConnection::open_connection(loop_, transport, address, options.peer,
                                                 [this](Result<http::ClientResponse> result) {
                                                   // The next connection uses another address.
                                                   if (!result && !connection_->is_connected()) ++attempt_;
                                                   finish_request(std::move(result));
                                                 });
}

void ApiClient::finish_request(Result<http::ClientResponse> result) {
  pending_.reset();
  timeout_.reset();
  // In a later turn of the loop: only then may the connection, which calls this, be closed.
  finish_timer_ = loop_.after(Duration::zero(), [this, result = std::move(result)]() mutable {
    if (!result) connection_.reset();
    const Done done = std::move(done_);
    done_ = nullptr;
    done(std::move(result));
  });
}

void ApiClient::close_connection() {
  pending_.reset();
  timeout_.reset();
  finish_timer_.reset();
  done_ = nullptr;
  connection_.reset();
}

namespace {

constexpr std::size_t kMaxWarnings = 16;  // against a server whose error texts all differ

}  // namespace

RetryingSender::RetryingSender(Loop& loop, ClientConfig config, SendTiming timing, std::string what,
                               std::function<void()> step)
    : loop_(loop),
      what_(std::move(what)),
      step_(std::move(step)),
      client_(loop, std::move(config), timing.request_limit),
      backoff_(timing.backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())) {}

void RetryingSender::wake() {
  if (busy_ || next_) return;
  next_ = loop_.after(Duration::zero(), [this] {
    next_.reset();
    step_();
  });
}

void RetryingSender::send_request(const ApiRequest& request, std::string permission,
                                  std::function<Outcome(const http::ClientResponse&)> judge) {
  busy_ = true;
  permission_ = std::move(permission);
  judge_ = std::move(judge);
  client_.send_request(request,
                       [this](const Result<http::ClientResponse>& response) { on_response(response); });
}

void RetryingSender::on_response(const Result<http::ClientResponse>& response) {
  busy_ = false;
  const Outcome outcome = response ? judge_(*response) : Outcome::kError;
  if (outcome == Outcome::kDone) {
    ++status_.accepted;
    backoff_.reset();
  }
  if (outcome == Outcome::kError || outcome == Outcome::kRefused) warn_once(response);
  if (outcome != Outcome::kError && outcome != Outcome::kRetry) return wake();
  client_.close_connection();
  next_ = loop_.after(backoff_.next_delay(), [this] {
    next_.reset();
    step_();
  });
}

void RetryingSender::idle(bool settled) {
  client_.close_connection();
  if (!settled) return;
  backoff_.reset();
  status_.error.clear();
  warned_.clear();
}

void RetryingSender::warn_once(const Result<http::ClientResponse>& response) {
  const bool forbidden = response && response->status == 403;
  status_.error = response ? describe_response(*response) : response.error().full_message();
  if (forbidden) status_.error += " (the agent needs " + permission_ + ")";
  // A missing permission is one kind of error, whatever the text.
  const std::string& kind = forbidden ? permission_ : status_.error;
  if (warned_.size() >= kMaxWarnings || !warned_.insert(kind).second) return;
  ++status_.warnings;
  log::warning("a write to the API server failed; retrying", {{"what", what_}, {"error", status_.error}});
}

}  // namespace gpulet::k8s
