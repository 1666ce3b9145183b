// What gRPC runs later or on another thread. gRPC's own engine looks for timers once a second and keeps a
// pool of threads; this one has a single thread, which sleeps until the next timer. gRPC 1.51 asks an engine
// for nothing else: it has its own sockets and name resolution.
//
// Source: grpc/event_engine/event_engine.h.
#pragma once

namespace gpulet::device_plugin {

// Makes gRPC use it from here on. Call it before the process makes its first server or channel; calling it
// again changes nothing. Any thread.
void use_sleeping_event_engine();

}  // namespace gpulet::device_plugin
