#include "web/access.h"

#include <cstdint>
#include <cstring>

#include "web/passwords.h"
#include "web/tls.h"

namespace gpulet::web {
namespace {

class Writer {
 public:
  Writer& operator<<(std::uint32_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }
  Writer& operator<<(const std::string& text) {
    *this << static_cast<std::uint32_t>(text.size());
    bytes += text;
    return *this;
  }
  std::string bytes;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  std::uint32_t number() {
    std::uint32_t number = 0;
    if (left_.size() < sizeof number) return fail_with(0u);
    std::memcpy(&number, left_.data(), sizeof number);
    left_.remove_prefix(sizeof number);
    return number;
  }
  std::string text() {
    const std::uint32_t size = number();
    if (left_.size() < size) return fail_with(std::string());
    const std::string text(left_.substr(0, size));
    left_.remove_prefix(size);
    return text;
  }
  // How many entries follow; each takes at least four bytes.
  std::uint32_t count() {
    const std::uint32_t count = number();
    return count > left_.size() / 4 ? fail_with(0u) : count;
  }
  bool whole() const { return good_ && left_.empty(); }

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

}  // namespace

std::string encode(const Access& access) {
  Writer out;
  out << std::uint32_t{access.tls.has_value()};
  if (access.tls) {
    const Tls& tls = *access.tls;
    out << tls.certificate << tls.key << tls.client_authorities;
    out << tls.certificate_about << tls.key_about << tls.client_authorities_about;
    out << static_cast<std::uint32_t>(tls.clients) << static_cast<std::uint32_t>(tls.client_names.size());
    for (const auto& name : tls.client_names) out << name;
    out << static_cast<std::uint32_t>(tls.min_version) << static_cast<std::uint32_t>(tls.max_version);
    out << tls.ciphers << tls.curves << std::uint32_t{tls.prefer_server_ciphers};
  }
  for (const auto* pairs : {&access.users, &access.headers}) {
    out << static_cast<std::uint32_t>(pairs->size());
    for (const auto& [name, value] : *pairs) out << name << value;
  }
  return std::move(out.bytes);
}

Result<Access> decode_access(std::string_view bytes) {
  Reader in(bytes);
  Access access;
  if (in.number() != 0) {
    Tls& tls = access.tls.emplace();
    for (auto* text : {&tls.certificate, &tls.key, &tls.client_authorities, &tls.certificate_about,
                       &tls.key_about, &tls.client_authorities_about}) {
      *text = in.text();
    }
    tls.clients = static_cast<ClientCertificates>(in.number());
    for (auto left = in.count(); left > 0; --left) tls.client_names.push_back(in.text());
    tls.min_version = static_cast<int>(in.number());
    tls.max_version = static_cast<int>(in.number());
    tls.ciphers = in.text();
    tls.curves = in.text();
    tls.prefer_server_ciphers = in.number() != 0;
  }
  for (auto* pairs : {&access.users, &access.headers}) {
    for (auto left = in.count(); left > 0; --left) {
      std::string name = in.text();
      pairs->emplace_back(std::move(name), in.text());
    }
  }
  if (!in.whole()) return fail(Code::kInvalidArgument, "not what says who may connect");
  return access;
}

Status check(const Access& access) {
  if (encode(access).size() > kMaxAccessBytes) {
    return fail(Code::kInvalidArgument, "certificates and users together are larger than 4 MiB");
  }
  for (const auto& [name, hash] : access.users) GPULET_TRY(check_hash(name, hash));
  if (access.tls) GPULET_TRY(TlsContext::create(*access.tls));
  return {};
}

}  // namespace gpulet::web
