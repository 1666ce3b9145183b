#include "agent/fraction/limit_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "agent/remediation/test_faults.h"
#include "base/file.h"
#include "nvml/memory_limits.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using State = ContainerLimits::State;

const std::string kFirstId(64, '1'), kSecondId(64, '2');
const DeviceUuid kLimitedGpu("GPU-0"), kOtherLimitedGpu("GPU-1");

LimitRecord record_of(const std::string& id) {
  return {id, {"team", "a", "uid-a"}, "main", "/cgroup/" + id, {{kLimitedGpu, mebibytes(1024)}}};
}

// A driver that does what a test says, and processes, cgroups and Pods that it sets.
class LimitServiceTest : public testing::Test {
 protected:
  LimitServiceTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "limits-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    root = pattern;
    limits = {.state = State::kKnown,
              .pod = {"team", "a", "uid-a"},
              .limits = {{kLimitedGpu, mebibytes(1024)}, {kOtherLimitedGpu, mebibytes(2048)}}};
    start();
  }
  ~LimitServiceTest() override { std::filesystem::remove_all(root); }

  void start() {
    service.reset();
    watches.clear();
    service.emplace(make_ports(), LimitRecordStore(root));
  }
  LimitPorts make_ports() {
    return {
        .loop = loop,
        .find_limits = [this](const std::string&, const std::string&) { return limits; },
        .refresh_pods =
            [this](const PodRef& pod) {
              ++refreshes;
              starting = pod;
            },
        .find_cgroup = [this](unsigned pid, const std::string&) -> Result<ContainerCgroup> {
          if (!cgroups.contains(pid)) return fail(Code::kNotFound, "no such process");
          return cgroups.at(pid);
        },
        .has_processes = [this](const std::string& cgroup) { return alive.contains(cgroup); },
        .watch_end = [this](const std::string& cgroup, std::function<void()> ended) -> Result<Subscription> {
          watches[cgroup] = std::move(ended);
          return Subscription([this, cgroup] { watches.erase(cgroup); });
        },
        .set_limit =
            [this](const DeviceUuid& gpu, const std::string& cgroup, Bytes limit, LimitPorts::Done done) {
              records_when_set.push_back(records());
              calls.push_back("set " + gpu.str() + " " + cgroup.substr(0, 9) + " " +
                              std::to_string(limit.mebibytes()));
              run_driver([this, gpu, cgroup, limit, done = std::move(done)] {
                if (const auto found = set_errors.find(gpu); found != set_errors.end())
                  return done(fail(found->second));
                in_force[{gpu, cgroup}] = limit;
                done({});
              });
            },
        .clear_limit =
            [this](const DeviceUuid& gpu, const std::string& cgroup, LimitPorts::Done done) {
              calls.push_back("clear " + gpu.str() + " " + cgroup.substr(0, 9));
              run_driver([this, gpu, cgroup, done = std::move(done)] {
                if (clear_error) return done(fail(*clear_error));
                in_force.erase({gpu, cgroup});
                done({});
              });
            },
        .notify = [this](const EvictionEvent& event) { events.push_back(event); },
        .counts_for_ancestors = [this](const DeviceUuid&) { return is_dmem; },
        .set_pod_limit =
            [this](const DeviceUuid& gpu, const std::string& cgroup, Bytes limit, LimitPorts::Done done) {
              const bool is_none = limit == nvml::kNoMemoryLimit;
              calls.push_back("pod " + gpu.str() + " " + cgroup + " " +
                              (is_none ? "none" : std::to_string(limit.mebibytes())));
              run_driver([this, gpu, cgroup, limit, is_none, done = std::move(done)] {
                if (pod_errors > 0) {
                  --pod_errors;
                  return done(fail(Code::kIo, "no Pod"));
                }
                in_force[{gpu, cgroup}] = limit;
                if (is_none) in_force.erase({gpu, cgroup});
                done({});
              });
            },
        .hold_compute =
            [this](const ContainerLimits& container, Duration within, LimitPorts::Done done) {
              EXPECT_GT(within, Duration::zero());
              if (container.compute_thousandths == 0) return done({});
              calls.push_back("compute " + std::to_string(container.compute_thousandths));
              run_driver([this, done = std::move(done)] {
                done(compute_error ? Status(fail(*compute_error)) : Status{});
              });
            },
    };
  }
  void run_driver(std::function<void()> call) {
    is_driver_hanging ? waiting.push_back(std::move(call)) : loop.post(std::move(call));
  }
  LimitRequest add_container(const std::string& id, const std::string& uid = "uid-a") {
    const unsigned pid = 100 + static_cast<unsigned>(cgroups.size());
    cgroups[pid] = {"/cgroup/" + id, {uid, id}, "/cgroup"};
    alive.insert("/cgroup/" + id);
    return {id, pid, "uid-a", "main", "/" + id};
  }
  // Asks; the answers are in `answers`.
  void ask(const LimitRequest& request) {
    service->answer_request(request, [this](const Status& status) {
      answers.push_back(status ? "yes" : status.error().full_message());
    });
    loop.run_ready();
  }
  void end_container(const std::string& id) {
    alive.erase("/cgroup/" + id);
    const auto ended = watches.find("/cgroup/" + id);
    ASSERT_NE(ended, watches.end());
    const auto call = ended->second;
    call();
    loop.run_ready();
  }
  std::size_t records() const { return LimitRecordStore(root).load_records()->records.size(); }

  ManualLoop loop;
  std::string root;
  ContainerLimits limits;
  int refreshes = 0;
  PodRef starting;  // of the last refresh
  std::map<unsigned, ContainerCgroup> cgroups;
  std::set<std::string> alive;
  std::map<std::string, std::function<void()>> watches;
  std::map<DeviceUuid, Error> set_errors;
  std::optional<Error> clear_error, compute_error;
  bool is_driver_hanging = false;
  std::vector<std::function<void()>> waiting;
  std::map<std::pair<DeviceUuid, std::string>, Bytes> in_force;
  bool is_dmem = false;
  int pod_errors = 0;  // the next calls for the Pod fail
  std::vector<std::string> calls, answers;
  std::vector<std::size_t> records_when_set;
  std::vector<EvictionEvent> events;
  std::optional<LimitService> service;
};

TEST_F(LimitServiceTest, SetsEveryGpuAndClearsAtTheEnd) {
  ask(add_container(kFirstId));
  EXPECT_THAT(answers, ElementsAre("yes"));
  EXPECT_THAT(calls, ElementsAre("set GPU-0 /cgroup/1 1024", "set GPU-1 /cgroup/1 2048"));
  EXPECT_THAT(records_when_set, ElementsAre(1, 1)) << "the record comes first";
  EXPECT_EQ(refreshes, 0);
  EXPECT_TRUE(service->has_limits());
  calls.clear();
  end_container(kFirstId);
  EXPECT_THAT(calls, ElementsAre("clear GPU-0 /cgroup/1", "clear GPU-1 /cgroup/1"));
  EXPECT_THAT(in_force, IsEmpty());
  EXPECT_EQ(records(), 0u);
  EXPECT_FALSE(service->has_limits());
  EXPECT_THAT(watches, IsEmpty());
  // The container is started again: another id and another cgroup.
  ask(add_container(kSecondId));
  EXPECT_THAT(answers, ElementsAre("yes", "yes"));
  EXPECT_EQ(in_force.size(), 2u);
  EXPECT_TRUE(in_force.contains({kLimitedGpu, "/cgroup/" + kSecondId}));
}

TEST_F(LimitServiceTest, WithoutARequestThereIsNoLimit) {
  limits.limits.clear();
  ask(add_container(kFirstId));
  EXPECT_THAT(answers, ElementsAre("yes"));
  EXPECT_THAT(calls, IsEmpty());
  EXPECT_EQ(records(), 0u);
}

TEST_F(LimitServiceTest, ComputeComesBeforeMemoryAndIsRefusedAlike) {
  limits.compute_thousandths = 300;
  ask(add_container(kFirstId));
  EXPECT_THAT(answers, ElementsAre("yes"));
  EXPECT_THAT(calls, ElementsAre("compute 300", "set GPU-0 /cgroup/1 1024", "set GPU-1 /cgroup/1 2048"));
  calls.clear();
  compute_error = Error(Code::kUnavailable, "answers '25.00'");
  ask(add_container(kSecondId));
  EXPECT_THAT(answers.back(), HasSubstr("answers '25.00'"));
  EXPECT_THAT(calls, ElementsAre("compute 300"));
  EXPECT_EQ(records(), 1u);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].reason, kComputeRefusedReason);
  EXPECT_THAT(events[0].message, HasSubstr("main does not start without its compute limit: answers"));
  limits.limits.clear();
  ask(add_container(kSecondId));
  EXPECT_EQ(answers.size(), 3u) << "without a memory limit too";
  EXPECT_THAT(answers.back(), HasSubstr("answers '25.00'"));
}

TEST_F(LimitServiceTest, AContainerThatWaitsForItsComputeLimitIsNotAskedForAgain) {
  limits.compute_thousandths = 300;
  is_driver_hanging = true;
  const auto request = add_container(kFirstId);
  ask(request);
  service->on_pods_read({});
  ask(request);
  EXPECT_THAT(answers, ElementsAre(HasSubstr("are being set already")));
  EXPECT_THAT(calls, ElementsAre("compute 300"));
  is_driver_hanging = false;
  waiting.front()();
  loop.run_ready();
  EXPECT_THAT(answers, ElementsAre(HasSubstr("are being set already"), "yes"));
  EXPECT_EQ(in_force.size(), 2u);
}

TEST_F(LimitServiceTest, RefusesWhatTheKernelDoesNotConfirm) {
  const auto foreign = add_container(kFirstId, "uid-b");
  ask(foreign);
  EXPECT_THAT(answers.back(), HasSubstr("in the cgroup of Pod uid-b"));
  auto other_id = add_container(kSecondId);
  other_id.container_id = kFirstId;
  ask(other_id);
  EXPECT_THAT(answers.back(), HasSubstr("container " + kSecondId + ", but the container runtime says"));
  other_id.pid = 4711;
  ask(other_id);
  EXPECT_THAT(answers.back(), HasSubstr("no such process"));
  EXPECT_THAT(calls, IsEmpty());
  EXPECT_EQ(records(), 0u);
}

TEST_F(LimitServiceTest, WaitsForAPodThatIsNotKnownYet) {
  const auto known = std::exchange(limits, {});
  auto request = add_container(kFirstId);
  request.name_space = "team";
  request.pod = "train";
  ask(request);
  EXPECT_THAT(answers, IsEmpty());
  EXPECT_EQ(refreshes, 1);
  EXPECT_EQ(starting, (PodRef{"team", "train", "uid-a"}));
  ask(request);
  EXPECT_THAT(answers.back(), HasSubstr("already"));
  answers.clear();
  // The API server did not answer: the ledger reads again.
  service->on_pods_read(fail(Code::kUnavailable, "no API server"));
  EXPECT_THAT(answers, IsEmpty());
  limits = known;
  service->on_pods_read({});
  loop.run_ready();
  EXPECT_THAT(answers, ElementsAre("yes"));
  EXPECT_EQ(refreshes, 1);
}

TEST_F(LimitServiceTest, RefusesAPodThatStaysUnknown) {
  limits = {};
  ask(add_container(kFirstId));
  service->on_pods_read({});
  EXPECT_THAT(answers, ElementsAre(HasSubstr("the kubelet lists no GPU of container main of Pod uid-a")));
  ask(add_container(kSecondId));
  loop.advance(kLimitAnswerLimit - 1ms);
  EXPECT_EQ(answers.size(), 1u);
  loop.advance(1ms);
  EXPECT_THAT(answers.back(), HasSubstr("within 6s"));
  service->on_pods_read({});
  EXPECT_EQ(answers.size(), 2u);
  EXPECT_THAT(calls, IsEmpty());
}

TEST_F(LimitServiceTest, RefusesAnInvalidRequestWithAnEvent) {
  limits.state = State::kRefused;
  limits.reason = "annotation gpu-memory is \"x\"";
  ask(add_container(kFirstId));
  EXPECT_THAT(answers, ElementsAre(limits.reason));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].reason, kLimitRefusedReason);
  EXPECT_EQ(events[0].pod, limits.pod);
  EXPECT_THAT(events[0].message,
              HasSubstr("container main does not start without its memory limit: annotation"));
}

TEST_F(LimitServiceTest, AFailureOnOneGpuClearsTheOthers) {
  set_errors.emplace(kOtherLimitedGpu, Error(Code::kUnsupported, "the driver has no memory limits"));
  ask(add_container(kFirstId));
  EXPECT_THAT(answers, ElementsAre("GPU-1: the driver has no memory limits"));
  EXPECT_THAT(in_force, IsEmpty());
  EXPECT_EQ(calls[2], "clear GPU-0 /cgroup/1");
  EXPECT_EQ(records(), 0u);
  EXPECT_FALSE(service->has_limits());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_THAT(events[0].message, HasSubstr("GPU-1: the driver has no memory limits"));
}

TEST_F(LimitServiceTest, RefusesWithoutARecord) {
  std::filesystem::remove_all(root);
  std::ofstream(root) << "a file in its place";
  ask(add_container(kFirstId));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_NE(answers[0], "yes");
  EXPECT_THAT(calls, IsEmpty());
}

// A driver that answers after the hook has given up: the container has not started.
TEST_F(LimitServiceTest, WhatComesTooLateIsCleared) {
  is_driver_hanging = true;
  ask(add_container(kFirstId));
  loop.advance(kLimitAnswerLimit);
  EXPECT_THAT(answers, ElementsAre(HasSubstr("the driver has not set the limit within 6s")));
  is_driver_hanging = false;
  for (auto& call : std::exchange(waiting, {})) call();
  loop.run_ready();
  EXPECT_THAT(in_force, IsEmpty());
  EXPECT_EQ(records(), 0u);
  EXPECT_EQ(answers.size(), 1u);
}

TEST_F(LimitServiceTest, SetsAgainAfterAReload) {
  ask(add_container(kFirstId));
  in_force.clear();
  service->restore_limits();
  loop.run_ready();
  EXPECT_EQ(in_force.size(), 2u);
  EXPECT_THAT(events, IsEmpty());
  set_errors.emplace(kLimitedGpu, Error(Code::kIo, "no"));
  in_force.clear();
  service->restore_limits();
  loop.run_ready();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].reason, kLimitLostReason);
  EXPECT_EQ(records(), 1u) << "tried again after the next one";
}

// The driver is loaded again between the first and the second GPU of a container.
TEST_F(LimitServiceTest, AReloadWhileSettingSetsAllAgain) {
  is_driver_hanging = true;
  ask(add_container(kFirstId));
  service->restore_limits();
  is_driver_hanging = false;
  for (auto& call : std::exchange(waiting, {})) call();
  in_force.clear();
  loop.run_ready();
  EXPECT_THAT(answers, ElementsAre("yes"));
  EXPECT_EQ(in_force.size(), 2u);
}

TEST_F(LimitServiceTest, ARestartSweeps) {
  const LimitRecordStore store(root);
  ASSERT_TRUE(store.write_record(record_of(kFirstId)));
  ASSERT_TRUE(store.write_record(record_of(kSecondId)));
  alive.insert("/cgroup/" + kSecondId);
  start();
  EXPECT_THAT(calls, IsEmpty()) << "the driver is not there yet";
  service->restore_limits();
  loop.run_ready();
  EXPECT_THAT(calls, ElementsAre("clear GPU-0 /cgroup/1", "set GPU-0 /cgroup/2 1024"));
  EXPECT_EQ(records(), 1u);
  end_container(kSecondId);
  EXPECT_EQ(records(), 0u);
  EXPECT_THAT(in_force, IsEmpty());
}

TEST_F(LimitServiceTest, WhatCannotBeClearedIsTriedAgain) {
  ask(add_container(kFirstId));
  clear_error = Error(Code::kUnavailable, "there is no driver");
  end_container(kFirstId);
  EXPECT_EQ(records(), 1u);
  EXPECT_TRUE(service->has_limits());
  clear_error.reset();
  service->restore_limits();
  loop.run_ready();
  EXPECT_EQ(records(), 0u);
  EXPECT_THAT(in_force, IsEmpty());
  EXPECT_FALSE(service->has_limits());
  // Gone with its cgroup.
  ask(add_container(kSecondId));
  clear_error = Error(Code::kNotFound, "no such cgroup");
  end_container(kSecondId);
  EXPECT_EQ(records(), 0u);
}

TEST_F(LimitServiceTest, TheNumberOfWaitersIsBounded) {
  limits = {};
  std::vector<LimitRequest> requests;
  for (std::size_t i = 0; i <= kMaxPendingLimits; ++i) {
    std::string id(64, 'a');
    id[0] = "0123456789abcdef"[i / 16];
    id[1] = "0123456789abcdef"[i % 16];
    ask(add_container(id));
  }
  EXPECT_THAT(answers, ElementsAre(HasSubstr("too many containers wait")));
}

// The Pod's comes before each of its containers' own, which never exceeds it.
TEST_F(LimitServiceTest, ThePodHasTheSumOfItsContainers) {
  is_dmem = true;
  ask(add_container(kFirstId));
  EXPECT_THAT(calls, ElementsAre("pod GPU-0 /cgroup 1024", "set GPU-0 /cgroup/1 1024",
                                 "pod GPU-1 /cgroup 2048", "set GPU-1 /cgroup/1 2048"));
  limits.limits.erase(kOtherLimitedGpu);
  calls.clear();
  ask(add_container(kSecondId));
  EXPECT_THAT(calls, ElementsAre("pod GPU-0 /cgroup 2048", "set GPU-0 /cgroup/2 1024"));
  calls.clear();
  end_container(kFirstId);
  EXPECT_THAT(calls, ElementsAre("clear GPU-0 /cgroup/1", "pod GPU-0 /cgroup 1024", "clear GPU-1 /cgroup/1",
                                 "clear GPU-1 /cgroup"));
  EXPECT_EQ(in_force.at({kLimitedGpu, "/cgroup"}), mebibytes(1024));
  end_container(kSecondId);
  EXPECT_THAT(in_force, IsEmpty());
  EXPECT_EQ(records(), 0u);
}

// There, a container's limit takes the place of the Pod's.
TEST_F(LimitServiceTest, ThePodHasNoLimitInTheDriversOwnAccounting) {
  ask(add_container(kFirstId));
  end_container(kFirstId);
  EXPECT_THAT(calls, testing::Not(testing::Contains(testing::EndsWith("/cgroup"))));
  EXPECT_THAT(calls, testing::Not(testing::Contains(testing::StartsWith("pod"))));
  EXPECT_EQ(calls.size(), 4u);
}

TEST_F(LimitServiceTest, AContainerWithoutALimitKeepsThePodWithoutOne) {
  is_dmem = true;
  limits.unlimited = {kLimitedGpu};
  ask(add_container(kFirstId));
  EXPECT_THAT(calls,
              ElementsAre("set GPU-0 /cgroup/1 1024", "pod GPU-1 /cgroup 2048", "set GPU-1 /cgroup/1 2048"));
  // Of an earlier agent, which knew it.
  limits.unlimited.clear();
  calls.clear();
  ask(add_container(kSecondId));
  EXPECT_EQ(calls[0], "pod GPU-0 /cgroup none");
}

TEST_F(LimitServiceTest, APodThatTheDriverRefusesBreaksNoStart) {
  is_dmem = true;
  limits.limits.erase(kOtherLimitedGpu);
  pod_errors = 1;
  ask(add_container(kFirstId));
  EXPECT_THAT(answers, ElementsAre("yes"));
  EXPECT_THAT(calls,
              ElementsAre("pod GPU-0 /cgroup 1024", "pod GPU-0 /cgroup none", "set GPU-0 /cgroup/1 1024"));
  // It may still be too low: the container would get less than its own limit.
  pod_errors = 2;
  ask(add_container(kSecondId));
  EXPECT_THAT(answers.back(), HasSubstr("GPU-0: no Pod"));
  EXPECT_EQ(records(), 1u);
  EXPECT_EQ(in_force.at({kLimitedGpu, "/cgroup"}), mebibytes(1024));
}

TEST_F(LimitServiceTest, ThePodIsSweptAndRestored) {
  is_dmem = true;
  limits.limits.erase(kOtherLimitedGpu);
  ask(add_container(kFirstId));
  ask(add_container(kSecondId));
  alive.erase("/cgroup/" + kFirstId);
  start();
  calls.clear();
  in_force.clear();  // loaded again
  service->restore_limits();
  loop.run_ready();
  EXPECT_EQ(in_force.at({kLimitedGpu, "/cgroup"}), mebibytes(1024));
  EXPECT_EQ(records(), 1u);
  // The driver counts by itself now.
  is_dmem = false;
  calls.clear();
  in_force.clear();
  service->restore_limits();
  loop.run_ready();
  EXPECT_THAT(calls, ElementsAre("pod GPU-0 /cgroup none", "set GPU-0 /cgroup/2 1024"));
  // The Pod's limit is the last to be cleared: while it may be there, so is the record.
  is_dmem = true;
  service->restore_limits();
  loop.run_ready();
  clear_error = Error(Code::kUnavailable, "there is no driver");
  end_container(kSecondId);
  EXPECT_EQ(records(), 1u);
  clear_error.reset();
  service->restore_limits();
  loop.run_ready();
  EXPECT_THAT(in_force, IsEmpty());
  EXPECT_EQ(records(), 0u);
}

}  // namespace
}  // namespace gpulet::agent
