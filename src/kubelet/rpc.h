// The one thread that speaks gRPC, for every resource's socket, the kubelet's Register and PodResources.
//
// gRPC's own listeners, connectors and callback pool stay unused: its callback API starts a thread for every two cores
// (up to 16) that wake all the time, its connector backs off for a second when the kubelet has bound and not yet
// listened, and its listener unlinks by path what may be a newer socket by then. So the loop listens, accepts and
// connects, and hands connected sockets over; one server and one completion queue serve all of them.
#pragma once

#include <memory>

namespace gpulet::kubelet {

class Rpc;  // in rpc_core.h, for this room alone

// Starts the thread. Ends it (open calls are cancelled) when the last owner is gone, within milliseconds.
std::shared_ptr<Rpc> make_rpc();

}  // namespace gpulet::kubelet
