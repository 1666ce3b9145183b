#include "dra/claim_controller.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/temporary_files.h"
#include "dra/limit_demand.h"
#include "dra/nvidia_checkpoint.h"

namespace gpulet::dra {
namespace {

constexpr mode_t kSpecMode = 0644;

// Whether the cause may pass by itself.
bool is_transient(Code code) {
  switch (code) {
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
    case Code::kIo:
    // The API server's authorizer learns of a Pod's claims with a delay.
    case Code::kPermissionDenied:
      return true;
    default:
      return false;
  }
}

template <class T>
std::optional<Code> error_code(const Result<T>& result) {
  return result ? std::nullopt : std::optional(result.error().code());
}

std::string claim_subject(const ClaimName& claim) { return "claim " + claim.name_space + "/" + claim.name; }

std::string record_subject(const ClaimRecord& record) {
  return "claim " + record.name_space + "/" + record.name;
}

PreparedClaim prepared_devices(const ClaimRecord& record) {
  PreparedClaim prepared;
  for (const auto& device : record.devices) {
    prepared.push_back(
        {device.request, device.pool, device.device, claim_cdi_id(record, device), device.share_id});
  }
  return prepared;
}

}  // namespace

// One request of the kubelet; answered when its last claim is.
struct ClaimController::Batch {
  std::map<std::string, Result<PreparedClaim>> results;
  std::size_t open = 0;
  std::function<void(std::map<std::string, Result<PreparedClaim>>)> done;

  void add_result(const std::string& uid, Result<PreparedClaim> result) {
    results.insert_or_assign(uid, std::move(result));
    if (--open == 0) done(std::move(results));
  }
};

struct ClaimController::Preparation {
  ClaimName claim;
  std::shared_ptr<Batch> batch;
  Backoff backoff;
  std::optional<ResourceClaim> read{};                  // the scheduler's decision does not change
  std::optional<std::vector<k8s::PodMetadata>> pods{};  // whose demands count
  bool reading = false;
  bool recorded_here = false;  // by this call; undone if it fails
  Error last_error;            // why it waits
  Time began;
  Subscription retry{}, deadline{};
};

Result<std::unique_ptr<ClaimController>> ClaimController::start_controller(Loop& loop, ClaimSource& source,
                                                                           ClaimDaemons& daemons,
                                                                           ClaimPartitions& partitions,
                                                                           ClaimSettings settings) {
  std::unique_ptr<ClaimController> controller(
      new ClaimController(loop, source, daemons, partitions, std::move(settings)));
  GPULET_TRY_ASSIGN(auto loaded, controller->store_.load_records());
  for (const auto& error : loaded.errors) log::error("the record of a claim is ignored", error);
  controller->records_ = std::move(loaded.records);
  remove_temporary_files(controller->settings_.cdi_directory, std::string(kClaimCdiVendor) + "-", ".json");
  import_nvidia_checkpoint(controller->settings_.nvidia_checkpoint, controller->store_, controller->records_);
  controller->update_daemons();
  std::vector<std::string> ending;
  for (const auto& [uid, record] : controller->records_) {
    if (record.ending) ending.push_back(uid);
  }
  for (const auto& uid : ending) controller->partitions_.resume_ending(uid);
  return controller;
}

ClaimController::ClaimController(Loop& loop, ClaimSource& source, ClaimDaemons& daemons,
                                 ClaimPartitions& partitions, ClaimSettings settings)
    : loop_(loop),
      source_(source),
      daemons_(daemons),
      settings_(std::move(settings)),
      store_(settings_.record_directory),
      partitions_(keeper_ports(partitions)) {}

ClaimController::~ClaimController() = default;

PartitionKeeperPorts ClaimController::keeper_ports(ClaimPartitions& partitions) {
  return {.loop = loop_,
          .partitions = partitions,
          .find_record = [this](const std::string& uid) -> ClaimRecord* {
            const auto found = records_.find(uid);
            return found == records_.end() ? nullptr : &found->second;
          },
          .write_record = [this](const ClaimRecord& record) { return store_.write_record(record); },
          .changed = [this] { post_retry(); },
          .ended = [this](const std::string& uid) { return forget_claim(uid); }};
}

std::string ClaimController::spec_path(const std::string& uid) const {
  return settings_.cdi_directory + "/" + claim_spec_file_name(uid);
}

ClaimCounts ClaimController::counts() const {
  ClaimCounts counts = counts_;
  counts.preparing = preparations_.size();
  return counts;
}

void ClaimController::set_devices(std::shared_ptr<const NodeDevices> devices) {
  const bool is_back = !devices_ && devices;
  devices_ = std::move(devices);
  if (is_back) partitions_.retry_waiting();
  retry_waiting();
}

void ClaimController::prepare_claims(const std::vector<ClaimName>& claims,
                                     std::function<void(std::map<std::string, Result<PreparedClaim>>)> done) {
  std::map<std::string, ClaimName> unique;
  for (const auto& claim : claims) unique.emplace(claim.uid, claim);
  const auto batch = std::make_shared<Batch>();
  batch->done = std::move(done);
  // One more, so that the answer is not complete before all have begun.
  batch->open = unique.size() + 1;
  for (const auto& [uid, claim] : unique) begin_preparation(claim, batch);
  if (--batch->open == 0) batch->done(std::move(batch->results));
}

void ClaimController::begin_preparation(const ClaimName& claim, std::shared_ptr<Batch> batch) {
  const auto refuse = [&](Code code, std::string reason) {
    counts_.prepare.count_result(code, Duration::zero());
    batch->add_result(claim.uid, fail(code, std::move(reason), claim_subject(claim)));
  };
  if (!is_valid_uid(claim.uid)) {
    return refuse(Code::kInvalidArgument, "the uid \"" + claim.uid + "\" is not valid");
  }
  if (preparations_.size() >= kMaxPreparations) {
    return refuse(Code::kUnavailable, "too many claims are being prepared");
  }
  const std::uint64_t id = next_id_++;
  auto preparation = std::make_unique<Preparation>(Preparation{
      .claim = claim,
      .batch = std::move(batch),
      .backoff = Backoff(settings_.retry, id),
      .last_error = Error(Code::kUnavailable, "the claim could not be read in time", claim_subject(claim)),
      .began = loop_.now()});
  preparation->deadline = loop_.after(settings_.answer_within, [this, id] { on_deadline(id); });
  preparations_.emplace(id, std::move(preparation));
  try_preparation(id);
}

void ClaimController::try_preparation(std::uint64_t id) {
  const auto it = preparations_.find(id);
  if (it == preparations_.end() || it->second->reading) return;
  auto& preparation = *it->second;
  preparation.retry.reset();
  if (preparation.read) return continue_preparation(id);
  preparation.reading = true;
  source_.read_claim(preparation.claim,
                     [this, id, alive = lifetime_.watch()](Result<std::optional<std::string>> text) {
                       if (alive) on_claim_read(id, std::move(text));
                     });
}

void ClaimController::on_claim_read(std::uint64_t id, Result<std::optional<std::string>> text) {
  const auto it = preparations_.find(id);
  if (it == preparations_.end()) return;
  auto& preparation = *it->second;
  preparation.reading = false;
  const auto parse = [&]() -> Result<ResourceClaim> {
    if (!text) return fail(text.error().with_context("cannot read the claim"));
    if (!*text) return fail(Code::kNotFound, "the claim does not exist");
    return parse_claim(**text, kDriverName);
  };
  auto claim = parse();
  if (!claim) {
    const Error& error = claim.error();
    decide(id, fail(error.code(), error.full_message(), claim_subject(preparation.claim)));
    return;
  }
  preparation.read = std::move(*claim);
  continue_preparation(id);
}

bool ClaimController::needs_pods(const Preparation& preparation) const {
  return !preparation.pods && shares_devices(*preparation.read) && !records_.contains(preparation.claim.uid);
}

void ClaimController::continue_preparation(std::uint64_t id) {
  auto& preparation = *preparations_.at(id);
  if (!needs_pods(preparation)) {
    decide(id, prepare_claim(preparation));
    return;
  }
  preparation.reading = true;
  const auto decide_with = [this, id, alive = lifetime_.watch()](Result<std::vector<k8s::PodMetadata>> pods) {
    const auto it = alive ? preparations_.find(id) : preparations_.end();
    if (!alive || it == preparations_.end()) return;
    auto& waiting = *it->second;
    waiting.reading = false;
    if (!pods)
      return decide(id, fail(pods.error().code(), pods.error().full_message(), claim_subject(waiting.claim)));
    waiting.pods = std::move(*pods);
    decide(id, prepare_claim(waiting));
  };
  read_reserved_pods(source_, *preparation.read, settings_.pool_name, decide_with);
}

Result<PreparedClaim> ClaimController::prepare_claim(Preparation& preparation) {
  if (!devices_) {
    return fail(Code::kUnavailable, "the GPUs of this node are not known yet",
                claim_subject(preparation.claim));
  }
  if (const auto known = records_.find(preparation.claim.uid);
      known != records_.end() && known->second.ending) {
    return fail(Code::kUnavailable, "the claim is still being unprepared", claim_subject(preparation.claim));
  }
  const PreparationInput input{.pool_name = settings_.pool_name,
                               .pool = &devices_->pool,
                               .records = &records_,
                               .shown_uuids = devices_->shown_uuids,
                               .withheld = devices_->withheld,
                               .gates = devices_->gates};
  GPULET_TRY_ASSIGN(const ClaimRecord record,
                    plan_preparation(*preparation.read, preparation.claim.uid, input));
  if (preparation.pods)
    GPULET_TRY(check_limit_demands(*preparation.read, record, *preparation.pods,
                                   {devices_->limit_means, [this](const DeviceUuid& gpu) {
                                      return memory_of_gpu(devices_->pool, gpu);
                                    }}));
  GPULET_TRY(apply_record(preparation, record));
  return prepared_devices(record);
}

// The record first: whatever happens next, unprepare knows the claim. The document last: containers get the
// devices once the daemons serve.
Status ClaimController::apply_record(Preparation& preparation, const ClaimRecord& record) {
  std::optional<cdi::Spec> spec;
  if (!record.devices.empty() && !record.has_partitions()) {
    GPULET_TRY_ASSIGN(spec, make_claim_spec(record, devices_->base, daemons_.mps_root()));
  }
  GPULET_TRY(check_holders(record));
  const auto known = records_.find(record.uid);
  if (known == records_.end() || known->second != record) {
    preparation.recorded_here |= known == records_.end();
    GPULET_TRY(store_.write_record(record));
    records_.insert_or_assign(record.uid, record);
    update_daemons();
  }
  if (record.has_partitions()) {
    const auto there = partitions_.check_partitions(record.uid);
    if (!there) return fail(there.error().code(), there.error().full_message(), record_subject(record));
    // With the UUIDs that are known now.
    GPULET_TRY_ASSIGN(spec, make_claim_spec(records_.at(record.uid), devices_->base, daemons_.mps_root()));
  }
  GPULET_TRY(check_daemons(record));
  if (!spec) return {};
  const std::string path = spec_path(record.uid), content = cdi::to_json(*spec);
  const auto present = read_file(path);
  if (present && *present == content) return {};
  return write_file_atomic(path, content, kSpecMode);
}

// A GPU under another daemon is in exclusive compute mode, and gets no second one.
Status ClaimController::check_holders(const ClaimRecord& record) const {
  const auto own = claim_daemons(record);
  for (const auto& device : record.devices) {
    if (device.admin_access || device.uuid.empty()) continue;
    const auto holder = daemons_.find_holder(device.uuid);
    if (holder.empty() || std::ranges::find(own, holder, &mps::DaemonSpec::name) != own.end()) continue;
    return fail(Code::kUnavailable,
                "device \"" + device.device + "\" is still used by the MPS control daemon of " + holder,
                record_subject(record));
  }
  return {};
}

Status ClaimController::check_daemons(const ClaimRecord& record) const {
  for (const auto& daemon : claim_daemons(record)) {
    if (const auto serves = daemons_.check_daemon(daemon.name); !serves) {
      return fail(serves.error().code(), serves.error().full_message(), record_subject(record));
    }
  }
  return {};
}

void ClaimController::update_daemons() {
  std::vector<mps::DaemonSpec> daemons;
  for (const auto& [uid, record] : records_) {
    if (!record.ending) std::ranges::move(claim_daemons(record), std::back_inserter(daemons));
  }
  daemons_.set_daemons(std::move(daemons));
}

void ClaimController::decide(std::uint64_t id, Result<PreparedClaim> result) {
  if (result || !is_transient(result.error().code())) {
    finish(id, std::move(result));
    return;
  }
  auto& preparation = *preparations_.at(id);
  preparation.last_error = result.error();
  remember_failure(preparation, result.error(), false);
  retry_later(id);
}

void ClaimController::retry_later(std::uint64_t id) {
  auto& preparation = *preparations_.at(id);
  preparation.retry = loop_.after(preparation.backoff.next_delay(), [this, id] { try_preparation(id); });
}

void ClaimController::retry_waiting() {
  std::vector<std::uint64_t> waiting;
  // Others wait for the API server, in its own time: for the claim or its Pods.
  for (const auto& [id, preparation] : preparations_) {
    if (preparation->read && !needs_pods(*preparation)) waiting.push_back(id);
  }
  for (const auto id : waiting) try_preparation(id);
}

void ClaimController::on_deadline(std::uint64_t id) { finish(id, fail(preparations_.at(id)->last_error)); }

void ClaimController::finish(std::uint64_t id, Result<PreparedClaim> result) {
  auto ended = preparations_.extract(id);
  auto& preparation = *ended.mapped();
  const auto& uid = preparation.claim.uid;
  counts_.prepare.count_result(error_code(result), loop_.now() - preparation.began);
  if (result) {
    unprepared_.erase(uid);
    // What another call for the claim has recorded is not undone any more if that call fails.
    for (const auto& [other, open] : preparations_) {
      if (open->claim.uid == uid) open->recorded_here = false;
    }
    log::info("claim prepared", {{"claim", preparation.claim.name_space + "/" + preparation.claim.name},
                                 {"uid", uid},
                                 {"devices", result->size()}});
  } else {
    log::warning("claim not prepared", result.error(), {{"uid", uid}});
    remember_failure(preparation, result.error(), true);
    // A claim that failed holds no device.
    const auto other = std::ranges::find_if(
        preparations_, [&](const auto& entry) { return entry.second->claim.uid == uid; });
    if (preparation.recorded_here && other != preparations_.end()) {
      other->second->recorded_here = true;
    } else if (preparation.recorded_here) {
      const auto undone = end_claim(uid);
      if (!undone) log::error("cannot undo the preparation of a claim", undone.error());
    }
  }
  preparation.batch->add_result(uid, std::move(result));
}

void ClaimController::remember_failure(const Preparation& preparation, const Error& error, bool has_ended) {
  const Time now = loop_.now();
  std::erase_if(unprepared_, [&](const auto& entry) {
    return entry.second.ended && now - *entry.second.ended > kUnpreparedMemory;
  });
  const auto& claim = preparation.claim;
  if (!unprepared_.contains(claim.uid) && unprepared_.size() >= kMaxPreparations) return;
  auto& known =
      unprepared_.try_emplace(claim.uid, Unprepared{{claim, preparation.began, {}}, {}}).first->second;
  known.shown.reason = error.message();
  known.ended = has_ended ? std::optional(now) : std::nullopt;
}

std::vector<UnpreparedClaim> ClaimController::unprepared_claims() const {
  const Time now = loop_.now();
  std::map<std::string, UnpreparedClaim> claims;
  for (const auto& [uid, known] : unprepared_) {
    if (!known.ended || now - *known.ended <= kUnpreparedMemory) claims.emplace(uid, known.shown);
  }
  for (const auto& [id, preparation] : preparations_) {
    if (!preparation->reading || now - preparation->began < kQuietRead) continue;
    claims.try_emplace(preparation->claim.uid, UnpreparedClaim{preparation->claim, preparation->began,
                                                               "the API server has not answered yet"});
  }
  std::vector<UnpreparedClaim> listed;
  for (auto& [uid, claim] : claims) listed.push_back(std::move(claim));
  return listed;
}

bool ClaimController::is_being_prepared(const std::string& uid) const {
  return std::ranges::any_of(preparations_, [&](const auto& entry) {
    return entry.second->recorded_here && entry.second->claim.uid == uid;
  });
}

// An answer that waits for other claims of its request does not say any more that the claim is prepared.
void ClaimController::withdraw_answers(const ClaimName& claim) {
  for (const auto& [id, preparation] : preparations_) {
    const auto answer = preparation->batch->results.find(claim.uid);
    if (answer != preparation->batch->results.end() && answer->second)
      answer->second =
          fail(Code::kFailedPrecondition, "the claim was unprepared meanwhile", claim_subject(claim));
  }
}

std::map<std::string, Status> ClaimController::unprepare_claims(const std::vector<ClaimName>& claims) {
  std::map<std::string, Status> results;
  for (const auto& claim : claims) {
    std::vector<std::uint64_t> open;
    for (const auto& [id, preparation] : preparations_) {
      if (preparation->claim.uid == claim.uid) open.push_back(id);
    }
    for (const auto id : open) {
      finish(id, fail(Code::kFailedPrecondition, "the claim was unprepared meanwhile", claim_subject(claim)));
    }
    withdraw_answers(claim);
    unprepared_.erase(claim.uid);
    const Time began = loop_.now();
    auto ended = end_claim(claim.uid);
    counts_.unprepare.count_result(error_code(ended), loop_.now() - began);
    results.insert_or_assign(claim.uid, std::move(ended));
  }
  retry_waiting();
  return results;
}

// The record last: if this is interrupted, the claim is still known.
Status ClaimController::end_claim(const std::string& uid) {
  if (!is_valid_uid(uid)) return {};
  const std::string path = spec_path(uid);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return fail(errno_error("cannot remove the CDI document of a claim", errno, path));
  }
  const auto known = records_.find(uid);
  if (known == records_.end() || !known->second.has_partitions()) return forget_claim(uid);
  if (!known->second.ending) {
    ClaimRecord ending = known->second;
    ending.ending = true;
    GPULET_TRY(store_.write_record(ending));
    known->second = std::move(ending);
    update_daemons();
  }
  partitions_.advance(uid);
  return {};
}

Status ClaimController::forget_claim(const std::string& uid) {
  GPULET_TRY(store_.remove_record(uid));
  if (records_.erase(uid) == 0) return {};
  post_retry();
  update_daemons();
  log::info("claim unprepared", {{"uid", uid}});
  return {};
}

void ClaimController::post_retry() {
  loop_.post([this, alive = lifetime_.watch()] {
    if (alive) retry_waiting();
  });
}

void ClaimController::end_orphans() {
  for (const auto& [recorded, record] : records_) {
    if (record.ending) continue;
    if (record.name.empty()) continue;  // cannot be read; the kubelet unprepares it
    source_.read_claim({record.name_space, record.name, recorded},
                       [this, uid = recorded, name_space = record.name_space, name = record.name,
                        alive = lifetime_.watch()](Result<std::optional<std::string>> text) {
                         if (!alive || !text) return;
                         const auto claim = *text ? parse_claim(**text, kDriverName)
                                                  : Result<ResourceClaim>(ResourceClaim{});
                         if (!claim || claim->uid == uid) return;
                         withdraw_answers({name_space, name, uid});
                         const auto ended = end_claim(uid);
                         if (!ended) log::error("cannot end a claim that is gone", ended.error());
                         retry_waiting();
                       });
  }
}

}  // namespace gpulet::dra
