// Graphs of allocations: each launch allocates and frees in the order in which the nodes were added.
#include <algorithm>
#include <vector>

#include "sim/cuda/client.h"
#include "sim/cuda/stream.h"

using namespace gpulet::sim;
using namespace gpulet::sim::cuda;

namespace {

constexpr unsigned long long kAutoFreeOnLaunch = 1, kInstantiateFlags = 0x0f;

enum class NodeKind { kEmpty, kAllocate, kFree };
struct Node {
  CUgraphNode handle;
  NodeKind kind;
  std::shared_ptr<AddressRange> range{};  // of kAllocate: reserved for the life of the graph
  std::uint64_t bytes = 0;
  std::uint32_t device = 0;
  CUdeviceptr freed = 0;
};
using Nodes = std::vector<Node>;
struct Executable {
  Nodes nodes;
  unsigned long long flags;
};

HandleTable<CUgraph, Nodes>& graphs() {
  static auto* const kGraphs = new HandleTable<CUgraph, Nodes>;
  return *kGraphs;
}
HandleTable<CUgraphExec, Executable>& executables() {
  static auto* const kExecutables = new HandleTable<CUgraphExec, Executable>;
  return *kExecutables;
}

CUresult append_graph_node(CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies,
                           std::size_t count, Node node) {
  Nodes* const nodes = graphs().find(graph);
  if (nodes == nullptr || (count != 0 && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::ranges::find(*nodes, dependencies[i], &Node::handle) == nodes->end())
      return CUDA_ERROR_INVALID_VALUE;
  }
  node.handle = *result = reinterpret_cast<CUgraphNode>(last_handle += 16);
  nodes->push_back(std::move(node));
  return CUDA_SUCCESS;
}

CUresult run_allocation(CUcontext context, const Node& node) {
  const CUdeviceptr address = node.range->start();
  auto block = std::make_shared<Block>();
  if (const auto refused =
          GpuMemory::take(client().devices[node.device].gpu, node.range->bytes(), block->memory))
    return refused;
  Allocation made{AllocationKind::kGraph, node.bytes, context, node.device, std::move(block)};
  made.mapped = node.range;
  client().allocations.emplace(address, std::move(made));
  return CUDA_SUCCESS;
}

CUresult run_node(CUcontext context, const Node& node) {
  if (node.kind == NodeKind::kAllocate) return run_allocation(context, node);
  if (node.kind == NodeKind::kFree) free_allocation(node.freed);
  return CUDA_SUCCESS;
}

// What an earlier launch has not freed: an error, unless the graph frees it itself.
CUresult end_earlier_launch(const Executable& executable) {
  for (const Node& node : executable.nodes) {
    if (node.kind != NodeKind::kAllocate || !client().allocations.contains(node.range->start())) continue;
    if ((executable.flags & kAutoFreeOnLaunch) == 0) return CUDA_ERROR_INVALID_VALUE;
    free_allocation(node.range->start());
  }
  return CUDA_SUCCESS;
}

}  // namespace

GPULET_CUDA_EXPORT cuGraphCreate(CUgraph* graph, unsigned int flags) {
  const Call call;
  if (const auto error = call.call_error(graph)) return error;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *graph = graphs().add({});
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuGraphDestroy(CUgraph graph) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  return graphs().remove(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
GPULET_CUDA_EXPORT cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                       std::size_t count) {
  const Call call;
  if (const auto error = call.call_error(node)) return error;
  return append_graph_node(node, graph, dependencies, count, Node{nullptr, NodeKind::kEmpty});
}
GPULET_CUDA_EXPORT cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                          std::size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  const Call call;
  if (const auto error = call.call_error(node, parameters)) return error;
  const CUmemLocation location = parameters->poolProps.location;
  if (parameters->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || parameters->bytesize == 0 ||
      location.type != CU_MEM_LOCATION_TYPE_DEVICE || find_device(location.id) == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  if (parameters->bytesize > kMaxBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  auto range = AddressRange::reserve(round_to_pages(parameters->bytesize), true);
  if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
  Node made{nullptr, NodeKind::kAllocate, std::make_shared<AddressRange>(std::move(*range)),
            parameters->bytesize, static_cast<std::uint32_t>(location.id)};
  const CUdeviceptr address = made.range->start();
  if (const auto error = append_graph_node(node, graph, dependencies, count, std::move(made))) return error;
  parameters->dptr = address;
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                         std::size_t count, CUdeviceptr address) {
  const Call call;
  if (const auto error = call.call_error(node)) return error;
  const Nodes* const nodes = graphs().find(graph);
  const bool is_allocated = nodes != nullptr && std::ranges::any_of(*nodes, [address](const Node& one) {
                              return one.kind == NodeKind::kAllocate && one.range->start() == address;
                            });
  if (!is_allocated) return CUDA_ERROR_INVALID_VALUE;
  Node made{nullptr, NodeKind::kFree};
  made.freed = address;
  return append_graph_node(node, graph, dependencies, count, std::move(made));
}
GPULET_CUDA_EXPORT cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                               unsigned long long flags) {
  const ContextCall call;
  if (const auto error = call.call_error(executable)) return error;
  const Nodes* const nodes = graphs().find(graph);
  if (nodes == nullptr || flags > kInstantiateFlags) return CUDA_ERROR_INVALID_VALUE;
  *executable = executables().add(Executable{*nodes, flags});
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  const Executable* const executable = executables().find(handle);
  if (executable == nullptr || !is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (const auto error = end_earlier_launch(*executable)) return error;
  for (const Node& node : executable->nodes) {
    if (const auto error = run_node(call.handle(), node)) return error;
  }
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuGraphExecDestroy(CUgraphExec executable) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  return executables().remove(executable) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
GPULET_CUDA_ALIAS(cuGraphLaunch, cuGraphLaunch_ptsz);
