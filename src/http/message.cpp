#include "http/message.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"

namespace gpulet::http {
namespace {

constexpr std::size_t kMinGzipBytes = 256;  // below, the larger header outweighs the compression
// A metrics page is a third larger than at the best level, but takes a fifth of the time.
constexpr int kLevel = 3;
constexpr int kGzipWindow = 15 + 16;  // selects gzip's format in zlib

}  // namespace

std::string gzip(std::string_view text) {
  z_stream stream{};
  if (::deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK) return {};
  std::string packed(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const bool whole = ::deflate(&stream, Z_FINISH) == Z_STREAM_END;
  packed.resize(whole ? stream.total_out : 0);
  ::deflateEnd(&stream);
  packed.shrink_to_fit();
  return packed;
}

std::string gunzip(std::string_view packed, std::size_t limit) {
  z_stream stream{};
  if (::inflateInit2(&stream, kGzipWindow) != Z_OK) return {};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string text;
  int result = Z_OK;
  while (result == Z_OK && text.size() <= limit) {
    char piece[16'384];
    stream.next_out = reinterpret_cast<Bytef*>(piece);
    stream.avail_out = sizeof piece;
    result = ::inflate(&stream, Z_NO_FLUSH);
    text.append(piece, sizeof piece - stream.avail_out);
    if (result == Z_OK && stream.avail_in == 0 && stream.avail_out != 0) result = Z_BUF_ERROR;
  }
  ::inflateEnd(&stream);
  return result == Z_STREAM_END && text.size() <= limit ? text : std::string();
}

struct GzipWriter::Stream {
  z_stream zlib{};
  ~Stream() { ::deflateEnd(&zlib); }
};

GzipWriter::GzipWriter() : stream_(std::make_unique<Stream>()) {
  if (::deflateInit2(&stream_->zlib, Z_BEST_SPEED, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    stream_.reset();
}
GzipWriter::~GzipWriter() = default;
GzipWriter::GzipWriter(GzipWriter&&) noexcept = default;
GzipWriter& GzipWriter::operator=(GzipWriter&&) noexcept = default;

void GzipWriter::append_piece(std::string_view text) { deflate_piece(text, Z_NO_FLUSH); }

void GzipWriter::deflate_piece(std::string_view text, int flush) {
  if (!stream_) return;
  auto& zlib = stream_->zlib;
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zlib.avail_in = static_cast<uInt>(text.size());
  do {
    char piece[16'384];
    zlib.next_out = reinterpret_cast<Bytef*>(piece);
    zlib.avail_out = sizeof piece;
    ::deflate(&zlib, flush);
    packed_.append(piece, sizeof piece - zlib.avail_out);
  } while (zlib.avail_out == 0);
}

std::string GzipWriter::finish_text() {
  deflate_piece({}, Z_FINISH);
  if (!stream_) packed_.clear();
  stream_.reset();
  return std::move(packed_);
}

const SharedText& Document::gzipped() const {
  if (!tried_) {
    tried_ = true;
    if (plain_->size() >= kMinGzipBytes) {
      std::string packed = gzip(*plain_);
      if (!packed.empty() && packed.size() < plain_->size()) {
        gzipped_ = std::make_shared<const std::string>(std::move(packed));
      }
    }
  }
  return gzipped_;
}

namespace {

constexpr std::size_t kMaxChoices = 64;  // of a field; a browser sends eight

// q as thousandths: "0.5" is 500. nullopt if it is not a valid weight.
std::optional<int> weight(std::string_view text) {
  if (text.empty() || text.size() > 5 || (text[0] != '0' && text[0] != '1')) return std::nullopt;
  if (text.size() > 1 && text[1] != '.') return std::nullopt;
  int value = text[0] - '0', digits = 0;
  for (std::size_t i = 2; i < text.size(); ++i, ++digits) {
    if (text[i] < '0' || text[i] > '9') return std::nullopt;
    value = value * 10 + (text[i] - '0');
  }
  for (; digits < 3; ++digits) value *= 10;
  return std::min(value, 1000);
}

struct Choice {
  std::string name;     // lower case, without parameters
  std::string version;  // its parameter of that name
  int weight = 1000;
};

// Calls `each(choice)`; a choice with an invalid weight counts as refused.
template <class Each>
void each_choice(std::string_view field, Each each) {
  std::size_t count = 0;
  for (const auto& entry : text::split(field, ',')) {
    if (++count > kMaxChoices) return;
    const auto parts = text::split(entry, ';');
    if (parts.empty()) continue;
    Choice choice{.name = text::lower(text::trim(parts[0])), .version = {}};
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const std::string parameter(text::trim(parts[i]));
      const auto equals = parameter.find('=');
      if (equals == std::string::npos) continue;
      const std::string key = text::lower(text::trim(std::string_view(parameter).substr(0, equals)));
      std::string value(text::trim(std::string_view(parameter).substr(equals + 1)));
      if (value.size() >= 2 && value.front() == '"' && value.back() == '"')
        value = value.substr(1, value.size() - 2);
      if (key == "version") choice.version = value;
      if (key == "q") choice.weight = weight(value).value_or(0);
    }
    each(choice);
  }
}

}  // namespace

bool prefers_open_metrics(std::string_view accept) {
  int open = 0;
  std::optional<int> plain, any_text, anything;
  each_choice(accept, [&](const Choice& choice) {
    auto raise = [&](std::optional<int>& best) { best = std::max(best.value_or(0), choice.weight); };
    if (choice.name == "application/openmetrics-text") {
      if (choice.version.empty() || choice.version == "1.0.0") open = std::max(open, choice.weight);
    } else if (choice.name == "text/plain") {
      if (choice.version.empty() || choice.version == "0.0.4") raise(plain);
    } else if (choice.name == "text/*") {
      raise(any_text);
    } else if (choice.name == "*/*") {
      raise(anything);
    }
  });
  const int text = plain ? *plain : any_text ? *any_text : anything.value_or(0);
  return open > 0 && open >= text;
}

bool accepts_gzip(std::string_view accept_encoding) {
  std::optional<int> gzip, anything;
  each_choice(accept_encoding, [&](const Choice& choice) {
    if (choice.name == "gzip" || choice.name == "x-gzip") gzip = choice.weight;
    if (choice.name == "*") anything = choice.weight;
  });
  return (gzip ? *gzip : anything.value_or(0)) > 0;
}

Subscription Subscribers::subscribe(EventCallback callback, bool is_authenticated, std::size_t most) {
  if (subscribers_.size() >= most) return {};
  const std::uint64_t id = next_++;
  subscribers_.emplace(id, Subscriber{std::move(callback), is_authenticated});
  if (on_count_changed) on_count_changed();
  return Subscription([this, id] {
    subscribers_.erase(id);
    if (on_count_changed) on_count_changed();
  });
}

void Subscribers::publish_event(const SharedText& text, const SharedText& public_text) {
  std::vector<std::uint64_t> ids;
  ids.reserve(subscribers_.size());
  for (const auto& [id, subscriber] : subscribers_) ids.push_back(id);
  for (const std::uint64_t id : ids) {
    // A notified subscriber may have left and removed its callback.
    const auto found = subscribers_.find(id);
    if (found == subscribers_.end()) continue;
    const auto callback = found->second.callback;
    callback(found->second.is_authenticated ? text : public_text);
  }
}

namespace {

// Restricts the browser: pages load nothing from other hosts, run only their own script file, are not shown
// in frames and use no device features.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kHeaders = {{
    {"Cache-Control", "no-store"},
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri "
     "'none'; "
     "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Permissions-Policy",
     "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), "
     "magnetometer=(), microphone=(), payment=(), usb=()"},
    {"Referrer-Policy", "no-referrer"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"X-Robots-Tag", "noindex"},
}};

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    default:
      return "Service Unavailable";
  }
}

}  // namespace

std::string response_head(const Response& answer, bool keep_alive, const Headers& headers) {
  std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " ";
  head.append(reason_phrase(answer.status));
  // Source: RFC 9110, section 15.4.5: 304 has the fields that a cache needs, and no body.
  const bool is_unchanged = answer.status == 304;
  if (!is_unchanged) head.append("\r\nContent-Type: ").append(answer.content_type);
  if (!answer.etag.empty()) head.append("\r\nETag: ").append(answer.etag);
  if (!answer.is_event_stream && !is_unchanged)
    head.append("\r\nContent-Length: ").append(std::to_string(answer.body->size()));
  if (answer.gzipped) head.append("\r\nContent-Encoding: gzip");
  if (answer.varies_by_accept) head.append("\r\nVary: Accept, Accept-Encoding");
  for (const auto& [name, value] : kHeaders) {
    bool replaced = false;
    for (const auto& [other, theirs] : headers) replaced |= text::lower(other) == text::lower(name);
    if (!replaced) head.append("\r\n").append(name).append(": ").append(value);
  }
  for (const auto& [name, value] : headers) head.append("\r\n").append(name).append(": ").append(value);
  if (answer.requests_password)
    head.append("\r\nWWW-Authenticate: Basic realm=\"gpulet\", charset=\"UTF-8\"");
  if (answer.status == 405) head.append("\r\nAllow: GET, HEAD");
  if (answer.status == 429 || answer.status == 503) head.append("\r\nRetry-After: 5");
  head.append(keep_alive ? "\r\n\r\n" : "\r\nConnection: close\r\n\r\n");
  return head;
}

}  // namespace gpulet::http
