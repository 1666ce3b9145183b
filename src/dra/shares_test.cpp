// GPUs that several claims share: as devices of a pool and of slices, and by what claims are prepared from
// them, at any order of what may happen.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

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
#include "dra/claim_preparation.h"
#include "dra/device_pool.h"
#include "dra/resource_slice.h"
#include "dra/test_claims.h"
#include "dra/test_machines.h"

namespace gpulet::dra {
namespace {

using namespace std::chrono_literals;
using namespace test;
using config::ConsumableShares;
using config::ShareLimit;
using nlohmann::json;

constexpr ConsumableShares kByMemory{ShareLimit::kMemory}, kUnlimited{ShareLimit::kUnlimited};

ConsumableShares share_count(unsigned count) { return {ShareLimit::kCount, count}; }

DevicePool shared_pool(const ConsumableShares& shares, std::vector<inventory::Gpu> gpus = {make_gpu(0)}) {
  PoolInput input{.snapshot = make_snapshot(std::move(gpus))};
  for (const auto& gpu : input.snapshot->gpus) input.shares.emplace(gpu.uuid, shares);
  return make_device_pool(input);
}

json slice_device(const DevicePool& pool) {
  const ResourceSlice slice{.name = "00000-gpu.nvidia.com-node-1",
                            .driver = "gpu.nvidia.com",
                            .node = "node-1",
                            .pool = "node-1",
                            .generation = 1,
                            .slice_count = 1,
                            .devices = {pool.devices.at(0).device}};
  const auto text = slice_json(slice, {"node-1", "uid-1"});
  const auto read = parse_slice(text);
  EXPECT_TRUE(read && read->devices == slice.devices && !read->has_other_content);
  auto device = json::parse(text)["spec"]["devices"][0];
  device.erase("attributes");
  return device;
}

TEST(SharedGpus, HaveNvidiasCapacitiesAndPolicies) {
  const struct {
    ConsumableShares shares;
    const char* device;
  } cases[] = {
      {kUnlimited, R"({"name": "gpu-0", "allowMultipleAllocations": true, "capacity": {"memory": {
        "value": "81559Mi", "requestPolicy": {"default": "0",
          "validRange": {"min": "0", "max": "81559Mi", "step": "1Mi"}}}}})"},
      {kByMemory, R"({"name": "gpu-0", "allowMultipleAllocations": true, "capacity": {"memory": {
        "value": "81559Mi", "requestPolicy": {"default": "81559Mi",
          "validRange": {"min": "1Mi", "max": "81559Mi", "step": "1Mi"}}}}})"},
      {share_count(4), R"({"name": "gpu-0", "allowMultipleAllocations": true, "capacity": {
        "memory": {"value": "81559Mi", "requestPolicy": {"default": "0",
          "validRange": {"min": "0", "max": "81559Mi", "step": "1Mi"}}},
        "shares": {"value": "4", "requestPolicy": {"default": "1",
          "validRange": {"min": "1", "max": "4", "step": "1"}}}}})"},
      {share_count(1), R"({"name": "gpu-0", "allowMultipleAllocations": true, "capacity": {
        "memory": {"value": "81559Mi", "requestPolicy": {"default": "0",
          "validRange": {"min": "0", "max": "81559Mi", "step": "1Mi"}}},
        "shares": {"value": "1", "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "1"}}}}})"},
  };
  for (const auto& one : cases) EXPECT_EQ(slice_device(shared_pool(one.shares)), json::parse(one.device));
}

// Of the API server's validation (Kubernetes 1.36) of request policies.
void expect_valid_policies(const Device& device) {
  EXPECT_TRUE(device.allows_multiple || device.policies.empty());
  for (const auto& [name, policy] : device.policies) {
    const auto total = device.capacity.at(name);
    EXPECT_LE(policy.min, policy.standard);
    EXPECT_LE(policy.standard, policy.max);
    EXPECT_LE(policy.max, total);
    if (policy.step == 0) continue;
    EXPECT_LE(policy.min + policy.step, total);
    for (const auto value : {policy.standard, policy.max}) EXPECT_EQ((value - policy.min) % policy.step, 0u);
  }
}

TEST(SharedGpus, HavePoliciesThatTheServerTakes) {
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1}, mebibytes(1).value, mebibytes(2).value - 1, mebibytes(2).value,
        mebibytes(81'559).value + 7}) {
    auto gpu = make_gpu(0);
    gpu.memory = Bytes{bytes};
    for (const auto& shares : {kUnlimited, kByMemory, share_count(1), share_count(2), share_count(1024)}) {
      const auto pool = shared_pool(shares, {gpu});
      ASSERT_EQ(pool.devices.size(), 1u);
      expect_valid_policies(pool.devices[0].device);
      slice_device(pool);
      const bool is_whole = shares.limit == ShareLimit::kMemory && bytes < mebibytes(2).value;
      EXPECT_EQ(pool.devices[0].device.allows_multiple, !is_whole) << bytes;
      EXPECT_EQ(pool.notes, is_whole
                                ? std::vector<std::string>{"GPU-0 in shares is not offered by claims: it "
                                                           "has no known memory"}
                                : std::vector<std::string>{});
    }
  }
}

TEST(SharedGpus, AreWholeGpusOnly) {
  const auto pool = shared_pool(kByMemory, {make_gpu(0), make_partitioned_gpu(1, 2)});
  EXPECT_TRUE(pool.find("gpu-0")->device.allows_multiple);
  EXPECT_FALSE(pool.find("gpu-1-mig-1g10gb-19-0")->device.allows_multiple);
}

TEST(SharedGpus, AreForOneClaimWhereTheServerDropsShares) {
  const auto pool = shared_pool(share_count(4));
  const ResourceSlice sent{
      .name = "a", .driver = "d", .node = "n", .pool = "n", .devices = {pool.devices[0].device}};
  auto answered = sent;
  EXPECT_TRUE(kept_shares(sent, answered));
  answered.devices[0].policies.erase("shares");
  EXPECT_FALSE(kept_shares(sent, answered)) << "a part of the policies";
  answered = sent;
  answered.devices[0].allows_multiple = false;
  EXPECT_FALSE(kept_shares(sent, answered));
  answered.devices.clear();
  EXPECT_FALSE(kept_shares(sent, answered));
  const auto without = without_shares(sent.devices);
  EXPECT_EQ(without, std::vector<Device>{make_pool({make_gpu(0)}).devices[0].device});
}

json share_json(const std::string& share, const json& consumed, const std::string& device = "gpu-0") {
  json result = result_json(device);
  result["shareID"] = share;
  if (!consumed.is_null()) result["consumedCapacity"] = consumed;
  return result;
}

struct SharedNode {
  explicit SharedNode(const ConsumableShares& shares)
      : pool(shared_pool(shares, {make_gpu(0), make_gpu(1)})) {}
  DevicePool pool;
  std::map<std::string, ClaimRecord> records = {};
  PreparationInput input{.pool_name = "node-1", .pool = &pool, .records = &records, .gates = {true, true}};

  Result<ClaimRecord> plan(const std::string& name, const std::vector<json>& results,
                           const std::vector<json>& configs = {}) const {
    return plan_preparation(parsed(claim_json(results, configs, "uid-" + name, name)), "uid-" + name, input);
  }
  // Records it; else the error: "unavailable: …".
  std::string prepare(const std::string& name, const std::vector<json>& results,
                      const std::vector<json>& configs = {}) {
    const auto record = plan(name, results, configs);
    if (!record) return std::string(code_name(record.error().code())) + ": " + record.error().message();
    EXPECT_EQ(*parse_record(record_json(*record)), *record);
    records.insert_or_assign("uid-" + name, *record);
    return "";
  }
};

TEST(PlanShares, ClaimsOfMemoryShareAGpuAsFarAsItGoes) {
  SharedNode node(kByMemory);
  EXPECT_EQ(node.prepare("a", {share_json("s-a", {{"memory", "40Gi"}})}), "");
  EXPECT_EQ(node.records.at("uid-a").devices[0].share_id, "s-a");
  EXPECT_EQ(node.records.at("uid-a").devices[0].consumed,
            (std::map<std::string, std::uint64_t>{{"memory", std::uint64_t{40} << 30}}));
  EXPECT_EQ(node.prepare("b", {share_json("s-b", {{"memory", "30Gi"}})}), "");
  EXPECT_EQ(
      node.prepare("c", {share_json("s-c", {{"memory", "10Gi"}})}),
      "unavailable: device \"gpu-0\" has 81559Mi of memory, of which the claim needs 10Gi and others hold "
      "70Gi: team/a, team/b");
  EXPECT_EQ(node.prepare("c", {share_json("s-c", {{"memory", "10Gi"}}, "gpu-1")}), "");
  EXPECT_EQ(
      node.prepare("d", {share_json("s-d", nullptr)}),
      "unavailable: device \"gpu-0\" has 81559Mi of memory, of which the claim needs 81559Mi and others "
      "hold 70Gi: team/a, team/b")
      << "what it takes is not known";
  // Both of a claim count.
  EXPECT_EQ(
      node.prepare("d", {share_json("s-d", {{"memory", "5Gi"}}), share_json("s-e", {{"memory", "5Gi"}})})
          .substr(0, 11),
      "unavailable");
  EXPECT_EQ(
      node.prepare("d", {share_json("s-d", {{"memory", "5Gi"}}), share_json("s-e", {{"memory", "4Gi"}})}),
      "");
  // The same claim again, also where less is left now.
  node.pool.devices[0].device.capacity["memory"] = std::uint64_t{50} << 30;
  EXPECT_EQ(node.prepare("a", {share_json("s-a", {{"memory", "40Gi"}})}), "");
  node.records.erase("uid-b");
  node.records.erase("uid-d");
  EXPECT_EQ(node.prepare("c", {share_json("s-c", {{"memory", "10Gi"}})}), "");
}

TEST(PlanShares, ACountLimitsThem) {
  SharedNode node(share_count(2));
  const json one = {{"memory", "0"}, {"shares", "1"}};
  EXPECT_EQ(node.prepare("a", {share_json("s-a", one)}), "");
  EXPECT_EQ(node.prepare("b", {share_json("s-b", one)}), "");
  EXPECT_EQ(
      node.prepare("c", {share_json("s-c", one)}),
      "unavailable: device \"gpu-0\" has 2 of shares, of which the claim needs 1 and others hold 2: team/a, "
      "team/b");
}

TEST(PlanShares, NothingLimitsThemWhereNoMemoryIsRequested) {
  SharedNode node(kUnlimited);
  for (int i = 0; i < 100; ++i) {
    const auto name = std::to_string(i);
    EXPECT_EQ(node.prepare(name, {share_json("s-" + name, {{"memory", "0"}})}), "");
  }
}

TEST(PlanShares, AShareAndAWholeExcludeEachOther) {
  SharedNode node(kByMemory);
  const json whole = result_json("gpu-0"), share = share_json("s", {{"memory", "1Gi"}});
  EXPECT_EQ(node.prepare("a", {whole}), "");
  EXPECT_EQ(node.prepare("b", {share}),
            "unavailable: device \"gpu-0\" is still held by the claim team/a (uid uid-a)");
  json admin = share;
  admin["adminAccess"] = true;
  EXPECT_EQ(node.prepare("admin", {admin}), "");
  node.records.erase("uid-a");
  EXPECT_EQ(node.prepare("b", {share}), "");
  EXPECT_EQ(node.prepare("a", {whole}),
            "unavailable: device \"gpu-0\" is still held by the claim team/b (uid uid-b)");
  EXPECT_EQ(node.prepare("c", {share_json("s", {{"memory", "1Gi"}}, "gpu-1"), result_json("gpu-1")}),
            "invalid_argument: device \"gpu-1\" is allocated to the claim as a share and as a whole");
}

TEST(PlanShares, AGpuIsNotSharedWithoutARule) {
  SharedNode node(kByMemory);
  const json share = share_json("s", {{"memory", "1Gi"}});
  EXPECT_EQ(node.prepare("a", {share}), "");
  node.pool = make_pool({make_gpu(0), make_gpu(1)});
  EXPECT_EQ(
      node.prepare("b", {share_json("t", {{"memory", "1Gi"}})}),
      "unavailable: device \"gpu-0\" was allocated as a share, and no partition rule has consumableShares "
      "for GPU-0");
  EXPECT_EQ(node.prepare("a", {share}), "") << "it has it already";
}

TEST(PlanShares, AShareTakesNoOtherSettings) {
  SharedNode node(kByMemory);
  const json share = share_json("s", {{"memory", "1Gi"}});
  EXPECT_EQ(node.prepare("a", {share}, {config_json(gpu_config({{"strategy", "TimeSlicing"}}))}), "");
  EXPECT_EQ(node.prepare("b", {share_json("t", {{"memory", "1Gi"}})},
                         {config_json(gpu_config({{"strategy", "MPS"}}))}),
            "unsupported: device \"gpu-0\": MPS for a device that other claims share");
}

TEST(PlanShares, CdiNamesTellThemApart) {
  SharedNode node(kByMemory);
  const auto record = node.plan("a", {share_json("s", {{"memory", "1Gi"}}),
                                      share_json("t", {{"memory", "1Gi"}}), result_json("gpu-1")});
  ASSERT_TRUE(record) << record.error().full_message();
  EXPECT_EQ(claim_cdi_id(*record, record->devices[0]), "k8s.gpu.nvidia.com/claim=uid-a-gpu-0-s");
  EXPECT_EQ(claim_cdi_id(*record, record->devices[1]), "k8s.gpu.nvidia.com/claim=uid-a-gpu-0-t");
  EXPECT_EQ(claim_cdi_id(*record, record->devices[2]), "k8s.gpu.nvidia.com/claim=uid-a-gpu-1");
  cdi::Spec base;
  base.kind = "k8s.device-plugin.nvidia.com/gpu";
  for (const char* const uuid : {"GPU-0", "GPU-1"})
    base.devices.push_back(
        {.name = uuid, .edits = {.device_nodes = {{.path = "/dev/" + std::string(uuid)}}}});
  const auto spec = make_claim_spec(*record, base, "/run/nvidia/mps");
  ASSERT_TRUE(spec) << spec.error().full_message();
  ASSERT_EQ(spec->devices.size(), 3u);
  EXPECT_EQ(spec->devices[1].edits.device_nodes.at(0).path, "/dev/GPU-0");
  EXPECT_TRUE(cdi::read_spec(cdi::to_json(*spec), "spec").problems.empty());
}

// Claims of the test, as an API server has them.
class SharedSource final : public ClaimSource {
 public:
  explicit SharedSource(Loop& loop) : loop_(loop) {}
  void read_claim(const ClaimName& claim,
                  std::function<void(Result<std::optional<std::string>>)> done) override {
    const auto found = claims.find(claim.name);
    loop_.post([text = found == claims.end() ? std::nullopt : std::optional(found->second.dump()),
                done = std::move(done)] { done(text); });
  }
  void read_pod(const PodRef&, std::function<void(Result<std::optional<std::string>>)>) override {
    ADD_FAILURE();
  }
  std::map<std::string, json> claims;

 private:
  Loop& loop_;
};

class NoMpsDaemons final : public ClaimDaemons {
 public:
  void set_daemons(std::vector<mps::DaemonSpec> daemons) override { EXPECT_TRUE(daemons.empty()); }
  Status check_daemon(const std::string&) const override { return {}; }
  std::string find_holder(const DeviceUuid&) const override { return ""; }
  std::string mps_root() const override { return "/run/nvidia/mps"; }
};

class NoMigPartitions final : public ClaimPartitions {
 public:
  void find_partition(const DeviceUuid&, const Partition&, std::function<void(Result<DeviceUuid>)>) override {
  }
  void make_partition(const DeviceUuid&, const Partition&, bool,
                      std::function<void(Result<DeviceUuid>)>) override {}
  void remove_partition(const DeviceUuid&, const Partition&, const DeviceUuid&,
                        std::function<void(Status)>) override {}
};

constexpr unsigned kGpus = 2, kClaims = 8;

// A node whose claims come, start and end; the scheduler is one that does not count.
class SharingWorld {
 public:
  SharingWorld() {
    std::string name = (std::filesystem::temp_directory_path() / "shares.XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    restart();
  }
  ~SharingWorld() {
    controller_.reset();
    std::filesystem::remove_all(directory_);
  }

  void allocate(unsigned claim, unsigned gpu, std::uint64_t mebibytes_wanted, bool is_whole, bool is_admin) {
    const auto name = std::to_string(claim), device = "gpu-" + std::to_string(gpu);
    if (source_.claims.contains(name)) return;
    json result =
        is_whole ? result_json(device)
                 : share_json("s-" + name, {{"memory", std::to_string(mebibytes_wanted) + "Mi"}}, device);
    if (is_admin) result["adminAccess"] = true;
    source_.claims[name] = claim_json({result}, {}, "uid-" + name, name);
  }
  void prepare(unsigned claim) {
    controller_->prepare_claims({named(claim)}, [this](const auto&) { --open_; });
    ++open_;
    loop_.run_ready();
  }
  void unprepare(unsigned claim) {
    RC_ASSERT(controller_->unprepare_claims({named(claim)}).begin()->second);
    source_.claims.erase(std::to_string(claim));
    loop_.run_ready();
  }
  // Without an answer to the calls of now.
  void restart() {
    controller_.reset();
    open_ = 0;
    auto started = ClaimController::start_controller(loop_, source_, daemons_, partitions_,
                                                     {.pool_name = "node-1",
                                                      .record_directory = directory_ + "/claims",
                                                      .cdi_directory = directory_ + "/cdi"});
    RC_ASSERT(started.has_value());
    controller_ = std::move(*started);
    share_gpus(is_shared_);
  }
  void share_gpus(bool is_shared) {
    is_shared_ = is_shared;
    auto devices = std::make_shared<NodeDevices>();
    std::vector<inventory::Gpu> gpus;
    for (unsigned i = 0; i < kGpus; ++i) {
      gpus.push_back(make_gpu(i));
      devices->base.devices.push_back(
          {.name = gpus.back().uuid.str(),
           .edits = {.device_nodes = {{.path = "/dev/nvidia" + std::to_string(i)}}}});
    }
    devices->pool = is_shared ? shared_pool(kByMemory, gpus) : make_pool(gpus);
    controller_->set_devices(std::move(devices));
    loop_.run_ready();
  }
  void wait() {
    loop_.advance(41s);
    RC_ASSERT(open_ == 0);
  }

  void check() const {
    const auto& records = controller_->records();
    for (unsigned gpu = 0; gpu < kGpus; ++gpu) {
      const DeviceUuid uuid("GPU-" + std::to_string(gpu));
      std::uint64_t sum = 0;
      std::size_t shares = 0, wholes = 0;
      for (const auto& [uid, record] : records) {
        for (const auto& held : record.devices) {
          if (held.uuid != uuid || held.admin_access) continue;
          ++(held.share_id.empty() ? wholes : shares);
          if (!held.share_id.empty()) sum += held.consumed.at("memory");
        }
      }
      RC_ASSERT(sum <= make_gpu(gpu).memory.value);
      RC_ASSERT(wholes == 0 || (wholes == 1 && shares == 0));
    }
    RC_ASSERT(RecordStore(directory_ + "/claims").load_records()->records == records);
    for (const auto& [uid, record] : records)
      RC_ASSERT(std::filesystem::exists(directory_ + "/cdi/" + claim_spec_file_name(uid)));
  }
  std::size_t files() const {
    std::size_t count = 0;
    for (const char* const name : {"/claims", "/cdi"}) {
      if (!std::filesystem::exists(directory_ + name)) continue;
      for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(directory_ + name))
        ++count;
    }
    return count;
  }

 private:
  static ClaimName named(unsigned claim) {
    const auto name = std::to_string(claim);
    return {"team", name, "uid-" + name};
  }

  ManualLoop loop_;
  SharedSource source_{loop_};
  NoMpsDaemons daemons_;
  NoMigPartitions partitions_;
  std::string directory_;
  std::unique_ptr<ClaimController> controller_;
  bool is_shared_ = true;
  int open_ = 0;
};

// Of all values, however small a case is to be.
template <class T>
T pick(T first, T end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(first, end));
}

RC_GTEST_PROP(SharedClaims, NeverHoldMoreThanAGpuHas, ()) {
  SharingWorld world;
  const auto allocate = [&](unsigned claim) {
    world.allocate(claim, pick(0u, kGpus), pick<std::uint64_t>(1, 60'000), pick(0, 10) == 0,
                   pick(0, 10) == 0);
  };
  for (unsigned claim = 0; claim < kClaims; ++claim) allocate(claim);
  const auto steps = pick(20, 80);
  for (int step = 0; step < steps; ++step) {
    const auto claim = pick(0u, kClaims);
    switch (pick(0, 10)) {
      case 0:
      case 1:
      case 2:
        allocate(claim);
        break;
      case 3:
      case 4:
      case 5:
        world.prepare(claim);
        break;
      case 6:
        world.unprepare(claim);
        break;
      case 7:
        world.wait();
        break;
      case 8:
        world.restart();
        break;
      default:
        world.share_gpus(*rc::gen::arbitrary<bool>());
    }
    world.check();
  }
  for (unsigned claim = 0; claim < kClaims; ++claim) world.unprepare(claim);
  world.wait();
  world.check();
  RC_ASSERT(world.files() == 0u);
}

}  // namespace
}  // namespace gpulet::dra
