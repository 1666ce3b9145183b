#include "preflight/checks.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "preflight/cuda_library.h"
#include "preflight/kernel.h"
#include "preflight/model_figures.h"

namespace gpulet::preflight {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::uint64_t kMib = 1U << 20;
constexpr std::size_t kChunkBytes = 64 * kMib;  // of one copy
constexpr unsigned kCopies = 5;                 // of each direction; the fastest counts
constexpr unsigned kThreads = 1U << 17, kBlock = 256, kRounds = 64, kLaunches = 4;
constexpr std::array<std::uint32_t, 2> kPatterns = {0x55555555, 0xAAAAAAAA};

// A call that failed; its check ends.
struct CallError {
  std::string call;
  CudaResult result;
};
using CallStatus = std::optional<CallError>;

std::string hex_text(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string speed_text(std::uint64_t bytes_per_second) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GB/s", static_cast<double>(bytes_per_second) / 1e9);
  return text;
}

// "GPU-5a…" of cuDeviceGetUuid's bytes.
std::string uuid_text(const CudaUuid& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof uuid; ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", uuid[i]);
    text += (i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits);
  }
  return text;
}

class Checker {
 public:
  Checker(const CudaLibrary& cuda, const CheckOptions& options, Report& report)
      : cuda_(cuda), options_(options), report_(report), end_(SteadyClock::now() + options.limit) {}

  // Why no check can run; nullopt: they can.
  std::optional<std::string> open_gpu();
  void run_all();

 private:
  struct Device {
    int number = 0;
    CudaHandle context = nullptr;
  };

  bool is_late() const { return SteadyClock::now() >= end_; }
  void add_result(CheckResult result) { report_.checks.push_back(std::move(result)); }
  void add_error(CheckResult result, const CallError& error);
  std::optional<Device> find_cuda_device(const std::string& uuid) const;
  void run_check(Check check);
  CallStatus check_memory(CheckResult& result);
  CallStatus compare_memory(CudaAddress memory, std::size_t bytes, CheckResult& result);
  CallStatus check_compute(CheckResult& result);
  CallStatus launch_kernels(CudaAddress out, CudaHandle function, CheckResult& result);
  CallStatus check_host_copy(CheckResult& result);
  CallStatus check_peer_copy(CheckResult& result);
  CallStatus copy_with_peer(const Device& peer, CudaAddress near, CudaAddress far, CheckResult& result);
  // The fastest of several copies, in bytes a second.
  template <class Copy>
  CallStatus measure(const char* name, const Copy& copy, std::uint64_t& bytes_per_second);
  void judge_speed(CheckResult& result, std::uint64_t there, std::uint64_t back,
                   std::optional<std::uint64_t> figure) const;
  CallStatus allocate_chunks(std::size_t most, CudaAddress& memory, std::size_t& bytes);

  const CudaLibrary& cuda_;
  const CheckOptions& options_;
  Report& report_;
  const SteadyClock::time_point end_;
  Device device_;
  void* host_ = nullptr;  // kChunkBytes of pinned memory
  CudaHandle start_ = nullptr, stop_ = nullptr;
};

#define GPULET_CUDA_TRY(member, ...)                                  \
  if (const CudaResult code = cuda_.member(__VA_ARGS__); code != 0) { \
    return CallError{#member, code};                                  \
  }

std::optional<Checker::Device> Checker::find_cuda_device(const std::string& uuid) const {
  int count = 0;
  if (cuda_.device_count(&count) != 0) return std::nullopt;
  for (int i = 0; i < count; ++i) {
    Device device;
    CudaUuid bytes{};
    if (cuda_.device_get(&device.number, i) != 0 || cuda_.device_uuid(&bytes, device.number) != 0) continue;
    if (uuid_text(bytes) == uuid) return device;
  }
  return std::nullopt;
}

std::optional<std::string> Checker::open_gpu() {
  if (const auto code = cuda_.init(0); code != 0) return "cuInit: " + cuda_.error_text(code);
  const auto found = find_cuda_device(options_.gpu);
  if (!found) return "CUDA does not list this GPU";
  device_ = *found;
  char name[256] = "";
  if (cuda_.device_name(name, sizeof name - 1, device_.number) == 0) report_.model = name;
  const std::pair<const char*, std::function<CudaResult()>> steps[] = {
      {"context", [this] { return cuda_.retain_context(&device_.context, device_.number); }},
      {"context", [this] { return cuda_.set_context(device_.context); }},
      {"pinned memory", [this] { return cuda_.allocate_host(&host_, kChunkBytes); }},
      {"event", [this] { return cuda_.create_event(&start_, 0); }},
      {"event", [this] { return cuda_.create_event(&stop_, 0); }},
  };
  for (const auto& [what, step] : steps) {
    if (const auto code = step(); code != 0) return std::string(what) + ": " + cuda_.error_text(code);
  }
  return std::nullopt;
}

void Checker::add_error(CheckResult result, const CallError& error) {
  result.outcome = is_gpu_fault(error.result) ? Outcome::kFailed : Outcome::kNotRun;
  result.message = error.call + ": " + cuda_.error_text(error.result);
  add_result(std::move(result));
}

void Checker::run_all() {
  for (const Check check : options_.checks) {
    if (check != Check::kPeerCopy) {
      run_check(check);
      continue;
    }
    for (const auto& peer : options_.peers) {
      CheckResult result{.check = check, .peer = peer};
      if (const auto error = check_peer_copy(result)) {
        add_error(std::move(result), *error);
      } else {
        add_result(std::move(result));
      }
    }
  }
}

void Checker::run_check(Check check) {
  CheckResult result{.check = check};
  if (is_late()) {
    result.message = "the time was used up by the checks before it";
    return add_result(std::move(result));
  }
  const auto error = check == Check::kMemory    ? check_memory(result)
                     : check == Check::kCompute ? check_compute(result)
                                                : check_host_copy(result);
  if (error) return add_error(std::move(result), *error);
  add_result(std::move(result));
}

// As much of `most` as there is, in whole chunks. No memory: 0 bytes.
CallStatus Checker::allocate_chunks(std::size_t most, CudaAddress& memory, std::size_t& bytes) {
  std::size_t free = 0, total = 0;
  GPULET_CUDA_TRY(memory_info, &free, &total);
  constexpr CudaResult kOutOfMemory = 2;
  for (std::size_t chunks = std::min(most, free) / kChunkBytes; chunks > 0; chunks /= 2) {
    bytes = chunks * kChunkBytes;
    const CudaResult code = cuda_.allocate(&memory, bytes);
    if (code == 0) return std::nullopt;
    if (code != kOutOfMemory) return CallError{"allocate", code};
  }
  bytes = 0;
  return std::nullopt;
}

CallStatus Checker::check_memory(CheckResult& result) {
  CudaAddress memory = 0;
  std::size_t bytes = 0;
  const std::size_t most = std::max<std::size_t>(options_.memory_mib * kMib, kChunkBytes);
  if (auto error = allocate_chunks(most, memory, bytes)) return error;
  if (bytes == 0) {
    result.message = "no memory is free";
    return std::nullopt;
  }
  if (auto error = compare_memory(memory, bytes, result)) return error;
  GPULET_CUDA_TRY(free_memory, memory);
  return std::nullopt;
}

// Each chunk has a value of its own, so that an address that reaches another one's memory is found too.
CallStatus Checker::compare_memory(CudaAddress memory, std::size_t bytes, CheckResult& result) {
  constexpr std::size_t kWords = kChunkBytes / sizeof(std::uint32_t);
  std::size_t compared = 0;
  for (const std::uint32_t pattern : kPatterns) {
    for (std::size_t at = 0; at < bytes; at += kChunkBytes)
      GPULET_CUDA_TRY(fill, memory + at, pattern ^ static_cast<std::uint32_t>(at / kChunkBytes), kWords);
    for (std::size_t at = 0; at < bytes && !(is_late() && compared > 0); at += kChunkBytes) {
      GPULET_CUDA_TRY(copy_to_host, host_, memory + at, kChunkBytes, nullptr);
      GPULET_CUDA_TRY(synchronize);
      compared += kChunkBytes;
      const std::uint32_t wanted = pattern ^ static_cast<std::uint32_t>(at / kChunkBytes);
      const auto* const words = static_cast<const std::uint32_t*>(host_);
      // The first word is right, and each other one is like the one before it.
      if (words[0] == wanted && std::memcmp(words, words + 1, kChunkBytes - sizeof wanted) == 0) continue;
      const auto* const first =
          std::find_if(words, words + kWords, [&](std::uint32_t word) { return word != wanted; });
      const auto count = std::count_if(first, words + kWords, [&](auto word) { return word != wanted; });
      result.outcome = Outcome::kFailed;
      result.message = "the word at offset " +
                       hex_text(at + static_cast<std::size_t>(first - words) * sizeof(std::uint32_t)) +
                       " reads " + hex_text(*first) + ", written " + hex_text(wanted) + "; " +
                       std::to_string(count) + " wrong in " + std::to_string(kChunkBytes / kMib) + " MiB";
      return std::nullopt;
    }
  }
  result.outcome = Outcome::kPassed;
  result.message = std::to_string(compared / kPatterns.size() / kMib) + " MiB";
  return std::nullopt;
}

CallStatus Checker::check_compute(CheckResult& result) {
  CudaHandle module = nullptr, function = nullptr;
  GPULET_CUDA_TRY(load_module, &module, kKernelPtx);
  GPULET_CUDA_TRY(get_function, &function, module, kKernelName);
  CudaAddress out = 0;
  GPULET_CUDA_TRY(allocate, &out, kThreads * sizeof(std::uint32_t));
  if (auto error = launch_kernels(out, function, result)) return error;
  GPULET_CUDA_TRY(free_memory, out);
  return std::nullopt;
}

CallStatus Checker::launch_kernels(CudaAddress out, CudaHandle function, CheckResult& result) {
  std::vector<std::uint32_t> wanted(kThreads);
  for (std::uint32_t i = 0; i < kThreads; ++i) wanted[i] = kernel_result(i, kRounds);
  const auto* const words = static_cast<const std::uint32_t*>(host_);
  unsigned count = kThreads, rounds = kRounds;
  for (unsigned launch = 0; launch < kLaunches; ++launch) {
    GPULET_CUDA_TRY(fill, out, 0, kThreads);
    void* parameters[] = {&out, &count, &rounds};
    GPULET_CUDA_TRY(launch, function, kThreads / kBlock, 1, 1, kBlock, 1, 1, 0, nullptr, parameters, nullptr);
    GPULET_CUDA_TRY(copy_to_host, host_, out, kThreads * sizeof(std::uint32_t), nullptr);
    GPULET_CUDA_TRY(synchronize);
    const auto differing = std::mismatch(wanted.begin(), wanted.end(), words);
    if (differing.first == wanted.end()) continue;
    result.outcome = Outcome::kFailed;
    result.message = "thread " + std::to_string(differing.first - wanted.begin()) + " computes " +
                     hex_text(*differing.second) + ", expected " + hex_text(*differing.first);
    return std::nullopt;
  }
  result.outcome = Outcome::kPassed;
  result.message = std::to_string(kThreads) + " threads";
  return std::nullopt;
}

template <class Copy>
CallStatus Checker::measure(const char* name, const Copy& copy, std::uint64_t& bytes_per_second) {
  float best = 0;
  for (unsigned i = 0; i < kCopies; ++i) {
    GPULET_CUDA_TRY(record_event, start_, nullptr);
    if (const CudaResult code = copy(); code != 0) return CallError{name, code};
    GPULET_CUDA_TRY(record_event, stop_, nullptr);
    GPULET_CUDA_TRY(synchronize);
    float milliseconds = 0;
    GPULET_CUDA_TRY(elapsed, &milliseconds, start_, stop_);
    if (milliseconds > 0 && (best == 0 || milliseconds < best)) best = milliseconds;
  }
  bytes_per_second =
      best == 0 ? 0 : static_cast<std::uint64_t>(static_cast<double>(kChunkBytes) / best * 1e3);
  return std::nullopt;
}

void Checker::judge_speed(CheckResult& result, std::uint64_t there, std::uint64_t back,
                          std::optional<std::uint64_t> figure) const {
  const std::uint64_t slower = std::min(there, back);
  result.bytes_per_second = slower;
  result.expected_bytes_per_second = figure;
  const bool slow = figure && is_slow(slower, *figure);
  result.outcome = slow ? Outcome::kSlow : Outcome::kPassed;
  result.message = speed_text(there) + " to it, " + speed_text(back) + " from it";
  if (slow) result.message += "; usual is " + speed_text(*figure);
}

CallStatus Checker::check_host_copy(CheckResult& result) {
  CudaAddress memory = 0;
  GPULET_CUDA_TRY(allocate, &memory, kChunkBytes);
  std::uint64_t there = 0, back = 0;
  if (auto error = measure(
          "copy_to_device", [&] { return cuda_.copy_to_device(memory, host_, kChunkBytes, nullptr); }, there))
    return error;
  if (auto error = measure(
          "copy_to_host", [&] { return cuda_.copy_to_host(host_, memory, kChunkBytes, nullptr); }, back))
    return error;
  GPULET_CUDA_TRY(free_memory, memory);
  judge_speed(result, there, back, figures_of(report_.model).host_bytes_per_second);
  return std::nullopt;
}

CallStatus Checker::check_peer_copy(CheckResult& result) {
  auto peer = find_cuda_device(result.peer);
  if (is_late() || !peer) {
    result.message = peer ? "the time was used up by the checks before it" : "CUDA does not list this peer";
    return std::nullopt;
  }
  int reaches = 0;
  GPULET_CUDA_TRY(can_access_peer, &reaches, device_.number, peer->number);
  if (reaches == 0) {
    result.message = "no direct access";
    return std::nullopt;
  }
  CudaAddress near = 0, far = 0;
  GPULET_CUDA_TRY(allocate, &near, kChunkBytes);
  GPULET_CUDA_TRY(retain_context, &peer->context, peer->number);
  GPULET_CUDA_TRY(set_context, peer->context);
  GPULET_CUDA_TRY(allocate, &far, kChunkBytes);
  GPULET_CUDA_TRY(set_context, device_.context);
  GPULET_CUDA_TRY(enable_peer, peer->context, 0);
  if (auto error = copy_with_peer(*peer, near, far, result)) return error;
  GPULET_CUDA_TRY(free_memory, near);
  return std::nullopt;
}

CallStatus Checker::copy_with_peer(const Device& peer, CudaAddress near, CudaAddress far,
                                   CheckResult& result) {
  std::uint64_t there = 0, back = 0;
  if (auto error = measure(
          "copy_to_peer",
          [&] { return cuda_.copy_to_peer(near, device_.context, far, peer.context, kChunkBytes, nullptr); },
          there))
    return error;
  if (auto error = measure(
          "copy_to_peer",
          [&] { return cuda_.copy_to_peer(far, peer.context, near, device_.context, kChunkBytes, nullptr); },
          back))
    return error;
  judge_speed(result, there, back, figures_of(report_.model).peer_bytes_per_second);
  return std::nullopt;
}

#undef GPULET_CUDA_TRY

// Every check, with why none of them can run.
void add_not_run(Report& report, const CheckOptions& options, const std::string& why) {
  for (const Check check : options.checks) {
    if (check != Check::kPeerCopy) {
      report.checks.push_back({.check = check, .message = why});
      continue;
    }
    for (const auto& peer : options.peers)
      report.checks.push_back({.check = check, .message = why, .peer = peer});
  }
}

}  // namespace

std::string visible_devices(const CheckOptions& options) {
  std::string list = options.gpu;
  for (const auto& peer : options.peers) list += "," + peer;
  return list;
}

Report run_checks(const CheckOptions& options) {
  Report report{.gpu = options.gpu};
  const auto cuda = CudaLibrary::load_library(options.library);
  if (!cuda) {
    add_not_run(report, options, cuda.error().full_message());
    return report;
  }
  Checker checker(**cuda, options, report);
  if (const auto why = checker.open_gpu()) {
    add_not_run(report, options, *why);
  } else {
    checker.run_all();
  }
  return report;
}

}  // namespace gpulet::preflight
