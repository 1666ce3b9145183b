// Checks passwords by bcrypt (crypt(3)) without letting anybody keep the process busy or keep others out.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::http {

// Where a client connects from: the bytes of its IP address; empty for a Unix socket.
using PeerAddress = std::string;

inline constexpr std::size_t kMaxUsers = 256;
// 2^14 rounds take a second; each step more doubles that.
inline constexpr unsigned kMaxBcryptCost = 14;
// Errors: kInvalidArgument, about basic_auth_users.NAME, for a text that is no bcrypt hash or one that
// costs too much.
Status check_bcrypt_hash(const std::string& name, const std::string& hash);

// A share of the time that may be used, with a debt up to which it may be exceeded for a moment.
class TimeBudget {
 public:
  explicit TimeBudget(double share) : share_(share) {}
  // Whether the debt at `now` is below `most`. One use of any length is then allowed.
  bool allows(Time now, Duration most) const { return debt_at(now) <= most; }
  void charge(Time now, Duration used);
  Duration debt_at(Time now) const;

 private:
  double share_;
  Duration debt_{};
  Time at_{};
};

// Runs checks of passwords, which take up to a second each.
class CheckRunner {
 public:
  struct Outcome {
    bool right = false;
    Duration used{};
  };
  virtual ~CheckRunner() = default;
  // Calls `done` with the result of `check` once, on the loop, from inside this call or later.
  virtual void run_check(std::function<bool()> check, std::function<void(Outcome)> done) = 0;
};

// A thread that runs the checks one after the other, so that the loop never waits for one.
class PasswordWorker final : public CheckRunner {
 public:
  // Returns once the thread waits for checks: from then on it uses memory, futexes and clocks, and posts to
  // the loop, so a process may restrict its system calls. Errors: those of start_detached_thread.
  static Result<std::unique_ptr<PasswordWorker>> start_worker(Loop& loop);
  // The thread ends after the check that it runs; no `done` is called any more.
  ~PasswordWorker() override;
  void run_check(std::function<bool()> check, std::function<void(Outcome)> done) override;

 private:
  struct Queue;
  explicit PasswordWorker(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

  std::shared_ptr<Queue> queue_;
};

// Checks that wait for their turn: of all addresses from which no password was accepted yet, and of one
// address.
inline constexpr std::size_t kMaxWaitingChecks = 32;
inline constexpr std::size_t kMaxWaitingOfAddress = 4;

// Results are remembered, and new passwords are checked one at a time, for at most a fifth of the time, a
// twentieth for one address, a tenth for one name. Each check takes as long as that of the most expensive
// hash, also for names that are no user's, so that times do not reveal who is a user. Loop's thread only.
class PasswordChecker {
 public:
  using Users = std::vector<std::pair<std::string, std::string>>;  // name, bcrypt hash
  // `runner`: see AccessGate.
  explicit PasswordChecker(Users users, CheckRunner* runner = nullptr);
  PasswordChecker(const PasswordChecker&) = delete;

  bool has_users() const { return !users_.empty(); }
  enum class Verdict { kAccepted, kRejected, kThrottled };
  using VerdictCallback = std::function<void(Verdict)>;
  // `authorization`: the value of the request's field, empty without one. Calls `done` once, from inside this
  // call where no new password needs a check. kThrottled: too many new passwords are being tried, from this
  // address or altogether; one that was accepted before still is, and an address from which one was accepted
  // is only throttled for itself. Without users everybody is accepted.
  void check_password(std::string_view authorization, const PeerAddress& address, Time now,
                      VerdictCallback done);
  // Answers all checks that have not ended with kThrottled.
  void cancel_checks();

 private:
  using Key = std::array<unsigned char, 32>;
  static constexpr double kAddressShare = 0.05, kNameShare = 0.1, kTotalShare = 0.2;
  static constexpr std::size_t kNames = 64;  // budgets that names share, by their digest
  struct Client {
    TimeBudget budget{kAddressShare};
    bool accepted = false;  // a password of a user
  };
  struct Check {
    Key key;
    std::string user, password;
    PeerAddress address;
    std::vector<VerdictCallback> callbacks;  // of all requests with this password
  };

  Key salted_digest(std::string_view text) const;
  Client& client_at(const PeerAddress& address, Time now);
  TimeBudget& budget_of_name(const std::string& user);
  Check* find_check(const Key& key);
  bool has_budget(const Check& check, Time now);
  bool has_room(const Check& check, Time now);
  void start_checks(Time now);
  void on_checked(const Key& key, CheckRunner::Outcome outcome);
  void remember(const Key& key, bool right);

  Users users_;
  CheckRunner* runner_;
  unsigned cost_ = 0;          // the greatest of all users
  std::map<Key, bool> known_;  // bounded; keyed by a salted digest, so that no password stays in memory
  std::map<PeerAddress, Client> clients_;  // bounded
  std::vector<TimeBudget> names_ = std::vector<TimeBudget>(kNames, TimeBudget(kNameShare));
  TimeBudget total_{kTotalShare};
  std::optional<Check> running_;
  Time started_{};             // when it was
  std::deque<Check> waiting_;  // bounded
  Key salt_{};
  bool salted_ = false;
  Lifetime lifetime_;
};

}  // namespace gpulet::http
