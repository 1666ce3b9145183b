// Event sets. A set stores, for each registered GPU, the event types and the first event. Waiting sleeps on
// the futex of the shared state. Sets are in a table of the process; a handle contains the index and its
// generation, so that a freed one is refused.
#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <new>

#include "sim/driver/rights.h"

using namespace gpulet::sim;

namespace {

constexpr std::size_t kMaxEventSets = 64;
constexpr std::uint64_t kSetTag = 0xa8;

struct Registration {
  std::uint64_t types = 0;
  std::uint64_t since = 0;  // events up to this sequence are older than the registration
};

struct EventSet {
  bool used = false;
  std::uint32_t turn = 0;
  std::uint32_t generation = 0;  // of the driver at its creation
  std::uint64_t cursor = 0;      // last sequence examined
  std::array<Registration, kMaxGpus> gpus;
};

struct EventSets {
  std::mutex mutex;
  std::array<EventSet, kMaxEventSets> sets;
};

EventSets& event_sets() {
  static EventSets* const kSets = new EventSets;
  return *kSets;
}

nvmlEventSet_t event_set_handle(std::size_t place, std::uint32_t turn) {
  return reinterpret_cast<nvmlEventSet_t>(kSetTag << 56 | static_cast<std::uint64_t>(turn) << 8 | place);
}

// Returns null for an invalid set. Precondition: the table's mutex is held.
EventSet* find_set(nvmlEventSet_t handle) {
  const auto word = reinterpret_cast<std::uint64_t>(handle);
  if (word >> 56 != kSetTag || (word & 0xff) >= kMaxEventSets) return nullptr;
  EventSet& set = event_sets().sets[word & 0xff];
  return set.used && set.turn == static_cast<std::uint32_t>(word >> 8) ? &set : nullptr;
}

bool is_registered(const EventSet& set, const Event& event) {
  if (event.gpu >= kMaxGpus) return false;
  const Registration& registration = set.gpus[event.gpu];
  return event.sequence > registration.since && (registration.types & event.type) != 0;
}

// Returns the next registered event, if any.
bool next_event(EventSet& set, const Machine& machine, nvmlEventData_t* data) {
  const std::uint64_t oldest = machine.last_event >= kMaxEvents ? machine.last_event - kMaxEvents + 1 : 1;
  for (std::uint64_t next = std::max(set.cursor + 1, oldest); next <= machine.last_event; ++next) {
    set.cursor = next;
    const Event& event = machine.events[next % kMaxEvents];
    if (!is_registered(set, event)) continue;
    if (event.gpu_instance != kNoInstance && !may_monitor_mig()) continue;
    data->device = gpu_handle(machine, event.gpu);
    data->eventType = event.type;
    data->eventData = event.data;
    data->gpuInstanceId = event.gpu_instance;
    data->computeInstanceId = event.compute_instance;
    return true;
  }
  return false;
}

// Polls once: SUCCESS with an event, TIMEOUT without one, or the error that prevents waiting.
nvmlReturn_t poll_event_set(const StateFile& state, nvmlEventSet_t handle, nvmlEventData_t* data) {
  const std::lock_guard lock(event_sets().mutex);
  const ReadGuard machine = state.lock_for_read();
  if (const auto error = driver_ready(*machine)) return error;
  EventSet* set = find_set(handle);
  if (set == nullptr || data == nullptr || set->generation != machine->driver.generation)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (machine->driver.event_wait_error != 0)
    return static_cast<nvmlReturn_t>(machine->driver.event_wait_error);
  return next_event(*set, *machine, data) ? NVML_SUCCESS : NVML_ERROR_TIMEOUT;
}

nvmlReturn_t wait_for_event(nvmlEventSet_t handle, nvmlEventData_t* data, unsigned int timeout_ms) {
  using Clock = std::chrono::steady_clock;
  if (const auto error = wait_out_driver_faults()) return error;
  const StateFile& state = *session().state.load(std::memory_order_acquire);
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    const std::uint32_t seen = state.change_count();
    const nvmlReturn_t result = poll_event_set(state, handle, data);
    if (result != NVML_ERROR_TIMEOUT) return result;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return NVML_ERROR_TIMEOUT;
    state.wait_for_change(seen, left.count());
  }
}

}  // namespace

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* result) {
  if (const auto error = wait_out_driver_faults()) return error;
  const std::lock_guard lock(event_sets().mutex);
  const ReadGuard machine = session().state.load(std::memory_order_acquire)->lock_for_read();
  if (const auto error = driver_ready(*machine)) return error;
  if (result == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (std::size_t place = 0; place < kMaxEventSets; ++place) {
    EventSet& set = event_sets().sets[place];
    // A reload of the driver invalidates its sets.
    if (set.used && set.generation == machine->driver.generation) continue;
    const std::uint32_t turn = set.turn + 1;
    set = EventSet{};
    set.used = true;
    set.turn = turn;
    set.generation = machine->driver.generation;
    set.cursor = machine->last_event;
    *result = event_set_handle(place, turn);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle) {
  if (const auto error = enter_driver()) return error;
  const std::lock_guard lock(event_sets().mutex);
  EventSet* set = find_set(handle);
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  set->used = false;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long* types) {
  return get(device, types, [](const Gpu& gpu) { return gpu.supported_events; });
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle) {
  // Lock order: the table before the machine.
  std::uint32_t index = 0;
  std::uint64_t supported = 0;
  {
    const GpuCall call(device);
    if (const auto error = call.entry_error()) return error;
    index = call.gpu_index();
    supported = call.gpu_state().supported_events;
  }
  if (types == 0) return NVML_ERROR_INVALID_ARGUMENT;
  if ((types & ~supported) != 0) return NVML_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(event_sets().mutex);
  EventSet* set = find_set(handle);
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const ReadGuard machine = session().state.load(std::memory_order_acquire)->lock_for_read();
  if (const auto error = driver_ready(*machine)) return error;
  if (set->generation != machine->driver.generation) return NVML_ERROR_INVALID_ARGUMENT;
  Registration& registration = set->gpus[index];
  // A second registration adds event types.
  if (registration.types == 0) registration.since = machine->last_event;
  registration.types |= types;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t* data, unsigned int timeout_ms) {
  return wait_for_event(handle, data, timeout_ms);
}

// The version 1 struct ends before the instances.
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t handle, nvmlEventData_t* data, unsigned int timeout_ms) {
  if (data == nullptr) return wait_for_event(handle, nullptr, timeout_ms);
  nvmlEventData_t whole{};
  const nvmlReturn_t result = wait_for_event(handle, &whole, timeout_ms);
  if (result != NVML_SUCCESS) return result;
  data->device = whole.device;
  data->eventType = whole.eventType;
  data->eventData = whole.eventData;
  return NVML_SUCCESS;
}
