"""Lines that engines, their libraries and their containers print."""

from __future__ import annotations

from re import compile as regex

from sparkserve.engine.patterns import Pattern

OURS = Pattern(
    "refused", regex(r"sparkserve: FATAL (?P<what>.+)"), "fault",
    "sparkserve refused to serve: {what}", source="our own line",
)  # fmt: skip
FAULTS: tuple[Pattern, ...] = (
    Pattern(
        "no-interface", regex(r"Unable to find address for: (?P<what>\S+)"), "fault",
        "this node has no interface {what} with an address", ("NET_IFNAME_ABSENT",),
        "ip -o -4 addr  # then name the interface that carries the fabric address", "B08",
    ),
    Pattern(
        "no-socket-interface", regex(r"Bootstrap : no socket interface found"), "fault",
        "NCCL finds none of the interfaces that NCCL_SOCKET_IFNAME names", ("NET_IFNAME_ABSENT",),
        "ip -o -4 addr  # then name the interface that carries the fabric address",
        "NCCL 2.28.9 under torch 2.11 on an H200, 1 December 2026",
    ),
    Pattern(
        "self-check", regex(r"\b(?P<what>DIFFER|CHECK FAILED|MISMATCH)\b"), "fault",
        "a part of the engine compared its result with the original and they differ: {what}",
        ("ENG_SELF_CHECK",),
        "switch off the adapter or kernel that the line names, and compare images over the nodes",
        "preflight section 11: must not appear in a boot log",
    ),
    Pattern(
        "nan-logits", regex(r"probability tensor contains (?:either )?`?(?:inf|nan)"), "fault",
        "the model's output holds NaN or infinity", ("ENG_NAN_LOGITS",),
        "set expandable_segments:False in PYTORCH_CUDA_ALLOC_CONF; it gives NaN for prefills of "
        "more than 64 tokens on V4.1",
        "preflight section 10",
    ),
    Pattern(
        "ring-tree", regex(r"ncclTransportTreeConnect"), "fault",
        "NCCL built a tree over ranks that have no cable between them: a ring without switch needs "
        "NCCL's switchless patch",
        ("NET_RING_TREE",),
        "use an NCCL with the switchless ring patch and NCCL_SWITCHLESS_RING_ONLY=1, or a switch",
        "B11",
    ),
    Pattern(
        "rdma-registration",
        regex(r"ibv_reg_mr\w* failed with error (?P<what>Cannot allocate memory|.*)"), "fault",
        "RDMA could not register memory ({what}): locked memory is limited, or the kernel's CMA is "
        "broken; `ulimit -l` in the container and `grep Cma /proc/meminfo` tell which",
        ("MEM_KHO_CMA", "CTR_MEMLOCK"),
        "ulimit -l; grep Cma /proc/meminfo; uname -r; cat /proc/cmdline", "B20, B39",
    ),
    Pattern(
        "memory-at-start",
        regex(r"Free memory on device \S+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is "
              r"less than desired .*\((?P<share>[\d.]+), (?P<want>[\d.]+) GiB\)"), "fault",
        "{free} GiB are free at the start and {want} GiB are wanted: page cache, a process that is "
        "left over, or swap holds the rest",
        ("MEM_PAGECACHE_NFS_HEAD", "MEM_ORPHAN_ENGINE", "MEM_SWAP_DIRTY"),
        "grep -E 'Mem|Cached|Swap' /proc/meminfo; "
        "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv",
        "B23, B25, B29, B34",
    ),
    Pattern(
        "locked-workspace",
        regex(r"Workspace is locked but allocation from '(?P<what>[^']+)' requires "
              r"(?P<needs>[\d.]+) MB, current size is (?P<has>[\d.]+) MB"), "fault",
        "{what} needs a workspace of {needs} MB and has {has} MB, which may not grow any more",
        ("ENG_LOCKED_WORKSPACE",),
        "raise max_num_batched_tokens to 8224 or more, so that the warm-up sizes the workspace",
        "B61",
    ),
    Pattern(
        "jit-while-serving",
        regex(r"JIT compilation during inference: (?P<what>[^.,;\s]+)"), "fault",
        "kernel {what} was compiled while serving: the other ranks wait for it in a collective",
        ("ENG_JIT_MIDSERVE",),
        "keep the JIT caches (TRITON_CACHE_DIR, TILELANG_CACHE_DIR and the like) on a mount, and "
        "warm that shape up before serving",
        "B59", lasting=True,
    ),
    Pattern(
        "clients-missing",
        regex(r"DistStoreError: Timed out after (?P<after>\d+) seconds waiting for clients\. "
              r"(?P<joined>\d+)/(?P<ranks>\d+) clients joined"), "fault",
        "only {joined} of {ranks} ranks met within {after} s: the missing rank's own log says why",
        ("ENG_RANK_NEVER_JOINED",), "look at the log of the rank that did not join", "B63",
        yields=True,
    ),
    Pattern(
        "store-timeout",
        regex(r"wait timeout after (?P<after>\d+) ?ms, keys: (?P<what>\S+)"),
        "fault",
        "another rank did not come to {what} within {after} ms: its own log says why",
        ("ENG_RANK_NEVER_JOINED",),
        "look at the log of the rank that did not join",
        "PyTorch 2.9",
        yields=True,
    ),
    Pattern(
        "collective-timeout",
        regex(r"WorkNCCL\(SeqNum=\d+, OpType=(?P<what>\w+).*Timeout\(ms\)=(?P<limit>\d+)"),
        "fault",
        "this rank waited {limit} ms in the collective {what} for a rank that did not come",
        ("ENG_JIT_MIDSERVE",), "look for a compilation while serving on the other ranks", "B59",
        yields=True,
    ),
    Pattern(
        "ptxas-unknown-gpu",
        regex(r"Value '(?P<what>sm_\d+[a-z]?)' is not defined for option 'gpu-name'"), "fault",
        "the image's ptxas does not know {what}", ("CTR_PTXAS_SM121",),
        "point TRITON_PTXAS_PATH to a ptxas of CUDA 13.0 or newer", "B40",
    ),
    Pattern(
        "unsupported-ptx", regex(r"UnsupportedPtxVersion|CUDA (?:failure|error):? 222|error 222\b"),
        "fault", "the image's CUDA toolkit is newer than the node's driver",
        ("CTR_TOOLKIT_NEWER",), "use an image of the driver's CUDA version, or a newer driver",
        "B41",
    ),
    Pattern(
        "wrong-architecture", regex(r"(?i)exec format error"), "fault",
        "the program or image is built for another processor", ("CTR_WRONG_ARCH",),
        "docker pull --platform linux/arm64 IMAGE", "B38", "container",
    ),
    Pattern(
        "image-platform",
        regex(r"image's platform \((?P<what>[\w/]+)\) does not match the detected host platform "
              r"\((?P<host>[\w/]+)\)"), "fault",
        "the image is built for {what}, this machine is {host}", ("CTR_WRONG_ARCH",),
        "docker pull --platform linux/arm64 IMAGE", "Docker 28", "container",
    ),
    Pattern(
        "no-gpu-runtime",
        regex(r"(?P<what>could not select device driver \S* with capabilities: \[\[gpu\]\]|"
              r"unknown or invalid runtime name: nvidia)"), "fault",
        "docker has no nvidia runtime: {what}", ("CTR_NO_NVIDIA_RUNTIME",),
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        "B36", "container",
    ),
    Pattern(
        "corrupt-weights",
        regex(r"Corrupted safetensors file detected: (?P<what>\S+)"), "fault",
        "checkpoint file {what} is corrupt; an engine that may write there deletes the model",
        ("STO_CORRUPT_WIPES_MODEL",),
        "mount the model read-only and copy the file again", "B58",
    ),
    Pattern(
        "bad-checkpoint",
        regex(r"(?P<what>(?:SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer).*)"), "fault",
        "a checkpoint file is corrupt: {what}", source="SGLang 0.5.23",
    ),
    Pattern(
        "graph-capture",
        regex(r"(?i)Capture .{0,40}\bgraphs? failed: (?P<what>.*)"), "fault",
        "the CUDA graphs could not be captured: {what}", ("ENG_GRAPH_CAPTURE_FAILED",),
        "lower context.mem_fraction_static or the KV pool, or capture fewer batch sizes", "B73",
    ),
    Pattern(
        "nothing-accepted",
        regex(r"Accepted: 0 tokens, Drafted: (?P<what>[2-9]\d\d|\d{4,}) tokens"),
        "fault",
        "none of {what} draft tokens was accepted: the ranks do not compute the same model",
        ("ENG_GARBLED_FROM_DRIFT",),
        "compare image, engine version and checkpoint of all nodes: sparkserve doctor",
        "B67",
        lasting=True,
    ),
    Pattern(
        "reasoning-parser", regex(r"Auto-initialization of reasoning token IDs failed"), "fault",
        "the engine does not know the tokens that begin and end reasoning",
        ("SRV_REASONING_PARSER_INIT",),
        "set the reasoning parser that belongs to the model, and the model's own tokenizer files",
        "B79", lasting=True,
    ),
    Pattern(
        "port-taken-named",
        regex(r"(?i)(?:(?:bind|listen)\w*\b.{0,60}?[:,] ?|\bPort )(?P<what>\d{2,5})\b.{0,40}?"
              r"(?:address already in use|is (?:not available|already in use))"),
        "fault", "port {what} is taken on this node", ("ENG_PORT_BUSY",), "ss -ltnp", "B66",
    ),
    Pattern(
        "port-taken",
        regex(r"(?i)address already in use"),
        "fault", "a port that the engine needs is taken on this node", ("ENG_PORT_BUSY",),
        "ss -ltnp", "B66",
    ),
    Pattern(
        "not-divisible",
        regex(r"(?i)(?P<what>\b(?:attention |key.?value |kv |query )?(?:heads|groups)\b.{0,30}?"
              r"\d+.{0,20}(?:must be|is not) (?:evenly )?divisible by.{0,60}"
              r"|\w{0,20}experts\w{0,20}=? ?\d+ (?:must be|is not) divisible by.{0,60})"), "fault",
        "the model cannot be split so: {what}", ("ENG_TP_DIVISIBILITY",),
        "choose another parallel.tp, or a profile with padding: sparkserve plan", "B69",
    ),
    Pattern(
        "context-too-long",
        regex(r"To serve at least one request with the models?'s max seq len \((?P<what>\d+)\)"
              r"(?:.*available KV cache memory \((?P<room>[\d.]+ GiB)\))?"
              r"(?:.*maximum model length is (?P<most>\d+))?"), "fault",
        "the KV pool ({room}) holds less than one context of {what} tokens; most is {most}",
        ("MEM_KV_POOL_SMALL",),
        "raise context.mem_fraction_static, free memory before the start, or lower "
        "context.length_tokens: sparkserve plan", "vLLM 0.11",
    ),
    Pattern(
        "unknown-flag", regex(r"error: unrecognized arguments: (?P<what>.+)"), "fault",
        "this engine version does not know {what}", ("ENG_UNKNOWN_FLAG",),
        "sparkserve profile show", "B64",
    ),
    Pattern(
        "missing-module", regex(r"(?:ModuleNotFoundError|ImportError): (?P<what>.+)"), "fault",
        "the runtime is incomplete: {what}", fix="install what is missing, equally on every rank",
        source="B63",
    ),
    Pattern(
        "no-memory-for-pool",
        regex(r"(?i)not enough memory.*(?:static|pool)|increase --?mem-fraction-static"
              r"|No available memory for the cache blocks"), "fault",
        "no memory is left for the KV pool",
        fix="raise context.mem_fraction_static, or lower context.kv_tokens", source="SGLang 0.5.23",
    ),
    Pattern(
        "out-of-memory",
        regex(r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|std::bad_alloc"
              r"|\bMemoryError\b|Cannot allocate memory|CUDA error: out of memory"), "fault",
        "the engine ran out of memory",
        fix="lower context.kv_tokens, or stop what else uses memory on this node",
        source="SGLang 0.5.23",
    ),
    Pattern(
        "cuda-error",
        regex(r"CUDA error: (?P<what>(?!out of memory).+)|(?P<other>Segmentation fault|Bus error)"),
        "fault", "the GPU's driver reported: {what}", source="[proposal]",
    ),
)  # fmt: skip
"""Lines that name what is wrong, the more telling ones first."""

CONSEQUENCES: tuple[Pattern, ...] = (
    Pattern(
        "peer-lost",
        regex(
            r"(?i)sendBytes failed|recvBytes failed|heartbeat error|connection reset|broken pipe"
            r"|connection (?:was )?closed by (?:remote )?peer|failed to recv, got 0 bytes"
        ),
        "consequence",
        "this rank lost another rank",
        ("LOG_FIRST_ERROR_WINS",),
        source="B29",
    ),
)
"""Lines of a rank that lost another one; they outweigh every fault that the same line names."""

VAGUE: tuple[Pattern, ...] = (
    Pattern(
        "lost-peer",
        regex(
            r"(?i)(?:TCPStore|ProcessGroupNCCL|gloo).*(?:error|fail|timed? ?out|watchdog|abort"
            r"|closed|exception)|NCCL (?:WARN|error)|ncclSystemError|ncclRemoteError"
            r"|NCCL communicator was aborted"
        ),
        "consequence",
        "this rank lost another rank",
        source="SGLang 0.5.23",
    ),
    Pattern(
        "died-part",
        regex(
            r"See (?:the )?(?:root cause|stack trace)|EngineDeadError"
            r"|scheduler died during initialization|Subprocess \S+ \(pid=\d+\) crashed"
        ),
        "consequence",
        "a process of this rank died",
        source="SGLang 0.5.23, vLLM 0.11",
    ),
    Pattern(
        "traceback",
        regex(r"Traceback \(most recent call last\)"),
        "fault",
        "the engine raised an exception",
    ),
    Pattern(
        "died-child",
        regex(r"Received sigquit from a child process"),
        "consequence",
        "a process of this rank died",
        source="SGLang 0.5.23",
    ),
)
"""Lines that say little; tried last."""

MEASURES: tuple[Pattern, ...] = (
    Pattern(
        "allreduce-across-nodes",
        regex(r"CustomAllreduce is disabled because this process group spans across nodes"),
        "stall",
        "the ranks wait for each other: rank 0 published an address that the others cannot reach "
        "(SGLANG_HOST_IP is not its fabric address)",
        ("NET_SGLANG_HOST_IP",),
        "set SGLANG_HOST_IP on every rank to its own fabric address", "B07",
    ),
    Pattern(
        "rendezvous", regex(r"Init (?:torch distributed|parallel) begin"), "stall",
        "the ranks have not met: the address of rank 0 or a port between the nodes is closed",
        fix="check SGLANG_HOST_IP, the socket interfaces and the firewall of every node",
        source="SGLang 0.5.21, 0.5.23", stall_s=300.0,
    ),
    Pattern(
        "nccl-version", regex(r"(?:nccl==|NCCL version )(?P<what>\d+\.\d+\.\d+)"), "measure",
        "the process runs NCCL {what}", ("NET_NCCL_TOO_OLD",), source="B14",
    ),
    Pattern(
        "kv-pool", regex(r"\bfull_token=(?P<tokens>\d+)"), "measure",
        "the KV pool holds {tokens} tokens", ("MEM_KV_POOL_SMALL",), source="B27",
    ),
    Pattern(
        "memory-left", regex(r"avail mem=(?P<what>[\d.]+) GB"), "measure",
        "{what} GB of memory are available", ("MEM_PAGECACHE_NFS_HEAD", "ENG_GRAPH_CAPTURE_FAILED"),
        source="B23, B73",
    ),
    Pattern(
        "draft-acceptance",
        regex(r"Accepted: (?P<accepted>\d+) tokens(?:, Drafted: (?P<drafted>\d+) tokens)?"),
        "measure", "{accepted} of {drafted} draft tokens were accepted",
        ("ENG_GARBLED_FROM_DRIFT",), source="B67",
    ),
    Pattern(
        "server-ready", regex(r"The server is fired up and ready to roll"), "ready",
        "the engine takes requests; that it answers them is for a question to show",
        ("SRV_READINESS_LADDER",), source="B82",
    ),
    Pattern(
        "generated",
        regex(r"Decode batch\b.*#running-req|Avg generation throughput: (?!0\.0 )[\d.]+ tokens/s"
              r"|\"POST /v1/\S+ HTTP/1\.\d\" 200"), "ready",
        "the engine generated tokens", source="SGLang 0.5.23",
    ),
    Pattern(
        "start-phase",
        regex(r"Load weight (?:begin|end)|Capture .*(?i:cuda) graph (?:begin|end)"
              r"|Application startup complete|shards:\s+[1-9]\d*% Completed"), "ready",
        "the start came one phase further", source="SGLang 0.5.21, 0.5.23",
    ),
)  # fmt: skip
"""Lines whose meaning lies in their figures, their age, or in that they came at all."""
