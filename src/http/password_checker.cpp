#include "http/password_checker.h"

#include <crypt.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include "base/text.h"

namespace gpulet::http {
namespace {

constexpr std::size_t kMaxRememberedResults = 256;  // of either outcome
constexpr std::size_t kMaxPassword = 72;            // bcrypt reads no more
constexpr std::size_t kMaxClients = 1024;           // whose budgets are known
// By how much checks may exceed their share, so that a few logins at once are not delayed.
constexpr Duration kMaxAddressDebt = std::chrono::milliseconds(250);
constexpr Duration kMaxDebt = std::chrono::milliseconds(500);  // of a name, and of all
constexpr std::size_t kCostAt = 4;                             // in "$2y$10$…"

// A hash that no password has, of this cost.
std::string hash_of_cost(unsigned cost) {
  std::string hash = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi";
  hash[kCostAt] = static_cast<char>('0' + cost / 10);
  hash[kCostAt + 1] = static_cast<char>('0' + cost % 10);
  return hash;
}

unsigned cost_of(const std::string& hash) {
  const auto cost = hash.size() > kCostAt + 2 ? text::parse_unsigned(hash.substr(kCostAt, 2)) : std::nullopt;
  return static_cast<unsigned>(std::min<std::uint64_t>(cost.value_or(0), kMaxBcryptCost));
}

bool hash_matches(const std::string& hash, const std::string& password) {
  const auto data = std::make_unique<crypt_data>();
  const char* made = ::crypt_rn(password.c_str(), hash.c_str(), data.get(), sizeof *data);
  const bool same = made != nullptr && hash == std::string_view(made).substr(0, hash.size()) &&
                    std::string_view(made).size() == hash.size();
  OPENSSL_cleanse(data.get(), sizeof *data);
  return same;
}

// A hash, and what a check of any password costs.
struct ExpectedHash {
  std::string hash;  // empty: no user has this name
  unsigned cost = 0;
};

// 2^cost rounds in any case: what a cheaper hash leaves is 2^c + 2^(c+1) + … + 2^(cost-1).
bool verify_password(const ExpectedHash& expected, const std::string& password) {
  if (expected.hash.empty()) {
    static_cast<void>(hash_matches(hash_of_cost(expected.cost), password));
    return false;
  }
  const bool same = hash_matches(expected.hash, password);
  for (unsigned cost = cost_of(expected.hash); cost < expected.cost; ++cost)
    static_cast<void>(hash_matches(hash_of_cost(cost), password));
  return same;
}

CheckRunner::Outcome run_timed(const std::function<bool()>& check) {
  const auto before = std::chrono::steady_clock::now();
  const bool right = check();
  return {right, std::chrono::steady_clock::now() - before};
}

}  // namespace

Status check_bcrypt_hash(const std::string& name, const std::string& hash) {
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
                "not a bcrypt hash; `htpasswd -nBC 10 " + name + "` prints one that begins with $2y$10$",
                about);
  }
  if (*cost < 4 || *cost > kMaxBcryptCost) {
    return fail(Code::kInvalidArgument,
                "the bcrypt cost is " + std::to_string(*cost) + ", must be 4 to " +
                    std::to_string(kMaxBcryptCost) + ": each check would take seconds",
                about);
  }
  return {};
}

Duration TimeBudget::debt_at(Time now) const {
  return std::max(Duration::zero(), debt_ - std::chrono::duration_cast<Duration>((now - at_) * share_));
}

void TimeBudget::charge(Time now, Duration used) {
  debt_ = debt_at(now) + used;
  at_ = now;
}

PasswordChecker::PasswordChecker(Users users, CheckRunner* runner)
    : users_(std::move(users)), runner_(runner) {
  for (const auto& [name, hash] : users_) cost_ = std::max(cost_, cost_of(hash));
}

PasswordChecker::Key PasswordChecker::salted_digest(std::string_view text) const {
  std::string salted(reinterpret_cast<const char*>(salt_.data()), salt_.size());
  salted += text;
  Key key;
  ::SHA256(reinterpret_cast<const unsigned char*>(salted.data()), salted.size(), key.data());
  OPENSSL_cleanse(salted.data(), salted.size());
  return key;
}

PasswordChecker::Client& PasswordChecker::client_at(const PeerAddress& address, Time now) {
  if (clients_.size() >= kMaxClients && !clients_.contains(address)) {
    std::erase_if(clients_, [now](const auto& entry) {
      return !entry.second.accepted && entry.second.budget.debt_at(now) == Duration::zero();
    });
    if (clients_.size() >= kMaxClients) clients_.clear();
  }
  return clients_[address];
}

TimeBudget& PasswordChecker::budget_of_name(const std::string& user) {
  // By the name as it was given, so that being throttled does not reveal who is a user either.
  return names_[salted_digest(user)[0] % kNames];
}

PasswordChecker::Check* PasswordChecker::find_check(const Key& key) {
  if (running_ && running_->key == key) return &*running_;
  const auto found = std::ranges::find(waiting_, key, &Check::key);
  return found == waiting_.end() ? nullptr : &*found;
}

bool PasswordChecker::has_budget(const Check& check, Time now) {
  const Client& client = client_at(check.address, now);
  const bool others =
      client.accepted || (budget_of_name(check.user).allows(now, kMaxDebt) && total_.allows(now, kMaxDebt));
  return others && client.budget.allows(now, kMaxAddressDebt);
}

bool PasswordChecker::has_room(const Check& check, Time now) {
  const auto of_address = std::ranges::count(waiting_, check.address, &Check::address);
  return static_cast<std::size_t>(of_address) < kMaxWaitingOfAddress &&
         (client_at(check.address, now).accepted || waiting_.size() < kMaxWaitingChecks);
}

void PasswordChecker::check_password(std::string_view authorization, const PeerAddress& address, Time now,
                                     VerdictCallback done) {
  if (users_.empty()) return done(Verdict::kAccepted);
  if (text::lower(authorization.substr(0, 6)) != "basic ") return done(Verdict::kRejected);
  const std::string both = text::decode_base64(text::trim(authorization.substr(6)));
  const auto colon = both.find(':');
  if (colon == std::string::npos || both.size() - colon - 1 > kMaxPassword ||
      both.find('\0') != std::string::npos) {
    return done(Verdict::kRejected);
  }
  if (!salted_) {
    if (RAND_bytes(salt_.data(), static_cast<int>(salt_.size())) != 1) return done(Verdict::kThrottled);
    salted_ = true;
  }
  const Key key = salted_digest(both);
  if (const auto known = known_.find(key); known != known_.end())
    return done(known->second ? Verdict::kAccepted : Verdict::kRejected);
  if (Check* const same = find_check(key)) return same->callbacks.push_back(std::move(done));
  Check check{.key = key,
              .user = both.substr(0, colon),
              .password = both.substr(colon + 1),
              .address = address,
              .callbacks = {}};
  if (!has_budget(check, now) || !has_room(check, now)) return done(Verdict::kThrottled);
  check.callbacks.push_back(std::move(done));
  // Addresses of users come before strangers, who cannot make them wait for more than one check.
  auto place = waiting_.end();
  if (client_at(address, now).accepted) {
    place = std::ranges::find_if(waiting_,
                                 [&](const Check& one) { return !client_at(one.address, now).accepted; });
  }
  waiting_.insert(place, std::move(check));
  start_checks(now);
}

void PasswordChecker::start_checks(Time now) {
  while (!running_ && !waiting_.empty()) {
    Check next = std::move(waiting_.front());
    waiting_.pop_front();
    // The checks before it may have used up the time.
    if (!has_budget(next, now)) {
      for (const auto& done : next.callbacks) done(Verdict::kThrottled);
      continue;
    }
    const auto user = std::ranges::find(users_, next.user, [](const auto& entry) { return entry.first; });
    auto check = [expected = ExpectedHash{user == users_.end() ? std::string() : user->second, cost_},
                  password = std::move(next.password)] { return verify_password(expected, password); };
    running_ = std::move(next);
    started_ = now;
    if (runner_ == nullptr) {
      on_checked(running_->key, run_timed(check));
    } else {
      runner_->run_check(std::move(check), [this, alive = lifetime_.watch(),
                                            key = running_->key](CheckRunner::Outcome outcome) {
        if (alive) on_checked(key, outcome);
      });
    }
  }
}

void PasswordChecker::on_checked(const Key& key, CheckRunner::Outcome outcome) {
  if (!running_ || running_->key != key) return;  // cancelled
  const Check checked = std::move(*running_);
  running_.reset();
  const Time ended = started_ + outcome.used;
  Client& client = client_at(checked.address, started_);
  for (auto* budget : {&client.budget, &budget_of_name(checked.user), &total_})
    budget->charge(started_, outcome.used);
  client.accepted |= outcome.right;
  remember(checked.key, outcome.right);
  const auto alive = lifetime_.watch();
  for (const auto& done : checked.callbacks) done(outcome.right ? Verdict::kAccepted : Verdict::kRejected);
  if (alive) start_checks(ended);
}

void PasswordChecker::remember(const Key& key, bool right) {
  // Rejected ones are dropped first: a guessing client causes many of them.
  if (known_.size() >= kMaxRememberedResults)
    std::erase_if(known_, [](const auto& entry) { return !entry.second; });
  if (known_.size() >= kMaxRememberedResults) known_.clear();
  known_[key] = right;
}

void PasswordChecker::cancel_checks() {
  auto cancelled = std::exchange(waiting_, {});
  if (running_) cancelled.push_front(std::move(*running_));
  running_.reset();
  for (const auto& check : cancelled) {
    for (const auto& done : check.callbacks) done(Verdict::kThrottled);
  }
}

struct PasswordWorker::Queue {
  struct Job {
    std::function<bool()> check;
    std::function<void(Outcome)> done;
  };

  explicit Queue(Loop& loop) : relay(loop) {}

  LoopRelay relay;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool waits = false, ended = false;

  // The thread's life.
  void run_jobs() {
    std::unique_lock lock(mutex);
    for (;;) {
      waits = true;
      changed.notify_all();
      changed.wait(lock, [this] { return ended || !jobs.empty(); });
      if (ended) return;
      Job job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      const Outcome outcome = run_timed(job.check);
      relay.post_to_loop([done = std::move(job.done), outcome] { done(outcome); });
      job = {};
      lock.lock();
    }
  }
};

Result<std::unique_ptr<PasswordWorker>> PasswordWorker::start_worker(Loop& loop) {
  auto queue = std::make_shared<Queue>(loop);
  GPULET_TRY(start_detached_thread("checks of passwords", [queue] { queue->run_jobs(); }));
  {
    std::unique_lock lock(queue->mutex);
    queue->changed.wait(lock, [&] { return queue->waits; });
  }
  return std::unique_ptr<PasswordWorker>(new PasswordWorker(std::move(queue)));
}

PasswordWorker::~PasswordWorker() {
  queue_->relay.close_relay();
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->ended = true;
  }
  queue_->changed.notify_all();
}

void PasswordWorker::run_check(std::function<bool()> check, std::function<void(Outcome)> done) {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->jobs.push_back({std::move(check), std::move(done)});
  }
  queue_->changed.notify_all();
}

}  // namespace gpulet::http
