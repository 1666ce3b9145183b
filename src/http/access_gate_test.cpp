#include "http/access_gate.h"

#include <gtest/gtest.h>

#include "http/test_client.h"

namespace gpulet::http {
namespace {

using namespace std::chrono_literals;
using Verdict = PasswordChecker::Verdict;

constexpr const char* kRight = "Basic YWxpY2U6c2VjcmV0";  // alice:secret
const PeerAddress kHere = "10.0.0.1", kThere = "10.0.0.2";

TEST(Passwords, EverybodyIsAllowedWithoutUsers) {
  EXPECT_EQ(PasswordChecker({}).check_password("", kHere, Time{}), Verdict::kAccepted);
}

TEST(Passwords, OnlyUsersOfTheFileAreAllowed) {
  PasswordChecker passwords({{"alice", secret_hash()}});
  const Time now{};
  EXPECT_EQ(passwords.check_password(kRight, kHere, now), Verdict::kAccepted);
  EXPECT_EQ(passwords.check_password("bAsIc   YWxpY2U6c2VjcmV0 ", kHere, now), Verdict::kAccepted);
  for (const char* wrong :
       {"", "Basic", "Basic ", "Bearer YWxpY2U6c2VjcmV0", "Basic YWxpY2U=", "Basic !!!!",
        "Basic YWxpY2U6c2VjcmV0x", "Basic YWxpY2U6U2VjcmV0", "Basic Ym9iOnNlY3JldA==", "Basic YWxpY2U6"}) {
    EXPECT_EQ(passwords.check_password(wrong, kHere, now), Verdict::kRejected) << wrong;
  }
}

std::string encoded(const std::string& text) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < text.size() ? static_cast<unsigned char>(text[i + j]) : 0);
    for (std::size_t j = 0; j < 4; ++j)
      out += i + j <= text.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

TEST(Passwords, GuessingIsRateLimitedAndKnownClientsStayAllowed) {
  PasswordChecker passwords({{"alice", secret_hash("08")}});
  const Time now{};
  ASSERT_EQ(passwords.check_password(kRight, kHere, now), Verdict::kAccepted);
  int checked = 0, put_off = 0;
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i) {
    const auto verdict =
        passwords.check_password("Basic " + encoded("alice:guess" + std::to_string(i)), kHere, now);
    ASSERT_NE(verdict, Verdict::kAccepted);
    ++(verdict == Verdict::kRejected ? checked : put_off);
  }
  EXPECT_GT(checked, 0);
  EXPECT_GT(put_off, 1000);
  EXPECT_LT(std::chrono::steady_clock::now() - before,
            10s);  // without a limit, these take at least half a minute
  EXPECT_EQ(passwords.check_password(kRight, kHere, now), Verdict::kAccepted);
  // A repeated wrong password costs nothing, and a minute later new ones are checked.
  EXPECT_EQ(passwords.check_password("Basic " + encoded("alice:guess0"), kHere, now), Verdict::kRejected);
  EXPECT_EQ(passwords.check_password("Basic " + encoded("alice:another"), kHere, now + 1min),
            Verdict::kRejected);
}

TEST(Passwords, GuessesOfOneAddressKeepNobodyElseOut) {
  PasswordChecker passwords({{"alice", secret_hash("08")}});
  Time now{};
  // Wrong passwords of the user and of others, for a minute.
  for (int i = 0; i < 600; ++i, now += 100ms) {
    const std::string name = i % 2 == 0 ? "alice" : "user" + std::to_string(i);
    ASSERT_NE(passwords.check_password("Basic " + encoded(name + ":guess" + std::to_string(i)), kThere, now),
              Verdict::kAccepted);
  }
  while (passwords.check_password("Basic " + encoded("bob:" + std::to_string(now.time_since_epoch().count())),
                                  kThere, now += 1ms) != Verdict::kThrottled) {
  }
  EXPECT_EQ(passwords.check_password(kRight, kHere, now), Verdict::kAccepted);
}

// Whoever guesses from many addresses cannot keep out an address that has logged in.
TEST(Passwords, GuessesOfManyAddressesKeepNoKnownOneOut) {
  PasswordChecker passwords({{"alice", secret_hash("08")}, {"bob", secret_hash("08")}});
  const Time now{};
  ASSERT_EQ(passwords.check_password(kRight, kHere, now), Verdict::kAccepted);
  bool throttled = false;
  for (int i = 0; i < 1000 && !throttled; ++i) {
    throttled = passwords.check_password("Basic " + encoded("bob:guess" + std::to_string(i)),
                                         "address " + std::to_string(i), now) == Verdict::kThrottled;
  }
  ASSERT_TRUE(throttled);
  EXPECT_EQ(passwords.check_password("Basic " + encoded("bob:secret"), kHere, now), Verdict::kAccepted);
}

TEST(Passwords, InvalidAndTooExpensiveHashesAreRefused) {
  EXPECT_TRUE(check_bcrypt_hash("alice", secret_hash()));
  EXPECT_TRUE(check_bcrypt_hash("alice", "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"));
  for (const char* bad : {"", "secret", "$1$abc$def", "$2y$10$short",
                          "$2y$xx$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi",
                          "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDe i"}) {
    const auto checked = check_bcrypt_hash("alice", bad);
    ASSERT_FALSE(checked) << bad;
    EXPECT_EQ(checked.error().subject(), "basic_auth_users.alice");
    EXPECT_EQ(checked.error().message(),
              "not a bcrypt hash; `htpasswd -nBC 10 alice` prints one that begins with $2y$10$");
  }
  EXPECT_EQ(check_bcrypt_hash("a", "$2y$31$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi")
                .error()
                .message(),
            "the bcrypt cost is 31, must be 4 to 14: each check would take seconds");
}

}  // namespace
}  // namespace gpulet::http
