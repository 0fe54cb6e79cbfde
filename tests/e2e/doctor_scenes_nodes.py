"""Scenes of doctor's live tests: shells, containers, memory, versions, processes, files."""

from __future__ import annotations

from tests.e2e.doctor_faults import (
    ENGINE_IMAGE,
    GIB_KIB,
    LISTENER,
    Case,
    Scene,
    cloned,
    cut,
    facts,
    image,
    moved,
    process,
    shell,
    stale_run,
)
from tests.e2e.doctor_fleet import ENGRAM, MODEL
from tests.testbed.facts import SERVICES

IMAGE_ENGINE = (("engine", {"runtime": "container", "image": ENGINE_IMAGE}),)


def renamed(old: str, new: str) -> str:
    """The command that gives a node's shards another rank's names."""
    return f"cd {ENGRAM}; for f in *{old}*; do mv $f $(echo $f | sed s/{old}/{new}/); done"


SCENES = (
    Scene(
        "shells",
        (
            Case(
                "sudo asks for a password",
                1,
                lambda _, node: node.replace("/etc/sudoers.d/spark", "spark ALL=(ALL) ALL\n"),
                "SSH_SUDO_PROMPT",
                r"a password is required",
                r"sudoers",
            ),
            Case(
                "a needed program is missing",
                2,
                lambda _, node: node.hide("/usr/bin/rsync"),
                "HOST_TOOL_MISSING",
                r"rsync",
                r"rsync",
            ),
            Case(
                "a program is found by login shells alone",
                3,
                shell(
                    "mkdir -p /opt/hf/bin; cp /bin/true /opt/hf/bin/hf;"
                    "echo 'PATH=$PATH:/opt/hf/bin' >/home/spark/.bash_profile",
                    "rm -r /opt/hf /home/spark/.bash_profile",
                ),
                "SSH_NONINTERACTIVE_PATH",
                r"only a login shell finds hf",
                r"/opt/hf/bin/hf",
                "warning",
            ),
            Case(
                "a node is a clone of another",
                4,
                cloned,
                "HOST_CLONED",
                r"",
                r"machine-id",
                also=(1,),
            ),
        ),
    ),
    Scene(
        "containers",
        (
            Case(
                "the image is for another processor",
                1,
                image(Architecture="amd64"),
                "CTR_WRONG_ARCH",
                r"linux/amd64",
                r"",
            ),
            Case(
                "the user may not ask docker",
                2,
                facts(docker_access=False),
                "CTR_DOCKER_PERMISSION",
                r"UNKNOWN",
                r"usermod -aG docker",
            ),
            Case(
                "containers get no GPU",
                3,
                facts(
                    docker_runtimes=("runc",),
                    docker_default_runtime="runc",
                    docker_images=({"RepoDigests": [ENGINE_IMAGE]},),
                ),
                "CTR_NO_NVIDIA_RUNTIME",
                r"nvidia",
                r"nvidia-ctk",
            ),
            Case(
                "docker starts an engine again for ever",
                4,
                facts(
                    docker_images=({"RepoDigests": [ENGINE_IMAGE]},),
                    docker_containers=(
                        {
                            "Name": "/dsv41-rank3",
                            "RestartCount": 35,
                            "HostConfig": {"RestartPolicy": {"Name": "unless-stopped"}},
                            "Config": {"Image": ENGINE_IMAGE},
                        },
                    ),
                ),
                "MEM_RESTART_LOOP",
                r"dsv41-rank3.*35",
                r"docker update --restart=no dsv41-rank3",
                follows=("GPU_BUSY",),
            ),
        ),
        profile=IMAGE_ENGINE,
    ),
    Scene(
        "memory",
        (
            Case(
                "too little memory is free",
                1,
                facts(mem_available_kib=60 * GIB_KIB),
                "MEM_NOT_RECLAIMED_YET",
                r"MemAvailable 60\.0 GiB",
                r"stop",
            ),
            Case(
                "no large blocks of memory are left",
                2,
                facts(
                    buddyinfo="Node 0, zone      DMA 2 1 1 1 2 1 1 1 2 1 1 1 1 103\n"
                    "Node 0, zone   Normal 812345 401223 190034 70122 21033 6021 1203 233"
                    " 49 3 0 0 27 0"
                ),
                "MEM_FRAGMENTED",
                r"0 blocks of 32 MiB.*116\.1 GiB",
                r"compact_memory.*reboot",
            ),
            Case(
                "the kernel counts more free CMA than there is",
                3,
                facts(cma_total_kib=0, cma_free_kib=9_702_384),
                "MEM_KHO_CMA",
                r"CmaFree 9702384 kB > CmaTotal 0 kB",
                r"kho=off",
            ),
            Case(
                "swap is in use",
                4,
                facts(swap_free_kib=4_194_304),
                "MEM_SWAP_DIRTY",
                r"12\.0 GiB of swap",
                r"swapoff",
                "warning",
            ),
        ),
    ),
    Scene(
        "hosts",
        (
            Case(
                "the kernel keeps 4 GiB for itself",
                1,
                facts(min_free_kbytes=4_194_304),
                "MEM_MIN_FREE_KBYTES",
                r"4\.0 GiB",
                r"vm\.min_free_kbytes",
                "warning",
            ),
            Case(
                "a userspace OOM killer runs",
                2,
                facts(services=(*SERVICES, "dgx-anti-oom.service loaded active running Watchdog")),
                "MEM_USERSPACE_KILLER",
                r"dgx-anti-oom",
                r"systemctl disable --now dgx-anti-oom",
            ),
            Case(
                "a node's clock is ahead",
                2,
                facts(clock_offset_s=45.0),
                "HOST_CLOCK_SKEW",
                r"4[456]\.\d s",
                r"timedatectl",
                "warning",
            ),
            Case(
                "one node runs another kernel",
                3,
                facts(kernel_release="6.17.0-1031-nvidia"),
                "HOST_KERNEL_SKEW",
                r"spark3 6\.17\.0-1031-nvidia",
                r"on spark3",
            ),
            Case(
                "the loaded driver is not the installed one",
                4,
                facts(driver_module_version="580.95.05"),
                "HOST_KERNEL_SKEW",
                r"mismatch.*580\.95\.05",
                r"reboot",
                follows=("GPU_ABSENT",),
            ),
        ),
    ),
    Scene(
        "holders",
        (
            Case(
                "a stale process listens on a wanted port",
                1,
                process(LISTENER, until="ss -ltn | grep -q :8888"),
                "ENG_PORT_BUSY",
                r"8888 held by pid \d+ \(python3\)",
                r"kill \d+",
            ),
            Case(
                "a leftover of an engine holds the GPU's memory",
                2,
                facts(compute_apps=("21951, VLLM::EngineCore, 104277 MiB",)),
                "MEM_ORPHAN_ENGINE",
                r"pid 21951 \(VLLM::EngineCore\) holds 104277 MiB",
                r"kill 21951",
            ),
            Case(
                "the GPU does not clock up under load",
                3,
                facts(
                    gpu_utilization_percent=96,
                    gpu_clock_sm_mhz=507,
                    gpu_power_w=14.1,
                    gpu_temperature_c=46,
                    gpu_pstate="P0",
                    gpu_clocks_event_reasons="0x0000000000000000",
                ),
                "PWR_CLOCK_STUCK",
                r"507 MHz at 96 %",
                r"unplug",
            ),
            Case(
                "the disk of the root is full",
                4,
                lambda _, node: node.fill("/mnt/nvme", leave_kib=1024),
                "STO_NO_SPACE",
                r"KiB free on /mnt/nvme/sparkserve",
                r"df -h",
            ),
        ),
    ),
    Scene(
        "files",
        (
            Case(
                "a shard of the checkpoint is missing",
                1,
                moved(f"{MODEL}/model-00002-of-00002.safetensors"),
                "STO_MISSING_SHARD",
                r"model-00002-of-00002.safetensors is missing",
                r"copy the checkpoint",
            ),
            Case(
                "a shard of the checkpoint was cut",
                2,
                cut(f"{MODEL}/model-00001-of-00002.safetensors"),
                "STO_MISSING_SHARD",
                r"model-00001-of-00002.safetensors has \d+ bytes, its header declares",
                r"copy the checkpoint",
            ),
            Case(
                "the Engram shards are another rank's",
                3,
                shell(
                    renamed("r2of4", "r1of4"),
                    renamed("r1of4", "r2of4"),
                ),
                "PCK_WORLD_OR_REVISION",
                r"packed for rank 1 of 4",
                r"sparkserve pack",
            ),
            Case(
                "Engram shards lie on no disk",
                4,
                shell(
                    f"cp -r {ENGRAM} /tmp/engram; mount --bind /tmp/engram {ENGRAM}",
                    f"umount {ENGRAM}; rm -r /tmp/engram",
                ),
                "STO_NOT_LOCAL",
                r"/mnt/nvme/engram is on tmpfs",
                r"NVMe",
            ),
        ),
    ),
    Scene(
        "machines",
        (
            Case(
                "the GPU's driver does not answer",
                1,
                facts(gpu_answers=False),
                "GPU_ABSENT",
                r"couldn't communicate with the NVIDIA driver",
                r"nvidia-smi",
            ),
            Case(
                "the NIC's root port reported a fatal error",
                3,
                facts(
                    kernel_log=(
                        "pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message"
                        " received from 0000:00:00.0",
                    )
                ),
                "NET_CX7_AER_FATAL",
                r"0000:00:00\.0",
                r"reboot|power",
            ),
            Case(
                "the Wi-Fi chip took the network down",
                4,
                facts(
                    kernel_log=(
                        "mt7925e 0009:01:00.0: Message 00020002 (seq 8) timeout",
                        "mt7925e 0009:01:00.0: chip reset",
                        "Internal error: Oops: 0000000096000004 [#1] SMP",
                    )
                ),
                "HOST_WIFI_OOPS",
                r"chip reset.*Oops",
                r"power-cycle",
            ),
        ),
    ),
    Scene(
        "runs",
        (
            Case(
                "a run of yesterday still holds the node",
                2,
                stale_run,
                "ENG_ALREADY_SERVING",
                r"run-of-yesterday",
                r"sparkserve stop run-of-yesterday",
            ),
        ),
        arguments=("--stage", "launch"),
    ),
)
