"""The kubelet's PodResources API v1, without NVIDIA's code: grpcio and a minimal protobuf decoder."""
import grpc


def fields(data):
    """(field number, value) of each field of a message: bytes for strings and messages, int for the rest."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            size = varint()
            yield key >> 3, data[at:at + size]
            at += size
        else:
            raise ValueError(f"wire type {key & 7}")


def every(data, number):
    return [value for found, value in fields(data) if found == number]


def first(data, number, default=b""):
    return next(iter(every(data, number)), default)


def decode_device(data):
    """(resource, ids, NUMA nodes) of a ContainerDevices."""
    nodes = [first(node, 1, 0) for topology in every(data, 3) for node in every(topology, 1)]
    return first(data, 1).decode(), [value.decode() for value in every(data, 2)], nodes


class PodResources:
    def __init__(self, socket):
        self.socket = socket
        self.channel = None

    def call(self, method):
        if self.channel is None:
            self.channel = grpc.insecure_channel(f"unix:{self.socket}", options=[("grpc.max_receive_message_length", 1 << 26)])
        try:
            return self.channel.unary_unary(f"/v1.PodResourcesLister/{method}")(b"", timeout=10, wait_for_ready=True)
        except grpc.RpcError:
            self.channel.close()
            self.channel = None
            raise

    def held(self):
        """Pod → ids of its devices by the kubelet, with repetitions."""
        held = {}
        for pod in every(self.call("List"), 1):
            for container in every(pod, 3):
                for device in every(container, 2):
                    _, ids, _ = decode_device(device)
                    held.setdefault(first(pod, 1).decode(), []).extend(ids)
        return held

    def every_allocatable(self):
        """Resource → id → NUMA nodes, in one call: the kubelet allows few a second."""
        found = {}
        for device in every(self.call("GetAllocatableResources"), 1):
            name, ids, nodes = decode_device(device)
            found.setdefault(name, {}).update((device_id, nodes) for device_id in ids)
        return found

    def allocatable(self, resource):
        """Id → NUMA nodes of a resource's devices."""
        return self.every_allocatable().get(resource, {})
