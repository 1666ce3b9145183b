#include "agent/driver/nvml_adapters.h"

#include "agent/driver/gpu_lookup.h"
#include "mig/apply.h"
#include "mig/hardware.h"

namespace gpulet::agent {

void NvmlSampler::set_fields(std::set<metrics::Field> fields) {
  // Equal fields keep the readers and what they measure between two samples.
  if (fields == fields_) return;
  fields_ = std::move(fields);
  readers_.clear();
}

void NvmlSampler::sample_gpu(inventory::SnapshotPtr snapshot, std::size_t index, Time now, Done done) {
  const DeviceUuid uuid = snapshot->gpus[index].uuid;
  std::erase_if(readers_, [&](const auto& one) { return snapshot->find(one.first) == nullptr; });
  auto& idle_reader = readers_[uuid];
  auto reader =
      idle_reader ? std::exchange(idle_reader, nullptr) : std::make_shared<metrics::GpuReader>(fields_);
  driver_.run_on_gpu<Sampled>(
      uuid, "sampling", limit_,
      [reader, snapshot, index, now, proc = proc_](const NvmlDriver::SessionPtr& session,
                                                   unsigned) -> Result<Sampled> {
        Sampled sampled{reader->sample_gpu(*session, *snapshot, index, now.time_since_epoch()), {}};
        sampled.cgroups = metrics::read_cgroups(sampled.gpu, proc);
        metrics::mark_processes_outside_pods(sampled.cgroups, sampled.gpu);
        metrics::read_process_names(sampled.gpu, proc);
        return sampled;
      },
      [this, alive = lifetime_.watch(), uuid, reader, done = std::move(done)](Result<Sampled> sampled) {
        if (!alive) return;
        // An abandoned call may use its reader forever.
        const bool back = sampled || sampled.error().code() != Code::kDeadlineExceeded;
        if (const auto at = readers_.find(uuid); back && at != readers_.end()) at->second = reader;
        done(std::move(sampled));
      });
}

namespace {

// A reading that takes longer is given up.
constexpr Duration kMemoryReadingLimit = std::chrono::seconds(2);

// Where the driver does not report what it reserves, its use includes that, and counts as unknown.
std::optional<Bytes> used_memory(const nvml::Usage& usage) {
  const auto memory = usage.memory();
  return memory && memory->reserved ? std::optional(memory->used) : std::nullopt;
}

// What watch_gpu_memory() repeats.
class MemoryWatch {
 public:
  MemoryWatch(std::vector<GpuMemoryQuestion> known, unsigned intervals)
      : known_(std::move(known)), intervals_(intervals) {}

  // Whether it ends: the last interval, or the use of a GPU is not the known one, or is unknown.
  bool compare_use(const nvml::Session& session, const NvmlDriver::GpuIndices& indices) {
    if (++passed_ >= intervals_) return true;
    for (std::size_t i = devices_.size(); i < known_.size(); ++i) {
      if (!indices[i]) return true;
      const auto device = find_gpu_at(session, *indices[i], known_[i].gpu);
      if (!device) return true;
      devices_.push_back(*device);
    }
    for (std::size_t i = 0; i < known_.size(); ++i) {
      const auto used = used_memory(nvml::Usage(session, devices_[i]));
      if (!used || used != known_[i].known) return true;
    }
    return false;
  }
  unsigned passed() const { return passed_; }  // once it has ended

 private:
  const std::vector<GpuMemoryQuestion> known_;
  const unsigned intervals_;
  std::vector<nvml::Device> devices_;  // of the session
  unsigned passed_ = 0;
};

Result<GpuMemoryReading> read_memory_of(const nvml::Session& session, std::optional<unsigned> index,
                                        const GpuMemoryQuestion& question) {
  if (!index) return fail(Code::kNotFound, "the driver no longer lists this GPU", question.gpu.str());
  GPULET_TRY_ASSIGN(const auto device, find_gpu_at(session, *index, question.gpu));
  const nvml::Usage usage(session, device);
  GpuMemoryReading reading;
  // Before the processes: what changes in between is a change at the next reading.
  reading.used = used_memory(usage);
  if (question.known && reading.used == question.known) return reading;
  GPULET_TRY_ASSIGN(const auto processes, usage.process_memory());
  reading.processes.emplace();
  for (const auto& one : processes) reading.processes->push_back({one.process.pid, one.memory});
  return reading;
}

}  // namespace

void read_gpu_memory(NvmlDriver& driver, std::vector<GpuMemoryQuestion> questions,
                     std::function<void(Result<GpuMemoryReadings>)> done) {
  std::vector<DeviceUuid> gpus;
  for (const auto& question : questions) gpus.push_back(question.gpu);
  driver.run_on_gpus<GpuMemoryReadings>(
      std::move(gpus), "reading the memory of", kMemoryReadingLimit,
      [questions = std::move(questions)](const NvmlDriver::SessionPtr& session, const auto& indices) {
        GpuMemoryReadings readings;
        for (std::size_t i = 0; i < questions.size(); ++i)
          readings.push_back(read_memory_of(*session, indices[i], questions[i]));
        return Result<GpuMemoryReadings>(std::move(readings));
      },
      std::move(done));
}

Subscription watch_gpu_memory(NvmlDriver& driver, std::vector<GpuMemoryQuestion> known, unsigned intervals,
                              std::function<void(Result<unsigned>)> ended) {
  std::vector<DeviceUuid> gpus;
  for (const auto& question : known) gpus.push_back(question.gpu);
  const auto watch = std::make_shared<MemoryWatch>(std::move(known), intervals);
  return driver.repeat_on_gpus(
      gpus, "watching the memory of", kAuditInterval,
      [watch](const nvml::Session& session, const auto& indices) {
        return watch->compare_use(session, indices);
      },
      [watch, ended = std::move(ended)](const Status& end) {
        ended(end ? Result<unsigned>(watch->passed()) : fail(end.error()));
      });
}

namespace {

Result<MigApplied> apply_plan_to(const NvmlDriver::SessionPtr& session, unsigned index, const DeviceUuid& gpu,
                                 const mig::Plan& plan) {
  const auto hardware = mig::make_hardware(session, index, gpu);
  const auto report = mig::apply_plan(*hardware, plan);
  switch (report.outcome) {
    case mig::Outcome::kDone:
      return MigApplied{};
    case mig::Outcome::kNeedsReset:
      return MigApplied{.needs_reset = true, .in_use = report.in_use, .holders = report.holders};
    case mig::Outcome::kAsBefore:
    case mig::Outcome::kInBetween:
      break;
  }
  const Code code = report.error ? report.error->code() : Code::kInternal;
  return fail(code, mig::describe_report(report));
}

}  // namespace

template <class Done>
NvmlDriver* NvmlMigHardware::find_driver(const Done& done) {
  auto* driver = driver_();
  if (driver == nullptr)
    loop_.post([done] { done(fail(Code::kUnavailable, "the driver is being initialised")); });
  return driver;
}

void NvmlMigHardware::read_mig_state(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) {
  auto* driver = find_driver(done);
  if (driver == nullptr) return;
  driver->run_on_gpu<mig::State>(
      gpu, "reading MIG of", std::chrono::seconds(30),
      [](const NvmlDriver::SessionPtr& session, unsigned index) {
        return mig::read_mig_state(*session, index);
      },
      std::move(done));
}

void NvmlMigHardware::apply_mig_plan(const DeviceUuid& gpu, const mig::Plan& plan,
                                     std::function<void(Result<MigApplied>)> done) {
  auto* driver = find_driver(done);
  if (driver == nullptr) return;
  const auto apply = [gpu, plan](const NvmlDriver::SessionPtr& session, unsigned index) {
    return apply_plan_to(session, index, gpu, plan);
  };
  const std::string what = "changing MIG of";
  if (plan.set_mode || plan.needs_reset) {
    driver->run_alone_on_gpu<MigApplied>(gpu, what, kMigLimit, apply, std::move(done));
  } else {
    driver->run_on_gpu<MigApplied>(gpu, what, kMigLimit, apply, std::move(done));
  }
}

}  // namespace gpulet::agent
