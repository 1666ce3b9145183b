#include "agent/driver/nvml_driver.h"

#include <algorithm>

#include "agent/driver/memory_limits.h"
#include "agent/fraction/container_processes.h"
#include "agent/health/evidence_reader.h"
#include "nvml/return_codes.h"
#include "nvml/session.h"

namespace gpulet::agent {
namespace {

using inventory::Gpu;
using inventory::PcieDistance;
using WeakSession = std::weak_ptr<const nvml::Session>;

// Queued work holds the Session weakly, so that it does not keep a driver that is being opened again.
Error session_closed_error() { return {Code::kUnavailable, "the driver is being initialised"}; }

// The handle of the GPU, or of its MIG device with these instances.
Result<nvml::Device> find_device_in_scope(const nvml::Session& session, const health::Scope& scope,
                                          unsigned index) {
  GPULET_TRY_ASSIGN(const auto gpu, session.device(index));
  if (scope.is_whole_gpu()) return gpu;
  GPULET_TRY_ASSIGN(const unsigned count, session.max_mig_devices(gpu));
  for (unsigned i = 0; i < count; ++i) {
    const auto mig = session.mig_device(gpu, i);
    if (!mig && mig.error().code() == Code::kNotFound) continue;
    if (!mig) return fail(mig.error());
    GPULET_TRY_ASSIGN(const unsigned gpu_instance, session.gpu_instance_id(*mig));
    GPULET_TRY_ASSIGN(const unsigned compute_instance, session.compute_instance_id(*mig));
    if (gpu_instance == scope.gpu_instance && compute_instance == scope.compute_instance) return *mig;
  }
  return fail(Code::kNotFound, "the GPU no longer has this MIG device", scope.gpu.str());
}

bool driver_responds(const Driver::Evidence& evidence) {
  return std::ranges::all_of(evidence, [](const auto& one) {
    const auto* handle = std::get_if<health::HandleReading>(&one.body);
    return handle == nullptr || handle->reachability == health::Reachability::kReachable;
  });
}

}  // namespace

// One reading in progress, with one place for each GPU. Late results are not part of it.
struct NvmlDriver::Reading {
  WeakSession session;
  SessionHolder::Use use;
  ReadDone done;
  inventory::DriverInfo driver;
  std::vector<std::optional<Gpu>> gpus;         // by NVML index
  std::size_t outstanding = 0;                  // of this phase
  std::vector<Gpu> settled;                     // once all are read, or late
  bool measuring = false;                       // the second phase: distances
  std::optional<inventory::Snapshot> finished;  // the third: its events are being registered
  Subscription timeout;
};

NvmlDriver::NvmlDriver(Loop& loop, NvmlDriverOptions options)
    : loop_(loop),
      options_(std::move(options)),
      worker_(loop),
      holder_(loop, worker_,
              {options_.driver_root, options_.library_directories, options_.call_timeout, options_.hold},
              [this] { notify_changed(); }),
      events_(loop, worker_) {
  if (holder_.is_on_demand()) options_.events = false;
  if (options_.sys_roots.empty()) options_.sys_roots = {options_.driver_root, "/"};
}

NvmlDriver::~NvmlDriver() { events_.stop_events(); }

nvml::Call NvmlDriver::make_gpu_call(const std::string& what, unsigned index) const {
  const std::string number = std::to_string(index);
  return {what + " GPU " + number, "gpu/" + number, options_.call_timeout};
}

void NvmlDriver::notify_changed() {
  if (events_.handlers().changed) events_.handlers().changed();
}

Result<std::pair<nvml::Call, unsigned>> NvmlDriver::find_gpu_call(const DeviceUuid& gpu,
                                                                  const std::string& what,
                                                                  Duration limit) const {
  const auto* known = last_snapshot_ ? last_snapshot_->find(gpu) : nullptr;
  if (known == nullptr) return fail(Code::kNotFound, "the driver no longer lists this GPU", gpu.str());
  auto call = make_gpu_call(what, known->index);
  call.deadline = limit;
  return std::pair(std::move(call), known->index);
}

Result<std::pair<nvml::Call, NvmlDriver::GpuIndices>> NvmlDriver::find_gpus_call(
    const std::vector<DeviceUuid>& gpus, const std::string& what, Duration limit) const {
  if (gpus.size() == 1) {
    GPULET_TRY_ASSIGN(auto one, find_gpu_call(gpus.front(), what, limit));
    return std::pair(std::move(one.first), GpuIndices{one.second});
  }
  GpuIndices indices;
  for (const auto& gpu : gpus) {
    const auto* known = last_snapshot_ ? last_snapshot_->find(gpu) : nullptr;
    indices.push_back(known ? std::optional(known->index) : std::nullopt);
  }
  return std::pair(nvml::Call{what + " " + std::to_string(gpus.size()) + " GPUs", "", limit}, indices);
}

Subscription NvmlDriver::repeat_on_gpus(const std::vector<DeviceUuid>& gpus, const std::string& what,
                                        Duration interval, RepeatedWork work, nvml::Worker::Ended ended) {
  if (!holder_.is_open() || holder_.is_on_demand()) return {};
  auto call = find_gpus_call(gpus, what, {});
  if (!call) return {};
  return worker_.repeat_call(
      std::move(call->first.name), interval,
      [session = WeakSession(holder_.session()), indices = std::move(call->second), work = std::move(work)] {
        const auto held = session.lock();
        return !held || work(*held, indices);
      },
      std::move(ended));
}

void NvmlDriver::open_driver(std::function<void(Status)> done) {
  events_.stop_events();
  end_reading(fail(session_closed_error()));
  holder_.open_session([this, done = std::move(done)](const Status& opened) {
    if (opened) {
      valid_inforoms_.clear();
      worker_.readmit_subjects();
    }
    done(opened);
  });
}

void NvmlDriver::close_driver(std::function<void(Status)> done) {
  events_.stop_events();
  end_reading(fail(session_closed_error()));
  holder_.close_session(std::move(done));
}

void NvmlDriver::set_events(Events events) {
  events.evidence = [this, evidence = std::move(events.evidence)](health::Evidence one) {
    const auto* xid = std::get_if<health::XidReport>(&one.body);
    if (xid != nullptr) valid_inforoms_.erase(one.scope.gpu);
    if (xid != nullptr && on_xid_) on_xid_(one.scope, xid->code);
    if (evidence) evidence(std::move(one));
  };
  events_.set_handlers(std::move(events));
}

void NvmlDriver::read_snapshot(ReadDone done) {
  if (reading_) {
    waiting_reads_.push_back(std::move(done));
    return;
  }
  holder_.use_session([this, done = std::move(done)](const auto& session, const auto& use) mutable {
    start_reading(session, use, std::move(done));
  });
}

void NvmlDriver::start_reading(const SessionPtr& session, const SessionHolder::Use& use, ReadDone done) {
  if (!session) {
    loop_.post([alive = lifetime_.watch(), done = std::move(done), error = holder_.closed_error()] {
      if (alive) done(fail(error));
    });
    return;
  }
  if (reading_) {
    waiting_reads_.push_back(std::move(done));
    return;
  }
  reading_ = std::make_shared<Reading>();
  reading_->session = session;
  reading_->use = use;
  reading_->done = std::move(done);
  worker_.run_call<inventory::DriverSummary>(
      {"counting GPUs", "machine", options_.call_timeout},
      [session = reading_->session]() -> Result<inventory::DriverSummary> {
        const auto held = session.lock();
        if (!held) return fail(session_closed_error());
        GPULET_TRY_ASSIGN(auto machine, inventory::read_driver_summary(*held));
        auto support = read_memory_limit_support(*held);
        machine.driver.has_memory_limits = support.is_supported();
        machine.driver.why_no_memory_limits = std::move(support.reason);
        machine.driver.has_host_pids = sees_host_processes();
        return machine;
      },
      [this, reading = reading_](const Result<inventory::DriverSummary>& machine) {
        if (reading == reading_) on_machine(machine);
      });
}

bool NvmlDriver::has_read_gpu(unsigned index) const {
  return last_snapshot_ && std::ranges::any_of(last_snapshot_->gpus, [&](const Gpu& gpu) {
           return gpu.index == index && !gpu.uuid.empty();
         });
}

void NvmlDriver::on_machine(const Result<inventory::DriverSummary>& machine) {
  if (!machine) {
    end_reading(fail(machine.error()));
    return;
  }
  reading_->driver = machine->driver;
  reading_->gpus.resize(machine->gpu_count);
  reading_->outstanding = machine->gpu_count;
  Duration patience = kReadTimeout;
  for (unsigned index = 0; index < machine->gpu_count; ++index) {
    if (holder_.is_on_demand() || !has_read_gpu(index)) patience = kFirstReadTimeout;
    read_one(index);
  }
  if (machine->gpu_count == 0) {
    read_missing_distances();
  } else if (patience < options_.call_timeout) {
    reading_->timeout = loop_.after(patience, [this] { on_reading_timeout(); });
  }
}

void NvmlDriver::read_one(unsigned index) {
  worker_.run_call<Gpu>(
      make_gpu_call("reading", index),
      [session = reading_->session, index, roots = options_.sys_roots]() -> Result<Gpu> {
        const auto held = session.lock();
        if (!held) return fail(session_closed_error());
        return inventory::read_gpu(*held, index, roots);
      },
      [this, reading = reading_, index](Result<Gpu> gpu) { on_gpu(reading, index, std::move(gpu)); });
}

void NvmlDriver::on_gpu(const std::shared_ptr<Reading>& reading, unsigned index, Result<Gpu> gpu) {
  if (reading != reading_ || reading->gpus[index]) {
    // It responded after the timeout: read again.
    if (holder_.is_open() && !reading->session.expired() && gpu && !gpu->unreadable) notify_changed();
    return;
  }
  if (!gpu) {
    Gpu silent;
    silent.index = index;
    silent.unreadable = gpu.error();
    gpu = std::move(silent);
  }
  reading->gpus[index] = std::move(*gpu);
  if (--reading->outstanding == 0) read_missing_distances();
}

void NvmlDriver::on_reading_timeout() {
  if (reading_->finished) {
    end_reading(std::move(*reading_->finished));
    return;
  }
  if (reading_->measuring) {
    finish_reading();
    return;
  }
  for (unsigned index = 0; index < reading_->gpus.size(); ++index) {
    auto& gpu = reading_->gpus[index];
    if (gpu) continue;
    gpu.emplace();
    gpu->index = index;
    gpu->unreadable =
        Error(Code::kDeadlineExceeded, "reading GPU " + std::to_string(index) + " has not returned yet");
  }
  read_missing_distances();
}

void NvmlDriver::read_missing_distances() {
  Reading& reading = *reading_;
  reading.measuring = true;
  reading.timeout.reset();
  for (auto& gpu : reading.gpus) {
    // One GPU that reports an unloaded driver is enough.
    if (gpu->unreadable && gpu->unreadable->code() == Code::kUnavailable) {
      end_reading(fail(*gpu->unreadable));
      return;
    }
    if (!inventory::is_display_only(*gpu)) reading.settled.push_back(std::move(*gpu));
  }
  const inventory::Snapshot none;
  inventory::fill_from_previous(reading.settled, last_snapshot_ ? *last_snapshot_ : none);

  reading.outstanding = 0;
  for (std::size_t from = 0; from < reading.settled.size(); ++from) {
    const auto places = distances_.missing_from(reading.settled, from);
    if (places.empty()) continue;
    std::vector<unsigned> to;
    std::vector<inventory::PciAddress> addresses;
    for (const auto place : places) {
      to.push_back(reading.settled[place].index);
      addresses.push_back(reading.settled[place].pci);
    }
    ++reading.outstanding;
    using Row = std::vector<std::optional<PcieDistance>>;
    worker_.run_call<Row>(
        make_gpu_call("measuring distances of", reading.settled[from].index),
        [session = reading.session, index = reading.settled[from].index, to]() -> Result<Row> {
          const auto held = session.lock();
          if (!held) return fail(session_closed_error());
          return inventory::read_distances(*held, index, to);
        },
        [this, held = reading_, here = reading.settled[from].pci, addresses](const Result<Row>& row) {
          for (std::size_t i = 0; row && i < addresses.size(); ++i) {  // a late result is as good
            if ((*row)[i]) distances_.add_distance(here, addresses[i], *(*row)[i]);
          }
          if (held == reading_ && --held->outstanding == 0) finish_reading();
        });
  }
  if (reading.outstanding == 0) {
    finish_reading();
  } else {
    reading.timeout = loop_.after(kReadTimeout, [this] { on_reading_timeout(); });
  }
}

void NvmlDriver::finish_reading() {
  inventory::Snapshot snapshot;
  snapshot.generation = ++generation_;
  snapshot.driver = reading_->driver;
  snapshot.gpus = std::move(reading_->settled);
  snapshot.pcie = distances_.distance_matrix(snapshot.gpus);
  last_snapshot_ = snapshot;
  if (!options_.events) {
    if (holder_.is_on_demand()) report_no_events(snapshot.gpus);
    end_reading(std::move(snapshot));
    return;
  }
  // Returned once the events of all its GPUs are received: an XID in between would be lost.
  reading_->finished = std::move(snapshot);
  reading_->timeout = loop_.after(kReadTimeout, [this] { on_reading_timeout(); });
  events_.watch_gpus(reading_->session.lock(), reading_->finished->gpus, options_.call_timeout,
                     [this, reading = std::weak_ptr(reading_)] {
                       if (const auto held = reading.lock(); held && held == reading_)
                         end_reading(std::move(*held->finished));
                     });
}

void NvmlDriver::report_no_events(const std::vector<Gpu>& gpus) {
  if (!events_.handlers().evidence) return;
  for (const auto& gpu : gpus) {
    if (gpu.unreadable) continue;
    const health::SourceNotice absent{health::Source::kDriverEvents, "gpulet.driver.hold is on-demand"};
    events_.handlers().evidence({{gpu.uuid}, loop_.now(), absent});
  }
}

void NvmlDriver::end_reading(Result<inventory::Snapshot> result) {
  const auto ended = std::exchange(reading_, nullptr);
  std::deque<ReadDone> waiting;
  // Requests during this one may concern a later change: they share one new reading.
  if (result) {
    waiting.swap(waiting_reads_);
    if (!waiting.empty()) {
      read_snapshot([waiting = std::move(waiting)](const Result<inventory::Snapshot>& next) {
        for (const auto& done : waiting) done(next);
      });
    }
  } else {
    waiting.swap(waiting_reads_);
    for (const auto& done : waiting) {
      loop_.post([alive = lifetime_.watch(), done, error = result.error()] {
        if (alive) done(fail(error));
      });
    }
  }
  if (!ended) return;
  loop_.post([alive = lifetime_.watch(), done = std::move(ended->done), result = std::move(result)] {
    if (alive) done(result);
  });
}

struct NvmlDriver::ProbeResult {
  Evidence evidence;
  std::string mig_layout;  // of a GPU; empty if it was not read
};

void NvmlDriver::run_probe(const health::Scope& scope, Probe question, std::function<void(Evidence)> done) {
  holder_.use_session([this, scope, question = std::move(question), done = std::move(done)](
                          const auto& session, const auto& use) mutable {
    probe_with_session(session, use, scope, std::move(question), std::move(done));
  });
}

void NvmlDriver::probe_with_session(const SessionPtr& session, const SessionHolder::Use& use,
                                    const health::Scope& scope, Probe question,
                                    std::function<void(Evidence)> done) {
  const Time now = loop_.now();
  const Gpu* known = last_snapshot_ ? last_snapshot_->find(scope.gpu) : nullptr;
  if (known == nullptr || !session) {
    const auto reading = session ? health::HandleReading{health::Reachability::kLost, "no longer in the node"}
                                 : handle_reading_of_error(holder_.closed_error());
    loop_.post([alive = lifetime_.watch(), done = std::move(done),
                evidence = Evidence{{{scope.gpu}, now, reading}}] {
      if (alive) done(evidence);
    });
    return;
  }
  const unsigned index = known->index;
  worker_.run_call<ProbeResult>(
      make_gpu_call("asking", index),
      [session = WeakSession(session), scope, index,
       question = std::move(question)]() -> Result<ProbeResult> {
        const auto held = session.lock();
        if (!held) return fail(session_closed_error());
        GPULET_TRY_ASSIGN(const auto device, find_device_in_scope(*held, scope, index));
        ProbeResult answered{question(*held, device), {}};
        if (!scope.is_whole_gpu() || !driver_responds(answered.evidence)) return answered;
        // An unknown layout stays empty: the next round reads it again.
        if (auto layout = inventory::mig_layout_text(*held, index)) answered.mig_layout = std::move(*layout);
        return answered;
      },
      [this, use, scope, now, done = std::move(done)](const Result<ProbeResult>& answered) {
        // A MIG device that is gone or cannot be found says nothing about its GPU.
        const bool of_instance =
            !answered && !scope.is_whole_gpu() && !nvml::is_device_fault(answered.error());
        if (answered) {
          done(answered->evidence);
        } else if (of_instance) {
          done({});
        } else {
          done({{{scope.gpu}, now, handle_reading_of_error(answered.error())}});
        }
        const Gpu* after = last_snapshot_ ? last_snapshot_->find(scope.gpu) : nullptr;
        if (!answered || after == nullptr || after->unreadable) return;
        // Not every driver sends an event for a new MIG layout.
        const auto& layout = answered->mig_layout;
        if (!layout.empty() && layout != inventory::mig_layout_text(*after)) notify_changed();
      });
}

void NvmlDriver::probe_gpu(DeviceUuid gpu, std::function<void(Evidence)> done) {
  const health::Scope scope{gpu};
  run_probe(
      scope,
      [scope, now = loop_.now()](const nvml::Session& session, nvml::Device device) {
        return read_liveness_evidence(session, device, scope.gpu, now);
      },
      std::move(done));
}

void NvmlDriver::poll_device(health::Scope scope, std::function<void(Evidence)> done) {
  // Reading the flash memory is slow: once after the driver was opened, and after each fault.
  const bool with_inforom = !valid_inforoms_.contains(scope.gpu);
  run_probe(
      scope,
      [scope, with_inforom, now = loop_.now()](const nvml::Session& session, nvml::Device device) {
        return read_health_evidence(session, device, scope, now, with_inforom);
      },
      [this, gpu = scope.gpu, done = std::move(done)](Evidence evidence) {
        for (const auto& one : evidence) {
          const auto* inforom = std::get_if<health::InforomReading>(&one.body);
          const auto* notice = std::get_if<health::SourceNotice>(&one.body);
          const bool absent =
              notice != nullptr && notice->source == health::Source::kInforom && !notice->transient;
          if ((inforom != nullptr && inforom->valid) || absent) valid_inforoms_.insert(gpu);
        }
        if (!driver_responds(evidence)) valid_inforoms_.erase(gpu);
        done(std::move(evidence));
      });
}

Result<inventory::Snapshot> read_snapshot_once(NvmlDriverOptions options) {
  options.events = false;
  EpollLoop loop;
  Result<inventory::Snapshot> result = fail(Code::kInternal, "the driver was not read");
  NvmlDriver driver(loop, std::move(options));
  driver.open_driver([&](const Status& opened) {
    if (!opened) {
      result = fail(opened.error());
      loop.stop_loop();
      return;
    }
    driver.read_snapshot([&](Result<inventory::Snapshot> snapshot) {
      result = std::move(snapshot);
      loop.stop_loop();
    });
  });
  loop.run_loop();
  return result;
}

}  // namespace gpulet::agent
