// Passwords by bcrypt (crypt(3)), checked so that nobody who does not know one can make the process busy:
// what was right or wrong once is remembered, and new ones are checked for at most a fifth of the time.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::web {

inline constexpr std::size_t kMaxUsers = 256;
// 2^14 rounds take a second; each more doubles it.
inline constexpr unsigned kMaxBcryptCost = 14;
// Checks may run ahead of their fifth of the time by this much: a few logins at once are let in at once.
inline constexpr Duration kMaxCheckDebt = std::chrono::milliseconds(500);

// Errors: kInvalidArgument, about basic_auth_users.NAME, for a hash that is not bcrypt's or costs too much.
Status check_hash(const std::string& name, const std::string& hash);

class Passwords {
 public:
  using Users = std::vector<std::pair<std::string, std::string>>;
  explicit Passwords(Users users) : users_(std::move(users)) {}

  enum class Verdict { kRight, kWrong, kLater };
  // By the value of the request's Authorization field, empty where it has none. kLater: too many new ones are
  // being tried; whoever was right before is still let in. Everybody is right where there are no users.
  Verdict check(std::string_view authorization, Time now);

 private:
  using Key = std::array<unsigned char, 32>;
  bool computed(const std::string* hash, const std::string& password, Time now);

  Users users_;
  std::map<Key, bool> known_;  // bounded; by a digest, so that no password stays here
  Key salt_{};
  bool salted_ = false;
  Duration debt_{};
  Time debt_at_{};
};

// The text that Base64 (RFC 4648, section 4) encodes; empty for what is none.
std::string decode_base64(std::string_view text);
std::string encode_base64(std::string_view bytes);

}  // namespace gpulet::web
