#include "dra/slice_publisher.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "k8s/objects.h"

namespace gpulet::dra {
namespace {

using Outcome = k8s::RetryingSender::Outcome;

constexpr int kStatusOk = 200, kStatusCreated = 201, kStatusAccepted = 202;
constexpr int kStatusNotFound = 404, kStatusConflict = 409, kStatusInvalid = 422;

std::string slice_path(const std::string& name) { return std::string(kSliceCollection) + "/" + name; }

std::string slice_query(const PoolName& pool) {
  return "fieldSelector=" +
         k8s::encode_query_value("spec.driver=" + pool.driver + ",spec.nodeName=" + pool.node);
}

// Whether `a` is known to be of an older state than `b`. Versions that are not numbers are never older.
bool is_older(const std::string& a, const std::string& b) {
  const auto first = text::parse_unsigned(a), second = text::parse_unsigned(b);
  return first && second && *first < *second;
}

// As sent, but for the times that the server adds.
bool is_as_sent(const ResourceSlice& sent, const ResourceSlice& answered) {
  ResourceSlice with_times = sent;
  for (std::size_t i = 0; i < with_times.devices.size() && i < answered.devices.size(); ++i) {
    auto& taints = with_times.devices[i].taints;
    taints = keep_time_added(std::move(taints), answered.devices[i].taints);
  }
  return !answered.has_other_content && answered.devices == with_times.devices &&
         answered.counter_sets == sent.counter_sets && answered.generation == sent.generation &&
         answered.slice_count == sent.slice_count;
}

bool has_counters(const ResourceSlice& slice) {
  return !slice.counter_sets.empty() ||
         std::ranges::any_of(slice.devices, [](const Device& device) { return !device.consumes.empty(); });
}

// Parts of a slice that a server without their feature gate drops silently.
struct GatedFeatures {
  bool taints = false, counters = false, shares = false;

  bool any() const { return taints || counters || shares; }
  // Those that the slice has.
  GatedFeatures of(const ResourceSlice& slice) const {
    const auto has = [&](auto property) { return std::ranges::any_of(slice.devices, property); };
    return {taints && has([](const Device& device) { return !device.taints.empty(); }),
            counters && has_counters(slice),
            shares && has([](const Device& device) { return device.allows_multiple; })};
  }
  GatedFeatures without(const GatedFeatures& others) const {
    return {taints && !others.taints, counters && !others.counters, shares && !others.shares};
  }
  std::string names() const {
    std::vector<std::string> all;
    if (taints) all.emplace_back("taints");
    if (counters) all.emplace_back("counters");
    if (shares) all.emplace_back("shares");
    return text::join(all, ", ");
  }
};

GatedFeatures lost_features(const ResourceSlice& sent, const ResourceSlice& answered) {
  return {!kept_taints(sent, answered), !kept_counters(sent, answered), !kept_shares(sent, answered)};
}

class WatchingPublisher final : public SlicePublisher {
 public:
  WatchingPublisher(Loop& loop, const k8s::ClientConfig& access, PoolName pool, SliceTiming timing,
                    std::function<void()> shown)
      : pool_(std::move(pool)),
        on_shown_(std::move(shown)),
        sender_(loop, access, timing.sending, "the node's ResourceSlices", [this] { send_next(); }) {
    watcher_ = k8s::CollectionWatcher::watch_collection(
        loop, access,
        {.path = kSliceCollection,
         .query = slice_query(pool_),
         .permission = "list and watch on resourceslices.resource.k8s.io"},
        timing.watching,
        {.on_list_begin =
             [this] {
               listed_.clear();
               listing_ = true;
             },
         .on_object = [this](std::string_view text) { on_object(text); },
         .on_deleted = [this](std::string_view text) { on_deleted(text); },
         .on_list_end = [this] { on_list_end(); },
         .on_connection_lost =
             [this] {
               in_question_ = dropped_;
               sender_.wake();
             }});
  }

  void set_devices(std::vector<Device> devices, std::vector<CounterSet> counter_sets) override {
    devices_ = std::move(devices);
    counter_sets_ = std::move(counter_sets);
    removing_ = false;
    sender_.wake();
  }

  void remove_slices() override {
    devices_.reset();
    removing_ = true;
    sender_.wake();
  }

  std::vector<ResourceSlice> shown_slices() const override {
    std::vector<ResourceSlice> all;
    for (const auto& [name, slice] : shown_) all.push_back(slice);
    return all;
  }

  bool is_settled() const override {
    if (!synced_ || listing_ || !writing_.empty()) return false;
    if (removing_) return shown_.empty();
    return !devices_ || planned_writes().empty();
  }

  k8s::SendStatus publisher_status() const override { return sender_.send_status(); }

 private:
  void on_object(std::string_view text) {
    auto slice = parse_slice(text);
    if (!slice) {
      log::warning("a ResourceSlice of this node is not readable", slice.error());
      return;
    }
    if (listing_) listed_.insert(slice->name);
    const auto known = shown_.find(slice->name);
    if (known != shown_.end() && is_older(slice->resource_version, known->second.resource_version)) return;
    shown_.insert_or_assign(slice->name, std::move(*slice));
    if (!listing_) changed();
  }

  void on_deleted(std::string_view text) {
    const auto slice = parse_slice(text);
    const std::string name = slice ? slice->name : k8s::metadata_string(text, "name");
    if (name == writing_) gone_ = slice ? slice->resource_version : "";
    const auto known = shown_.find(name);
    if (known == shown_.end()) return;
    // Deleted before it was created again.
    if (slice && is_older(slice->resource_version, known->second.resource_version)) return;
    shown_.erase(known);
    node_uid_.clear();  // deleted with the Node, perhaps: the next one has another uid
    changed();
  }

  void on_list_end() {
    listing_ = false;
    if (!writing_.empty() && !listed_.contains(writing_)) gone_ = "";
    if (std::erase_if(shown_, [&](const auto& entry) { return !listed_.contains(entry.first); }) != 0)
      node_uid_.clear();
    synced_ = true;
    changed();
  }

  void changed() {
    sender_.wake();
    if (on_shown_) on_shown_();
  }

  SlicePlan planned_writes() const {
    auto devices = dropped_.taints ? without_tainted(*devices_) : *devices_;
    if (dropped_.shares) devices = without_shares(std::move(devices));
    if (!dropped_.counters) return plan_slices(pool_, devices, shown_slices(), counter_sets_);
    return plan_slices(pool_, without_partitions(std::move(devices)), shown_slices());
  }

  void send_next() {
    writing_.clear();  // one without an answer
    if (!synced_ || (!devices_ && !removing_)) return sender_.idle(false);
    if (removing_) {
      if (shown_.empty()) return sender_.idle();
      return send_delete(shown_.begin()->second);
    }
    if (in_question_.any()) return ask_again();
    const auto plan = planned_writes();
    if (plan.empty()) return sender_.idle();
    if (!plan.deletes.empty()) return send_delete(plan.deletes.front());
    if (node_uid_.empty()) return read_node();
    if (!plan.updates.empty()) return send_slice("PUT", plan.updates.front());
    send_slice("POST", plan.creates.front());
  }

  void read_node() {
    sender_.send_request(
        {.method = "GET", .path = "/api/v1/nodes/" + pool_.node, .accept = k8s::kMetadataOnly},
        "get on nodes", [this](const http::ClientResponse& response) {
          if (response.status != kStatusOk) return Outcome::kError;
          const auto node = parse_json(response.body);
          node_uid_ = json_text(json_member(json_member(node, "metadata"), "uid"));
          return node_uid_.empty() ? Outcome::kError : Outcome::kNext;
        });
  }

  void send_delete(const ResourceSlice& slice) {
    // Only what was seen: another writer may have replaced it.
    const nlohmann::json options = {{"apiVersion", "v1"},
                                    {"kind", "DeleteOptions"},
                                    {"preconditions", {{"resourceVersion", slice.resource_version}}}};
    sender_.send_request(
        {.method = "DELETE",
         .path = slice_path(slice.name),
         .content_type = "application/json",
         .body = k8s::serialize_json(options)},
        "delete on resourceslices.resource.k8s.io", [this, slice](const http::ClientResponse& response) {
          if (response.status == kStatusConflict) return Outcome::kRetry;
          const bool gone = response.status == kStatusOk || response.status == kStatusAccepted ||
                            response.status == kStatusNotFound;
          if (!gone) return Outcome::kError;
          forget_slice(slice);
          return Outcome::kDone;
        });
  }

  // Unless the watch has shown another writer's since.
  void forget_slice(const ResourceSlice& slice) {
    const auto known = shown_.find(slice.name);
    if (known != shown_.end() && known->second.resource_version == slice.resource_version)
      shown_.erase(known);
  }

  void send_slice(const std::string& method, const ResourceSlice& slice) {
    writing_ = slice.name;
    gone_.reset();
    write_slice(method, slice, "",
                [this, slice](const http::ClientResponse& response) { return judge_write(slice, response); });
  }

  void write_slice(const std::string& method, const ResourceSlice& slice, const std::string& query,
                   std::function<Outcome(const http::ClientResponse&)> judge) {
    const bool creates = method == "POST";
    sender_.send_request({.method = method,
                          .path = (creates ? std::string(kSliceCollection) : slice_path(slice.name)) + query,
                          .content_type = "application/json",
                          .body = slice_json(slice, {pool_.node, node_uid_})},
                         (creates ? "create" : "update") + std::string(" on resourceslices.resource.k8s.io"),
                         std::move(judge));
  }

  // Writes nothing: a dry run of a slice with what is in question shows whether the server keeps it now.
  void ask_again() {
    const auto plan = plan_slices(pool_, *devices_, shown_slices(), counter_sets_);
    const auto shows = [&](const ResourceSlice& slice) { return in_question_.of(slice).any(); };
    auto found = std::ranges::find_if(plan.updates, shows);
    const bool updates = found != plan.updates.end();
    if (!updates) found = std::ranges::find_if(plan.creates, shows);
    if (!updates && found == plan.creates.end()) {
      // No device needs it: the next one that does will show it.
      dropped_ = dropped_.without(in_question_);
      in_question_ = {};
      return send_next();
    }
    if (node_uid_.empty()) return read_node();
    write_slice(updates ? "PUT" : "POST", *found, "?dryRun=All",
                [this, slice = *found](const http::ClientResponse& response) {
                  return judge_dry_run(slice, response);
                });
  }

  Outcome judge_dry_run(const ResourceSlice& sent, const http::ClientResponse& response) {
    if (response.status == kStatusConflict || response.status == kStatusNotFound) return Outcome::kRetry;
    const auto asked = in_question_.of(sent);
    if (response.status != kStatusInvalid) {
      if (response.status != kStatusOk && response.status != kStatusCreated) return Outcome::kError;
      const auto answered = parse_slice(response.body);
      if (!answered) return Outcome::kError;
      const auto kept = asked.without(lost_features(sent, *answered));
      dropped_ = dropped_.without(kept);
      if (kept.any())
        log::info("the API server keeps more of a ResourceSlice than before", {{"features", kept.names()}});
    }
    in_question_ = in_question_.without(asked);
    return Outcome::kDone;
  }

  Outcome judge_write(const ResourceSlice& sent, const http::ClientResponse& response) {
    writing_.clear();
    // The watch shows what is there instead.
    if (response.status == kStatusConflict) return Outcome::kRetry;
    if (response.status == kStatusNotFound && !sent.resource_version.empty()) {
      forget_slice(sent);
      return Outcome::kRetry;
    }
    // Kubernetes 1.34 has counters and devices in one slice.
    if (response.status == kStatusInvalid && has_counters(sent) && !dropped_.counters) {
      drop_counters();
      return Outcome::kDone;
    }
    if (response.status != kStatusOk && response.status != kStatusCreated) return Outcome::kError;
    auto answered = parse_slice(response.body);
    if (!answered) return Outcome::kError;
    const auto lost = lost_features(sent, *answered);
    const bool as_sent = is_as_sent(sent, *answered);
    // The answer may come after the watch has shown that what was written is deleted.
    if (gone_ && (gone_->empty() || is_older(answered->resource_version, *gone_))) return Outcome::kDone;
    const auto known = shown_.find(answered->name);
    if (known == shown_.end() || !is_older(answered->resource_version, known->second.resource_version)) {
      shown_.insert_or_assign(answered->name, std::move(*answered));
    }
    if (lost.counters && !dropped_.counters) {
      drop_counters();
      return Outcome::kDone;
    }
    if (lost.taints && !dropped_.taints) {
      dropped_.taints = true;
      log::warning(
          "the API server drops the taints of devices: unhealthy devices are left out of the ResourceSlices",
          {{"feature gate", "DRADeviceTaints"}});
      return Outcome::kDone;
    }
    if (lost.shares && !dropped_.shares) {
      dropped_.shares = true;
      log::warning("the API server drops allowMultipleAllocations: each GPU is offered to one claim",
                   {{"feature gate", "DRAConsumableCapacity"}});
      return Outcome::kDone;
    }
    if (!as_sent) {
      log::warning("the API server changed a ResourceSlice that was written", {{"slice", sent.name}});
      return Outcome::kRetry;
    }
    return Outcome::kDone;
  }

  void drop_counters() {
    dropped_.counters = true;
    log::warning("the API server drops counters: no MIG devices are made for claims",
                 {{"feature gate", "DRAPartitionableDevices"}});
  }

  const PoolName pool_;
  std::function<void()> on_shown_;
  std::optional<std::vector<Device>> devices_;
  std::vector<CounterSet> counter_sets_;
  bool removing_ = false;
  std::map<std::string, ResourceSlice> shown_;
  std::set<std::string> listed_;  // by the list in progress
  bool listing_ = false, synced_ = false;
  std::string writing_;  // the slice of the create or update in progress
  // Since that was sent: the version of its deletion, empty if a list lacks it.
  std::optional<std::string> gone_;
  GatedFeatures dropped_;      // by the server
  GatedFeatures in_question_;  // since the connection was lost: of dropped_, what the server may keep now
  std::string node_uid_;
  k8s::RetryingSender sender_;
  std::unique_ptr<k8s::CollectionWatcher> watcher_;
};

}  // namespace

std::unique_ptr<SlicePublisher> SlicePublisher::start_publisher(Loop& loop, const k8s::ClientConfig& access,
                                                                PoolName pool, SliceTiming timing,
                                                                std::function<void()> shown) {
  return std::make_unique<WatchingPublisher>(loop, access, std::move(pool), timing, std::move(shown));
}

std::set<DeviceUuid> shown_gpus(const std::vector<ResourceSlice>& slices) {
  std::set<DeviceUuid> gpus;
  for (const auto& slice : slices) {
    for (const auto& device : slice.devices) {
      auto found = device.attributes.find("parentUUID");
      if (found == device.attributes.end()) found = device.attributes.find("uuid");
      if (found == device.attributes.end()) continue;
      if (const auto* uuid = std::get_if<std::string>(&found->second)) gpus.emplace(*uuid);
    }
  }
  return gpus;
}

std::map<std::string, std::string> shown_uuids(const std::vector<ResourceSlice>& slices) {
  std::map<std::string, std::string> uuids;
  for (const auto& slice : slices) {
    for (const auto& device : slice.devices) {
      auto found = device.attributes.find("uuid");
      if (found == device.attributes.end()) found = device.attributes.find("parentUUID");
      if (found == device.attributes.end()) continue;
      if (const auto* uuid = std::get_if<std::string>(&found->second)) uuids[device.name] = *uuid;
    }
  }
  return uuids;
}

}  // namespace gpulet::dra
