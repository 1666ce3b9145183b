// What the checks of a preflight have found on one GPU, as values, as the JSON that `gpulet preflight -o
// json` prints, and the verdict over one run of that program.
//
//   {"gpu": "GPU-5a…", "model": "NVIDIA H100 80GB HBM3", "checks": [
//     {"check": "memory", "outcome": "passed", "message": "4096 MiB"},
//     {"check": "host-copy", "outcome": "slow", "bytesPerSecond": 9000000000,
//      "expectedBytesPerSecond": 50000000000, "message": "…"}]}
//
// Unknown is not broken: only a wrong word of memory, a wrong result, a CUDA error that says that the GPU is
// faulty, or a program that hangs twice counts as a fault. Pure: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::preflight {

enum class Check { kMemory, kCompute, kHostCopy, kPeerCopy };
inline constexpr std::array<std::string_view, 4> kCheckNames = {"memory", "compute", "host-copy",
                                                                "peer-copy"};
inline std::string_view enum_name(Check check) { return kCheckNames[static_cast<std::size_t>(check)]; }
std::optional<Check> parse_check(std::string_view name);

enum class Outcome {
  kPassed,
  kSlow,    // copies reach less than half of the model's figure
  kFailed,  // the GPU is faulty
  kNotRun,  // nothing is known
};
std::string_view enum_name(Outcome outcome);  // "not-run"

struct CheckResult {
  Check check = Check::kMemory;
  Outcome outcome = Outcome::kNotRun;
  std::string message{};                                     // one line
  std::optional<std::uint64_t> bytes_per_second{};           // the slower direction
  std::optional<std::uint64_t> expected_bytes_per_second{};  // of this model; nullopt: not known
  std::string peer{};                                        // of kPeerCopy: its UUID
  friend bool operator==(const CheckResult&, const CheckResult&) = default;
};

struct Report {
  std::string gpu;  // UUID
  std::string model{};
  std::vector<CheckResult> checks{};
  friend bool operator==(const Report&, const Report&) = default;
};

inline constexpr std::size_t kMaxReportBytes = 64u << 10;
inline constexpr std::size_t kMaxReportChecks = 64;
inline constexpr std::size_t kMaxReportText = 512;  // of one string

// One line of JSON.
std::string format_report(const Report& report);
// Control characters in texts become '?'. Errors: kInvalidArgument for a text that is longer or nested deeper
// than the limits, or no such document, with the member that is wrong.
Result<Report> parse_report(std::string_view text);

// "memory: word 0x1014 … reads 0x…": the message with its check and peer.
std::string describe_check(const CheckResult& result);

// One run of the program.
struct RunResult {
  enum class Ended { kReported, kTimedOut, kCrashed, kNotStarted };
  Ended ended = Ended::kNotStarted;
  std::string output{};  // of kReported: standard output
  std::string error{};   // of the others, one line
};

struct Verdict {
  enum class Kind {
    kPassed,  // at least one check ran, and none is slow or failed
    kSlow,
    kFailed,
    kUnknown,
    kRunAgain,  // it hung once
  };
  Kind kind = Kind::kUnknown;
  std::string text{};  // why; empty: kPassed with all checks
  std::optional<Report> report{};
};
std::string_view enum_name(Verdict::Kind kind);  // "passed"
// `hung_before`: the run before this one timed out as well.
Verdict judge_run(const RunResult& run, std::string_view gpu, bool hung_before);
// Whether copies with a peer are slow or wrong: either of the two may be at fault.
bool has_peer_fault(const Verdict& verdict);
// The verdict over the checks of the GPU alone: what copies with peers have found is not known.
Verdict judge_own_checks(Verdict verdict);

}  // namespace gpulet::preflight
