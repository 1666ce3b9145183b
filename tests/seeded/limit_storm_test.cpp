// Containers that start with memory limits of the driver, under a storm by a seed: an agent that is killed at
// any step, a hook that gives up, a driver that refuses, lies, hangs or is loaded again, Pods that the
// kubelet lists late, and containers that end at any moment. The accounting is misc, which keeps a limit for
// a cgroup that is gone, or dmem, which does not.
//
// No container runs its first instruction without the limits of its Pod, as the driver then has them; at the
// end no limit and no record is left. On dmem, no Pod's limit is below the sum of its running containers'.
// `make limit-storm` runs 1,000 seeds.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/driver/memory_limits.h"
#include "agent/fraction/limit_service.h"
#include "base/log.h"
#include "nvml/memory_limits.h"
#include "tests/seeded/world.h"

namespace gpulet::seeded {
namespace {

using namespace std::chrono_literals;
using agent::ContainerLimits;
using agent::LimitService;

constexpr std::uint64_t kLimitSeeds = 40;
constexpr int kLimitSteps = 150;
constexpr unsigned kLimitGpus = 3;
constexpr unsigned kPodContainers = 3;
constexpr Duration kSettleTime = 12s;  // two calls of the driver that do not answer, and more

enum class HookState { kWaits, kAllowed, kRefused };

struct StormContainer {
  std::string id;
  unsigned pid = 0;
  std::map<DeviceUuid, Bytes> wanted;
  HookState hook = HookState::kWaits;
  bool has_processes = true;  // its first one waits for the hook, or runs
  bool has_cgroup = true;
  bool is_listed = false;   // by the kubelet
  bool lost_limit = false;  // told by an event, since the driver was loaded again
  unsigned pod = 0;
  std::string cgroup() const { return pod_cgroup() + "/" + id; }
  std::string pod_cgroup() const { return "/cgroup/" + std::to_string(pod); }
  std::string container() const { return "main-" + id; }
};

class LimitWorld {
 public:
  explicit LimitWorld(std::uint64_t seed) : random_(seed), is_misc_(seed % 2 == 0) {
    std::string pattern = "/dev/shm/limit_storm.XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    start_agent();
  }
  ~LimitWorld() {
    service_.reset();
    std::filesystem::remove_all(directory_);
  }
  LimitWorld(const LimitWorld&) = delete;

  void random_step() {
    switch (any(12)) {
      case 0:
      case 1:
      case 2:
        return start_container();
      case 3:
        return list_pods();
      case 4:
      case 5:
        return end_container();
      case 6:
        return remove_cgroup();
      case 7:
        return restart_agent();
      case 8:
        return reload_driver();
      case 9:
        return change_driver(chance(3), chance(3));
      case 10:
        return loop_.advance(std::chrono::milliseconds(any(9'000)));
      default:
        return loop_.advance(std::chrono::milliseconds(any(20)));
    }
  }

  // After every step.
  void expect_limits() {
    if (driver_hangs_ || loop_.now() < settled_) return;
    for (const auto& one : containers_) {
      if (one.hook != HookState::kAllowed || !one.has_processes) continue;
      for (const auto& [gpu, limit] : one.wanted) {
        const auto found = table_.find({gpu, one.cgroup()});
        EXPECT_TRUE(one.lost_limit || (found != table_.end() && found->second == limit))
            << one.id.substr(60) << " runs without its limit on " << gpu.str();
      }
      expect_room(one);
    }
  }

  // No Pod's limit is below what its running containers may use together.
  void expect_room(const StormContainer& one) {
    for (const auto& [gpu, unused] : one.wanted) {
      const auto pod = table_.find({gpu, one.pod_cgroup()});
      if (pod == table_.end()) continue;
      Bytes sum;
      for (const auto& other : containers_) {
        const bool runs = other.hook == HookState::kAllowed && other.has_processes && other.pod == one.pod;
        const auto limit = other.wanted.find(gpu);
        if (runs && limit != other.wanted.end()) sum.value += limit->second.value;
      }
      EXPECT_GE(pod->second.mebibytes(), sum.mebibytes()) << "of Pod " << one.pod << " on " << gpu.str();
    }
  }

  // Everything that hangs goes on, and every container ends.
  void end_everything() {
    change_driver(false, false);
    list_pods();
    loop_.advance(10s);
    for (auto& one : containers_) stop(one);
    loop_.advance(10s);
    for (auto& one : containers_) delete_cgroup(one);
    restart_agent();
    loop_.advance(10s);
  }
  void expect_nothing_left() {
    EXPECT_FALSE(service_->has_limits());
    EXPECT_EQ(agent::LimitRecordStore(directory_).load_records()->records.size(), 0u);
    for (const auto& [key, limit] : table_) {
      // The agent was dead when the runtime removed the cgroup: nothing can name it any more.
      EXPECT_TRUE(is_misc_ && orphans_.contains(key.second)) << key.second << " has a limit";
    }
    counts["limits that misc keeps"] += table_.size();
  }

  std::map<std::string, std::size_t> counts;

 private:
  std::size_t any(std::size_t below) { return random_() % below; }
  bool chance(std::size_t one_in) { return any(one_in) == 0; }

  void start_agent() {
    service_.emplace(ports(), agent::LimitRecordStore(directory_));
    restore();
  }
  // A killed agent answers nobody: the runtime removes the containers that waited.
  void restart_agent() {
    ++counts["kills of the agent"];
    end_calls();
    ++session_;
    service_.reset();
    for (auto& one : containers_) {
      if (one.hook == HookState::kWaits) refuse(one);
    }
    if (chance(2)) remove_cgroup();
    start_agent();
  }
  void reload_driver() {
    ++counts["reloads of the driver"];
    table_.clear();
    orphans_.clear();
    restore();
  }
  void restore() {
    service_->restore_limits();
    disturb();
  }
  void disturb() { settled_ = loop_.now() + kSettleTime; }

  void start_container() {
    auto& one = containers_.emplace_back();
    std::string number = std::to_string(++last_);
    one.id = std::string(64 - number.size(), '0') + number;
    one.pid = last_;
    // A Pod has up to three containers, and they come and go.
    one.pod = last_ / kPodContainers;
    one.is_listed = chance(2);
    for (std::size_t gpus = any(3); gpus > 0; --gpus)
      one.wanted[DeviceUuid("GPU-" + std::to_string(any(kLimitGpus)))] = mebibytes(1 + any(80'000));
    ++counts["starts"];
    service_->answer_request({one.id, one.pid, uid_of(one), one.container(), one.cgroup()},
                             [this, id = one.id](const Status& answer) { on_answer(id, answer); });
  }
  static std::string uid_of(const StormContainer& one) { return "uid-" + std::to_string(one.pod); }
  StormContainer* find(const std::string& id) {
    const auto found = std::ranges::find(containers_, id, &StormContainer::id);
    return found == containers_.end() ? nullptr : &*found;
  }
  void on_answer(const std::string& id, const Status& answer) {
    auto* one = find(id);
    if (one == nullptr || one->hook != HookState::kWaits) return;  // its hook has given up
    if (!answer) return refuse(*one);
    one->hook = HookState::kAllowed;
    ++counts["containers that run"];
    for (const auto& [gpu, limit] : one->wanted) {
      const auto found = table_.find({gpu, one->cgroup()});
      EXPECT_TRUE(found != table_.end() && found->second == limit)
          << "allowed without a limit of " << limit.mebibytes() << " MiB on " << gpu.str();
    }
  }
  void refuse(StormContainer& one) {
    one.hook = HookState::kRefused;
    ++counts["containers that do not start"];
    stop(one);
  }
  // The hook's own limit of time, and a container that is killed.
  void end_container() {
    if (containers_.empty()) return;
    auto& one = containers_[any(containers_.size())];
    if (one.hook == HookState::kWaits) return refuse(one);
    stop(one);
  }
  void stop(StormContainer& one) {
    if (!std::exchange(one.has_processes, false)) return;
    if (const auto watch = watches_.find(one.cgroup()); watch != watches_.end()) loop_.post(watch->second);
  }
  void remove_cgroup() {
    for (auto& one : containers_) {
      if (!one.has_processes && one.has_cgroup) return delete_cgroup(one);
    }
  }
  void delete_cgroup(StormContainer& one) {
    if (!std::exchange(one.has_cgroup, false)) return;
    for (auto entry = table_.begin(); entry != table_.end();) {
      const bool is_its = entry->first.second == one.cgroup();
      if (is_its && is_misc_) orphans_.insert(one.cgroup());
      // The kubelet removes the Pod's after the last of its containers'.
      const bool is_gone = is_its || !is_cgroup(entry->first.second);
      entry = is_gone && !is_misc_ ? table_.erase(entry) : std::next(entry);
    }
  }
  void change_driver(bool hangs, bool refuses) {
    driver_hangs_ = hangs;
    driver_refuses_ = refuses;
    run_calls();
    disturb();
  }
  void list_pods() {
    if (is_asked_ && chance(4)) return service_->on_pods_read(fail(Code::kUnavailable, "no answer"));
    for (auto& one : containers_) one.is_listed = true;
    if (std::exchange(is_asked_, false)) service_->on_pods_read({});
  }

  // One call of the driver's thread, which takes calls in their order.
  struct DriverCall {
    std::function<Status()> effect;
    agent::LimitPorts::Done done;
    std::uint64_t session = 0;
    bool is_answered = false;
  };
  void call_driver(std::function<Status()> effect, agent::LimitPorts::Done done) {
    auto call = std::make_shared<DriverCall>(DriverCall{std::move(effect), std::move(done), session_});
    calls_.push_back(call);
    timers_.push_back(loop_.after(std::chrono::milliseconds(1 + any(30)), [this] { run_calls(); }));
    timers_.push_back(loop_.after(agent::kMemoryLimitDeadline, [this, call] {
      answer(*call, fail(Code::kDeadlineExceeded, "the driver does not answer"));
    }));
  }
  void run_calls() {
    while (!driver_hangs_ && !calls_.empty()) {
      const auto call = calls_.front();
      calls_.pop_front();
      answer(*call, call->effect());
    }
  }
  void answer(DriverCall& call, const Status& result) {
    if (call.session == session_ && !std::exchange(call.is_answered, true)) call.done(result);
  }
  // Of an agent that is killed: the call in progress may still have its effect.
  void end_calls() {
    if (!calls_.empty() && chance(2)) static_cast<void>(calls_.front()->effect());
    calls_.clear();
    timers_.clear();
  }

  Status set(const DeviceUuid& gpu, const std::string& cgroup, Bytes limit) {
    if (driver_refuses_) return fail(Code::kUnavailable, "the driver refuses");
    if (!is_cgroup(cgroup)) return fail(Code::kIo, "no such cgroup");
    if (chance(12)) {  // what is read back differs, and is cleared
      table_.erase({gpu, cgroup});
      return fail(Code::kFailedPrecondition, "the driver reads another limit back");
    }
    table_[{gpu, cgroup}] = limit;
    return {};
  }
  // A read that differs changes nothing, or has set it.
  Status set_pod(const DeviceUuid& gpu, const std::string& cgroup, Bytes limit) {
    if (driver_refuses_) return fail(Code::kUnavailable, "the driver refuses");
    if (!is_cgroup(cgroup)) return fail(Code::kIo, "no such cgroup");
    const bool is_refused = chance(12);
    if (is_refused && chance(2)) return fail(Code::kFailedPrecondition, "the driver has another limit");
    table_.erase({gpu, cgroup});
    if (limit != nvml::kNoMemoryLimit) {
      table_[{gpu, cgroup}] = limit;
      ++counts["limits of Pods"];
    }
    if (is_refused) return fail(Code::kFailedPrecondition, "the driver reads another limit back");
    return {};
  }
  Status clear(const DeviceUuid& gpu, const std::string& cgroup) {
    if (driver_refuses_) return fail(Code::kUnavailable, "the driver refuses");
    if (!is_cgroup(cgroup)) return fail(Code::kNotFound, "no such cgroup");
    table_.erase({gpu, cgroup});
    return {};
  }
  bool is_cgroup(const std::string& cgroup) {
    return std::ranges::any_of(containers_, [&](const StormContainer& one) {
      return one.has_cgroup && (one.cgroup() == cgroup || one.pod_cgroup() == cgroup);
    });
  }

  agent::LimitPorts ports() {
    return {
        .loop = loop_,
        .find_limits = [this](const std::string&,
                              const std::string& container) { return find_limits(container); },
        .refresh_pods = [this](const PodRef&) { is_asked_ = true; },
        .find_cgroup = [this](unsigned pid, const std::string&) -> Result<agent::ContainerCgroup> {
          const auto found = std::ranges::find(containers_, pid, &StormContainer::pid);
          if (found == containers_.end() || !found->has_processes) return fail(Code::kNotFound, "no process");
          return agent::ContainerCgroup{found->cgroup(), {uid_of(*found), found->id}, found->pod_cgroup()};
        },
        .has_processes =
            [this](const std::string& cgroup) {
              return std::ranges::any_of(containers_, [&](const StormContainer& one) {
                return one.has_processes && one.cgroup() == cgroup;
              });
            },
        .watch_end = [this](const std::string& cgroup, std::function<void()> ended) -> Result<Subscription> {
          if (!is_cgroup(cgroup)) return fail(Code::kNotFound, "no such cgroup");
          watches_[cgroup] = std::move(ended);
          return Subscription([this, cgroup] { watches_.erase(cgroup); });
        },
        .set_limit =
            [this](const DeviceUuid& gpu, const std::string& cgroup, Bytes limit, auto done) {
              call_driver([this, gpu, cgroup, limit] { return set(gpu, cgroup, limit); }, std::move(done));
            },
        .clear_limit =
            [this](const DeviceUuid& gpu, const std::string& cgroup, auto done) {
              call_driver([this, gpu, cgroup] { return clear(gpu, cgroup); }, std::move(done));
            },
        .notify =
            [this](const agent::EvictionEvent& event) {
              if (event.reason != agent::kLimitLostReason) return;
              for (auto& one : containers_)
                one.lost_limit |= event.message.find(one.container()) != std::string::npos;
            },
        .counts_for_ancestors = [this](const DeviceUuid&) { return !is_misc_; },
        .set_pod_limit =
            [this](const DeviceUuid& gpu, const std::string& cgroup, Bytes limit, auto done) {
              EXPECT_FALSE(is_misc_ && limit != nvml::kNoMemoryLimit);
              call_driver([this, gpu, cgroup, limit] { return set_pod(gpu, cgroup, limit); },
                          std::move(done));
            },
    };
  }
  ContainerLimits find_limits(const std::string& container) const {
    for (const auto& one : containers_) {
      if (one.container() == container && one.is_listed)
        return {.state = ContainerLimits::State::kKnown,
                .pod = {"team", uid_of(one), uid_of(one)},
                .limits = one.wanted};
    }
    return {};
  }

  ManualLoop loop_;
  Random random_;
  const bool is_misc_;
  std::string directory_;
  std::optional<LimitService> service_;
  std::deque<StormContainer> containers_;
  std::map<std::pair<DeviceUuid, std::string>, Bytes> table_;  // the driver's, by GPU and cgroup
  std::set<std::string> orphans_;
  std::map<std::string, std::function<void()>> watches_;
  std::deque<std::shared_ptr<DriverCall>> calls_;
  std::vector<Subscription> timers_;
  Time settled_{};  // from then on all limits are in force, unless something happens
  std::uint64_t session_ = 0;
  unsigned last_ = 0;
  bool driver_hangs_ = false, driver_refuses_ = false, is_asked_ = false;
};

std::uint64_t limit_seeds() {
  const char* text = std::getenv("SEEDS");
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : kLimitSeeds;
}

TEST(LimitStorm, NoContainerRunsWithoutItsLimit) {
  log::configure_logging(log::Level::kError, log::Format::kText);
  std::map<std::string, std::size_t> counts;
  for (std::uint64_t seed = 0; seed < limit_seeds(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    LimitWorld world(seed);
    for (int step = 0; step < kLimitSteps && !HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      world.random_step();
      world.expect_limits();
    }
    ASSERT_FALSE(HasFailure());
    world.end_everything();
    world.expect_nothing_left();
    for (const auto& [what, count] : world.counts) counts[what] += count;
    ASSERT_FALSE(HasFailure());
  }
  std::cout << limit_seeds() << " seeds:";
  for (const auto& [what, count] : counts) std::cout << " " << count << " " << what << ",";
  std::cout << " " << limit_seeds() * kLimitSteps << " steps\n";
}

}  // namespace
}  // namespace gpulet::seeded
