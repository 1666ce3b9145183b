#include "agent/observe/host_engine_sampler.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "base/driver_root.h"
#include "base/log.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

constexpr unsigned kHopper = 9;  // compute capability
constexpr std::size_t kMaxRows = 64;
constexpr std::size_t kMaxMessage = 200;

}  // namespace

void HostEngineSampler::use_host_engine(HostEngineSettings settings) {
  if (std::exchange(settings_, std::move(settings)) != settings_) restart();
}

void HostEngineSampler::set_fields(std::set<metrics::Field> fields) {
  auto needed = metrics::host_engine_fields(fields);
  driver_.set_fields(std::move(fields));
  if (std::exchange(fields_, std::move(needed)) != fields_) restart();
}

std::optional<bool> HostEngineSampler::is_connected() const {
  if (!is_needed()) return std::nullopt;
  return process_ != nullptr && !rows_.empty();
}

void HostEngineSampler::sample_gpu(inventory::SnapshotPtr snapshot, std::size_t index, Time now, Done done) {
  const auto& gpu = snapshot->gpus[index];
  const bool is_old = gpu.compute_major > 0 && gpu.compute_major < kHopper;
  if (is_old && !std::exchange(has_old_gpu_, true)) restart();
  if (!is_old || !is_needed()) return driver_.sample_gpu(std::move(snapshot), index, now, std::move(done));
  driver_.sample_gpu(
      snapshot, index, now,
      [this, alive = lifetime_.watch(), snapshot, index, done = std::move(done)](Result<Sampled> sampled) {
        if (alive && sampled) add_values(snapshot->gpus[index], sampled->gpu);
        done(std::move(sampled));
      });
}

void HostEngineSampler::add_values(const inventory::Gpu& gpu, metrics::GpuSample& sample) const {
  const auto row = rows_.find(gpu.pci);
  // In MIG mode the instances have these, and dmon does not tell which is which.
  if (row == rows_.end() || sample.mig || sample.error) return;
  if (loop_.now() - row->second.at > 2 * settings_.interval + kSampleTimeout) return;
  for (const auto& [field, value] : row->second.values) sample.values.try_emplace(field, value);
}

void HostEngineSampler::restart() {
  stop();
  backoff_.reset();
  said_.clear();
  if (is_needed()) start();
}

void HostEngineSampler::stop() {
  retry_.reset();
  silence_.reset();
  reading_.reset();
  process_.reset();
  output_ = FileDescriptor();
  pending_.clear();
  last_message_.clear();
  rows_.clear();
}

void HostEngineSampler::start() {
  stop();
  const auto program = find_driver_program(settings_.driver_root, "dcgmi");
  if (!program) return on_end(program.error().full_message());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return on_end(errno_error("pipe", errno).full_message());
  output_ = FileDescriptor(ends[0]);
  const FileDescriptor child(ends[1]);
  ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  const auto delay = std::chrono::duration_cast<std::chrono::milliseconds>(settings_.interval).count();
  auto arguments = program->arguments;
  // Without --host, dcgmi may start an engine of its own (NVIDIA/DCGM#108), which would take the GPU's
  // performance monitors from a running one.
  for (auto&& word :
       {std::string("dmon"), std::string("--host"), settings_.address, std::string("--field-id"),
        metrics::dmon_field_ids(fields_), std::string("--delay"), std::to_string(delay)})
    arguments.push_back(word);
  auto process = Process::spawn({.program = program->program,
                                 .arguments = arguments,
                                 .environment = program->environment,
                                 .descriptors = {{child.get(), 1}, {child.get(), 2}},
                                 .bind_mounts = program->bind_mounts,
                                 .root = program->root});
  if (!process) return on_end(process.error().full_message());
  process_ = std::move(*process);
  process_->on_exit(loop_, [this](const ProcessExit& exit) {
    read_output();
    on_end(last_message_.empty() ? exit.exit_text() : last_message_);
  });
  reading_ = loop_.watch_descriptor(output_.get(), EPOLLIN, [this](std::uint32_t) { read_output(); });
  watch_silence();
}

void HostEngineSampler::watch_silence() {
  silence_ =
      loop_.after(3 * settings_.interval + kHostEngineSilence, [this] { on_end("it prints no values"); });
}

void HostEngineSampler::read_output() {
  std::array<char, 16'384> buffer{};
  for (;;) {
    const auto got = ::read(output_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) reading_.reset();  // the end of the program follows
    if (got <= 0) return;
    for (const char c : std::string_view(buffer.data(), static_cast<std::size_t>(got))) {
      if (c == '\n') {
        use_line(std::exchange(pending_, {}));
      } else if (pending_.size() < kMaxDmonLine) {
        pending_ += c;
      }
    }
  }
}

void HostEngineSampler::use_line(std::string_view line) {
  if (metrics::is_dmon_header(line)) return;
  auto row = metrics::parse_dmon_row(line, fields_);
  if (!row) {
    last_message_ = text::printable(text::trim(line), kMaxMessage);
    return;
  }
  if (rows_.size() >= kMaxRows && !rows_.contains(row->pci)) return;
  if (rows_.empty()) {
    log::info("nv-hostengine reports profiling fields", {{"address", settings_.address}});
    said_.clear();
  }
  rows_[row->pci] = {std::move(row->values), loop_.now()};
  backoff_.reset();
  watch_silence();
}

void HostEngineSampler::on_end(const std::string& why) {
  const std::string reason = why;  // stop() clears what it may be part of
  stop();
  if (std::exchange(said_, reason) != reason)
    log::warning("DCGM_FI_PROF_* of GPUs before Hopper are absent: dcgmi has no values from nv-hostengine",
                 {{"address", settings_.address}, {"error", reason}});
  if (!backoff_) backoff_.emplace(kHostEngineRetry, std::hash<std::string>()(settings_.address));
  retry_ = loop_.after(backoff_->next_delay(), [this] { start(); });
}

}  // namespace gpulet::agent
