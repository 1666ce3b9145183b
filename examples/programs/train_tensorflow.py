"""Trains a classifier with TensorFlow: on all GPUs of the container (MirroredStrategy), or, where TF_CONFIG names several
workers, on all GPUs of all of them (MultiWorkerMirroredStrategy).

The checkpoint is on storage that every node mounts. tf.train.CheckpointManager writes it to new files and then replaces the
file that names the latest one, so that a reader finds a whole one at every moment. It is saved every --save-every steps and at
SIGTERM (an eviction) of a single worker; several workers go back to the last one saved together.

An interrupted run ends with 143, never 0: a Job that is told of success does not start another Pod.
"""
import argparse
import json
import os
import pathlib
import signal
import sys

import tensorflow as tf

from dataset import load

EXIT_INTERRUPTED = 128 + signal.SIGTERM
KEPT = 2  # checkpoints


def arguments():
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--data", type=pathlib.Path, required=True, help="directory with train.npz")
    options.add_argument("--checkpoints", type=pathlib.Path, required=True, help="directory on shared storage")
    options.add_argument("--steps", type=int, default=20000)
    options.add_argument("--save-every", type=int, default=500, metavar="STEPS")
    options.add_argument("--batch", type=int, default=64, help="rows per device and step")
    options.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="gpu fails where there is no GPU")
    options.add_argument("--cpu-replicas", type=int, default=1, help="with --device=cpu: replicas, as so many GPUs would make")
    options.add_argument("--memory-limit-mib", type=int, help="of each GPU; without it, memory grows as it is needed")
    return options.parse_args()


def devices_of(options):
    """Prepares the devices, before TensorFlow initialises them. Lists the GPUs that the container has."""
    gpus = tf.config.list_physical_devices("GPU")
    names = ", ".join(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus)
    print(f"{len(gpus)} GPUs{': ' if names else ''}{names}", flush=True)
    if options.device == "cpu":
        [cpu] = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * options.cpu_replicas)
        return [f"CPU:{index}" for index in range(options.cpu_replicas)]
    if not gpus:
        sys.exit("TensorFlow finds no GPU: see the lines above, and `gpulet doctor` on the node")
    for gpu in gpus:
        if options.memory_limit_mib:
            tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=options.memory_limit_mib)])
        else:
            tf.config.experimental.set_memory_growth(gpu, True)
    return [f"GPU:{index}" for index in range(len(gpus))]


def workers_of(environment):
    """(number of workers, whether this one is the chief) by TF_CONFIG."""
    config = json.loads(environment.get("TF_CONFIG") or "{}")
    cluster, task = config.get("cluster", {}), config.get("task", {})
    count = sum(len(cluster.get(role, ())) for role in ("chief", "worker"))
    chief = not count or task["type"] == "chief" or ("chief" not in cluster and task == {"type": "worker", "index": 0})
    return max(count, 1), chief


def steps_of(strategy, model, optimizer, options):
    """A function that trains one step on all devices and returns the mean loss."""
    x, y = load(options.data, "train")
    replicas = strategy.num_replicas_in_sync
    x, y = tf.constant(x), tf.constant(y)

    def on_replica(step):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        # Drawn by the step's own number: a resumed run sees the data that an uninterrupted one would.
        rows = tf.random.stateless_uniform([options.batch], tf.stack([tf.cast(step, tf.int32), tf.cast(replica, tf.int32)]), 0, tf.shape(x)[0], tf.int32)
        with tf.GradientTape() as tape:
            logits = model(tf.gather(x, rows), training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(y, rows), logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        # Summed over the replicas by apply_gradients: each contributes its part of the mean.
        optimizer.apply_gradients((gradient / replicas, variable) for gradient, variable in zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def one_step(step):
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(on_replica, args=(step,)), axis=None)
    return one_step


def train(options, strategy, workers, chief):
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        x, y = load(options.data, "train")
        model = tf.keras.Sequential([tf.keras.Input([x.shape[1]]), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(int(y.max()) + 1)])
        optimizer = tf.keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        done = tf.Variable(0, dtype=tf.int64, trainable=False)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=done)
    # Each worker takes part in saving, but only the chief's files are kept for all.
    place = options.checkpoints / "tensorflow" if chief else pathlib.Path("/tmp/not-the-chief")
    manager = tf.train.CheckpointManager(checkpoint, str(place), max_to_keep=KEPT)
    latest = tf.train.latest_checkpoint(str(options.checkpoints / "tensorflow"))
    if latest:
        checkpoint.restore(latest)
    step = int(done.numpy())
    print(f"resumes after step {step} of {options.steps}" if step else f"starts at step 0 of {options.steps}", flush=True)
    one_step = steps_of(strategy, model, optimizer, options)
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    while step < options.steps:
        loss = one_step(tf.constant(step, tf.int64))
        step += 1
        if asked and workers > 1:
            break  # the others wait for this worker and end; a checkpoint needs all of them
        if asked or step % options.save_every == 0 or step == options.steps:
            done.assign(step)
            manager.save(checkpoint_number=step)
            print(f"saved step {step} of {options.steps}, loss {float(loss):.4f}", flush=True)
        if asked:
            break
    if step < options.steps:
        print(f"SIGTERM after step {step}", flush=True)
        return EXIT_INTERRUPTED
    return 0


def main():
    options = arguments()
    devices = devices_of(options)
    workers, chief = workers_of(os.environ)
    if workers > 1:
        name, strategy = "MultiWorkerMirroredStrategy", tf.distribute.MultiWorkerMirroredStrategy()
    else:
        name, strategy = "MirroredStrategy", tf.distribute.MirroredStrategy(devices)
    print(f"{name}: {strategy.num_replicas_in_sync} replicas of {workers} workers", flush=True)
    sys.exit(train(options, strategy, workers, chief))


if __name__ == "__main__":
    main()
