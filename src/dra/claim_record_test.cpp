#include "dra/claim_record.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace gpulet::dra {
namespace {

using nlohmann::json;

ClaimRecord record(const std::string& uid = "uid-1", const std::string& device = "GPU-0") {
  return {uid, "team", "claim", {{"gpus", "node-1", "gpu-0", DeviceUuid(device)}}};
}

class Directory {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "claim_record.XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ClaimRecord, IsReadBackStrictly) {
  ClaimRecord full = record();
  full.devices.push_back(
      {"admin", "node-1", "gpu-1", DeviceUuid("GPU-1"), true, "share-1", {{"memory", 1u << 30}}});
  full.devices.push_back({.request = "mig",
                          .pool = "node-1",
                          .device = "gpu-2-mig-3g40gb-9-4",
                          .uuid = {},
                          .partition = {{DeviceUuid("GPU-2"), {"3g.40gb", 9, {4, 4}}, true}}});
  full.ending = true;
  full.daemons = {{{DeviceUuid("GPU-0")}, 50, {{DeviceUuid("GPU-0"), 1024}}}, {{DeviceUuid("MIG-1")}}};
  EXPECT_EQ(*parse_record(record_json(full)), full);
  const json good = json::parse(record_json(full));
  const auto error_with = [&](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    const auto read = parse_record(changed.dump());
    return read ? std::string() : read.error().message();
  };
  EXPECT_EQ(error_with("/version", 2), "version: expected 1, found 2");
  EXPECT_EQ(error_with("/version", nullptr), "version: expected 1, found none");
  EXPECT_EQ(error_with("/uid", "../x"), "uid: expected lower case letters, digits and '-', found \"../x\"");
  EXPECT_EQ(error_with("/namespace", ""), "namespace: required, not set");
  EXPECT_EQ(error_with("/more", 1),
            "more: unknown field \"more\", expected version, uid, namespace, name, devices, mps, ending");
  EXPECT_EQ(error_with("/mps/0/devices", nullptr), "mps[0].devices: required, not set");
  EXPECT_EQ(error_with("/mps/0/threadPercentage", 0), "mps[0].threadPercentage: expected 1 to 100");
  EXPECT_EQ(error_with("/mps/0/limitsMiB/GPU-0", "1"),
            "mps[0].limitsMiB.GPU-0: expected a number of MiB, found \"1\"");
  EXPECT_EQ(error_with("/devices/0/uuid", nullptr), "devices[0].uuid: required, not set");
  EXPECT_EQ(error_with("/devices/0/x", 1),
            "devices[0].x: unknown field \"x\", expected request, pool, device, uuid, adminAccess, "
            "shareID, consumedCapacity, partition");
  EXPECT_EQ(error_with("/devices/1/shareID", "a/b"),
            "devices[1].shareID: expected lower case letters, digits and '-', found \"a/b\"");
  EXPECT_EQ(error_with("/devices/1/consumedCapacity/memory", "1Gi"),
            "devices[1].consumedCapacity.memory: expected a number, found \"1Gi\"");
  EXPECT_EQ(error_with("/devices/1/consumedCapacity/memory", -1),
            "devices[1].consumedCapacity.memory: expected a number, found -1");
  EXPECT_EQ(error_with("/devices/2/partition/start", -1), "devices[2].partition.start: expected a number");
  EXPECT_EQ(error_with("/devices/2/partition/gpu", nullptr), "devices[2].partition.gpu: required, not set");
  EXPECT_EQ(error_with("/devices", json(33, good["devices"][0])),
            "devices: expected at most 32 items, found 33");
  EXPECT_FALSE(parse_record(""));
  EXPECT_FALSE(parse_record(std::string(kMaxRecordBytes + 1, ' ')));
}

RC_GTEST_PROP(ClaimRecord, EveryRecordIsReadBack, ()) {
  ClaimRecord made = record("uid-" + std::to_string(*rc::gen::inRange(0, 9)));
  made.name = *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127)));
  made.devices.resize(*rc::gen::inRange<std::size_t>(0, 33), made.devices[0]);
  for (auto& device : made.devices) device.admin_access = *rc::gen::arbitrary<bool>();
  RC_ASSERT(*parse_record(record_json(made)) == made);
}

TEST(RecordStore, KeepsOneFileForEachClaim) {
  const Directory directory;
  const RecordStore store(directory.path() + "/claims");
  EXPECT_TRUE(store.load_records()->records.empty());
  ASSERT_TRUE(store.write_record(record("uid-1")));
  ASSERT_TRUE(store.write_record(record("uid-2")));
  ASSERT_TRUE(store.write_record(record("uid-1", "GPU-5")));
  auto loaded = *store.load_records();
  EXPECT_TRUE(loaded.errors.empty());
  ASSERT_EQ(loaded.records.size(), 2u);
  EXPECT_EQ(loaded.records.at("uid-1"), record("uid-1", "GPU-5"));
  ASSERT_TRUE(store.remove_record("uid-1"));
  ASSERT_TRUE(store.remove_record("uid-1"));
  ASSERT_TRUE(store.remove_record("../uid-2"));
  EXPECT_EQ(store.load_records()->records.size(), 1u);
  EXPECT_FALSE(store.write_record(record("../uid-3")));
}

TEST(RecordStore, ABrokenFileLosesOnlyItself) {
  const Directory directory;
  const RecordStore store(directory.path());
  ASSERT_TRUE(store.write_record(record("uid-1")));
  ASSERT_TRUE(write_file_atomic(directory.path() + "/uid-2.json", "{"));
  ASSERT_TRUE(write_file_atomic(directory.path() + "/uid-3.json", record_json(record("uid-4"))));
  ASSERT_TRUE(write_file_atomic(directory.path() + "/note.txt", "x"));
  // A writer that was killed.
  const std::string temporary = directory.path() + "/uid-5.json.tmp.1.0";
  ASSERT_TRUE(write_file_atomic(temporary, "{"));
  const auto loaded = *store.load_records();
  EXPECT_EQ(loaded.records.size(), 1u);
  ASSERT_EQ(loaded.errors.size(), 2u);
  EXPECT_EQ(loaded.errors[0].full_message(), directory.path() + "/uid-2.json: not valid JSON");
  EXPECT_EQ(loaded.errors[1].full_message(),
            directory.path() + "/uid-3.json: uid: expected the file's name, found \"uid-4\"");
  EXPECT_FALSE(std::filesystem::exists(temporary));
  EXPECT_TRUE(std::filesystem::exists(directory.path() + "/note.txt"));
}

TEST(FindHolder, OnlySharesBearEachOther) {
  std::map<std::string, ClaimRecord> records = {{"uid-1", record("uid-1")}};
  const DeviceUuid gpu("GPU-0");
  EXPECT_EQ(find_holder(records, gpu, "uid-2"), &records.at("uid-1"));
  EXPECT_EQ(find_holder(records, gpu, "uid-1"), nullptr);
  EXPECT_EQ(find_holder(records, DeviceUuid("GPU-1"), "uid-2"), nullptr);
  records.at("uid-1").devices[0].admin_access = true;
  EXPECT_EQ(find_holder(records, gpu, "uid-2"), nullptr);
  records.at("uid-1").devices[0] = record().devices[0];
  EXPECT_EQ(find_holder(records, gpu, "uid-2", true), &records.at("uid-1"));
  records.at("uid-1").devices[0].share_id = "a";
  EXPECT_EQ(find_holder(records, gpu, "uid-2", true), nullptr);
  EXPECT_EQ(find_holder(records, gpu, "uid-2"), &records.at("uid-1"));
  records.at("uid-1").devices[0].admin_access = true;
  EXPECT_EQ(find_holder(records, gpu, "uid-2"), nullptr);
}

TEST(FindShareUse, SumsWhatIsKnownAndTakesTheRestForAll) {
  std::map<std::string, ClaimRecord> records = {{"uid-1", record("uid-1")}, {"uid-2", record("uid-2")}};
  auto& first = records.at("uid-1").devices;
  first[0].share_id = "a";
  first[0].consumed = {{"memory", 30}};
  first.push_back(first[0]);
  first[1].share_id = "b";
  first.push_back(first[0]);
  first[2].admin_access = true;
  first.push_back(first[0]);
  first[3].uuid = DeviceUuid("GPU-1");
  const DeviceUuid gpu("GPU-0");
  auto use = find_share_use(records, gpu, "memory", 100, "");
  EXPECT_EQ(use.sum, 60u);
  EXPECT_EQ(use.claims, std::vector<std::string>{"team/claim"});
  EXPECT_EQ(find_share_use(records, gpu, "shares", 4, "").sum, 8u);
  EXPECT_TRUE(find_share_use(records, gpu, "memory", 100, "uid-1").claims.empty());
  first[0].consumed["memory"] = std::numeric_limits<std::uint64_t>::max();
  use = find_share_use(records, gpu, "memory", 100, "");
  EXPECT_EQ(use.sum, std::numeric_limits<std::uint64_t>::max());
  records.at("uid-1").name.clear();
  EXPECT_EQ(find_share_use(records, gpu, "memory", 100, "").claims, std::vector<std::string>{"uid uid-1"});
}

}  // namespace
}  // namespace gpulet::dra
