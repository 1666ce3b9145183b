#include "cluster/api_client.h"

#include "base/file.h"
#include "base/text.h"
#include "cluster/tls.h"

namespace gpulet::cluster {
namespace {

constexpr std::size_t kMaxTokenBytes = 1u << 16;
constexpr std::size_t kMaxPemBytes = 1u << 20;

std::string host_field(const Access& access) {
  const bool six = access.host.find(':') != std::string::npos;
  return (six ? "[" + access.host + "]" : access.host) + ":" + std::to_string(access.port);
}

// Empty where the certificate says who we are.
Result<std::string> token_of(const Access& access) {
  if (access.token_file.empty()) return access.token;
  GPULET_TRY_ASSIGN(const std::string token, read_file(access.token_file, kMaxTokenBytes));
  return std::string(text::trim(token));
}

std::string serialized(const ApiRequest& request, const Access& access, std::string_view token) {
  std::string text = request.method + " " + access.base_path + request.path;
  text.append(" HTTP/1.1\r\nHost: ").append(host_field(access));
  text.append("\r\nUser-Agent: gpulet\r\nAccept: ").append(request.accept);
  if (!token.empty()) text.append("\r\nAuthorization: Bearer ").append(token);
  if (!request.content_type.empty()) text.append("\r\nContent-Type: ").append(request.content_type);
  text.append("\r\nContent-Length: ").append(std::to_string(request.body.size())).append("\r\n\r\n");
  return text + request.body;
}

Result<std::string> pem_of(const std::string& text, const std::string& file) {
  if (!text.empty() || file.empty()) return text;
  return read_file(file, kMaxPemBytes);
}

Result<TlsOptions> tls_options(const Access& access) {
  TlsOptions options;
  options.server = access.tls_server_name.empty() ? access.host : access.tls_server_name;
  options.authorities_about = access.ca_file;
  options.certificate_about = access.certificate_file;
  options.key_about = access.key_file;
  GPULET_TRY_ASSIGN(options.authorities, pem_of(access.ca_text, access.ca_file));
  GPULET_TRY_ASSIGN(options.certificate, pem_of(access.certificate_text, access.certificate_file));
  GPULET_TRY_ASSIGN(options.key, pem_of(access.key_text, access.key_file));
  // An empty file must not turn into the trust of everyone whom the system knows.
  if (options.authorities.empty() && !access.ca_file.empty()) {
    return fail(Code::kInvalidArgument, "holds no certificate", access.ca_file);
  }
  return options;
}

}  // namespace

ApiClient::ApiClient(Loop& loop, Access access, Duration limit)
    : loop_(loop), access_(std::move(access)), limit_(limit), resolver_(loop, access_.host, access_.port) {}
ApiClient::~ApiClient() = default;

void ApiClient::request(const ApiRequest& request, Done done) { begin(request, {}, std::move(done)); }

void ApiClient::stream(const ApiRequest& request, Duration whole,
                       std::function<Status(std::string_view)> piece, Done done) {
  StreamListener listener;
  listener.begun = [this, whole] { await_end(whole, "the API server did not end its response in time"); };
  listener.piece = std::move(piece);
  begin(request, std::move(listener), std::move(done));
}

void ApiClient::await_end(Duration limit, const char* what) {
  timeout_ = loop_.after(limit, [this, what] { finish(fail(Code::kDeadlineExceeded, what)); });
}

void ApiClient::begin(const ApiRequest& request, StreamListener listener, Done done) {
  done_ = std::move(done);
  if (const auto renewed = renew_credential(); !renewed) return finish(fail(renewed.error()));
  await_end(limit_, "the API server did not answer in time");
  const auto token = token_of(access_);
  if (!token) {
    connection_.reset();
    return finish(fail(token.error()));
  }
  pending_ = Pending{serialized(request, access_, *token), std::move(listener)};
  if (!connection_ || !connection_->reusable()) {
    connection_.reset();
    return resolver_.resolve([this](Result<Addresses> addresses) { connect(std::move(addresses)); });
  }
  const Pending pending = std::move(*std::exchange(pending_, std::nullopt));
  connection_->start(pending.text, pending.listener);
}

// Before the request's own time begins: a program may take longer than that.
Status ApiClient::renew_credential() {
  if (!access_.credential) return {};
  GPULET_TRY_ASSIGN(Credential now, access_.credential());
  access_.token = std::move(now.token);
  if (now.certificate == access_.certificate_text) return {};
  access_.certificate_text = std::move(now.certificate);
  access_.key_text = std::move(now.key);
  connection_.reset();  // it was opened as whom we were
  return {};
}

void ApiClient::connect(Result<Addresses> addresses) {
  if (!pending_) return;  // given up meanwhile
  const Pending pending = std::move(*std::exchange(pending_, std::nullopt));
  if (!addresses) return finish(fail(addresses.error()));
  auto connection = opened((*addresses)[attempt_ % addresses->size()]);
  if (!connection) {
    ++attempt_;
    return finish(fail(connection.error()));
  }
  connection_ = std::move(*connection);
  connection_->start(pending.text, pending.listener);
}

Result<std::unique_ptr<Connection>> ApiClient::opened(const Address& address) {
  GPULET_TRY_ASSIGN(const TlsOptions options, tls_options(access_));
  GPULET_TRY_ASSIGN(auto channel, TlsClient::create(options));
  return Connection::open(loop_, std::move(channel), address, options.peer,
                          [this](Result<ApiResponse> result) {
                            // The next connection goes to another of the host's addresses.
                            if (!result && !connection_->connected()) ++attempt_;
                            finish(std::move(result));
                          });
}

void ApiClient::finish(Result<ApiResponse> result) {
  pending_.reset();
  timeout_.reset();
  // From a turn of its own: the connection, from which this call comes, may then be closed.
  later_ = loop_.after(Duration::zero(), [this, result = std::move(result)]() mutable {
    if (!result) connection_.reset();
    const Done done = std::move(done_);
    done_ = nullptr;
    done(std::move(result));
  });
}

void ApiClient::close() {
  pending_.reset();
  timeout_.reset();
  later_.reset();
  done_ = nullptr;
  connection_.reset();
}

}  // namespace gpulet::cluster
