// Pods that hold a GPU or its instances, beside the processes that the driver tells of: a Pod that has begun
// and runs nothing yet holds its device all the same.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/strong.h"
#include "mig/apply.h"
#include "mig/state.h"

namespace gpulet::mig {

// "namespace/name" by the device that the kubelet gave to it, shares of one ("MIG-…::2") included.
using Pods = std::map<DeviceId, std::string>;

// Adds each as "Pod namespace/name", once, to the holders of what it holds; who holds the GPU as a whole
// holds each of its instances.
void add_pods(State& state, const Pods& pods);

// `hardware`, with the Pods among the holders of its states, asked for anew each time: nothing that was given
// to a Pod since the plan was made is destroyed. `pods` may block. Its errors are those of read() and
// holders(). Precondition: `hardware` lives longer.
std::unique_ptr<Hardware> with_pods(Hardware& hardware, std::function<Result<Pods>()> pods);

}  // namespace gpulet::mig
