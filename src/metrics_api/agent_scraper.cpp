#include "metrics_api/agent_scraper.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "http/access_gate.h"
#include "http/client.h"
#include "http/socket.h"
#include "http/transport.h"
#include "k8s/objects.h"

namespace gpulet::metrics_api {
namespace {

constexpr std::int64_t kMilli = 1000;
constexpr double kLargest = 9e15;  // its thousandths fit into 64 bits

}  // namespace

std::optional<Metric> find_metric(std::string_view name) {
  const auto found = std::ranges::find(kMetrics, name, &MetricInfo::name);
  if (found == kMetrics.end()) return std::nullopt;
  return found->metric;
}

std::string format_quantity(double value) {
  const auto milli = std::llround(std::clamp(value, 0.0, kLargest) * kMilli);
  if (milli % kMilli == 0) return std::to_string(milli / kMilli);
  return std::to_string(milli) + "m";
}

namespace {

constexpr double kMebibyte = 1024.0 * 1024.0;
constexpr double kPercent = 100;

enum class Series { kUtilization, kEngine, kUsed, kFree, kPower, kMemory, kSampleAge };
constexpr std::array<std::pair<std::string_view, Series>, 7> kSeries = {{
    {"DCGM_FI_DEV_GPU_UTIL", Series::kUtilization},
    {"DCGM_FI_PROF_GR_ENGINE_ACTIVE", Series::kEngine},
    {"DCGM_FI_DEV_FB_USED", Series::kUsed},
    {"DCGM_FI_DEV_FB_FREE", Series::kFree},
    {"DCGM_FI_DEV_POWER_USAGE", Series::kPower},
    {"gpulet_pod_gpu_memory_bytes", Series::kMemory},
    {"gpulet_sample_age_seconds", Series::kSampleAge},
}};

// The labels that matter here; the first of a name wins. Includes dcgm-exporter's old names.
struct Labels {
  std::string uuid, instance, name_space, pod;

  std::string* find(std::string_view name) {
    if (name == "UUID" || name == "uuid") return &uuid;
    if (name == "GPU_I_ID") return &instance;
    if (name == "namespace" || name == "pod_namespace") return &name_space;
    if (name == "pod" || name == "pod_name") return &pod;
    return nullptr;
  }
};

// `text` starts after a label's opening quote and is advanced past the closing one.
std::optional<std::string> read_quoted(std::string_view& text) {
  std::string value;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return value;
    }
    if (text[i] != '\\') {
      value += text[i];
    } else if (++i < text.size()) {
      value += text[i] == 'n' ? '\n' : text[i];
    }
  }
  return std::nullopt;
}

void skip_blanks(std::string_view& text) {
  const auto first = text.find_first_not_of(" \t");
  text.remove_prefix(first == std::string_view::npos ? text.size() : first);
}

// `text` starts after the opening brace and is advanced past the closing one.
std::optional<Labels> parse_labels(std::string_view& text) {
  Labels labels;
  for (;;) {
    skip_blanks(text);
    if (text.empty()) return std::nullopt;
    if (text[0] == '}') {
      text.remove_prefix(1);
      return labels;
    }
    const auto equals = text.find("=\"");
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view name = text.substr(0, equals);
    text.remove_prefix(equals + 2);
    auto value = read_quoted(text);
    if (!value) return std::nullopt;
    if (std::string* label = labels.find(name); label != nullptr && label->empty())
      *label = std::move(*value);
    skip_blanks(text);
    if (!text.empty() && text[0] == ',') text.remove_prefix(1);
  }
}

// The sample's value; a timestamp may follow.
std::optional<double> parse_sample_value(std::string_view text) {
  skip_blanks(text);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size() || *end == ' ' || *end == '\t';
  if (error != std::errc() || !whole || !std::isfinite(value) || value < 0) return std::nullopt;
  return value;
}

template <class Map>
double sum_values(const Map& values) {
  double total = 0;
  for (const auto& [device, value] : values) total += value;
  return total;
}

}  // namespace

std::set<AgentPageParser::Device> AgentPageParser::Pod::device_ids() const {
  std::set<Device> all;
  for (const auto* values : {&utilization, &engine, &memory, &framebuffer}) {
    for (const auto& [device, value] : *values) all.insert(device);
  }
  return all;
}

Status AgentPageParser::parse_chunk(std::string_view bytes) {
  bytes_ += bytes.size();
  if (bytes_ > kMaxPageBytes) return fail(Code::kIo, "the agent's page is larger than 16 MiB");
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + piece.size() > kMaxLineBytes) {
      return fail(Code::kIo, "the agent's page has a line longer than 64 KiB");
    }
    if (end == std::string_view::npos) {
      line_ += piece;
      return {};
    }
    if (line_.empty()) {
      parse_line(piece);
    } else {
      line_ += piece;
      parse_line(line_);
      line_.clear();
    }
    bytes.remove_prefix(end + 1);
    if (over_limit_) return fail(Code::kIo, "the agent's page has more than 4096 Pods or devices");
  }
  return {};
}

void AgentPageParser::parse_line(std::string_view line) {
  if (line.empty() || line[0] == '#') return;
  const std::string_view name = line.substr(0, line.find_first_of("{ \t"));
  const Series* series = nullptr;
  for (const auto& [known, kind] : kSeries) {
    if (name == known) series = &kind;
  }
  if (series == nullptr) return;
  line.remove_prefix(name.size());
  Labels labels;
  if (!line.empty() && line[0] == '{') {
    line.remove_prefix(1);
    auto read = parse_labels(line);
    if (!read) return;
    labels = std::move(*read);
  }
  const auto value = parse_sample_value(line);
  if (!value) return;
  if (*series == Series::kSampleAge) {
    sample_age_s_ = *value;
    return;
  }
  if (labels.uuid.empty()) return;
  const bool part = !labels.instance.empty();
  const Device device = part ? labels.uuid + "/" + labels.instance : labels.uuid;
  if (*series == Series::kUsed || *series == Series::kFree) {
    DeviceMemory& memory = memory_[device];
    // Used memory may be divided among Pods; free memory appears once, or the same for each.
    (*series == Series::kUsed ? memory.used : memory.free) =
        *series == Series::kUsed ? memory.used + *value : std::max(memory.free, *value);
    memory.has_free |= *series == Series::kFree;
  }
  const bool nobody = labels.pod.empty() || labels.name_space.empty();
  if (!nobody) {
    Pod& pod = pods_[{std::move(labels.name_space), std::move(labels.pod)}];
    switch (*series) {
      case Series::kUtilization:
        pod.utilization[device] = *value;
        break;
      case Series::kEngine:
        pod.engine[device] = *value * kPercent;
        break;
      case Series::kUsed:
        pod.framebuffer[device] = *value * kMebibyte;
        break;
      case Series::kMemory:
        pod.memory[device] += *value;  // each compute instance has its own
        break;
      case Series::kPower:
        if (!part) pod.power[device] = *value;
        break;
      case Series::kFree:
      case Series::kSampleAge:
        break;
    }
  }
  over_limit_ = pods_.size() > kMaxPodsPerPage || memory_.size() > kMaxDevicesPerPage;
}

PodMetrics AgentPageParser::pod_values(const Pod& pod) const {
  PodMetrics values;
  auto utilization = pod.engine;
  for (const auto& [device, value] : pod.utilization) utilization[device] = value;
  if (!utilization.empty()) {
    values[Metric::kUtilization] = sum_values(utilization) / static_cast<double>(utilization.size());
  }
  if (!pod.power.empty()) values[Metric::kPower] = sum_values(pod.power);
  const auto& memory = pod.memory.empty() ? pod.framebuffer : pod.memory;
  if (memory.empty()) return values;
  values[Metric::kMemoryUsed] = sum_values(memory);
  double usable = 0;
  for (const auto& device : pod.device_ids()) {
    const auto found = memory_.find(device);
    if (found == memory_.end() || !found->second.has_free) return values;
    usable += (found->second.used + found->second.free) * kMebibyte;
  }
  if (usable > 0) values[Metric::kMemoryUtilization] = sum_values(memory) / usable * kPercent;
  return values;
}

AgentPage AgentPageParser::finish_page() {
  if (!line_.empty()) parse_line(std::exchange(line_, {}));
  AgentPage page;
  page.sample_age_s = sample_age_s_;
  for (const auto& [name, pod] : pods_) {
    if (auto values = pod_values(pod); !values.empty()) page.pods[name] = std::move(values);
  }
  return page;
}

namespace {

constexpr const char* kPeer = "the agent";
constexpr std::size_t kMaxSecretBytes = 64u << 10;
constexpr std::size_t kMaxCaBytes = 1u << 20;

Result<http::TransportFactory> make_agent_transport(const std::string& address,
                                                    const ScrapeOptions& options) {
  if (!options.https) return http::plain_client();
  http::TlsClientOptions tls{.server = options.server_name.empty() ? address : options.server_name,
                             .authorities = {},
                             .certificate = {},
                             .key = {},
                             .authorities_source = options.ca_file,
                             .certificate_source = {},
                             .key_source = {},
                             .peer = kPeer};
  if (!options.ca_file.empty()) {
    GPULET_TRY_ASSIGN(tls.authorities, read_file(options.ca_file, kMaxCaBytes));
    // An empty file must not mean to trust the system CAs.
    if (tls.authorities.empty())
      return fail(Code::kInvalidArgument, "contains no certificate", options.ca_file);
  }
  return http::tls_client(tls);
}

// The Authorization header; empty if none is configured.
Result<std::string> authorization_header(const ScrapeOptions& options) {
  const bool basic = !options.basic_auth_file.empty();
  const std::string& file = basic ? options.basic_auth_file : options.token_file;
  if (file.empty()) return std::string();
  GPULET_TRY_ASSIGN(const std::string content, read_file(file, kMaxSecretBytes));
  const std::string secret(text::trim(content));
  if (secret.empty() || secret.find_first_of("\r\n") != std::string::npos ||
      (basic && secret.find(':') == std::string::npos)) {
    return fail(Code::kInvalidArgument,
                basic ? "must contain one line, name:password" : "must contain one line, a token", file);
  }
  return basic ? "Basic " + text::encode_base64(secret) : "Bearer " + secret;
}

}  // namespace

// One page of one agent.
class AgentScraper::Scrape {
 public:
  Scrape(Loop& loop, const ScrapeOptions& options, std::string address, Done done)
      : loop_(loop),
        options_(options),
        address_(std::move(address)),
        done_(std::move(done)),
        resolver_(loop, address_, options.port) {
    timeout_ = loop_.after(options.timeout, [this] {
      finish_scrape(fail(Code::kDeadlineExceeded, "the agent did not respond in time"));
    });
    resolver_.resolve([this](const Result<http::SocketAddresses>& addresses) {
      if (auto begun = open_connection(addresses); !begun) finish_scrape(fail(begun.error()));
    });
  }

 private:
  Status open_connection(const Result<http::SocketAddresses>& addresses) {
    if (!addresses) return fail(addresses.error());
    GPULET_TRY_ASSIGN(const auto transport, make_agent_transport(address_, options_));
    GPULET_TRY_ASSIGN(std::string authorization, authorization_header(options_));
    GPULET_TRY_ASSIGN(connection_,
                      http::ClientConnection::open_connection(
                          loop_, transport, addresses->front(), kPeer,
                          [this](Result<http::ClientResponse> response) { on_response(response); }));
    connection_->start_request(
        {.path = "/metrics",
         .host = http::host_field(address_, options_.port),
         .accept = "text/plain;version=0.0.4",
         .authorization = std::move(authorization),
         .close = true},
        {.on_head = {}, .on_piece = [this](std::string_view piece) { return reader_.parse_chunk(piece); }});
    return {};
  }

  void on_response(const Result<http::ClientResponse>& response) {
    if (!response) return finish_scrape(fail(response.error()));
    if (response->status == 200) return finish_scrape(reader_.finish_page());
    const bool refused = response->status == 401 || response->status == 403;
    finish_scrape(fail(refused ? Code::kPermissionDenied : Code::kUnavailable,
                       "the agent responded with status " + std::to_string(response->status)));
  }

  // On its own loop turn: the connection that may call this is then closed.
  void finish_scrape(Result<AgentPage> page) {
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
  http::Resolver resolver_;
  std::unique_ptr<http::ClientConnection> connection_;
  AgentPageParser reader_;
  Subscription timeout_;
};

AgentScraper::AgentScraper(Loop& loop, ScrapeOptions options) : loop_(loop), options_(std::move(options)) {}
AgentScraper::~AgentScraper() = default;

void AgentScraper::scrape_agent(const std::string& address, Done done) {
  if (waiting_.size() >= kMaxQueuedScrapes) {
    loop_.post(
        [done = std::move(done)] { done(fail(Code::kUnavailable, "too many agent requests are queued")); });
    return;
  }
  waiting_.emplace_back(address, std::move(done));
  if (!start_timer_) start_timer_ = loop_.after(Duration::zero(), [this] { start_scrapes(); });
}

void AgentScraper::start_scrapes() {
  start_timer_.reset();
  while (running_.size() < kMaxConcurrentScrapes && !waiting_.empty()) {
    auto next = std::move(waiting_.front());
    waiting_.pop_front();
    const std::uint64_t id = next_id_++;
    running_[id] = std::make_unique<Scrape>(
        loop_, options_, std::move(next.first),
        [this, id, done = std::move(next.second)](Result<AgentPage> page) {
          const auto callback = done;  // a copy, because the scrape owns the original
          running_.erase(id);
          if (!start_timer_) start_timer_ = loop_.after(Duration::zero(), [this] { start_scrapes(); });
          callback(std::move(page));
        });
  }
}

}  // namespace gpulet::metrics_api
