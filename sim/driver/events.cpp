// Event sets. A set remembers, for each GPU registered, which events it wants and from which on; waiting
// sleeps on the futex of the shared state. Sets live in a table of the process, and a handle names a place in
// it and its turn, so that a freed one is refused.
#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <new>

#include "sim/driver/call.h"

using namespace gpulet::sim;

namespace {

constexpr std::size_t kMaxEventSets = 64;
constexpr std::uint64_t kSetTag = 0xa8;

struct Registration {
  std::uint64_t types = 0;
  std::uint64_t since = 0;  // events up to this sequence came before
};

struct EventSet {
  bool used = false;
  std::uint32_t turn = 0;
  std::uint32_t generation = 0;  // of the driver that it was made with
  std::uint64_t cursor = 0;      // last sequence looked at
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

nvmlEventSet_t handle_of(std::size_t place, std::uint32_t turn) {
  return reinterpret_cast<nvmlEventSet_t>(kSetTag << 56 | static_cast<std::uint64_t>(turn) << 8 | place);
}

// Precondition: the table's mutex is held. Null for what is no live set.
EventSet* find_set(nvmlEventSet_t handle) {
  const auto word = reinterpret_cast<std::uint64_t>(handle);
  if (word >> 56 != kSetTag || (word & 0xff) >= kMaxEventSets) return nullptr;
  EventSet& set = event_sets().sets[word & 0xff];
  return set.used && set.turn == static_cast<std::uint32_t>(word >> 8) ? &set : nullptr;
}

bool wanted(const EventSet& set, const Event& event) {
  if (event.gpu >= kMaxGpus) return false;
  const Registration& registration = set.gpus[event.gpu];
  return event.sequence > registration.since && (registration.types & event.type) != 0;
}

// The next event that the set wants, if one is there.
bool take_event(EventSet& set, const Machine& machine, nvmlEventData_t* data) {
  const std::uint64_t oldest = machine.last_event >= kMaxEvents ? machine.last_event - kMaxEvents + 1 : 1;
  for (std::uint64_t next = std::max(set.cursor + 1, oldest); next <= machine.last_event; ++next) {
    set.cursor = next;
    const Event& event = machine.events[next % kMaxEvents];
    if (!wanted(set, event)) continue;
    data->device = gpu_handle(machine, event.gpu);
    data->eventType = event.type;
    data->eventData = event.data;
    data->gpuInstanceId = event.gpu_instance;
    data->computeInstanceId = event.compute_instance;
    return true;
  }
  return false;
}

// One look: SUCCESS with an event, TIMEOUT when there is none yet, or why no wait is possible.
nvmlReturn_t look(const StateFile& state, nvmlEventSet_t handle, nvmlEventData_t* data) {
  const std::lock_guard lock(event_sets().mutex);
  const ReadGuard machine = state.read();
  if (const auto refused = driver_ready(*machine)) return refused;
  EventSet* set = find_set(handle);
  if (set == nullptr || data == nullptr || set->generation != machine->driver.generation)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (machine->driver.event_wait_error != 0)
    return static_cast<nvmlReturn_t>(machine->driver.event_wait_error);
  return take_event(*set, *machine, data) ? NVML_SUCCESS : NVML_ERROR_TIMEOUT;
}

nvmlReturn_t wait_for_event(nvmlEventSet_t handle, nvmlEventData_t* data, unsigned int timeout_ms) {
  using Clock = std::chrono::steady_clock;
  if (const auto refused = pass_driver_faults()) return refused;
  const StateFile& state = *session().state.load(std::memory_order_acquire);
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    const std::uint32_t seen = state.changes();
    const nvmlReturn_t result = look(state, handle, data);
    if (result != NVML_ERROR_TIMEOUT) return result;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return NVML_ERROR_TIMEOUT;
    state.wait(seen, left.count());
  }
}

}  // namespace

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* result) {
  if (const auto refused = pass_driver_faults()) return refused;
  const std::lock_guard lock(event_sets().mutex);
  const ReadGuard machine = session().state.load(std::memory_order_acquire)->read();
  if (const auto refused = driver_ready(*machine)) return refused;
  if (result == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (std::size_t place = 0; place < kMaxEventSets; ++place) {
    EventSet& set = event_sets().sets[place];
    // Sets of a driver that has gone are gone with it.
    if (set.used && set.generation == machine->driver.generation) continue;
    const std::uint32_t turn = set.turn + 1;
    set = EventSet{};
    set.used = true;
    set.turn = turn;
    set.generation = machine->driver.generation;
    set.cursor = machine->last_event;
    *result = handle_of(place, turn);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle) {
  if (const auto refused = enter_driver()) return refused;
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
  // The table before the machine: every call that takes both takes them in this order.
  std::uint32_t index = 0;
  std::uint64_t supported = 0;
  {
    const GpuCall call(device);
    if (const auto refused = call.refused()) return refused;
    index = call.index();
    supported = call.gpu().supported_events;
  }
  if (types == 0) return NVML_ERROR_INVALID_ARGUMENT;
  if ((types & ~supported) != 0) return NVML_ERROR_NOT_SUPPORTED;
  const std::lock_guard lock(event_sets().mutex);
  EventSet* set = find_set(handle);
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const ReadGuard machine = session().state.load(std::memory_order_acquire)->read();
  if (const auto refused = driver_ready(*machine)) return refused;
  if (set->generation != machine->driver.generation) return NVML_ERROR_INVALID_ARGUMENT;
  Registration& registration = set->gpus[index];
  // A second registration adds; what the first one waits for stays.
  if (registration.types == 0) registration.since = machine->last_event;
  registration.types |= types;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t* data, unsigned int timeout_ms) {
  return wait_for_event(handle, data, timeout_ms);
}

// The first version's struct ends before the instances.
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
