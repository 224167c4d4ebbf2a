# SPDX-License-Identifier: BSD-3-Clause
"""What the library reports, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Path:
    """How a store's bytes go (``Store.path()``)."""

    backend: str  #: "posix", "cufile", "nvme", "spdk", "stripe"
    gpu_route: str  #: the best route that is open to GPU memory; "host" without a GPU
    bytes_read: dict[str, int]  #: by route, since the store was opened
    bytes_written: dict[str, int]
    how: str  #: what does the work: "io_uring, O_DIRECT, 4 threads, 1 MiB pieces"
    why_not: str  #: each faster way and why it was not taken; "" if there is none


@dataclass(frozen=True)
class FilesPath(Path):
    """How the bytes of some files of a loader go (``Loader.path()``), all of them the same way."""

    files: tuple[str, ...]  #: their URIs


@dataclass(frozen=True)
class StoreInfo:
    """What a store is (``Store.info()``)."""

    backend: str
    uri: str
    block_size: int  #: bytes; whole blocks cost least
    writable: bool
    resizable: bool
    threads: int
    timeout: float  #: seconds


@dataclass(frozen=True)
class EngineInfo:
    """What an engine has (``Engine.info()``)."""

    gpu: int | None  #: None: any
    threads: int
    blocked: int  #: threads more, for calls that may block
    stores: int  #: open
    pinned: int  #: bytes
    registered: int  #: ranges of memory


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine."""

    name: str
    compute_capability: tuple[int, int]
    processors: int
    memory: int  #: bytes
    pci_address: str
    driver_version: int  #: CUDA's number: 13000 is 13.0
    runtime_version: int


@dataclass(frozen=True)
class Backend:
    """A backend of this build."""

    name: str
    uris: str  #: "/path, file:/path"
    works: bool
    why: str  #: what it works with, or what it lacks


@dataclass(frozen=True)
class Info:
    """What this machine and this build have (``gpunvme.info()``)."""

    version: str
    library: str  #: the file
    gpus: tuple[Gpu, ...]
    no_gpu: str  #: why there is none; "" if there is one
    backends: tuple[Backend, ...]


@dataclass(frozen=True)
class Identity:
    """Identify Controller; ``raw`` is all of its 4,096 bytes."""

    vendor: int
    serial: str
    model: str
    firmware: str
    version: str  #: of the specification: "1.4.0"
    raw: bytes


@dataclass(frozen=True)
class ControllerInfo:
    """A controller that has been brought up."""

    page_size: int
    max_entries: int  #: of a queue
    max_io_queues: int
    max_transfer: int | None  #: bytes of one command; None: no limit
    sgl: bool
    shadow_doorbells: bool
    interrupts: int  #: vectors; 0: waits poll
    volatile_write_cache: bool
    resets: int  #: since it was opened


@dataclass(frozen=True)
class Namespace:
    """An active namespace."""

    nsid: int
    block_size: int  #: bytes; 0: a format that is not available
    blocks: int
    nbytes: int
    max_blocks: int  #: of one command; 0: no I/O in this format
    readonly: bool


@dataclass(frozen=True)
class Health:
    """The SMART log."""

    critical_warning: int
    temperature: int  #: degrees Celsius
    spare: int  #: percent
    percent_used: int
    bytes_read: int  #: in units of 512,000
    bytes_written: int
    power_cycles: int
    power_on_hours: int
    unsafe_shutdowns: int
    media_errors: int


@dataclass(frozen=True)
class LoggedError:
    """An entry of the error log."""

    count: int  #: counts up over the controller's life
    sqid: int
    cid: int
    status: int  #: 15 bits
    lba: int
    nsid: int


@dataclass(frozen=True)
class Event:
    """An asynchronous event."""

    type: int
    info: int
    log_page: int


@dataclass(frozen=True)
class SimReport:
    """What the software controller saw."""

    violations: int  #: of the specification, by the driver
    first_violation: str
    warnings: int
    first_warning: str
    admin_commands: int
    io_commands: int
    bytes_read: int
    bytes_written: int
    errors: int  #: completions with a status other than success
    faults: int  #: injected


@dataclass(frozen=True)
class TieredFile:
    """A file of storage tiers, as the catalogue has it (``Tiers.stat()``)."""

    name: str
    tier: str  #: "hot", "warm" or "cold"
    pinned: str | None  #: the tier that it stays in; None: the policy moves it
    nbytes: int
    mtime: float  #: seconds since 1970
    score: float  #: now
    checksum: int | None  #: None: it was written in place since it was moved or scrubbed


@dataclass(frozen=True)
class Tier:
    """A tier (``Tiers.info()``)."""

    name: str
    directory: str
    capacity: int | None  #: bytes; None: no limit
    nbytes: int  #: of its files
    nfiles: int
    free: int  #: bytes of the file system
    accesses: int  #: of files while they were here, since the set was made
    moved_in: int  #: files that migration brought, likewise
    moved_in_nbytes: int


@dataclass(frozen=True)
class TiersInfo:
    """What a set of storage tiers is (``Tiers.info()``)."""

    tiers: tuple[Tier, Tier, Tier]  #: hot, warm, cold
    hot_at: float  #: score from which on files are hot
    warm_at: float
    half_life: float  #: seconds; math.inf: scores stay
    rate: int | None  #: bytes a second of migration at most; None: no limit
    moving: int  #: files on their way now
    migrating: bool  #: a process has the job of migration


@dataclass(frozen=True)
class Moves:
    """What a pass of migration did (``Tiers.migrate()``)."""

    up: int  #: files moved to a faster tier
    down: int
    nbytes: int
    busy: int  #: files that should have moved and are in use
    no_room: int  #: likewise, for which there is no room
    failed: int  #: likewise, for another reason


@dataclass(frozen=True)
class Finding:
    """What scrub found and mended (``Tiers.scrub()``)."""

    kind: str  #: "new", "changed", "missing", "elsewhere", "twice", "bad", "leftover", "skipped"
    name: str
    detail: str


@dataclass(frozen=True)
class Scrub:
    """What a scrub looked at and found."""

    files: int
    nbytes: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Kind:
    """Records of one kind (``Request.kinds``)."""

    start: int  #: sector, in units of sector_size
    length: int  #: records
    sector_size: int  #: bytes of one


@dataclass(frozen=True)
class Variant:
    """A rung of an operator's ladder."""

    name: str
    needs: str  #: of the machine: "AVX-512F"; "nothing"
    changes: str  #: against the rung before it
    dtypes: tuple[str, ...]
    deterministic: bool
    available: bool  #: on this machine, in this build


@dataclass(frozen=True)
class Capability:
    """What a device can do for operators."""

    name: str
    features: str  #: "avx2 avx512f openmp"; "sm_90a"
    units: int  #: processors that this process may use; multiprocessors of a GPU
    cache: int  #: bytes, of a GPU


@dataclass(frozen=True)
class Metrics:
    """What a variant of matmul does to memory (struct gpunvme_matmul_metrics)."""

    flops: float
    global_load_nbytes: float
    global_store_nbytes: float
    shared_load_nbytes: float
    shared_store_nbytes: float
    ideal_nbytes: float
    arithmetic_intensity: float
    memory_efficiency: float
    registers: int
    threads_per_block: int
    blocks: int
    shared_nbytes: int
    occupancy: float


@dataclass(frozen=True)
class Timing:
    """How long calls took (``ops.timing()``)."""

    median: float  #: seconds
    best: float  #: seconds
    gflops: float  #: by the median; 0 where no number of operations was given
