// What claims let containers use of a GPU's memory, and claims that are not prepared because a Pod demands
// a harder limit than this node has.
#include "dra/limit_demand.h"

#include <gmock/gmock.h>
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

#include "dra/claim_controller.h"
#include "dra/claim_memory.h"
#include "dra/test_claims.h"
#include "dra/test_machines.h"

namespace gpulet::dra {
namespace {

using namespace std::chrono_literals;
using namespace test;
using nlohmann::json;
using testing::HasSubstr;

const DeviceUuid kGpu0("GPU-0"), kGpu1("GPU-1");
constexpr std::uint64_t kGibibyte = 1u << 30;

RecordedDevice share(const std::string& request, const DeviceUuid& gpu, std::uint64_t gibibytes,
                     const std::string& id = "s-1") {
  RecordedDevice device{request, "node-1", "gpu-0", gpu};
  device.share_id = id;
  if (gibibytes != 0) device.consumed["memory"] = gibibytes * kGibibyte;
  return device;
}
RecordedDevice whole(const std::string& request, const DeviceUuid& gpu) {
  return {request, "node-1", "gpu-0", gpu};
}
std::map<std::string, ClaimRecord> records_of(std::vector<RecordedDevice> devices,
                                              const std::string& name = "claim-1") {
  return {{"uid-" + name, {"uid-" + name, "team", name, std::move(devices)}}};
}
Bytes limit_of(const std::map<std::string, ClaimRecord>& records, const DeviceUuid& gpu,
               std::vector<k8s::ContainerClaim> claims) {
  const auto memory = claimed_memory(records, "team", claims);
  EXPECT_TRUE(memory) << memory.error().full_message();
  const auto found = memory->find(gpu);
  EXPECT_NE(found, memory->end());
  return found == memory->end() ? mebibytes(1) : found->second.limit;
}

TEST(ClaimedMemory, IsTheSumOfTheSharesOfTheRequests) {
  const auto records =
      records_of({share("a", kGpu0, 4), share("a", kGpu0, 2, "s-2"), share("b", kGpu1, 8, "s-3")});
  EXPECT_EQ(limit_of(records, kGpu0, {{"claim-1", "a"}}), mebibytes(6u << 10));
  EXPECT_EQ(limit_of(records, kGpu1, {{"claim-1", ""}}), mebibytes(8u << 10));
  EXPECT_EQ(limit_of(records, kGpu0, {{"claim-1", ""}, {"claim-1", "a"}}), mebibytes(6u << 10))
      << "named twice";
  const std::vector<k8s::ContainerClaim> named = {{"claim-1", "a"}}, other = {{"network", ""}};
  EXPECT_FALSE(claimed_memory(records, "team", named)->contains(kGpu1));
  EXPECT_TRUE(claimed_memory(records, "team", other)->empty());
  EXPECT_TRUE(claimed_memory(records, "other", named)->empty());
  EXPECT_EQ(claimed_memory(records, "team", named)->at(kGpu0).shares.size(), 2u);
}

TEST(ClaimedMemory, NeedsAnAmountOfEveryDevice) {
  const std::vector<k8s::ContainerClaim> all = {{"claim-1", ""}};
  EXPECT_EQ(limit_of(records_of({whole("a", kGpu0)}), kGpu0, all), Bytes{});
  EXPECT_EQ(limit_of(records_of({share("a", kGpu0, 0)}), kGpu0, all), Bytes{}) << "a share by count";
  for (const bool is_first : {true, false}) {
    auto devices = std::vector{share("a", kGpu0, 4), share("b", kGpu0, 0, "s-2")};
    if (is_first) std::swap(devices[0], devices[1]);
    EXPECT_EQ(limit_of(records_of(devices), kGpu0, all), Bytes{}) << is_first;
  }
  auto admin = share("a", kGpu0, 4);
  admin.admin_access = true;
  EXPECT_EQ(limit_of(records_of({admin}), kGpu0, all), Bytes{});
}

TEST(ClaimedMemory, OfAClaimWithoutANameIsAnyones) {
  auto records = records_of({share("a", kGpu0, 4)});
  records["old"] = {"old", "", "", {whole("a", kGpu1), whole("a", kGpu0)}};
  const std::vector<k8s::ContainerClaim> all = {{"claim-1", ""}};
  const auto memory = *claimed_memory(records, "team", all);
  EXPECT_EQ(memory.at(kGpu1).limit, Bytes{});
  EXPECT_EQ(memory.at(kGpu0).limit, mebibytes(4u << 10)) << "of its own claim";
}

TEST(ClaimedMemory, TellsMps) {
  auto records = records_of({whole("a", kGpu0), whole("b", kGpu1)});
  records.begin()->second.daemons = {{{kGpu0}, 50, {{kGpu0, 2048}}}};
  const std::vector<k8s::ContainerClaim> all = {{"claim-1", ""}};
  const auto memory = *claimed_memory(records, "team", all);
  EXPECT_EQ(memory.at(kGpu0), (ClaimedMemory{{}, 2048, true, "team/claim-1"}));
  EXPECT_EQ(memory.at(kGpu1), (ClaimedMemory{{}, 0, false, "team/claim-1"}));
  EXPECT_EQ(find_claim_daemon(records, kGpu0), &records.begin()->second.daemons.front());
  EXPECT_EQ(find_claim_daemon(records, kGpu1), nullptr);
}

TEST(ClaimedMemory, IsOfOneClaimOfAName) {
  auto records = records_of({share("a", kGpu0, 4)});
  auto older = records.begin()->second;
  older.uid = "uid-older";
  older.ending = true;
  records["uid-older"] = older;
  const std::vector<k8s::ContainerClaim> all = {{"claim-1", ""}};
  EXPECT_TRUE(claimed_memory(records, "team", all)) << "one that ends does not count";
  records["uid-older"].ending = false;
  const auto memory = claimed_memory(records, "team", all);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().message(),
            "there are two claims team/claim-1; the older one must be unprepared first");
}

json memory_share_json(const std::string& share, const std::string& memory) {
  auto result = result_json("gpu-0");
  result["shareID"] = share;
  result["consumedCapacity"] = {{"memory", memory}};
  return result;
}

json demanding_pod(const std::string& name, const std::string& grade) {
  json pod = {{"metadata", {{"namespace", "team"}, {"name", name}, {"uid", "uid-" + name}}},
              {"spec", {{"nodeName", "node-1"}}}};
  if (!grade.empty()) pod["metadata"]["annotations"] = {{"gpulet.io/min-limit-grade", grade}};
  pod["spec"]["resourceClaims"].push_back({{"name", "gpu"}, {"resourceClaimName", "a"}});
  json container = {{"name", "main"}};
  container["resources"]["claims"].push_back({{"name", "gpu"}});
  pod["spec"]["containers"].push_back(container);
  return pod;
}

class PodsAndClaims final : public ClaimSource {
 public:
  explicit PodsAndClaims(Loop& loop) : loop_(loop) {}
  void read_claim(const ClaimName& claim,
                  std::function<void(Result<std::optional<std::string>>)> done) override {
    answer(claims.at(claim.name).dump(), std::move(done));
  }
  void read_pod(const PodRef& pod, std::function<void(Result<std::optional<std::string>>)> done) override {
    ++pod_reads;
    most_open = std::max(most_open, ++open);
    done = [this, done = std::move(done)](const auto& text) {
      --open;
      done(text);
    };
    if (pod_error) return answer(fail(*pod_error), std::move(done));
    const auto found = pods.find(pod.name);
    answer(found == pods.end() ? std::nullopt : std::optional(found->second.dump()), std::move(done));
  }

  std::map<std::string, json> claims, pods;  // by name
  std::optional<Error> pod_error;
  int pod_reads = 0, open = 0, most_open = 0;  // of Pods

 private:
  void answer(Result<std::optional<std::string>> text,
              std::function<void(Result<std::optional<std::string>>)> done) {
    loop_.post([text = std::move(text), done = std::move(done)] { done(text); });
  }
  Loop& loop_;
};

class OneDaemon final : public ClaimDaemons {
 public:
  void set_daemons(std::vector<mps::DaemonSpec>) override {}
  Status check_daemon(const std::string&) const override { return {}; }
  std::string find_holder(const DeviceUuid&) const override { return ""; }
  std::string mps_root() const override { return "/run/nvidia/mps"; }
};

class NoPlacements final : public ClaimPartitions {
 public:
  void find_partition(const DeviceUuid&, const Partition&, std::function<void(Result<DeviceUuid>)>) override {
  }
  void make_partition(const DeviceUuid&, const Partition&, bool,
                      std::function<void(Result<DeviceUuid>)>) override {}
  void remove_partition(const DeviceUuid&, const Partition&, const DeviceUuid&,
                        std::function<void(Status)>) override {}
};

// The claim "a" is a share of 4 GiB of a GPU whose memory is audited, made for the Pod "train".
class LimitDemandTest : public testing::Test {
 protected:
  LimitDemandTest() {
    std::string name = (std::filesystem::temp_directory_path() / "limit_demand.XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    start();
    add_claim(memory_share_json("s-1", "4Gi"), {"train"});
    own_claim("train");
    source_.pods["train"] = demanding_pod("train", "audited");
  }
  ~LimitDemandTest() override {
    controller_.reset();
    std::filesystem::remove_all(directory_);
  }

  void start() {
    controller_.reset();
    controller_ = std::move(*ClaimController::start_controller(loop_, source_, daemons_, partitions_,
                                                               {.pool_name = "node-1",
                                                                .record_directory = directory_ + "/claims",
                                                                .cdi_directory = directory_ + "/cdi"}));
    set_means({.no_driver_limit = "the driver is 580", .ends_excess = true});
  }
  void set_means(fraction::LimitMeans means) {
    auto devices = std::make_shared<NodeDevices>();
    auto gpu = make_gpu(0);
    devices->base.devices.push_back({.name = "GPU-0", .edits = {.device_nodes = {{.path = "/dev/nvidia0"}}}});
    devices->pool = make_device_pool(
        {.snapshot = make_snapshot({gpu}), .shares = {{gpu.uuid, {config::ShareLimit::kMemory}}}});
    devices->gates = {true, true};
    devices->limit_means[gpu.uuid] = std::move(means);
    controller_->set_devices(std::move(devices));
  }
  void add_claim(const json& result, const std::vector<std::string>& pods) {
    auto claim = claim_json({result}, {}, "uid-a", "a");
    for (const auto& pod : pods)
      claim["status"]["reservedFor"].push_back({{"resource", "pods"}, {"name", pod}, {"uid", "uid-" + pod}});
    source_.claims["a"] = claim;
  }
  // Made from a template for the Pod of this name.
  void own_claim(const std::string& pod) {
    auto& owners = source_.claims["a"]["metadata"]["ownerReferences"];
    owners = json::array();
    owners.push_back({{"kind", "Pod"}, {"name", pod}, {"uid", "uid-" + pod}, {"controller", true}});
  }
  // Its error; empty where it is prepared. After the limit of a call if it waits.
  std::string prepare() {
    std::optional<Result<PreparedClaim>> answer;
    controller_->prepare_claims({{"team", "a", "uid-a"}}, [&](auto all) { answer = all.at("uid-a"); });
    loop_.run_ready();
    waited_ = !answer;
    if (!answer) loop_.advance(41s);
    EXPECT_TRUE(answer);
    if (!answer || *answer) return answer ? "" : "no answer";
    EXPECT_TRUE(controller_->records().empty()) << "a claim that fails holds nothing";
    return answer->error().full_message();
  }
  void add_container(const std::string& name, const json& claim) {
    json container = {{"name", name}};
    if (!claim.is_null()) container["resources"]["claims"].push_back(claim);
    source_.pods["train"]["spec"]["containers"].push_back(container);
  }

  ManualLoop loop_;
  PodsAndClaims source_{loop_};
  OneDaemon daemons_;
  NoPlacements partitions_;
  std::string directory_;
  std::unique_ptr<ClaimController> controller_;
  bool waited_ = false;
};

TEST_F(LimitDemandTest, WhatTheNodeGivesIsPrepared) {
  EXPECT_EQ(prepare(), "");
  EXPECT_EQ(source_.pod_reads, 1);
  EXPECT_EQ(prepare(), "") << "again, as after a restart of the kubelet";
  EXPECT_EQ(source_.pod_reads, 1);
}

TEST_F(LimitDemandTest, MoreThanTheNodeGivesIsRefused) {
  source_.pods["train"] = demanding_pod("train", "kernel");
  EXPECT_EQ(prepare(),
            "claim team/a: Pod team/train demands memory limits of grade kernel (annotation "
            "gpulet.io/min-limit-grade); this node gives container main audited on GPU-0: the driver is 580");
  EXPECT_FALSE(waited_) << "at once, so that the Pod's event has it";
  set_means({.has_driver_limit = true});
  EXPECT_EQ(prepare(), "") << "tried again by the kubelet";
}

TEST_F(LimitDemandTest, OnlyADemandCounts) {
  set_means({.no_audit = "use is not measured"});
  source_.pods["train"] = demanding_pod("train", "");
  EXPECT_EQ(prepare(), "");
}

TEST_F(LimitDemandTest, AGpuOfItsOwnSatisfiesEveryDemand) {
  set_means({});
  source_.pods["train"] = demanding_pod("train", "kernel");
  add_claim(result_json("gpu-0"), {"train"});
  own_claim("train");
  EXPECT_EQ(prepare(), "");
  EXPECT_EQ(source_.pod_reads, 0);
}

// The kubelet asks for the first Pod alone, and for those that come later not at all.
TEST_F(LimitDemandTest, AGpuOfAClaimThatAnyPodCanNameIsShared) {
  set_means({});
  add_claim(result_json("gpu-0"), {"train"});
  EXPECT_THAT(prepare(), HasSubstr("its Pod requests no memory of the GPU"));
  own_claim("other");
  EXPECT_THAT(prepare(), HasSubstr("gives container main none on GPU-0"));
  own_claim("train");
  source_.claims["a"]["metadata"]["ownerReferences"][0]["controller"] = false;
  EXPECT_THAT(prepare(), HasSubstr("gives container main none on GPU-0"));
  source_.claims["a"]["metadata"]["ownerReferences"] = 7;
  EXPECT_THAT(prepare(), HasSubstr("; other Pods can use the claim too"));
  add_claim(memory_share_json("s-1", "4Gi"), {"train"});
  set_means({.ends_excess = true});
  EXPECT_THAT(prepare(), HasSubstr("other Pods can use its share of the claim team/a too"));
}

TEST_F(LimitDemandTest, AClaimOfAPodGroupIsShared) {
  set_means({});
  add_claim(result_json("gpu-0"), {"train"});
  own_claim("train");
  source_.claims["a"]["status"]["reservedFor"].push_back(
      {{"apiGroup", "scheduling.k8s.io"}, {"resource", "podgroups"}, {"name", "g"}, {"uid", "uid-g"}});
  EXPECT_THAT(prepare(), HasSubstr("gives container main none on GPU-0"));
  source_.pods["train"] = demanding_pod("train", "");
  EXPECT_EQ(prepare(), "") << "what demands nothing is not refused";
}

TEST_F(LimitDemandTest, AClaimOfSeveralPodsIsShared) {
  set_means({.no_driver_limit = "the driver is 580", .no_audit = "use is not measured"});
  add_claim(result_json("gpu-0"), {"train", "other"});
  own_claim("train");
  const std::string why = "its Pod requests no memory of the GPU";
  source_.pods["other"] = demanding_pod("other", "");
  EXPECT_THAT(prepare(), HasSubstr(why));
  source_.pods["other"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  EXPECT_THAT(prepare(), HasSubstr(why)) << "one that terminates";
  source_.pods["other"]["spec"].erase("nodeName");
  EXPECT_THAT(prepare(), HasSubstr(why)) << "one that is not bound yet";
  source_.pods["other"] = demanding_pod("other", "");
  for (const char* phase : {"Succeeded", "Failed"}) {
    source_.pods["other"]["status"]["phase"] = phase;
    EXPECT_EQ(prepare(), "") << "one that has ended shares nothing: " << phase;
    controller_->unprepare_claims({{"team", "a", "uid-a"}});
  }
  source_.pods.erase("other");
  EXPECT_EQ(prepare(), "") << "one that is gone shares nothing";
}

TEST_F(LimitDemandTest, PodsAreReadOneAtATimeUpToAnError) {
  add_claim(result_json("gpu-0"), {"train", "other", "third"});
  source_.pod_error = Error(Code::kInvalidArgument, "not readable");
  EXPECT_THAT(prepare(), HasSubstr("cannot read Pod team/train"));
  EXPECT_EQ(source_.pod_reads, 1);
  source_.pod_error.reset();
  for (const char* name : {"train", "other", "third"}) source_.pods[name] = demanding_pod(name, "");
  EXPECT_EQ(prepare(), "");
  EXPECT_EQ(source_.pod_reads, 4);
  EXPECT_EQ(source_.most_open, 1);
}

// A change of the devices is no reason to ask the API server before its time.
TEST_F(LimitDemandTest, ChangedDevicesDoNotReadPodsAgain) {
  source_.pod_error = Error(Code::kUnavailable, "away");
  std::optional<Result<PreparedClaim>> answer;
  controller_->prepare_claims({{"team", "a", "uid-a"}}, [&](auto all) { answer = all.at("uid-a"); });
  loop_.run_ready();
  ASSERT_EQ(source_.pod_reads, 1);
  for (int i = 0; i < 3; ++i) {
    set_means({.ends_excess = true});
    loop_.run_ready();
  }
  EXPECT_EQ(source_.pod_reads, 1);
  source_.pod_error.reset();
  loop_.advance(2s);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(*answer);
}

TEST_F(LimitDemandTest, AnInitContainerIsNotAudited) {
  auto& spec = source_.pods["train"]["spec"];
  spec["initContainers"].push_back(spec["containers"][0]);
  spec["initContainers"][0]["name"] = "prepare";
  spec["containers"][0].erase("resources");
  EXPECT_THAT(prepare(), HasSubstr("gives container prepare none on GPU-0: init containers are not audited"));
  set_means({.has_driver_limit = true});
  EXPECT_EQ(prepare(), "") << "the driver's limit holds it";
  controller_->unprepare_claims({{"team", "a", "uid-a"}});
  set_means({.ends_excess = true});
  spec["initContainers"][0]["restartPolicy"] = "Always";
  EXPECT_EQ(prepare(), "") << "the kubelet lists a sidecar";
}

// Of 40 GiB: what MPS lets a process use is more than 1 percent, and less than the claim's share.
TEST_F(LimitDemandTest, ARequestInPercentCounts) {
  ClaimRecord record = records_of({share("gpus", kGpu0, 4)}).begin()->second;
  record.daemons = {{{kGpu0}, 100, {{kGpu0, 2048}}}};
  k8s::PodMetadata pod;
  pod.pod = {"team", "train", "uid-train"};
  pod.annotations["gpulet.io/min-limit-grade"] = "mps";
  auto& container = pod.containers.emplace_back();
  container.name = "main";
  container.limits = {{"nvidia.com/gpu", "1"}};
  pod.access = {{.name = "main", .may_be_root = false}};
  DevicePool pool;
  auto& gpu = pool.devices.emplace_back();
  gpu.uuid = kGpu0;
  gpu.device.capacity["memory"] = 40 * kGibibyte;
  const std::map<DeviceUuid, fraction::LimitMeans> means = {{kGpu0, {}}};
  const std::vector pods = {pod};
  const auto check = [&](const std::string& percent) {
    auto asking = pods;
    asking[0].containers[0].limits["nvidia.com/gpumem-percentage"] = percent;
    ResourceClaim claim;
    claim.owner_pod = "uid-train";
    return check_limit_demands(claim, record, asking,
                               {means, [&](const DeviceUuid& gpu) { return memory_of_gpu(pool, gpu); }});
  };
  EXPECT_TRUE(check("50"));
  const auto refused = check("1");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("MPS limits a process to 2048 MiB, more than the 409 MiB"));
}

TEST_F(LimitDemandTest, AMigDeviceOfSeveralPodsHasNoLimit) {
  RecordedDevice device{"gpus", "node-1", "gpu-0-mig-1g5gb-19-0", {}};
  device.partition = RecordedPartition{kGpu0, {}};
  const auto record = records_of({device}).begin()->second;
  const auto text = demanding_pod("train", "audited");
  const std::vector pods = {**k8s::parse_pod_metadata(text, "node-1")};
  const std::map<DeviceUuid, fraction::LimitMeans> means = {{kGpu0, {.ends_excess = true}}};
  const auto no_memory = [](const DeviceUuid&) { return Bytes{}; };
  ResourceClaim claim;
  const auto shared = check_limit_demands(claim, record, pods, {means, no_memory});
  ASSERT_FALSE(shared);
  EXPECT_THAT(shared.error().message(), HasSubstr("gives container main none on gpu-0-mig-1g5gb-19-0"));
  claim.owner_pod = "uid-train";
  EXPECT_TRUE(check_limit_demands(claim, record, pods, {means, no_memory})) << "its own";
}

TEST_F(LimitDemandTest, AnAdminsAccessHasNoLimit) {
  auto result = result_json("gpu-0");
  result["adminAccess"] = true;
  add_claim(result, {"train"});
  EXPECT_THAT(prepare(), HasSubstr("gives container main none on GPU-0"));
}

TEST_F(LimitDemandTest, RulesOfContainersCount) {
  add_container("debug", nullptr);
  source_.pods["train"]["spec"]["containers"][1]["securityContext"]["privileged"] = true;
  EXPECT_THAT(prepare(), HasSubstr("container debug is privileged, which leaves none"));
}

TEST_F(LimitDemandTest, ContainersThatUseOneShareHaveNoLimitOfTheirOwn) {
  const std::string why = "other containers use its share of the claim team/a too";
  add_container("side", {{"name", "gpu"}});
  EXPECT_THAT(prepare(), HasSubstr(why));
  auto& spec = source_.pods["train"]["spec"];
  spec["initContainers"].push_back(spec["containers"][1]);
  spec["containers"].erase(1);
  spec["initContainers"][0]["restartPolicy"] = "Always";
  EXPECT_THAT(prepare(), HasSubstr(why)) << "a sidecar";
}

TEST_F(LimitDemandTest, APodThatNamesNoContainerOfTheClaimIsJudgedWhole) {
  set_means({});
  source_.pods["train"]["spec"]["containers"][0].erase("resources");
  EXPECT_THAT(prepare(), HasSubstr("gives container main none"));
}

TEST_F(LimitDemandTest, ABadAnnotationIsRefused) {
  source_.pods["train"] = demanding_pod("train", "hard");
  EXPECT_EQ(
      prepare(),
      "claim team/a: Pod team/train: annotation gpulet.io/min-limit-grade is \"hard\": expected kernel, "
      "mps or audited");
}

TEST_F(LimitDemandTest, PodsThatCannotBeReadAreWaitedFor) {
  source_.pod_error = Error(Code::kPermissionDenied, "forbidden", "get on pods");
  EXPECT_THAT(prepare(), HasSubstr("cannot read Pod team/train"));
  EXPECT_TRUE(waited_);
  EXPECT_GT(source_.pod_reads, 1);
  source_.pod_error.reset();
  EXPECT_EQ(prepare(), "");
}

TEST_F(LimitDemandTest, OtherPodsOfTheNameDoNotCount) {
  source_.pods["train"] = demanding_pod("train", "kernel");
  source_.pods["train"]["metadata"]["uid"] = "uid-newer";
  EXPECT_EQ(prepare(), "");
}

TEST_F(LimitDemandTest, WhatIsNoPodIsRefused) {
  source_.pods["train"] = {{"kind", "Status"}};
  EXPECT_THAT(prepare(), HasSubstr("cannot read Pod team/train"));
  EXPECT_FALSE(waited_);
}

}  // namespace
}  // namespace gpulet::dra
