#include "dra/nvidia_checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "health/state/persisted_state.h"

namespace gpulet::dra {
namespace {

using nlohmann::json;

constexpr const char* kUid = "6ab2d1d4-7c53-44f1-9a01-000000000001";
constexpr const char* kGpu = "GPU-11111111-2222-3333-4444-555555555555";
constexpr const char* kMig = "MIG-11111111-2222-3333-4444-555555555555";

json plugin_device(const std::string& name, const json& requests = json::array({"gpu"})) {
  return {{"Requests", requests},
          {"PoolName", "node-1"},
          {"DeviceName", name},
          {"CDIDeviceIDs", {std::string("k8s.gpu.nvidia.com/claim=") + kUid + "-" + name}}};
}

json gpu_entry(const json& device = plugin_device("gpu-0")) {
  return {{"gpu", {{"info", {{"uuid", kGpu}}}, {"device", device}}}, {"mig", nullptr}};
}

// As 0.5 writes it: without the claim's name once it is prepared.
json prepared_claim(const json& entries = json::array({gpu_entry()})) {
  return {{"checkpointState", "PrepareCompleted"},
          {"status", {{"allocation", {{"devices", {{"results", json::array()}}}}}}},
          {"preparedDevices",
           json::array({{{"devices", entries}, {"configState", {{"mpsControlDaemonID", ""}}}}})}};
}

std::string checkpoint(const json& claims, const char* version = "v2", const json& more = json::object()) {
  json body = {{"checksum", 1}, {"preparedClaims", claims}};
  body.update(more);
  return json{{"version", "v2"}, {"checksum", 1}, {version, body}}.dump();
}

ImportedClaims claims_of(const std::string& text) {
  const auto imported = parse_nvidia_checkpoint(text, "boot-1");
  EXPECT_TRUE(imported) << (imported ? "" : imported.error().full_message());
  return imported ? *imported : ImportedClaims{};
}

std::string note_of(const json& claim, const std::string& uid = kUid) {
  const auto imported = claims_of(checkpoint({{uid, claim}}));
  EXPECT_TRUE(imported.records.empty());
  return imported.notes.empty() ? "no note" : imported.notes.front();
}

TEST(NvidiaCheckpoint, GivesARecordOfEachPreparedClaim) {
  json named = prepared_claim();
  named["namespace"] = "team";
  named["name"] = "train";
  const RecordedDevice device{
      .request = "gpu", .pool = "node-1", .device = "gpu-0", .uuid = DeviceUuid(kGpu)};
  EXPECT_EQ(claims_of(checkpoint({{kUid, named}})).records,
            (std::vector<ClaimRecord>{{kUid, "team", "train", {device}}}));
  const auto nameless = claims_of(checkpoint({{kUid, prepared_claim()}}));
  EXPECT_EQ(nameless.records, (std::vector<ClaimRecord>{{kUid, "", "", {device}}}));
  EXPECT_TRUE(nameless.notes.empty());
}

TEST(NvidiaCheckpoint, ReadsTheFirstFormatToo) {
  json claim = prepared_claim();
  claim.erase("checkpointState");
  EXPECT_EQ(claims_of(checkpoint({{kUid, claim}}, "v1")).records.size(), 1U);
  json both = json::parse(checkpoint({{kUid, claim}}, "v1"));
  both["v2"] = {{"checksum", 2}};
  EXPECT_TRUE(claims_of(both.dump()).records.empty()) << "v2 is the newer";
}

TEST(NvidiaCheckpoint, ReadsMigDevicesOfBothForms) {
  const auto device = plugin_device("gpu-0-mig-1g10gb-19-0");
  for (const json& mig : {json{{"concrete", {{"migUUID", kMig}, {"parentUUID", kGpu}}}, {"device", device}},
                          json{{"info", {{"uuid", kMig}, {"parentUUID", kGpu}}}, {"device", device}}}) {
    const auto imported =
        claims_of(checkpoint({{kUid, prepared_claim(json::array({{{"gpu", nullptr}, {"mig", mig}}}))}}));
    ASSERT_EQ(imported.records.size(), 1U);
    EXPECT_EQ(imported.records[0].devices[0].uuid, DeviceUuid(kMig));
  }
}

TEST(NvidiaCheckpoint, KeepsWhatTheKubeletWasAnswered) {
  json device = plugin_device("gpu-0", json::array({"any/large", "other"}));
  device["ShareID"] = "share-1";
  const auto devices =
      claims_of(checkpoint({{kUid, prepared_claim(json::array({gpu_entry(device)}))}})).records.at(0).devices;
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[0].request, "any") << "without the alternative";
  EXPECT_EQ(devices[1].request, "other");
  EXPECT_EQ(devices[1].share_id, "share-1");
}

TEST(NvidiaCheckpoint, AnAdministratorsClaimHoldsNothing) {
  json claim = prepared_claim();
  claim["status"]["allocation"]["devices"]["results"] = json::array(
      {{{"driver", "gpu.nvidia.com"}, {"pool", "node-1"}, {"device", "gpu-0"}, {"adminAccess", true}}});
  const auto records = claims_of(checkpoint({{kUid, claim}})).records;
  EXPECT_TRUE(records.at(0).devices.at(0).admin_access);
  std::map<std::string, ClaimRecord> held = {{kUid, records[0]}};
  EXPECT_EQ(find_holder(held, DeviceUuid(kGpu), "another"), nullptr);
}

TEST(NvidiaCheckpoint, LeavesOutWhatHoldsNoDevice) {
  json begun = prepared_claim();
  begun["checkpointState"] = "PrepareStarted";
  const json vfio = {{"gpu", nullptr}, {"mig", nullptr}, {"vfio", {{"info", {{"uuid", kGpu}}}}}};
  const auto imported = claims_of(checkpoint(
      {{kUid, begun}, {"b", prepared_claim(json::array({vfio}))}, {"c", prepared_claim(json::array())}}));
  EXPECT_TRUE(imported.records.empty());
  EXPECT_TRUE(imported.notes.empty());
}

TEST(NvidiaCheckpoint, NothingSurvivesAReboot) {
  EXPECT_TRUE(
      claims_of(checkpoint({{kUid, prepared_claim()}}, "v2", {{"nodeBootID", "boot-0"}})).records.empty());
  EXPECT_EQ(
      claims_of(checkpoint({{kUid, prepared_claim()}}, "v2", {{"nodeBootID", "boot-1"}})).records.size(), 1U);
}

TEST(NvidiaCheckpoint, NotesWhyAClaimIsLeftOut) {
  EXPECT_EQ(note_of(5), std::string("claim ") + kUid + ": text: expected an object, found 5");
  EXPECT_EQ(note_of(prepared_claim(), "../x"), "claim ../x: the uid is not valid");
  EXPECT_EQ(
      note_of(prepared_claim(json::array({{{"gpu", {{"info", {{"uuid", ""}}}}}}}))),
      std::string("claim ") + kUid + ": preparedDevices[0].devices[0].gpu.info.uuid: required, not set");
  EXPECT_EQ(note_of(prepared_claim(json::array({{{"gpu", {{"device", plugin_device("gpu-0")}}}}}))),
            std::string("claim ") + kUid + ": preparedDevices[0].devices[0].gpu.info: required, not set");
  json many = json::array();
  for (int i = 0; i < 20; ++i) many.push_back(gpu_entry(plugin_device("gpu-0", json::array({"a", "b"}))));
  EXPECT_EQ(note_of(prepared_claim(many)),
            std::string("claim ") + kUid + ": expected at most 32 devices, found 40");
}

TEST(NvidiaCheckpoint, RefusesWhatIsNoCheckpoint) {
  for (const std::string text : {"", "{", "[]", "{}", "{\"v2\": 5}", "{\"v3\": {}}"}) {
    EXPECT_FALSE(parse_nvidia_checkpoint(text, "boot-1")) << text;
  }
  EXPECT_FALSE(parse_nvidia_checkpoint(std::string(100'000, '[') + std::string(100'000, ']'), "boot-1"));
  EXPECT_FALSE(parse_nvidia_checkpoint(std::string(kMaxCheckpointBytes + 1, ' '), "boot-1"));
  json claims;
  for (std::size_t i = 0; i <= kMaxRecords; ++i) claims["uid-" + std::to_string(i)] = nullptr;
  EXPECT_FALSE(parse_nvidia_checkpoint(checkpoint(claims), "boot-1"));
}

class NvidiaCheckpointFile : public ::testing::Test {
 protected:
  NvidiaCheckpointFile() {
    std::string name = (std::filesystem::temp_directory_path() / "nvidia_checkpoint.XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
    std::filesystem::create_directory(directory_ + "/claims");
  }
  ~NvidiaCheckpointFile() override { std::filesystem::remove_all(directory_); }

  void write(const std::string& text) const { ASSERT_TRUE(write_file_atomic(path(), text, 0600)); }
  std::string path() const { return directory_ + "/checkpoint.json"; }
  RecordStore store() const { return RecordStore(directory_ + "/claims"); }
  std::map<std::string, ClaimRecord> imported(std::map<std::string, ClaimRecord> records = {}) const {
    import_nvidia_checkpoint(path(), store(), records);
    return records;
  }

  std::string directory_;
};

TEST_F(NvidiaCheckpointFile, IsReadOnceAndKept) {
  const auto boot = health::read_boot_id();
  ASSERT_TRUE(boot);
  const auto text = checkpoint({{kUid, prepared_claim()}}, "v2", {{"nodeBootID", *boot}});
  write(text);
  const auto records = imported();
  ASSERT_EQ(records.size(), 1U);
  const auto loaded = store().load_records();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->records, records) << "also without a name";
  EXPECT_EQ(read_file(path() + ".imported", kMaxCheckpointBytes).value_or(""), text);
  EXPECT_TRUE(imported().empty());
}

TEST_F(NvidiaCheckpointFile, DoesNotReplaceARecord) {
  write(checkpoint({{kUid, prepared_claim()}}));
  const std::map<std::string, ClaimRecord> before = {{kUid, {kUid, "team", "train", {}}}};
  EXPECT_EQ(imported(before), before);
}

TEST_F(NvidiaCheckpointFile, StaysWhereItCannotBeRead) {
  write("{");
  EXPECT_TRUE(imported().empty());
  EXPECT_TRUE(std::filesystem::exists(path()));
}

}  // namespace
}  // namespace gpulet::dra
