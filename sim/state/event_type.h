// The kinds of events that the driver reports. Source: nvml.h, nvmlEventType*.
#pragma once

#include <cstdint>

namespace gpulet::sim {

// nvmlEventType*: the bits of Event::type.
enum EventType : std::uint64_t {
  kEventSingleBitEcc = 0x1,
  kEventDoubleBitEcc = 0x2,
  kEventPState = 0x4,
  kEventXid = 0x8,
  kEventClock = 0x10,
  kEventPowerSource = 0x80,
  kEventMigConfig = 0x100,
  kEventSingleBitEccStorm = 0x200,
  kEventDramRetirement = 0x400,
  kEventDramRetirementFailure = 0x800,
  kEventNonFatalPoison = 0x1000,
  kEventFatalPoison = 0x2000,
  kEventGpuUnavailable = 0x4000,
  kEventGpuRecoveryAction = 0x8000,
};
inline constexpr std::uint64_t kEventsSinceHopper = kEventPowerSource | kEventSingleBitEccStorm |
                                                    kEventDramRetirement | kEventDramRetirementFailure |
                                                    kEventNonFatalPoison | kEventFatalPoison;

}  // namespace gpulet::sim
