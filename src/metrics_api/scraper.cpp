#include "metrics_api/scraper.h"

#include <array>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "cluster/connection.h"
#include "cluster/objects.h"
#include "cluster/resolve.h"
#include "cluster/tls.h"
#include "web/passwords.h"

namespace gpulet::metrics_api {
namespace {

constexpr const char* kPeer = "the agent";
constexpr std::size_t kMaxSecretBytes = 64u << 10;
constexpr std::size_t kMaxAuthorities = 1u << 20;

Result<std::unique_ptr<cluster::Channel>> channel_to(const std::string& address,
                                                     const ScrapeOptions& options) {
  if (!options.https) return cluster::plain_channel();
  cluster::TlsOptions tls{.server = options.server_name.empty() ? address : options.server_name,
                          .authorities = {},
                          .certificate = {},
                          .key = {},
                          .authorities_about = options.ca_file,
                          .certificate_about = {},
                          .key_about = {},
                          .peer = kPeer};
  if (!options.ca_file.empty()) {
    GPULET_TRY_ASSIGN(tls.authorities, read_file(options.ca_file, kMaxAuthorities));
    // An empty file must not turn into the trust of everyone whom the system knows.
    if (tls.authorities.empty()) return fail(Code::kInvalidArgument, "holds no certificate", options.ca_file);
  }
  GPULET_TRY_ASSIGN(auto client, cluster::TlsClient::create(tls));
  return std::unique_ptr<cluster::Channel>(std::move(client));
}

// The value of the field Authorization; empty where none is wanted.
Result<std::string> authorization(const ScrapeOptions& options) {
  const bool basic = !options.basic_auth_file.empty();
  const std::string& file = basic ? options.basic_auth_file : options.token_file;
  if (file.empty()) return std::string();
  GPULET_TRY_ASSIGN(const std::string content, read_file(file, kMaxSecretBytes));
  const std::string secret(text::trim(content));
  if (secret.empty() || secret.find_first_of("\r\n") != std::string::npos ||
      (basic && secret.find(':') == std::string::npos)) {
    return fail(Code::kInvalidArgument,
                basic ? "must hold one line, name:password" : "must hold one line, a token", file);
  }
  return basic ? "Basic " + web::encode_base64(secret) : "Bearer " + secret;
}

std::string request_text(const std::string& address, std::uint16_t port, const std::string& authorization) {
  const bool six = address.find(':') != std::string::npos;
  std::string text = "GET /metrics HTTP/1.1\r\nHost: " + (six ? "[" + address + "]" : address) + ":" +
                     std::to_string(port) +
                     "\r\nUser-Agent: gpulet\r\nAccept: text/plain;version=0.0.4\r\nConnection: close\r\n";
  if (!authorization.empty()) text += "Authorization: " + authorization + "\r\n";
  return text + "\r\n";
}

}  // namespace

// One page, from one agent.
class Scraper::Scrape {
 public:
  Scrape(Loop& loop, const ScrapeOptions& options, std::string address, Done done)
      : loop_(loop),
        options_(options),
        address_(std::move(address)),
        done_(std::move(done)),
        resolver_(loop, address_, options.port) {
    timeout_ = loop_.after(
        options.limit, [this] { finish(fail(Code::kDeadlineExceeded, "the agent did not answer in time")); });
    resolver_.resolve([this](const Result<cluster::Addresses>& addresses) {
      if (auto begun = begin(addresses); !begun) finish(fail(begun.error()));
    });
  }

 private:
  Status begin(const Result<cluster::Addresses>& addresses) {
    if (!addresses) return fail(addresses.error());
    GPULET_TRY_ASSIGN(auto channel, channel_to(address_, options_));
    GPULET_TRY_ASSIGN(const std::string who, authorization(options_));
    GPULET_TRY_ASSIGN(
        connection_,
        cluster::Connection::open(loop_, std::move(channel), addresses->front(), kPeer,
                                  [this](Result<cluster::ApiResponse> response) { on_response(response); }));
    connection_->start(
        request_text(address_, options_.port, who),
        {.begun = {}, .piece = [this](std::string_view piece) { return reader_.take(piece); }});
    return {};
  }

  void on_response(const Result<cluster::ApiResponse>& response) {
    if (!response) return finish(fail(response.error()));
    if (response->status == 200) return finish(reader_.finish());
    const bool refused = response->status == 401 || response->status == 403;
    finish(fail(refused ? Code::kPermissionDenied : Code::kUnavailable,
                "the agent answered " + std::to_string(response->status)));
  }

  // From a turn of its own: the connection, from which this may be called, is then closed.
  void finish(Result<AgentPage> page) {
    timeout_ = loop_.after(Duration::zero(), [this, page = std::move(page)]() mutable {
      connection_.reset();
      const Done done = std::move(done_);
      done(std::move(page));  // destroys this object
    });
  }

  Loop& loop_;
  const ScrapeOptions& options_;
  const std::string address_;
  Done done_;
  cluster::Resolver resolver_;
  std::unique_ptr<cluster::Connection> connection_;
  AgentPageReader reader_;
  Subscription timeout_;
};

Scraper::Scraper(Loop& loop, ScrapeOptions options) : loop_(loop), options_(std::move(options)) {}
Scraper::~Scraper() = default;

void Scraper::scrape(const std::string& address, Done done) {
  if (waiting_.size() >= kMaxScrapesWaiting) {
    loop_.post(
        [done = std::move(done)] { done(fail(Code::kUnavailable, "too many agents are asked at once")); });
    return;
  }
  waiting_.emplace_back(address, std::move(done));
  if (!pumping_) pumping_ = loop_.after(Duration::zero(), [this] { pump(); });
}

void Scraper::pump() {
  pumping_.reset();
  while (running_.size() < kScrapesAtOnce && !waiting_.empty()) {
    auto [address, done] = std::move(waiting_.front());
    waiting_.pop_front();
    const std::uint64_t id = next_id_++;
    running_[id] = std::make_unique<Scrape>(loop_, options_, std::move(address),
                                            [this, id, done = std::move(done)](Result<AgentPage> page) {
                                              const auto told = done;  // a copy: it goes with the scrape
                                              running_.erase(id);
                                              if (!pumping_)
                                                pumping_ = loop_.after(Duration::zero(), [this] { pump(); });
                                              told(std::move(page));
                                            });
  }
}

}  // namespace gpulet::metrics_api
