#include "cli/cordon_command.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "agent/cordon_care.h"
#include "base/file.h"
#include "base/presence.h"
#include "health/cordons.h"
#include "health/report.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;
using health::Wish;

constexpr WallTime kNow{std::chrono::seconds(1'763'712'000)};
const std::string kUuid = "GPU-5a2f0c1d-0123-4567-89ab-cdef01234567";

// Two GPUs, the second cut up.
inventory::Snapshot mig_node() {
  inventory::Snapshot snapshot;
  for (unsigned i = 0; i < 2; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-" + std::string(1, static_cast<char>('a' + i)) + "1");
    gpu.pci = {0, 0x10 + i, 0, 0};
    snapshot.gpus.push_back(gpu);
  }
  snapshot.gpus[1].mig_enabled = true;
  inventory::MigDevice mig;
  mig.uuid = DeviceUuid("MIG-b1");
  mig.gpu_instance = 2;
  snapshot.gpus[1].mig_devices = {mig};
  return snapshot;
}

class CordonCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "cordon_command.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    options_.health_file = folder_ + "/health.json";
    options_.state_dir = folder_ + "/state";
  }
  void TearDown() override {
    agent_.reset();
    std::filesystem::remove_all(folder_);
  }

  // As an agent would leave it: with XID 95 on GPU 0.
  void start_agent() {
    auto held = Presence::hold(agent::presence_file(options_.state_dir));
    ASSERT_TRUE(held) << held.error().text();
    agent_.emplace(std::move(*held));
    health::Machine machine({}, health::XidFilter("", ""));
    machine.on_snapshot(mig_node(), Time(1s));
    machine.on_evidence({{DeviceUuid("GPU-a1")}, Time(2s), health::XidReport{.code = 95}});
    const auto view = view_of(machine, mig_node(), {Time(3s), kNow});
    ASSERT_TRUE(write_file_atomic(options_.health_file, health::format_report(view)));
  }
  CordonAnswer run(Wish wish, const std::string& device, const std::string& reason = {}) {
    options_.device = device;
    options_.reason = reason;
    now_ += 1s;
    return cordon_answer(wish, options_, now_, [this]() -> Result<inventory::Snapshot> {
      ++asked_;
      if (!driver_) return fail(Code::kUnavailable, "no driver here");
      return mig_node();
    });
  }
  std::string file() const { return read_file(agent::cordons_file(options_.state_dir)).value_or(""); }

  std::string folder_;
  CordonOptions options_;
  std::optional<Presence> agent_;
  WallTime now_ = kNow;
  bool driver_ = true;
  unsigned asked_ = 0;
};

TEST_F(CordonCommand, WritesWhatTheAgentFollows) {
  start_agent();
  auto answer = run(Wish::kCordon, "1", "new riser");
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.out, "GPU 1 (GPU-b1) is cordoned: new riser\n");
  EXPECT_EQ(answer.err, "");
  EXPECT_EQ(file(), "gpulet-cordons 1\ncordoned GPU-b1 1763712001000 new riser\n");
  EXPECT_EQ(asked_, 0u) << "the agent's report says which one it is";
  EXPECT_EQ(run(Wish::kCordon, "GPU-b").out, "GPU 1 (GPU-b1) is cordoned already: new riser\n");
  EXPECT_EQ(run(Wish::kCordon, "GPU-b1", "new fan").out, "GPU 1 (GPU-b1) is cordoned: new fan\n");
  EXPECT_EQ(file(), "gpulet-cordons 1\ncordoned GPU-b1 1763712003000 new fan\n");
  answer = run(Wish::kUncordon, "1");
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.out, "GPU 1 (GPU-b1) is cordoned no longer\n");
  EXPECT_EQ(file(), "gpulet-cordons 1\nuncordoned GPU-b1 1763712004000\n");
}

TEST_F(CordonCommand, UncordonVouchesForWhatWaits) {
  start_agent();
  EXPECT_EQ(run(Wish::kUncordon, "0").out,
            "GPU 0 (GPU-a1) was not cordoned; taken as dealt with, its checks follow: XID 95: uncontained "
            "memory error\n");
  EXPECT_EQ(file(), "gpulet-cordons 1\nuncordoned GPU-a1 1763712001000\n");
  EXPECT_EQ(run(Wish::kUncordon, "1").out, "GPU 1 (GPU-b1) was not cordoned\n");
  EXPECT_EQ(file(), "gpulet-cordons 1\nuncordoned GPU-a1 1763712001000\n") << "nothing to keep of it";
}

TEST_F(CordonCommand, OfAMigDeviceAndOfAllOfItsGpu) {
  start_agent();
  EXPECT_EQ(run(Wish::kCordon, "1:0").out, "MIG 1:0 (MIG-b1) is cordoned\n");
  EXPECT_EQ(file(), "gpulet-cordons 1\ncordoned MIG-b1 1763712001000\n");
  EXPECT_EQ(run(Wish::kUncordon, "1").out, "GPU 1 (GPU-b1) is cordoned no longer\n");
  EXPECT_EQ(file(), "gpulet-cordons 1\n");
}

TEST_F(CordonCommand, WithoutAnAgentTheDriverSaysWhichIsMeant) {
  start_agent();
  agent_.reset();
  auto answer = run(Wish::kCordon, "0");
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.out, "GPU 0 (GPU-a1) is cordoned\nno agent runs on this node: it counts once one does\n");
  EXPECT_EQ(asked_, 1u);
  driver_ = false;
  answer = run(Wish::kCordon, "0");
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_EQ(
      answer.err,
      "gpulet cordon: which device '0' is cannot be told: no agent runs, and the driver says: no driver "
      "here; a whole UUID needs neither\n");
  answer = run(Wish::kCordon, kUuid);
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.out, kUuid + " is cordoned\nno agent runs on this node: it counts once one does\n");
  EXPECT_EQ(run(Wish::kUncordon, kUuid).exit_code, 0);
  EXPECT_NE(file().find("\nuncordoned " + kUuid + " "), std::string::npos) << file();
}

TEST_F(CordonCommand, AGpuThatIsAwayByItsWholeUuidAlone) {
  start_agent();
  EXPECT_EQ(run(Wish::kCordon, kUuid).out, kUuid + " (not on this node now) is cordoned\n");
  const auto answer = run(Wish::kCordon, "GPU-zz");
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_EQ(answer.err,
            "gpulet cordon: there is no device 'GPU-zz' on this node; there are GPU 0 (GPU-a1), "
            "GPU 1 (GPU-b1)\n");
}

TEST_F(CordonCommand, SaysWhatIsWrongAndChangesNothing) {
  start_agent();
  EXPECT_EQ(run(Wish::kCordon, "0", std::string(300, 'x')).exit_code, 2);
  EXPECT_EQ(file(), "");
  ASSERT_TRUE(write_file_atomic(agent::cordons_file(options_.state_dir), "x\n"));
  const auto answer = run(Wish::kCordon, "0");
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_EQ(answer.err,
            "gpulet cordon: " + options_.state_dir + "/cordons: line 1 is not 'gpulet-cordons 1'\n");
  EXPECT_EQ(file(), "x\n");
  options_.state_dir.clear();
  EXPECT_EQ(run(Wish::kUncordon, "0").exit_code, 2);
}

TEST_F(CordonCommand, ANewerWordIsNewerWhateverTheClockSays) {
  start_agent();
  run(Wish::kCordon, "1");
  now_ = kNow - 1h;
  run(Wish::kUncordon, "1");
  EXPECT_EQ(file(), "gpulet-cordons 1\nuncordoned GPU-b1 1763712001001\n");
}

}  // namespace
}  // namespace gpulet::cli
