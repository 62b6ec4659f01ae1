"""What nvidia-smi says beside a row, once a second: the most memory and power, the lowest clock of the multiprocessors."""

import shutil
import subprocess
import threading

FIELDS = {"memory_mib": ("memory.used", max), "power_w": ("power.draw", max), "clock_mhz": ("clocks.sm", min)}
QUERY = "--query-gpu=" + ",".join(field for field, _ in FIELDS.values())


class GpuUse:
    def __init__(self, device, entry):
        self.device, self.entry, self.ended = device, entry, threading.Event()
        self.program = shutil.which("nvidia-smi")
        self.entry["gpu"] = "the CPU computes" if device == "cpu" else {} if self.program else "nvidia-smi is not installed"
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def __enter__(self):
        if self.entry["gpu"] == {}:
            self.thread.start()

    def __exit__(self, *_):
        self.ended.set()
        if self.thread.is_alive():
            self.thread.join()

    def watch(self):
        """Replaces the figures as a whole, because the record may be written at any time."""
        command = [self.program, "-i", self.device.split(":")[1], QUERY, "--format=csv,noheader,nounits"]
        while not self.ended.wait(1):
            seen = self.entry["gpu"]
            try:
                told = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
                values = {name: float(value) for name, value in zip(FIELDS, told.split(","), strict=True)}
                self.entry["gpu"] = seen | {name: FIELDS[name][1](seen.get(name, value), value) for name, value in values.items()}
            except (subprocess.SubprocessError, OSError, ValueError) as why:
                self.entry["gpu"] = seen | {"error": str(why)}
