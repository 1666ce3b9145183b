#include "http/password_checker.h"

#include <gtest/gtest.h>

#include <deque>
#include <future>
#include <optional>
#include <thread>

#include "base/text.h"
#include "http/access_gate.h"
#include "http/test_client.h"

namespace gpulet::http {
namespace {

using namespace std::chrono_literals;
using Verdict = PasswordChecker::Verdict;

constexpr const char* kRight = "Basic YWxpY2U6c2VjcmV0";  // alice:secret
const PeerAddress kHere = "10.0.0.1", kThere = "10.0.0.2";

// Checks in place, so the verdict is there at once.
class Passwords : public PasswordChecker {
 public:
  using PasswordChecker::PasswordChecker;
  Verdict check_password(std::string_view authorization, const PeerAddress& address, Time now) {
    std::optional<Verdict> verdict;
    PasswordChecker::check_password(authorization, address, now, [&](Verdict result) {
      EXPECT_FALSE(verdict);
      verdict = result;
    });
    EXPECT_TRUE(verdict);
    return verdict.value_or(Verdict::kThrottled);
  }
};

TEST(Passwords, EverybodyIsAllowedWithoutUsers) {
  EXPECT_EQ(Passwords(PasswordChecker::Users{}).check_password("", kHere, Time{}), Verdict::kAccepted);
}

TEST(Passwords, OnlyUsersOfTheFileAreAllowed) {
  Passwords passwords({{"alice", secret_hash()}});
  const Time now{};
  EXPECT_EQ(passwords.check_password(kRight, kHere, now), Verdict::kAccepted);
  EXPECT_EQ(passwords.check_password("bAsIc   YWxpY2U6c2VjcmV0 ", kHere, now), Verdict::kAccepted);
  for (const char* wrong :
       {"", "Basic", "Basic ", "Bearer YWxpY2U6c2VjcmV0", "Basic YWxpY2U=", "Basic !!!!",
        "Basic YWxpY2U6c2VjcmV0x", "Basic YWxpY2U6U2VjcmV0", "Basic Ym9iOnNlY3JldA==", "Basic YWxpY2U6"}) {
    EXPECT_EQ(passwords.check_password(wrong, kHere, now), Verdict::kRejected) << wrong;
  }
}

std::string encoded(const std::string& text) { return text::encode_base64(text); }

TEST(Passwords, GuessingIsRateLimitedAndKnownClientsStayAllowed) {
  Passwords passwords({{"alice", secret_hash("08")}});
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
  Passwords passwords({{"alice", secret_hash("08")}});
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
  Passwords passwords({{"alice", secret_hash("08")}, {"bob", secret_hash("08")}});
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

// Holds the checks until the test runs them, each as if it took a time of the test's choice.
class HeldChecks final : public CheckRunner {
 public:
  void run_check(std::function<bool()> check, std::function<void(Outcome)> done) override {
    held_.emplace_back(std::move(check), std::move(done));
  }
  std::size_t held() const { return held_.size(); }
  void run_next(Duration used) {
    auto [check, done] = std::move(held_.front());
    held_.pop_front();
    done({check(), used});
  }

 private:
  std::deque<std::pair<std::function<bool()>, std::function<void(Outcome)>>> held_;
};

class PasswordQueueTest : public testing::Test {
 protected:
  // Requests of `name` with `password`; its letter is in `verdicts_` once there is one: + - or ! for
  // throttled.
  void request(const std::string& name, const std::string& password, const PeerAddress& address) {
    passwords_.check_password(
        "Basic " + encoded(name + ":" + password), address, now_, [this](Verdict verdict) {
          verdicts_ += verdict == Verdict::kAccepted ? '+' : verdict == Verdict::kRejected ? '-' : '!';
        });
  }
  std::string take_verdicts() { return std::exchange(verdicts_, {}); }

  HeldChecks checks_;
  PasswordChecker passwords_{{{"alice", secret_hash()}, {"bob", secret_hash()}}, &checks_};
  std::string verdicts_;
  Time now_{};
};

TEST_F(PasswordQueueTest, KnownPasswordsDoNotWaitForAnyCheck) {
  request("alice", "secret", kHere);
  checks_.run_next(1ms);
  EXPECT_EQ(take_verdicts(), "+");
  request("alice", "guess", kThere);
  EXPECT_EQ(checks_.held(), 1u);
  request("alice", "secret", kHere);
  request("alice", "secret", kThere);
  EXPECT_EQ(take_verdicts(), "++");
  checks_.run_next(1s);
  EXPECT_EQ(take_verdicts(), "-");
}

TEST_F(PasswordQueueTest, RequestsWithOnePasswordShareItsCheck) {
  for (int i = 0; i < 100; ++i) request("alice", "secret", i % 2 == 0 ? kHere : kThere);
  EXPECT_EQ(checks_.held(), 1u);
  EXPECT_EQ(take_verdicts(), "");
  checks_.run_next(1s);
  EXPECT_EQ(take_verdicts(), std::string(100, '+'));
  EXPECT_EQ(checks_.held(), 0u);
}

// One check at a time, and those that wait have the time that the ones before them leave.
TEST_F(PasswordQueueTest, AChecksTurnEndsWhereTheTimeIsUsedUp) {
  for (int i = 0; i < 4; ++i) request("alice", "guess" + std::to_string(i), kHere);
  EXPECT_EQ(checks_.held(), 1u);
  checks_.run_next(100ms);
  EXPECT_EQ(take_verdicts(), "-");
  EXPECT_EQ(checks_.held(), 1u);
  checks_.run_next(1s);
  EXPECT_EQ(take_verdicts(), "-!!") << "the address has used more than its share";
  EXPECT_EQ(checks_.held(), 0u);
}

TEST_F(PasswordQueueTest, TheQueueIsBoundedForEachAddressAndForAll) {
  request("running", "x", "first");
  for (std::size_t i = 0; i < kMaxWaitingOfAddress; ++i) request("a", std::to_string(i), kHere);
  EXPECT_EQ(take_verdicts(), "");
  request("a", "more", kHere);
  EXPECT_EQ(take_verdicts(), "!");
  for (std::size_t i = kMaxWaitingOfAddress; i < kMaxWaitingChecks; ++i)
    request("b", std::to_string(i), "address " + std::to_string(i));
  EXPECT_EQ(take_verdicts(), "");
  request("c", "more", kThere);
  EXPECT_EQ(take_verdicts(), "!");
  EXPECT_EQ(checks_.held(), 1u);
}

TEST_F(PasswordQueueTest, AddressesOfUsersComeFirst) {
  request("alice", "secret", kHere);
  checks_.run_next(1ms);
  EXPECT_EQ(take_verdicts(), "+");
  for (std::size_t i = 0; i <= kMaxWaitingChecks; ++i)
    request("x", std::to_string(i), "address " + std::to_string(i));
  request("bob", "secret", kHere);
  EXPECT_EQ(take_verdicts(), "") << "it has room although no stranger has";
  checks_.run_next(2s);
  EXPECT_EQ(take_verdicts(), "-");
  checks_.run_next(1ms);
  EXPECT_EQ(take_verdicts().substr(0, 1), "+") << "before those that came earlier";
}

TEST_F(PasswordQueueTest, CancelledChecksAreAnsweredOnce) {
  for (int i = 0; i < 3; ++i) request("alice", "guess" + std::to_string(i), kHere);
  passwords_.cancel_checks();
  EXPECT_EQ(take_verdicts(), "!!!");
  checks_.run_next(1ms);
  EXPECT_EQ(take_verdicts(), "");
  // The next check has its own result.
  request("alice", "secret", kThere);
  checks_.run_next(1ms);
  EXPECT_EQ(take_verdicts(), "+");
}

TEST(AccessGate, NewRulesEndTheChecksOfTheFormer) {
  HeldChecks checks;
  AccessGate gate(&checks);
  ASSERT_TRUE(gate.set_rules({.users = {{"alice", secret_hash()}}}));
  EXPECT_TRUE(gate.requires_password());
  std::vector<Verdict> verdicts;
  gate.check_credentials(kRight, kHere, Time{}, [&](Verdict verdict) { verdicts.push_back(verdict); });
  ASSERT_TRUE(gate.set_rules({}));
  EXPECT_EQ(verdicts, std::vector{Verdict::kThrottled});
  EXPECT_FALSE(gate.requires_password());
  checks.run_next(1ms);
  EXPECT_EQ(verdicts.size(), 1u);
}

TEST(PasswordWorker, RunsChecksInOrderOnAThreadOfItsOwn) {
  EpollLoop loop;
  const auto worker = PasswordWorker::start_worker(loop);
  ASSERT_TRUE(worker);
  std::promise<void> may_end;
  const auto self = std::this_thread::get_id();
  std::string order;
  const auto run = [&](char name, std::function<bool()> check) {
    (*worker)->run_check(std::move(check), [&, name](CheckRunner::Outcome outcome) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      order += name;
      order += outcome.right ? '+' : '-';
      if (name == 'b') loop.stop_loop();
    });
  };
  run('a', [&] {
    EXPECT_NE(std::this_thread::get_id(), self);
    may_end.get_future().wait();
    return true;
  });
  run('b', [] { return false; });
  loop.post([&] {
    order += "loop ";
    may_end.set_value();  // the loop turns while the check runs
  });
  loop.run_loop();
  EXPECT_EQ(order, "loop a+b-");
}

TEST(PasswordWorker, MayEndDuringACheck) {
  EpollLoop loop;
  auto worker = PasswordWorker::start_worker(loop);
  ASSERT_TRUE(worker);
  std::promise<void> begun;
  const auto may_end = std::make_shared<std::promise<void>>();
  (*worker)->run_check(
      [&begun, ended = may_end->get_future().share()] {
        begun.set_value();
        ended.wait();
        return true;
      },
      [](CheckRunner::Outcome) { FAIL(); });
  begun.get_future().wait();
  worker->reset();
  may_end->set_value();
  loop.post([&] { loop.stop_loop(); });
  loop.run_loop();
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
