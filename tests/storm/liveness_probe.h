// Probes an agent's /healthz throughout a storm, as the kubelet does.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>

namespace gpulet::storm {

// How long the agent may go without an answer of 200 while its process runs: less than what the manifest's
// livenessProbe permits before the kubelet restarts the container.
inline constexpr std::chrono::seconds kLivenessLimit{10};

class LivenessProbe {
 public:
  explicit LivenessProbe(std::string socket);
  ~LivenessProbe();
  LivenessProbe(const LivenessProbe&) = delete;

  // The agent's process has started: it has kLivenessLimit from now.
  void on_agent_started();
  // It has ended: until it starts again, nothing answers.
  void on_agent_ended();
  // Requests large pages too from now on, or no longer: a listener without memory has to allocate.
  void set_load(bool loaded) { loaded_ = loaded; }
  // Why liveness did not hold; empty while it does.
  std::string violation() const;
  // The last probe was answered with 200, after the agent's last start.
  bool is_live() const;

 private:
  using Clock = std::chrono::steady_clock;
  void probe_until_stopped();
  void probe_once();

  const std::string socket_;
  std::atomic<bool> loaded_{false}, stopped_{false};
  mutable std::mutex mutex_;
  bool running_ = false, live_ = false;
  Clock::time_point answered_{};  // the last answer of 200, or the agent's start
  std::uint64_t starts_ = 0;
  std::string last_answer_, violation_;
  int wake_ = -1;  // eventfd: the end
  std::thread thread_;
};

}  // namespace gpulet::storm
