"""The agent's cost on an idle GPU, and its metrics under load against NVML's own readings."""
import shutil
import time

import nvml
from agent import Agent
from check_inventory import median_ms
from report import between, same, wait_until

IDLE_S, USAGE_S = 10, 30
LOAD_S, LOAD_MIB = 14, 2048


def idle_window(machine, seconds):
    """Mean power from the energy counter, and the clock and P-state at the end, with NVML open only to read."""
    def read():
        with nvml.Nvml(machine.library) as library:
            device = library.devices()[0]
            return (library.energy_mj(device), library.clock(device, "sm"), library.number("nvmlDeviceGetPerformanceState", device),
                    time.monotonic())
    before = read()
    time.sleep(seconds)
    after = read()
    return {"watts": round((after[0] - before[0]) / 1000 / (after[3] - before[3]), 2), "sm_mhz": after[1], "p_state": after[2]}


def check_idle(report, machine, seconds=IDLE_S, usage_s=USAGE_S):
    with report.check("idle: power, clocks and P-state with and without the agent"):
        without = report.figure("idle.without_agent", idle_window(machine, seconds))
        agent = Agent(machine, "idle")
        report.figure("agent.start_to_driver_ready_ms", round(agent.ready_s * 1000, 1))
        wait_until(lambda: agent.metric("DCGM_FI_DEV_GPU_TEMP"), 20, "the first sample", 0.1)
        began, cpu = time.monotonic(), agent.cpu_s()
        held = report.figure("idle.with_agent", idle_window(machine, seconds))
        time.sleep(max(0, usage_s - (time.monotonic() - began)))
        report.figure("agent.cpu_percent", round((agent.cpu_s() - cpu) / (time.monotonic() - began) * 100, 3))
        report.figure("agent.resident_mb", agent.memory_mb())
        report.figure("agent.scrape_ms", median_ms(lambda: agent.get("/metrics"), 50))
        report.figure("agent.open_nodes", agent.open_nodes())
        report.figure("agent.stop_ms", round(agent.stop() * 1000, 1))
        between(held["watts"], without["watts"] * 0.93 - 1, without["watts"] * 1.07 + 2, "watts with the agent")
        same((held["sm_mhz"], held["p_state"]), (without["sm_mhz"], without["p_state"]), "SM clock and P-state")


METRICS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK",
           "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE",
           "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES")


def sample(agent, uuid):
    found = {name: value for name, labels, value in agent.metrics() if name in METRICS and labels.get("UUID") == uuid}
    return found


def readings(library, device):
    return {"DCGM_FI_DEV_GPU_UTIL": library.utilization(device), "DCGM_FI_DEV_FB_USED": library.memory(device)[2] / 2**20,
            "DCGM_FI_DEV_POWER_USAGE": library.number("nvmlDeviceGetPowerUsage", device) / 1000,
            "DCGM_FI_DEV_GPU_TEMP": library.number("nvmlDeviceGetTemperature", device, 0),
            "DCGM_FI_DEV_SM_CLOCK": library.clock(device, "sm"), "DCGM_FI_DEV_MEM_CLOCK": library.clock(device, "memory"),
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": library.energy_mj(device)}


# Largest difference between a sample of up to a second ago and a reading now.
TOLERANCE = {"DCGM_FI_DEV_GPU_UTIL": 10, "DCGM_FI_DEV_FB_USED": 16, "DCGM_FI_DEV_POWER_USAGE": 40, "DCGM_FI_DEV_GPU_TEMP": 4,
             "DCGM_FI_DEV_SM_CLOCK": 100, "DCGM_FI_DEV_MEM_CLOCK": 10, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 2_500_000}


def check_load(report, machine):
    agent = Agent(machine, "load", interval="1s")
    try:
        with nvml.Nvml(machine.library) as library:
            device = library.devices()[0]
            uuid = library.text("nvmlDeviceGetUUID", device)
            check_idle_metrics(report, machine, agent, uuid)
            loaded = machine.load(LOAD_S, LOAD_MIB)
            try:
                loaded.line()
                check_loaded_metrics(report, machine, agent, library, device, uuid)
            finally:
                loaded.stop()
    finally:
        agent.stop()


def check_idle_metrics(report, machine, agent, uuid):
    with report.check("metrics: idle, profiling metrics near zero"):
        idle = wait_until(lambda: "DCGM_FI_PROF_GR_ENGINE_ACTIVE" in (found := sample(agent, uuid)) and found, 15,
                          "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.2)
        report.figure("metrics.idle", idle)
        between(idle["DCGM_FI_PROF_GR_ENGINE_ACTIVE"], 0, 0.05, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
        between(idle["DCGM_FI_DEV_GPU_UTIL"], 0, 5, "DCGM_FI_DEV_GPU_UTIL")


def check_loaded_metrics(report, machine, agent, library, device, uuid):
    with report.check("metrics: under load, as NVML reads"):
        first = wait_until(lambda: (found := sample(agent, uuid)).get("DCGM_FI_DEV_GPU_UTIL", 0) > 80
                           and found.get("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0) > 0.8 and found, 10,
                           "GPU_UTIL > 80 and GR_ENGINE_ACTIVE > 0.8", 0.2)
        wait_until(lambda: abs(sample(agent, uuid)["DCGM_FI_DEV_POWER_USAGE"] - readings(library, device)["DCGM_FI_DEV_POWER_USAGE"])
                   <= TOLERANCE["DCGM_FI_DEV_POWER_USAGE"], 6, "power within 40 W of NVML's", 0.2)
        wait_until(lambda: abs(sample(agent, uuid)["DCGM_FI_DEV_GPU_TEMP"] - readings(library, device)["DCGM_FI_DEV_GPU_TEMP"])
                   <= TOLERANCE["DCGM_FI_DEV_GPU_TEMP"], 6, "temperature within 4 C of NVML's", 0.2)
        found, now = sample(agent, uuid), readings(library, device)
        report.figure("metrics.load", found)
        report.figure("metrics.load_nvml", now)
        wrong = {name: (found.get(name), now[name]) for name, most in TOLERANCE.items()
                 if name not in found or abs(found[name] - now[name]) > most}
        same(wrong, {}, "(gpulet, NVML)")
        between(found["DCGM_FI_DEV_FB_USED"], LOAD_MIB, LOAD_MIB + 4096, "DCGM_FI_DEV_FB_USED")
    with report.check("metrics: the energy counter rises"):
        later = wait_until(lambda: (at := sample(agent, uuid))["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]
                           > first["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] and at, 5, "more energy", 0.2)
        report.figure("metrics.energy_mj", [first["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"], later["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]])
    report.skip("metrics: against DCGM", "no comparison with dcgmi yet" if shutil.which("dcgmi") else "dcgmi is not installed")
