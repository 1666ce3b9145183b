#include "web/ipc_messages.h"

#include <cstring>
#include <numeric>
#include <type_traits>

namespace gpulet::web {
namespace {

enum class Kind : std::uint16_t { kPages = 1, kAccess = 2 };

struct MessageHead {
  Kind kind;
  std::uint8_t healthy, ready;
  std::uint32_t has_metrics;
  std::uint32_t present;  // one bit per text
  std::uint32_t fresh_ms;
  std::array<std::uint32_t, kPageTexts> lengths;
};
static_assert(std::has_unique_object_representations_v<MessageHead>, "padding would be sent");

std::string with_head(const MessageHead& head, std::size_t size) {
  std::string bytes;
  bytes.reserve(sizeof head + size);
  bytes.append(reinterpret_cast<const char*>(&head), sizeof head);
  return bytes;
}

class RulesWriter {
 public:
  RulesWriter& operator<<(std::uint32_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }
  RulesWriter& operator<<(const std::string& text) {
    *this << static_cast<std::uint32_t>(text.size());
    bytes += text;
    return *this;
  }
  std::string bytes;
};

class RulesReader {
 public:
  explicit RulesReader(std::string_view bytes) : left_(bytes) {}
  std::uint32_t read_number() {
    std::uint32_t number = 0;
    if (left_.size() < sizeof number) return fail_with(0u);
    std::memcpy(&number, left_.data(), sizeof number);
    left_.remove_prefix(sizeof number);
    return number;
  }
  std::string read_text() {
    const std::uint32_t size = read_number();
    if (left_.size() < size) return fail_with(std::string());
    const std::string text(left_.substr(0, size));
    left_.remove_prefix(size);
    return text;
  }
  // The number of entries that follow, each of at least four bytes.
  std::uint32_t read_count() {
    const std::uint32_t count = read_number();
    return count > left_.size() / 4 ? fail_with(0u) : count;
  }
  bool is_complete() const { return good_ && left_.empty(); }

 private:
  template <class Value>
  Value fail_with(Value value) {
    good_ = false;
    left_ = {};
    return value;
  }
  std::string_view left_;
  bool good_ = true;
};

std::string encode_access_rules(const http::AccessRules& rules) {
  RulesWriter out;
  out << std::uint32_t{rules.tls.has_value()};
  if (rules.tls) {
    const http::TlsServerConfig& tls = *rules.tls;
    out << tls.certificate << tls.key << tls.client_authorities;
    out << tls.certificate_source << tls.key_source << tls.client_authorities_source;
    out << static_cast<std::uint32_t>(tls.clients) << static_cast<std::uint32_t>(tls.client_names.size());
    for (const auto& name : tls.client_names) out << name;
    out << static_cast<std::uint32_t>(tls.min_version) << static_cast<std::uint32_t>(tls.max_version);
    out << tls.ciphers << tls.curves << std::uint32_t{tls.prefer_server_ciphers};
  }
  for (const auto* pairs : {&rules.users, &rules.headers}) {
    out << static_cast<std::uint32_t>(pairs->size());
    for (const auto& [name, value] : *pairs) out << name << value;
  }
  return std::move(out.bytes);
}

Result<http::AccessRules> decode_access_rules(std::string_view bytes) {
  RulesReader in(bytes);
  http::AccessRules rules;
  if (in.read_number() != 0) {
    http::TlsServerConfig& tls = rules.tls.emplace();
    for (auto* text : {&tls.certificate, &tls.key, &tls.client_authorities, &tls.certificate_source,
                       &tls.key_source, &tls.client_authorities_source}) {
      *text = in.read_text();
    }
    tls.clients = static_cast<http::ClientAuthType>(in.read_number());
    for (auto left = in.read_count(); left > 0; --left) tls.client_names.push_back(in.read_text());
    tls.min_version = static_cast<int>(in.read_number());
    tls.max_version = static_cast<int>(in.read_number());
    tls.ciphers = in.read_text();
    tls.curves = in.read_text();
    tls.prefer_server_ciphers = in.read_number() != 0;
  }
  for (auto* pairs : {&rules.users, &rules.headers}) {
    for (auto left = in.read_count(); left > 0; --left) {
      std::string name = in.read_text();
      pairs->emplace_back(std::move(name), in.read_text());
    }
  }
  if (!in.is_complete()) return fail(Code::kInvalidArgument, "not encoded access rules");
  return rules;
}

// The size of all texts; nullopt for a header that encode() does not produce.
std::optional<std::size_t> size_after(const MessageHead& head) {
  const auto sum = std::accumulate(head.lengths.begin(), head.lengths.end(), std::uint64_t{0});
  if (head.kind == Kind::kAccess)
    return sum <= http::kMaxAccessRulesBytes ? std::optional<std::size_t>(sum) : std::nullopt;
  if (head.kind != Kind::kPages || sum > kMaxPagesBytes || head.healthy > 1 || head.ready > 1 ||
      head.has_metrics > 1)
    return std::nullopt;
  for (std::size_t i = 0; i < kPageTexts; ++i) {
    if ((head.present >> i & 1) == 0 && head.lengths[i] != 0) return std::nullopt;
  }
  return sum;
}

}  // namespace

const std::string& page_text(const Pages& pages, PageText text) {
  switch (text) {
    case PageText::kHealth:
      return pages.health_text;
    case PageText::kReady:
      return pages.ready_text;
    case PageText::kMetrics:
      return pages.metrics;
    case PageText::kOpenMetrics:
      return pages.open_metrics;
    case PageText::kNode:
      return pages.node;
    case PageText::kNow:
      return pages.now;
    case PageText::kUse:
      return pages.use;
    case PageText::kPublicNode:
      return pages.public_node;
    case PageText::kPublicUse:
      return pages.public_use;
    case PageText::kTrends:
      return pages.trends;
    case PageText::kUsage:
      break;
  }
  return pages.usage;
}

std::size_t total_page_bytes(const Pages& pages) {
  std::size_t size = 0;
  for (std::size_t i = 0; i < kPageTexts; ++i) size += page_text(pages, static_cast<PageText>(i)).size();
  return size;
}

namespace {

// Whether the message that follows `before` has that text: it is written, and the child has another.
bool is_sent(const Pages& pages, const Pages* before, PageText text) {
  const bool is_metrics = text == PageText::kMetrics || text == PageText::kOpenMetrics;
  if (is_metrics && !pages.has_metrics) return false;
  if (before == nullptr || (is_metrics && !before->has_metrics)) return true;
  return page_text(pages, text) != page_text(*before, text);
}

}  // namespace

PagesMessage make_pages_message(const Pages& pages, std::chrono::milliseconds fresh) {
  PagesMessage frame{.healthy = pages.healthy,
                     .ready = pages.ready,
                     .valid_for = fresh,
                     .texts = {},
                     .has_metrics = pages.has_metrics};
  for (std::size_t i = 0; i < kPageTexts; ++i) {
    const auto text = static_cast<PageText>(i);
    if (is_sent(pages, nullptr, text)) frame.texts[i] = page_text(pages, text);
  }
  return frame;
}

std::string encode_pages(const Pages& pages, std::chrono::milliseconds fresh, const Pages* before) {
  MessageHead head{.kind = Kind::kPages,
                   .healthy = pages.healthy,
                   .ready = pages.ready,
                   .has_metrics = pages.has_metrics,
                   .present = 0,
                   .fresh_ms = static_cast<std::uint32_t>(fresh.count()),
                   .lengths = {}};
  std::size_t size = 0;
  for (std::size_t i = 0; i < kPageTexts; ++i) {
    const std::string& text = page_text(pages, static_cast<PageText>(i));
    if (!is_sent(pages, before, static_cast<PageText>(i))) continue;
    head.present |= 1u << i;
    head.lengths[i] = static_cast<std::uint32_t>(text.size());
    size += text.size();
  }
  std::string bytes = with_head(head, size);
  for (std::size_t i = 0; i < kPageTexts; ++i) {
    if ((head.present >> i & 1) != 0) bytes += page_text(pages, static_cast<PageText>(i));
  }
  return bytes;
}

std::string encode_access_message(const http::AccessRules& access) {
  const std::string text = encode_access_rules(access);
  MessageHead head{.kind = Kind::kAccess,
                   .healthy = 0,
                   .ready = 0,
                   .has_metrics = 0,
                   .present = 1,
                   .fresh_ms = 0,
                   .lengths = {}};
  head.lengths[0] = static_cast<std::uint32_t>(text.size());
  return with_head(head, text.size()) + text;
}

Result<std::optional<Message>> MessageReader::next_message() {
  MessageHead head;
  if (bytes_.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes_.data(), sizeof head);
  const auto size = size_after(head);
  if (!size) return fail(Code::kInvalidArgument, "not a frame of pages");
  if (bytes_.size() < sizeof head + *size) return std::nullopt;
  std::size_t at = sizeof head;
  Message message;
  if (head.kind == Kind::kAccess) {
    GPULET_TRY_ASSIGN(message, decode_access_rules(std::string_view(bytes_).substr(at, *size)));
    at += *size;
  } else {
    PagesMessage frame{.healthy = head.healthy != 0,
                       .ready = head.ready != 0,
                       .valid_for = std::chrono::milliseconds(head.fresh_ms),
                       .texts = {},
                       .has_metrics = head.has_metrics != 0};
    for (std::size_t i = 0; i < kPageTexts; ++i) {
      if ((head.present >> i & 1) != 0) frame.texts[i] = bytes_.substr(at, head.lengths[i]);
      at += head.lengths[i];
    }
    message = std::move(frame);
  }
  bytes_.erase(0, at);
  if (bytes_.empty()) bytes_.shrink_to_fit();
  return message;
}

}  // namespace gpulet::web
