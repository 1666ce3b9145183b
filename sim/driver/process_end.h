// The library at the end of a client's process.
#pragma once

namespace gpulet::sim {

// With GPULET_SIM_FRAGILE in its environment, a client meets what it may meet with NVIDIA's library: the
// library's static objects are destroyed by the exit handlers of the process, and a thread that is in a call
// then ends the process by SIGSEGV. Without it, both functions do nothing.

// Called where a call uses what the library has destroyed.
void crash_if_destroyed();
// Called in nvmlShutdown, which lasts long enough to coincide with the exit handlers.
void linger_in_shutdown();

}  // namespace gpulet::sim
