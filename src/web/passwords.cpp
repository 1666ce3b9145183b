#include "web/passwords.h"

#include <crypt.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>
#include <memory>

#include "base/text.h"

namespace gpulet::web {
namespace {

constexpr std::size_t kMaxKnown = 256;    // of either outcome
constexpr std::size_t kMaxPassword = 72;  // bcrypt reads no more
constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr int kShare = 5;  // checks take one part in so many of the time
// Of nobody: compared with where the user is unknown, so that the time does not tell.
const std::string kNobody = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi";

bool matches(const std::string& hash, const std::string& password) {
  const auto data = std::make_unique<crypt_data>();
  const char* made = ::crypt_rn(password.c_str(), hash.c_str(), data.get(), sizeof *data);
  const bool same = made != nullptr && hash == std::string_view(made).substr(0, hash.size()) &&
                    std::string_view(made).size() == hash.size();
  OPENSSL_cleanse(data.get(), sizeof *data);
  return same;
}

}  // namespace

Status check_hash(const std::string& name, const std::string& hash) {
  const std::string about = "basic_auth_users." + name;
  const bool form = hash.size() == 60 && hash[0] == '$' && hash[1] == '2' &&
                    std::string_view("abxy").find(hash[2]) != std::string::npos && hash[3] == '$' &&
                    hash[6] == '$';
  const auto cost = form ? text::parse_unsigned(hash.substr(4, 2)) : std::nullopt;
  const bool digits = form && std::all_of(hash.begin() + 7, hash.end(), [](unsigned char c) {
                        return std::isalnum(c) != 0 || c == '.' || c == '/';
                      });
  if (!cost || !digits) {
    return fail(Code::kInvalidArgument,
                "not a bcrypt hash; `htpasswd -nBC 10 " + name + "` makes one, which begins with $2y$10$",
                about);
  }
  if (*cost < 4 || *cost > kMaxBcryptCost) {
    return fail(Code::kInvalidArgument,
                "bcrypt's cost is " + std::to_string(*cost) + "; 4 to " + std::to_string(kMaxBcryptCost) +
                    " will do: each check would take seconds",
                about);
  }
  return {};
}

std::string encode_base64(std::string_view bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto three = bytes.substr(i, 3);
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < three.size() ? static_cast<unsigned char>(three[j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += j <= three.size() ? kBase64Digits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

std::string decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return {};
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  std::uint32_t group = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool padded = i >= text.size() - padding;
    const auto digit = padded ? 0 : kBase64Digits.find(text[i]);
    if (digit == std::string_view::npos) return {};
    group = group << 6 | static_cast<std::uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(group >> shift & 0xFF);
    group = 0;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

bool Passwords::computed(const std::string* hash, const std::string& password, Time now) {
  const auto before = std::chrono::steady_clock::now();
  const bool same = matches(hash != nullptr ? *hash : kNobody, password) && hash != nullptr;
  debt_ += std::chrono::steady_clock::now() - before;
  debt_at_ = now;
  return same;
}

Passwords::Verdict Passwords::check(std::string_view authorization, Time now) {
  if (users_.empty()) return Verdict::kRight;
  if (text::lower(authorization.substr(0, 6)) != "basic ") return Verdict::kWrong;
  const std::string both = decode_base64(text::trim(authorization.substr(6)));
  const auto colon = both.find(':');
  if (colon == std::string::npos || both.size() - colon - 1 > kMaxPassword ||
      both.find('\0') != std::string::npos) {
    return Verdict::kWrong;
  }
  if (!salted_) {
    if (RAND_bytes(salt_.data(), static_cast<int>(salt_.size())) != 1) return Verdict::kLater;
    salted_ = true;
  }
  std::string salted(reinterpret_cast<const char*>(salt_.data()), salt_.size());
  salted += both;
  Key key;
  ::SHA256(reinterpret_cast<const unsigned char*>(salted.data()), salted.size(), key.data());
  OPENSSL_cleanse(salted.data(), salted.size());
  if (const auto known = known_.find(key); known != known_.end()) {
    return known->second ? Verdict::kRight : Verdict::kWrong;
  }
  debt_ = std::max(Duration::zero(), debt_ - (now - debt_at_) / kShare);
  debt_at_ = now;
  if (debt_ > kMaxCheckDebt) return Verdict::kLater;
  const std::string user = both.substr(0, colon);
  const auto found =
      std::find_if(users_.begin(), users_.end(), [&](const auto& entry) { return entry.first == user; });
  const bool right = computed(found != users_.end() ? &found->second : nullptr, both.substr(colon + 1), now);
  // The wrong ones make room first: they are many where somebody guesses.
  if (known_.size() >= kMaxKnown) std::erase_if(known_, [](const auto& entry) { return !entry.second; });
  if (known_.size() >= kMaxKnown) known_.clear();
  known_[key] = right;
  return right ? Verdict::kRight : Verdict::kWrong;
}

}  // namespace gpulet::web
