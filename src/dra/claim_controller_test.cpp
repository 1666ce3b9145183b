#include "dra/claim_controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "dra/test_claims.h"
#include "dra/test_machines.h"

namespace gpulet::dra {
namespace {

using namespace std::chrono_literals;
using namespace test;
using nlohmann::json;

// An API server that answers when the test says so.
class FakeSource final : public ClaimSource {
 public:
  explicit FakeSource(Loop& loop) : loop_(loop) {}

  void read_claim(const ClaimName& claim,
                  std::function<void(Result<std::optional<std::string>>)> done) override {
    ++reads;
    most_open = std::max(most_open, ++open_);
    if (!answers) return;
    loop_.post([this, name = claim.name, done = std::move(done)] {
      --open_;
      if (error) return done(fail(*error));
      const auto found = claims.find(name);
      if (found == claims.end()) return done(std::nullopt);
      done(found->second.dump());
    });
  }

  void read_pod(const PodRef&, std::function<void(Result<std::optional<std::string>>)>) override {
    ADD_FAILURE();
  }

  std::map<std::string, json> claims;  // by name
  std::optional<Error> error;
  bool answers = true;
  int reads = 0, most_open = 0;

 private:
  Loop& loop_;
  int open_ = 0;
};

// Daemons that serve when the test says so.
class FakeDaemons final : public ClaimDaemons {
 public:
  void set_daemons(std::vector<mps::DaemonSpec> daemons) override { set = std::move(daemons); }
  Status check_daemon(const std::string& name) const override {
    EXPECT_NE(std::ranges::find(set, name, &mps::DaemonSpec::name), set.end()) << name;
    return status;
  }
  std::string find_holder(const DeviceUuid& device) const override {
    const auto* daemon = mps::find_daemon_of(set, device);
    if (daemon != nullptr) return daemon->name;
    const auto found = others.find(device.str());
    return found == others.end() ? "" : found->second;
  }
  std::string mps_root() const override { return "/run/nvidia/mps"; }

  std::vector<mps::DaemonSpec> set;
  std::map<std::string, std::string> others;  // by UUID
  Status status = fail(Code::kUnavailable, "the MPS control daemon is starting");
};

// Of a node without partitions.
class NoPartitions final : public ClaimPartitions {
 public:
  void find_partition(const DeviceUuid&, const Partition&, std::function<void(Result<DeviceUuid>)>) override {
    ADD_FAILURE();
  }
  void make_partition(const DeviceUuid&, const Partition&, bool,
                      std::function<void(Result<DeviceUuid>)>) override {
    ADD_FAILURE();
  }
  void remove_partition(const DeviceUuid&, const Partition&, const DeviceUuid&,
                        std::function<void(Status)>) override {
    ADD_FAILURE();
  }
};

class ClaimControllerTest : public ::testing::Test {
 protected:
  ClaimControllerTest() {
    std::string name = (std::filesystem::temp_directory_path() / "claim_controller.XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    start();
    controller_->set_devices(devices());
    add_claim("a", "gpu-0");
    add_claim("b", "gpu-1");
  }
  ~ClaimControllerTest() override { std::filesystem::remove_all(directory_); }

  void start() {
    controller_.reset();
    auto started = ClaimController::start_controller(loop_, source_, daemons_, partitions_,
                                                     {.pool_name = "node-1",
                                                      .record_directory = directory_ + "/claims",
                                                      .cdi_directory = directory_ + "/cdi"});
    ASSERT_TRUE(started) << started.error().full_message();
    controller_ = std::move(*started);
  }

  static std::shared_ptr<const NodeDevices> devices(unsigned count = 2) {
    auto made = std::make_shared<NodeDevices>();
    std::vector<inventory::Gpu> gpus;
    for (unsigned i = 0; i < count; ++i) {
      gpus.push_back(make_gpu(i));
      made->base.devices.push_back(
          {.name = gpus.back().uuid.str(),
           .edits = {.device_nodes = {{.path = "/dev/nvidia" + std::to_string(i)}}}});
    }
    made->pool = make_pool(std::move(gpus));
    made->gates = {true, true};
    return made;
  }

  void add_claim(const std::string& name, const std::string& device) {
    source_.claims[name] = claim_json({result_json(device)}, {}, "uid-" + name, name);
  }
  void add_mps_claim(const std::string& name, const std::string& device) {
    const json sharing = {{"strategy", "MPS"}, {"mpsConfig", {{"defaultActiveThreadPercentage", 50}}}};
    source_.claims[name] =
        claim_json({result_json(device)}, {config_json(gpu_config(sharing))}, "uid-" + name, name);
  }
  static ClaimName named(const std::string& name) { return {"team", name, "uid-" + name}; }

  using Results = std::map<std::string, Result<PreparedClaim>>;
  // Filled when the answer comes.
  std::shared_ptr<std::optional<Results>> prepare(const std::vector<std::string>& names) {
    std::vector<ClaimName> claims;
    for (const auto& name : names) claims.push_back(named(name));
    auto results = std::make_shared<std::optional<Results>>();
    controller_->prepare_claims(claims, [results](Results all) {
      EXPECT_FALSE(*results);
      *results = std::move(all);
    });
    loop_.run_ready();
    return results;
  }
  static std::string text_of(const Result<PreparedClaim>& result) {
    if (!result) return result.error().full_message();
    std::string text;
    for (const auto& device : *result) text += device.request + "=" + device.device + ";" + device.cdi_id;
    return text;
  }
  std::string spec_path(const std::string& name) const {
    return directory_ + "/cdi/k8s.gpu.nvidia.com-claim_uid-" + name + ".json";
  }
  bool has_files(const std::string& name) const {
    const bool record = std::filesystem::exists(directory_ + "/claims/uid-" + name + ".json");
    EXPECT_EQ(std::filesystem::exists(spec_path(name)), record);
    return record;
  }

  ManualLoop loop_;
  FakeSource source_{loop_};
  FakeDaemons daemons_;
  NoPartitions partitions_;
  std::string directory_;
  std::unique_ptr<ClaimController> controller_;
};

TEST_F(ClaimControllerTest, PreparesAndUnprepares) {
  const auto results = prepare({"a"});
  ASSERT_TRUE(*results);
  EXPECT_EQ(text_of((*results)->at("uid-a")), "gpus=gpu-0;k8s.gpu.nvidia.com/claim=uid-a-gpu-0");
  EXPECT_TRUE(has_files("a"));
  EXPECT_TRUE(controller_->records().contains("uid-a"));
  EXPECT_TRUE(controller_->unprepare_claims({named("a")}).at("uid-a"));
  EXPECT_FALSE(has_files("a"));
  EXPECT_TRUE(controller_->records().empty());
  // Unknown claims too, and no claim is read for it.
  const int reads = source_.reads;
  EXPECT_TRUE(controller_->unprepare_claims({named("a")}).at("uid-a"));
  EXPECT_EQ(source_.reads, reads);
}

TEST_F(ClaimControllerTest, EveryClaimOfABatchHasItsOwnAnswer) {
  const auto results = prepare({"a", "missing", "b"});
  ASSERT_TRUE(*results);
  ASSERT_EQ((*results)->size(), 3u);
  EXPECT_TRUE((*results)->at("uid-a"));
  EXPECT_TRUE((*results)->at("uid-b"));
  EXPECT_EQ(text_of((*results)->at("uid-missing")), "claim team/missing: the claim does not exist");
  // All were read at once.
  EXPECT_EQ(source_.most_open, 3);
}

TEST_F(ClaimControllerTest, TheSameClaimHasTheSameAnswer) {
  const auto first = prepare({"a"});
  start();
  controller_->set_devices(devices());
  EXPECT_TRUE(controller_->records().contains("uid-a"));
  const auto before = file_identity(spec_path("a"));
  const auto second = prepare({"a"});
  ASSERT_TRUE(*second);
  EXPECT_EQ(text_of((*second)->at("uid-a")), text_of((*first)->at("uid-a")));
  EXPECT_EQ(file_identity(spec_path("a")), before);
  // A document that somebody removed is there again.
  std::filesystem::remove(spec_path("a"));
  prepare({"a"});
  EXPECT_TRUE(has_files("a"));
}

TEST_F(ClaimControllerTest, WaitsForTheDriver) {
  controller_->set_devices(nullptr);
  const auto results = prepare({"a"});
  loop_.advance(20s);
  EXPECT_FALSE(*results);
  controller_->set_devices(devices());
  ASSERT_TRUE(*results);
  EXPECT_TRUE((*results)->at("uid-a"));
}

TEST_F(ClaimControllerTest, AnswersTheReasonBeforeTheKubeletGivesUp) {
  controller_->set_devices(nullptr);
  const auto results = prepare({"a"});
  loop_.advance(39s);
  EXPECT_FALSE(*results);
  loop_.advance(1s);
  ASSERT_TRUE(*results);
  EXPECT_EQ(text_of((*results)->at("uid-a")), "claim team/a: the GPUs of this node are not known yet");
  EXPECT_FALSE(has_files("a"));
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

TEST_F(ClaimControllerTest, WaitsForTheApiServer) {
  source_.error = Error(Code::kUnavailable, "connection refused");
  const auto results = prepare({"a"});
  loop_.advance(10s);
  EXPECT_FALSE(*results);
  EXPECT_GT(source_.reads, 4);
  EXPECT_LT(source_.reads, 30);
  source_.error.reset();
  loop_.advance(2s);
  ASSERT_TRUE(*results);
  EXPECT_TRUE((*results)->at("uid-a"));
  source_.error = Error(Code::kUnavailable, "connection refused");
  const auto late = prepare({"b"});
  loop_.advance(40s);
  ASSERT_TRUE(*late);
  EXPECT_EQ(text_of((*late)->at("uid-b")), "claim team/b: cannot read the claim: connection refused");
}

TEST_F(ClaimControllerTest, WaitsForTheClaimThatHoldsTheDevice) {
  prepare({"a"});
  add_claim("c", "gpu-0");
  const auto results = prepare({"c", "b"});
  loop_.advance(5s);
  EXPECT_FALSE(*results);
  EXPECT_TRUE(has_files("b"));  // which does not wait for the other
  EXPECT_TRUE(controller_->unprepare_claims({named("a")}).at("uid-a"));
  ASSERT_TRUE(*results);
  EXPECT_TRUE((*results)->at("uid-c"));
  const auto refused = prepare({"a"});
  loop_.advance(40s);
  ASSERT_TRUE(*refused);
  EXPECT_EQ(text_of((*refused)->at("uid-a")),
            "claim team/a: device \"gpu-0\" is still held by the claim team/c (uid uid-c)");
}

TEST_F(ClaimControllerTest, AnUnpreparedClaimIsNotPreparedLater) {
  controller_->set_devices(nullptr);
  const auto results = prepare({"a"});
  EXPECT_TRUE(controller_->unprepare_claims({named("a")}).at("uid-a"));
  ASSERT_TRUE(*results);
  EXPECT_EQ(text_of((*results)->at("uid-a")), "claim team/a: the claim was unprepared meanwhile");
  controller_->set_devices(devices());
  loop_.advance(60s);
  EXPECT_FALSE(has_files("a"));
}

TEST_F(ClaimControllerTest, AnAnswerThatWaitsForOthersKnowsWhatWasUnprepared) {
  prepare({"a"});
  add_claim("c", "gpu-0");
  const auto results = prepare({"b", "c"});
  EXPECT_TRUE(has_files("b"));
  EXPECT_FALSE(*results) << "the other one waits";
  EXPECT_TRUE(controller_->unprepare_claims({named("b")}).begin()->second);
  loop_.advance(41s);
  ASSERT_TRUE(*results);
  EXPECT_EQ(text_of((*results)->at("uid-b")), "claim team/b: the claim was unprepared meanwhile");
  EXPECT_FALSE(has_files("b"));
}

TEST_F(ClaimControllerTest, ACallThatFailsUndoesNothingOfAnotherOne) {
  for (const auto before : {39'990ms, 20'000ms}) {
    SCOPED_TRACE(before.count());
    daemons_.status = fail(Code::kUnavailable, "the MPS control daemon is starting");
    add_mps_claim("m", "gpu-1");
    const auto first = prepare({"m"});
    loop_.advance(before);
    if (before > 30s) daemons_.status = {};
    const auto second = prepare({"m"});
    loop_.advance(before > 30s ? Duration(10ms) : Duration(20s));
    ASSERT_TRUE(*first);
    EXPECT_EQ(daemons_.set.size(), 1u) << "the daemon of a call that goes on";
    daemons_.status = {};
    loop_.advance(3s);
    ASSERT_TRUE(*second);
    EXPECT_TRUE((*second)->at("uid-m")) << text_of((*second)->at("uid-m"));
    EXPECT_TRUE(has_files("m"));
    EXPECT_TRUE(controller_->unprepare_claims({named("m")}).begin()->second);
    EXPECT_FALSE(has_files("m"));
  }
}

TEST_F(ClaimControllerTest, AFailedClaimHoldsNothing) {
  // A directory where the document should be cannot be replaced.
  std::filesystem::create_directories(spec_path("a") + "/x");
  const auto results = prepare({"a"});
  EXPECT_TRUE(controller_->records().contains("uid-a"));  // recorded before anything is written
  std::filesystem::remove_all(spec_path("a"));
  loop_.advance(2s);
  ASSERT_TRUE(*results);
  EXPECT_TRUE((*results)->at("uid-a"));
  controller_->unprepare_claims({named("a")});
  EXPECT_FALSE(has_files("a"));
}

TEST_F(ClaimControllerTest, EndsClaimsThatAreGone) {
  prepare({"a", "b"});
  controller_->end_orphans();
  loop_.run_ready();
  EXPECT_EQ(controller_->records().size(), 2u);
  source_.error = Error(Code::kUnavailable, "away");
  source_.claims.clear();
  controller_->end_orphans();
  loop_.run_ready();
  EXPECT_EQ(controller_->records().size(), 2u);
  source_.error.reset();
  source_.claims["b"] = claim_json({result_json("gpu-1")}, {}, "uid-new", "b");
  controller_->end_orphans();
  loop_.run_ready();
  EXPECT_TRUE(controller_->records().empty());
  EXPECT_FALSE(has_files("a"));
}

TEST_F(ClaimControllerTest, ShowsWhatIsNotPreparedAndWhy) {
  using Shown = std::map<std::string, std::string>;
  const auto shown = [&] {
    Shown reasons;
    for (const auto& one : controller_->unprepared_claims()) {
      EXPECT_EQ(one.claim.uid, "uid-" + one.claim.name);
      reasons[one.claim.name] = one.reason;
    }
    return reasons;
  };
  const auto began = loop_.now();
  prepare({"b"});
  EXPECT_EQ(shown(), Shown{});
  add_claim("c", "gpu-1");
  add_mps_claim("a", "gpu-0");
  prepare({"a", "c", "missing"});
  const Shown waiting = {{"a", "the MPS control daemon is starting"},
                         {"c", "device \"gpu-1\" is still held by the claim team/b (uid uid-b)"},
                         {"missing", "the claim does not exist"}};
  EXPECT_EQ(shown(), waiting);
  EXPECT_TRUE(controller_->is_being_prepared("uid-a"));
  EXPECT_FALSE(controller_->is_being_prepared("uid-b"));
  // The kubelet has the reason, and tries again; since then is the first of all calls.
  loop_.advance(60s);
  EXPECT_EQ(shown(), waiting);
  prepare({"a", "c"});
  for (const auto& one : controller_->unprepared_claims()) EXPECT_EQ(one.since, began) << one.claim.name;
  controller_->unprepare_claims({named("b")});
  EXPECT_EQ(shown(), (Shown{{"a", waiting.at("a")}, {"missing", waiting.at("missing")}}));
  controller_->unprepare_claims({named("a")});
  EXPECT_EQ(shown(), (Shown{{"missing", waiting.at("missing")}}));
  // Its Pod is gone: nobody asks for it any more.
  loop_.advance(kUnpreparedMemory);
  EXPECT_EQ(shown(), Shown{});
}

TEST_F(ClaimControllerTest, ShowsAnApiServerThatDoesNotAnswer) {
  source_.answers = false;
  prepare({"a"});
  EXPECT_TRUE(controller_->unprepared_claims().empty());
  loop_.advance(kQuietRead);
  ASSERT_EQ(controller_->unprepared_claims().size(), 1u);
  EXPECT_EQ(controller_->unprepared_claims()[0].reason, "the API server has not answered yet");
}

TEST_F(ClaimControllerTest, CountsByResultAndDuration) {
  const auto bucket_of = [](double seconds) {
    const auto bound = std::ranges::lower_bound(kDurationBounds, seconds);
    return static_cast<std::size_t>(bound - kDurationBounds.begin());
  };
  prepare({"a", "missing", "NO UID"});
  auto counts = controller_->counts();
  EXPECT_EQ(counts.prepare.durations[0], 1u);
  EXPECT_EQ(counts.prepare.errors,
            (std::map<Code, std::uint64_t>{{Code::kNotFound, 1}, {Code::kInvalidArgument, 1}}));
  EXPECT_EQ(counts.preparing, 0u);
  controller_->set_devices(nullptr);
  prepare({"b"});
  EXPECT_EQ(controller_->counts().preparing, 1u);
  loop_.advance(1s);
  controller_->set_devices(devices());
  counts = controller_->counts();
  EXPECT_EQ(counts.preparing, 0u);
  EXPECT_EQ(counts.prepare.durations[bucket_of(1)], 1u);
  EXPECT_EQ(counts.prepare.time, 1s);
  EXPECT_EQ(counts.unprepare.durations[0], 0u);
  controller_->unprepare_claims({named("a"), named("b")});
  EXPECT_EQ(controller_->counts().unprepare.durations[0], 2u);
  EXPECT_TRUE(controller_->counts().unprepare.errors.empty());
}

TEST_F(ClaimControllerTest, AContainerGetsASharedGpuOnceItsDaemonServes) {
  add_mps_claim("a", "gpu-0");
  const auto results = prepare({"a"});
  loop_.advance(5s);
  EXPECT_FALSE(*results);
  ASSERT_EQ(daemons_.set.size(), 1u);
  EXPECT_EQ(daemons_.set[0].name, "claims/uid-a");
  // The record is there before the daemon is asked for, the document only when it serves.
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/claims/uid-a.json"));
  EXPECT_FALSE(std::filesystem::exists(spec_path("a")));
  daemons_.status = {};
  controller_->set_devices(devices());
  ASSERT_TRUE(*results);
  EXPECT_EQ(text_of((*results)->at("uid-a")), "gpus=gpu-0;k8s.gpu.nvidia.com/claim=uid-a-gpu-0");
  EXPECT_NE(read_file(spec_path("a"))->find("/run/nvidia/mps/claims/uid-a/pipe"), std::string::npos);
  // The next Pod of the claim has the same daemon.
  ASSERT_TRUE(*prepare({"a"}));
  EXPECT_EQ(daemons_.set.size(), 1u);
  // As has the next agent.
  daemons_.set.clear();
  start();
  ASSERT_EQ(daemons_.set.size(), 1u);
  EXPECT_EQ(daemons_.set[0].thread_percentage, 50u);
  EXPECT_TRUE(controller_->unprepare_claims({named("a")}).at("uid-a"));
  EXPECT_TRUE(daemons_.set.empty());
  EXPECT_FALSE(has_files("a"));
}

TEST_F(ClaimControllerTest, NoDaemonNoContainer) {
  add_mps_claim("a", "gpu-0");
  const auto results = prepare({"a"});
  loop_.advance(40s);
  ASSERT_TRUE(*results);
  EXPECT_EQ(text_of((*results)->at("uid-a")), "claim team/a: the MPS control daemon is starting");
  EXPECT_TRUE(daemons_.set.empty());
  EXPECT_FALSE(has_files("a"));
  daemons_.status = fail(Code::kUnsupported, "another program runs them");
  EXPECT_EQ(text_of((**prepare({"a"})).at("uid-a")), "claim team/a: another program runs them");
  EXPECT_TRUE(daemons_.set.empty());
  EXPECT_FALSE(has_files("a"));
}

// One that shared it by MPS until now, or a resource of the device plugin.
TEST_F(ClaimControllerTest, WaitsForTheDaemonThatHoldsTheGpu) {
  daemons_.others = {{"GPU-0", "nvidia.com/gpu"}, {"GPU-1", "claims/uid-old"}};
  daemons_.status = {};
  add_mps_claim("a", "gpu-0");
  const auto results = prepare({"a", "b"});
  loop_.advance(5s);
  EXPECT_FALSE(*results);
  EXPECT_TRUE(daemons_.set.empty());
  EXPECT_FALSE(has_files("a"));
  daemons_.others.erase("GPU-1");
  controller_->set_devices(devices());
  EXPECT_TRUE(has_files("b"));
  loop_.advance(40s);
  ASSERT_TRUE(*results);
  EXPECT_EQ(text_of((*results)->at("uid-a")),
            "claim team/a: device \"gpu-0\" is still used by the MPS control daemon of nvidia.com/gpu");
}

TEST_F(ClaimControllerTest, RefusesAnInvalidUid) {
  std::optional<Results> results;
  controller_->prepare_claims({{"team", "a", "../a"}}, [&](Results all) { results = std::move(all); });
  ASSERT_TRUE(results);
  EXPECT_EQ(text_of(results->at("../a")), "claim team/a: the uid \"../a\" is not valid");
  EXPECT_TRUE(controller_->unprepare_claims({{"team", "a", "../a"}}).at("../a"));
}

}  // namespace
}  // namespace gpulet::dra
