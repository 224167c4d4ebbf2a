# SPDX-License-Identifier: BSD-3-Clause
"""The C libraries: their structures, constants and functions, as the headers declare them.

tests/python/test_declarations.py compiles a program against the headers and compares every size,
offset, constant and prototype of this file with it. Nothing here knows what the functions do.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    Structure,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

__all__ = ["lib", "ops"]

# ---- Constants: without their prefix GPUNVME_ -------------------------------------------------

ABI = 2
OPS_ABI = 2

ERR_INVALID = -1
ERR_NOMEM = -2
ERR_RANGE = -3
ERR_ALIGN = -4
ERR_NOT_FOUND = -5
ERR_NO_NAMESPACE = -6
ERR_FORMAT = -7
ERR_UNSUPPORTED = -8
ERR_BUSY = -9
ERR_AGAIN = -10
ERR_TIMEOUT = -11
ERR_ABORTED = -12
ERR_REMOVED = -13
ERR_FATAL = -14
ERR_IO = -15
ERR_NOSPC = -16
ERR_READONLY = -17
ERR_IMAGE_SIZE = -18
ERR_URI = -19
ERR_URI_PARAM = -20
ERR_STALE = -21
ERR_INTERRUPTED = -22
ERR_NO_GPU = -23
ERR_GPU = -24
ERR_PROTOCOL = -25
ERR_PERMISSION = -26
ERR_VERIFY = -27
ERR_CLOSED = -28
ERR_LIMIT = -29
ERR_CANCELED = -30
ERR_EXISTS = -31

MEM_HOST = 0
MEM_PINNED = 1
MEM_GPU = 2

OPEN_WRITE = 0x1
OPEN_CREATE = 0x2
OPEN_FORCE = 0x4
OPEN_TRUNCATE = 0x8
OPEN_EXCL = 0x10

ANY_GPU = -1

ADVICE_NORMAL = 0
ADVICE_SEQUENTIAL = 1
ADVICE_RANDOM = 2
ADVICE_WILL_NEED = 3
ADVICE_DONT_NEED = 4

OP_READ = 0
OP_WRITE = 1
OP_FLUSH = 2

AFTER_STREAM = 0x1
BEFORE_STREAM = 0x2

ROUTE_HOST = 0
ROUTE_P2P = 1
ROUTE_BOUNCE = 2
ROUTE_COMPAT = 3
NROUTES = 4

DTYPE_F16 = 6
DTYPE_BF16 = 7
DTYPE_F32 = 10
DTYPE_F8_E4M3 = 15

DATASET_NFORMATS = 9
DATASET_MAX_RANK = 8

SHUFFLE_EPOCH = 0
SHUFFLE_BLOCKS = 1
SHUFFLE_NONE = 2
LAST_SHORT = 0
LAST_DROP = 1
LAST_PAD = 2
LAYOUT_AUTO = 0
LAYOUT_ROWS = 1
LAYOUT_RAGGED = 2
LAYOUT_PADDED = 3
LAYOUT_PACKED = 4
NUMBER_U8 = 0
NUMBER_U16 = 1
NUMBER_U32 = 2
NUMBER_I32 = 3
NUMBER_I64 = 4
NUMBER_F16 = 5
NUMBER_BF16 = 6
NUMBER_F32 = 7
CONVERT_CHANNELS = 16
ON_ERROR_RAISE = 0
ON_ERROR_SKIP = 1
ON_ERROR_SUBSTITUTE = 2
LOADER_MAX_DEPTH = 64

TIER_HOT = 0
TIER_WARM = 1
TIER_COLD = 2
NTIERS = 3
TIER_AUTO = -1
TIERS_NO_LIMIT = (1 << 64) - 1
TIERS_MIGRATE = 0x1
TIERS_READ_ALL = 0x1
TIERS_NFINDINGS = 8

LOG_ERROR = 0x01
LOG_SMART = 0x02

SIM_NVIOLATIONS = 15
SIM_NWARNINGS = 2

OPS_ERR_INVALID = -1
OPS_ERR_SHAPE = -2
OPS_ERR_DTYPE = -3
OPS_ERR_ALIGN = -4
OPS_ERR_ALIAS = -5
OPS_ERR_VARIANT = -6
OPS_ERR_UNSUPPORTED = -7
OPS_ERR_DEVICE = -8
OPS_ERR_WORKSPACE = -9
OPS_ERR_CUDA = -10

OPS_MATMUL = 0
OPS_LINEAR_FORWARD = 1
OPS_LINEAR_BACKWARD = 2
OPS_ATTENTION = 3
OPS_ATTENTION_BACKWARD = 4
OPS_ATTENTION_PAGED = 5
OPS_KV_APPEND = 6
OPS_NORM_FORWARD = 7
OPS_NORM_BACKWARD = 8
OPS_CROSS_ENTROPY = 9
OPS_ADAMW = 10
OPS_GRAD_NORM = 11
OPS_EMBEDDING_FORWARD = 12
OPS_EMBEDDING_BACKWARD = 13
OPS_SWIGLU_FORWARD = 14
OPS_SWIGLU_BACKWARD = 15
OPS_ROPE = 16
OPS_MOE_FORWARD = 17
OPS_MOE_BACKWARD = 18

NORM_RMS = 0
NORM_LAYER = 1

MOE_CHOSEN = 0
MOE_ALL = 1
REDUCTION_MEAN = 0
REDUCTION_SUM = 1
REDUCTION_NONE = 2
OPS_F32 = 0
OPS_F16 = 1
OPS_BF16 = 2
OPS_E4M3 = 3
OPS_E5M2 = 4
MATMUL_SCALE_TENSOR = 0
MATMUL_SCALE_ROW = 1
MATMUL_SCALE_BLOCK = 2
OPS_COMPUTE_F32 = 0
OPS_COMPUTE_TF32 = 1
OPS_CPU = 0
OPS_CUDA = 1
OPS_ACT_NONE = 0
OPS_ACT_RELU = 1
OPS_ACT_GELU = 2
OPS_ACT_GELU_TANH = 3
OPS_ACT_SILU = 4
OPS_WORKSPACE_ALIGN = 256
OPS_DETERMINISTIC = 1

# ---- Structures -------------------------------------------------------------------------------


class Buf(Structure):
    _fields_ = [
        ("cpu", c_void_p),
        ("gpu", c_void_p),
        ("bus", c_uint64),
        ("nbytes", c_size_t),
        ("mem", c_int),
        ("bus_pages", c_void_p),
        ("bus_page_shift", c_uint),
        ("memory_private", c_void_p),
        ("transport_private", c_void_p),
    ]


class GpuInfo(Structure):
    _fields_ = [
        ("name", c_char * 256),
        ("cc_major", c_uint),
        ("cc_minor", c_uint),
        ("nprocessors", c_uint),
        ("memory_nbytes", c_uint64),
        ("pci_address", c_char * 32),
        ("driver_version", c_uint),
        ("runtime_version", c_uint),
    ]


class EngineConfig(Structure):
    _fields_ = [
        ("gpu", c_int),
        ("threads", c_uint),
        ("pinned_nbytes", c_size_t),
        ("cpus", c_char_p),
    ]


class EngineInfo(Structure):
    _fields_ = [
        ("gpu", c_int),
        ("threads", c_uint),
        ("blocked", c_uint),
        ("stores", c_size_t),
        ("pinned_nbytes", c_size_t),
        ("registered", c_size_t),
    ]


class StoreInfo(Structure):
    _fields_ = [
        ("backend", c_char_p),
        ("uri", c_char_p),
        ("block_size", c_uint32),
        ("writable", c_bool),
        ("resizable", c_bool),
        ("threads", c_uint32),
        ("timeout_ns", c_uint64),
    ]


class Path(Structure):
    _fields_ = [
        ("backend", c_char_p),
        ("gpu_route", c_int),
        ("bytes_read", c_uint64 * NROUTES),
        ("bytes_written", c_uint64 * NROUTES),
        ("how", c_char * 256),
        ("why_not", c_char * 512),
    ]


class BackendInfo(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("uris", c_char_p),
        ("works", c_bool),
        ("why", c_char * 256),
    ]


class Vec(Structure):
    _fields_ = [("ptr", c_void_p), ("nbytes", c_size_t), ("mem", c_int)]


class Io(Structure):
    _fields_ = [
        ("store", c_void_p),
        ("op", c_int),
        ("mem", c_int),
        ("offset", c_uint64),
        ("ptr", c_void_p),
        ("nbytes", c_size_t),
        ("vecs", c_void_p),
        ("offsets", c_void_p),
        ("n", c_size_t),
        ("stride", c_size_t),
        ("callback", c_void_p),
        ("user", c_void_p),
        ("err", c_int),
        ("routes", c_uint32),
        ("done", c_size_t),
        ("priv", c_uint64 * 12),  # the library's
    ]


class Order(Structure):
    _fields_ = [("flags", c_uint), ("stream", c_void_p), ("after", c_void_p), ("done", c_void_p)]


class Tensor(Structure):
    _fields_ = [
        ("name", c_void_p),
        ("dtype", c_int),
        ("dtype_name", c_void_p),
        ("rank", c_size_t),
        ("shape", c_void_p),
        ("nbytes", c_uint64),
        ("file", c_size_t),
        ("offset", c_uint64),
    ]


class Range(Structure):
    _fields_ = [("begin", c_uint64), ("end", c_uint64)]


class WeightsPart(Structure):
    _fields_ = [
        ("tensor", c_void_p),
        ("ranges", c_void_p),
        ("ptr", c_void_p),
        ("mem", c_int),
        ("dtype", c_int),
        ("user", c_void_p),
        ("err", c_int),
        ("has_checksum", c_uint32),
        ("checksum", c_uint64),
    ]


class WeightsOptions(Structure):
    _fields_ = [
        ("checksum", c_bool),
        ("timeout_ns", c_uint64),
        ("order", c_void_p),
        ("progress", c_void_p),
        ("user", c_void_p),
        ("scales", c_void_p),
    ]


class Python(Structure):
    _fields_ = [
        ("PyGILState_Ensure", c_void_p),
        ("PyGILState_Release", c_void_p),
        ("PyErr_Fetch", c_void_p),
        ("PyErr_Restore", c_void_p),
        ("Py_DecRef", c_void_p),
        ("PyCapsule_IsValid", c_void_p),
        ("PyCapsule_GetPointer", c_void_p),
    ]


class DatasetOptions(Structure):
    _fields_ = [
        ("format", c_uint32),
        ("token_nbytes", c_uint32),
        ("record_nbytes", c_uint64),
        ("header_nbytes", c_uint64),
        ("seq_tokens", c_uint64),
        ("overlap_tokens", c_uint64),
        ("member", c_char_p),
    ]


class DatasetRanges(Structure):
    _fields_ = [("files", c_void_p), ("offsets", c_void_p), ("nbytes", c_void_p), ("n", c_uint64)]


class DatasetInfo(Structure):
    _fields_ = [
        ("format", c_uint32),
        ("dtype", c_uint32),
        ("nsamples", c_uint64),
        ("nbytes", c_uint64),
        ("sample_nbytes", c_uint64),
        ("max_nbytes", c_uint64),
        ("fingerprint", c_uint64),
        ("nfiles", c_uint64),
        ("index_nbytes", c_uint64),
        ("has_checksums", c_bool),
        ("rank", c_size_t),
        ("shape", c_uint64 * DATASET_MAX_RANK),
    ]


class DatasetIndexOptions(Structure):
    _fields_ = [("checksums", c_bool), ("progress", c_void_p), ("user", c_void_p)]


class DataRange(Structure):
    _fields_ = [("file", c_uint64), ("offset", c_uint64), ("nbytes", c_uint64)]


class SamplerOptions(Structure):
    _fields_ = [
        ("seed", c_uint64),
        ("batch", c_uint64),
        ("rank", c_uint32),
        ("world", c_uint32),
        ("shuffle", c_uint32),
        ("last", c_uint32),
        ("block", c_uint64),
        ("window", c_uint64),
        ("epoch", c_uint64),
        ("fingerprint", c_uint64),
    ]


class SamplerState(Structure):
    _fields_ = [
        ("fingerprint", c_uint64),
        ("seed", c_uint64),
        ("epoch", c_uint64),
        ("taken", c_uint64),
    ]


class SamplerInfo(Structure):
    _fields_ = [("samples", c_uint64), ("batches", c_uint64), ("period", c_uint64)]


class Sample(Structure):
    _fields_ = [("index", c_uint64), ("source", c_uint64)]


class LoaderSource(Structure):
    _fields_ = [("dataset", c_void_p), ("weight", c_double)]


class LoaderOptions(Structure):
    _fields_ = [
        ("order", SamplerOptions),
        ("layout", c_uint32),
        ("on_error", c_uint32),
        ("row_nbytes", c_uint64),
        ("pad", c_uint32),
        ("mem", c_uint32),
        ("gpu", c_uint32),
        ("depth", c_uint32),
        ("depth_nbytes", c_uint64),
        ("timeout_ns", c_uint64),
        ("verify", c_bool),
    ]


class Convert(Structure):
    _fields_ = [
        ("from", c_uint32),
        ("to", c_uint32),
        ("mem", c_uint32),
        ("channels", c_uint32),
        ("channels_first", c_uint32),
        ("reserved", c_uint32),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("stride", c_uint64),
        ("nrows", c_uint64),
        ("row", c_uint64),
        ("scale", c_double),
        ("mean", c_double * CONVERT_CHANNELS),
        ("std", c_double * CONVERT_CHANNELS),
    ]


class LoaderBatch(Structure):
    _fields_ = [
        ("ptr", c_void_p),
        ("mem", c_uint32),
        ("layout", c_uint32),
        ("nbytes", c_uint64),
        ("n", c_uint64),
        ("row_nbytes", c_uint64),
        ("nrows", c_uint64),
        ("offsets", c_void_p),
        ("lengths", c_void_p),
        ("samples", c_void_p),
        ("epoch", c_uint64),
        ("index", c_uint64),
        ("npadded", c_uint64),
        ("nskipped", c_uint64),
        ("nsubstituted", c_uint64),
        ("ncut", c_uint64),
        ("stall_ns", c_uint64),
    ]


class LoaderStats(Structure):
    _fields_ = [
        ("batches", c_uint64),
        ("samples", c_uint64),
        ("nbytes", c_uint64),
        ("nskipped", c_uint64),
        ("nsubstituted", c_uint64),
        ("stall_ns", c_uint64),
        ("stalls", c_uint64),
        ("transfers", c_uint64),
        ("routes", c_uint64 * NROUTES),
        ("ahead", c_uint32),
        ("ready", c_uint32),
    ]


class TiersSettings(Structure):
    _fields_ = [
        ("dir", c_char_p * NTIERS),
        ("capacity_nbytes", c_uint64 * NTIERS),
        ("hot_at", c_double),
        ("warm_at", c_double),
        ("half_life_s", c_double),
        ("migrate_bytes_per_s", c_uint64),
    ]


class TiersFile(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("tier", c_int),
        ("pinned", c_int),
        ("nbytes", c_uint64),
        ("mtime_ns", c_int64),
        ("score", c_double),
        ("has_checksum", c_bool),
        ("checksum", c_uint64),
    ]


class TiersOptions(Structure):
    _fields_ = [
        ("flags", c_uint),
        ("engine", c_void_p),
        ("store_options", c_char_p),
        ("interval_ns", c_uint64),
        ("timeout_ns", c_uint64),
        ("policy", c_void_p),
        ("policy_user", c_void_p),
        ("moved", c_void_p),
        ("moved_user", c_void_p),
        ("clock_ns", c_void_p),
        ("clock_user", c_void_p),
    ]


class TierInfo(Structure):
    _fields_ = [
        ("dir", c_char_p),
        ("capacity_nbytes", c_uint64),
        ("nbytes", c_uint64),
        ("nfiles", c_uint64),
        ("free_nbytes", c_uint64),
        ("accesses", c_uint64),
        ("moved_in_nbytes", c_uint64),
        ("moved_in", c_uint64),
    ]


class TiersInfo(Structure):
    _fields_ = [
        ("tier", TierInfo * NTIERS),
        ("settings", TiersSettings),
        ("moving", c_uint64),
        ("migrating", c_bool),
    ]


class TiersIo(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("offset", c_uint64),
        ("ptr", c_void_p),
        ("nbytes", c_size_t),
        ("mem", c_int),
        ("err", c_int),
        ("done", c_size_t),
        ("tier", c_int),
        ("routes", c_uint32),
    ]


class TiersMoves(Structure):
    _fields_ = [
        ("up", c_uint64),
        ("down", c_uint64),
        ("nbytes", c_uint64),
        ("busy", c_uint64),
        ("no_room", c_uint64),
        ("failed", c_uint64),
    ]


class TiersScrub(Structure):
    _fields_ = [
        ("files", c_uint64),
        ("nbytes", c_uint64),
        ("findings", c_uint64 * TIERS_NFINDINGS),
    ]


class Kind(Structure):
    _fields_ = [
        ("start_lba", c_uint64),
        ("length", c_uint64),
        ("sector_size", c_uint32),
        ("place", c_void_p),
    ]


class KindIo(Structure):
    _fields_ = [
        ("kind", c_char_p),
        ("op", c_int),
        ("idx", c_uint64),
        ("length", c_uint64),
        ("ptr", c_void_p),
        ("err", c_int),
        ("io", c_void_p),
        ("priv", c_uint64 * 5),  # the library's
    ]


class Sqe(Structure):
    _fields_ = [
        ("opc", c_uint8),
        ("flags", c_uint8),
        ("cid", c_uint16),
        ("nsid", c_uint32),
        ("cdw2", c_uint32),
        ("cdw3", c_uint32),
        ("mptr", c_uint64),
        ("prp1", c_uint64),
        ("prp2", c_uint64),
        ("cdw10", c_uint32),
        ("cdw11", c_uint32),
        ("cdw12", c_uint32),
        ("cdw13", c_uint32),
        ("cdw14", c_uint32),
        ("cdw15", c_uint32),
    ]


class IdCtrl(Structure):
    """The first bytes of Identify Controller, up to what controller.py tells."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [
        ("vid", c_uint16),
        ("ssvid", c_uint16),
        ("sn", c_uint8 * 20),
        ("mn", c_uint8 * 40),
        ("fr", c_uint8 * 8),
        ("rab", c_uint8),
        ("ieee", c_uint8 * 3),
        ("cmic", c_uint8),
        ("mdts", c_uint8),
        ("cntlid", c_uint16),
        ("ver", c_uint32),
    ]


class SmartLog(Structure):
    """The first bytes of the SMART log."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [
        ("critical_warning", c_uint8),
        ("temperature", c_uint16),
        ("avail_spare", c_uint8),
        ("spare_thresh", c_uint8),
        ("percent_used", c_uint8),
        ("endurance_crit_warning", c_uint8),
        ("rsvd7", c_uint8 * 25),
        ("data_units_read", c_uint64 * 2),
        ("data_units_written", c_uint64 * 2),
        ("host_reads", c_uint64 * 2),
        ("host_writes", c_uint64 * 2),
        ("ctrl_busy_time", c_uint64 * 2),
        ("power_cycles", c_uint64 * 2),
        ("power_on_hours", c_uint64 * 2),
        ("unsafe_shutdowns", c_uint64 * 2),
        ("media_errors", c_uint64 * 2),
        ("num_err_log_entries", c_uint64 * 2),
    ]


class ErrorLogEntry(Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [
        ("error_count", c_uint64),
        ("sqid", c_uint16),
        ("cid", c_uint16),
        ("status", c_uint16),
        ("param_error_location", c_uint16),
        ("lba", c_uint64),
        ("nsid", c_uint32),
        ("vs", c_uint8),
        ("trtype", c_uint8),
        ("rsvd30", c_uint8 * 2),
        ("cs", c_uint64),
        ("trtype_info", c_uint16),
        ("rsvd42", c_uint8 * 22),
    ]


class Ns(Structure):
    _fields_ = [
        ("ctrl", c_void_p),
        ("nsid", c_uint32),
        ("block_size", c_uint32),
        ("block_shift", c_uint),
        ("nblocks", c_uint64),
        ("nbytes", c_uint64),
        ("max_blocks", c_uint32),
        ("boundary_blocks", c_uint32),
        ("readonly", c_bool),
        ("csi", c_uint8),
        ("id", c_uint8 * 4096),
    ]


class CtrlInfo(Structure):
    _fields_ = [
        ("cap", c_uint64),
        ("vs", c_uint32),
        ("page_size", c_uint32),
        ("max_entries", c_uint32),
        ("max_io_queues", c_uint32),
        ("max_transfer", c_uint64),
        ("sgl", c_bool),
        ("shadow_doorbells", c_bool),
        ("cmb_nbytes", c_uint64),
        ("cmb_in_use", c_bool),
        ("vectors", c_uint32),
        ("volatile_write_cache", c_bool),
        ("resets", c_uint64),
        ("host_nbytes", c_uint64),
    ]


class CtrlOpts(Structure):
    _fields_ = [
        ("admin_entries", c_uint32),
        ("io_queues", c_uint32),
        ("admin_timeout_ms", c_uint32),
        ("io_timeout_ms", c_uint32),
        ("ready_timeout_ms", c_uint32),
        ("data_format", c_int),
        ("no_shadow_doorbells", c_bool),
        ("interrupts", c_bool),
        ("cmb", c_bool),
        ("no_recovery", c_bool),
    ]


class Event(Structure):
    _fields_ = [("type", c_uint8), ("info", c_uint8), ("log_page", c_uint8)]


class SimReport(Structure):
    _fields_ = [
        ("violations", c_uint64 * SIM_NVIOLATIONS),
        ("nviolations", c_uint64),
        ("first", c_char * 256),
        ("warnings", c_uint64 * SIM_NWARNINGS),
        ("nwarnings", c_uint64),
        ("first_warning", c_char * 256),
        ("commands", c_uint64 * 2),
        ("bytes_read", c_uint64),
        ("bytes_written", c_uint64),
        ("errors", c_uint64),
        ("faults", c_uint64),
        ("doorbell_writes", c_uint64),
    ]


class OpsExec(Structure):
    _fields_ = [
        ("device", c_int32),
        ("threads", c_int32),
        ("stream", c_void_p),
        ("variant", c_char_p),
        ("workspace", c_void_p),
        ("workspace_nbytes", c_size_t),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class OpsCapability(Structure):
    _fields_ = [
        ("device", c_int32),
        ("index", c_int32),
        ("name", c_char * 96),
        ("features", c_char * 96),
        ("sm", c_int32),
        ("units", c_int32),
        ("shared_nbytes", c_int64),
        ("cache_nbytes", c_int64),
        ("cpu_features", c_uint64),
    ]


class OpsVariant(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("needs", c_char_p),
        ("changes", c_char_p),
        ("op", c_int32),
        ("device", c_int32),
        ("dtypes", c_uint32),
        ("computes", c_uint32),
        ("deterministic", c_int32),
        ("available", c_int32),
    ]


class Matmul(Structure):
    _fields_ = [
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("batch", c_int64),
        ("a", c_void_p),
        ("b", c_void_p),
        ("c", c_void_p),
        ("lda", c_int64),
        ("ldb", c_int64),
        ("ldc", c_int64),
        ("stride_a", c_int64),
        ("stride_b", c_int64),
        ("stride_c", c_int64),
        ("alpha", c_float),
        ("beta", c_float),
        ("transpose_a", c_int32),
        ("transpose_b", c_int32),
        ("transpose_c", c_int32),
        ("dtype", c_int32),
        ("out_dtype", c_int32),
        ("compute", c_int32),
        ("scale_a", c_void_p),
        ("scale_b", c_void_p),
        ("scaling", c_int32),
        ("fast_sums", c_int32),
        ("dtype_b", c_int32),
        ("reserved", c_int32),
    ]


class MatmulMetrics(Structure):
    _fields_ = [
        ("flops", c_double),
        ("global_load_nbytes", c_double),
        ("global_store_nbytes", c_double),
        ("shared_load_nbytes", c_double),
        ("shared_store_nbytes", c_double),
        ("ideal_nbytes", c_double),
        ("arithmetic_intensity", c_double),
        ("memory_efficiency", c_double),
        ("registers", c_int32),
        ("threads_per_block", c_int32),
        ("blocks", c_int64),
        ("shared_nbytes", c_int64),
        ("occupancy", c_double),
    ]


class Linear(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("in", c_int64),
        ("out", c_int64),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("preact", c_void_p),
        ("ldx", c_int64),
        ("ldw", c_int64),
        ("ldy", c_int64),
        ("ld_preact", c_int64),
        ("activation", c_int32),
        ("dtype", c_int32),
        ("compute", c_int32),
        ("reserved", c_int32),
    ]


class LinearGrad(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("in", c_int64),
        ("out", c_int64),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("grad_y", c_void_p),
        ("preact", c_void_p),
        ("grad_x", c_void_p),
        ("grad_weight", c_void_p),
        ("grad_bias", c_void_p),
        ("ldx", c_int64),
        ("ldw", c_int64),
        ("ld_grad_y", c_int64),
        ("ld_preact", c_int64),
        ("ld_grad_x", c_int64),
        ("ld_grad_weight", c_int64),
        ("activation", c_int32),
        ("dtype", c_int32),
        ("grad_dtype", c_int32),
        ("compute", c_int32),
        ("accumulate", c_int32),
        ("reserved", c_int32),
    ]


class AttentionStrides(Structure):
    _fields_ = [
        ("batch", c_int64),
        ("row", c_int64),
        ("head", c_int64),
    ]


class Rope(Structure):
    _fields_ = [
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("rows", c_int64),
        ("ld", c_int64),
        ("base", c_float),
        ("dim", c_int32),
        ("first", c_int32),
        ("interleaved", c_int32),
        ("queries_only", c_int32),
        ("reserved", c_int32),
    ]


class Attention(Structure):
    _fields_ = [
        ("batch", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("dim_v", c_int64),
        ("q_len", c_int64),
        ("k_len", c_int64),
        ("q_rows", c_int64),
        ("k_rows", c_int64),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("out", c_void_p),
        ("lse", c_void_p),
        ("q_strides", AttentionStrides),
        ("k_strides", AttentionStrides),
        ("v_strides", AttentionStrides),
        ("out_strides", AttentionStrides),
        ("lse_strides", AttentionStrides),
        ("q_offsets", c_void_p),
        ("k_offsets", c_void_p),
        ("q_lengths", c_void_p),
        ("k_lengths", c_void_p),
        ("sinks", c_void_p),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("rope", Rope),
        ("scale", c_float),
        ("softcap", c_float),
        ("causal", c_int32),
        ("window", c_int32),
        ("dtype", c_int32),
        ("out_dtype", c_int32),
        ("compute", c_int32),
        ("reserved", c_int32),
        ("q_descale", c_void_p),
        ("k_descale", c_void_p),
        ("v_descale", c_void_p),
        ("descale_stride", c_int64),
    ]


class AttentionGrad(Structure):
    _fields_ = [
        ("forward", Attention),
        ("grad_out", c_void_p),
        ("grad_q", c_void_p),
        ("grad_k", c_void_p),
        ("grad_v", c_void_p),
        ("grad_sinks", c_void_p),
        ("grad_out_strides", AttentionStrides),
        ("grad_q_strides", AttentionStrides),
        ("grad_k_strides", AttentionStrides),
        ("grad_v_strides", AttentionStrides),
        ("reserved", c_int64 * 4),
    ]


class AttentionPaged(Structure):
    _fields_ = [
        ("attention", Attention),
        ("block_table", c_void_p),
        ("ld_table", c_int64),
        ("pages", c_int64),
        ("page_size", c_int64),
        ("cache_dtype", c_int32),
        ("reserved", c_int32),
        ("reserved_more", c_int64 * 4),
    ]


class KvAppend(Structure):
    _fields_ = [
        ("batch", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("dim_v", c_int64),
        ("new_len", c_int64),
        ("new_rows", c_int64),
        ("k_len", c_int64),
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_pages", c_void_p),
        ("v_pages", c_void_p),
        ("k_strides", AttentionStrides),
        ("v_strides", AttentionStrides),
        ("k_pages_strides", AttentionStrides),
        ("v_pages_strides", AttentionStrides),
        ("new_offsets", c_void_p),
        ("new_lengths", c_void_p),
        ("k_lengths", c_void_p),
        ("block_table", c_void_p),
        ("ld_table", c_int64),
        ("pages", c_int64),
        ("page_size", c_int64),
        ("rope", Rope),
        ("dtype", c_int32),
        ("cache_dtype", c_int32),
        ("k_descale", c_void_p),
        ("v_descale", c_void_p),
        ("descale_stride", c_int64),
        ("reserved", c_int64),
    ]


class Norm(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("cols", c_int64),
        ("x", c_void_p),
        ("residual", c_void_p),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("sum", c_void_p),
        ("mean", c_void_p),
        ("rstd", c_void_p),
        ("ldx", c_int64),
        ("ld_residual", c_int64),
        ("ldy", c_int64),
        ("ld_sum", c_int64),
        ("eps", c_float),
        ("kind", c_int32),
        ("dtype", c_int32),
        ("weight_dtype", c_int32),
        ("reserved", c_int32 * 2),
    ]


class NormGrad(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("cols", c_int64),
        ("grad_y", c_void_p),
        ("x", c_void_p),
        ("weight", c_void_p),
        ("mean", c_void_p),
        ("rstd", c_void_p),
        ("grad_sum", c_void_p),
        ("grad_x", c_void_p),
        ("grad_weight", c_void_p),
        ("grad_bias", c_void_p),
        ("ld_grad_y", c_int64),
        ("ldx", c_int64),
        ("ld_grad_sum", c_int64),
        ("ld_grad_x", c_int64),
        ("kind", c_int32),
        ("dtype", c_int32),
        ("weight_dtype", c_int32),
        ("grad_dtype", c_int32),
        ("accumulate", c_int32),
        ("reserved", c_int32),
    ]


class CrossEntropy(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("vocab", c_int64),
        ("logits", c_void_p),
        ("targets", c_void_p),
        ("grad_loss", c_void_p),
        ("loss", c_void_p),
        ("lse", c_void_p),
        ("grad", c_void_p),
        ("ld_logits", c_int64),
        ("ld_grad", c_int64),
        ("reduction", c_int32),
        ("dtype", c_int32),
        ("ignore", c_int32),
        ("ignore_index", c_int32),
        ("reserved", c_int32 * 2),
    ]


class AdamwTensor(Structure):
    _fields_ = [
        ("count", c_int64),
        ("grad", c_void_p),
        ("master", c_void_p),
        ("weight", c_void_p),
        ("m", c_void_p),
        ("v", c_void_p),
    ]


class AdamwNow(Structure):
    _fields_ = [
        ("step", c_int64),
        ("lr", c_float),
        ("reserved", c_int32),
    ]


class Adamw(Structure):
    _fields_ = [
        ("tensors", c_void_p),
        ("ntensors", c_int64),
        ("grad_scale", c_void_p),
        ("step", c_int64),
        ("seed", c_uint64),
        ("lr", c_float),
        ("beta1", c_float),
        ("beta2", c_float),
        ("eps", c_float),
        ("weight_decay", c_float),
        ("dtype", c_int32),
        ("grad_dtype", c_int32),
        ("stochastic", c_int32),
        ("now", c_void_p),
    ]


class GradTensor(Structure):
    _fields_ = [
        ("count", c_int64),
        ("grad", c_void_p),
    ]


class GradNorm(Structure):
    _fields_ = [
        ("tensors", c_void_p),
        ("ntensors", c_int64),
        ("norm", c_void_p),
        ("scale", c_void_p),
        ("max_norm", c_float),
        ("dtype", c_int32),
        ("reserved", c_int32 * 2),
    ]


class Embedding(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("vocab", c_int64),
        ("dim", c_int64),
        ("weight", c_void_p),
        ("ids", c_void_p),
        ("y", c_void_p),
        ("ld_weight", c_int64),
        ("ldy", c_int64),
        ("dtype", c_int32),
        ("reserved", c_int32),
    ]


class EmbeddingGrad(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("vocab", c_int64),
        ("dim", c_int64),
        ("grad_y", c_void_p),
        ("ids", c_void_p),
        ("grad_weight", c_void_p),
        ("ld_grad_y", c_int64),
        ("ld_grad_weight", c_int64),
        ("dtype", c_int32),
        ("grad_dtype", c_int32),
        ("accumulate", c_int32),
        ("reserved", c_int32),
    ]


class Swiglu(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("cols", c_int64),
        ("gate", c_void_p),
        ("up", c_void_p),
        ("y", c_void_p),
        ("ld_gate", c_int64),
        ("ld_up", c_int64),
        ("ldy", c_int64),
        ("dtype", c_int32),
        ("reserved", c_int32),
    ]


class SwigluGrad(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("cols", c_int64),
        ("grad_y", c_void_p),
        ("gate", c_void_p),
        ("up", c_void_p),
        ("grad_gate", c_void_p),
        ("grad_up", c_void_p),
        ("ld_grad_y", c_int64),
        ("ld_gate", c_int64),
        ("ld_up", c_int64),
        ("ld_grad_gate", c_int64),
        ("ld_grad_up", c_int64),
        ("dtype", c_int32),
        ("reserved", c_int32),
    ]


class Moe(Structure):
    _fields_ = [
        ("tokens", c_int64),
        ("experts", c_int64),
        ("top_k", c_int64),
        ("dim", c_int64),
        ("hidden", c_int64),
        ("x", c_void_p),
        ("logits", c_void_p),
        ("w_gate", c_void_p),
        ("w_up", c_void_p),
        ("w_down", c_void_p),
        ("y", c_void_p),
        ("chosen", c_void_p),
        ("weights", c_void_p),
        ("gate", c_void_p),
        ("up", c_void_p),
        ("ldx", c_int64),
        ("ld_logits", c_int64),
        ("ldy", c_int64),
        ("ld_w_gate", c_int64),
        ("ld_w_up", c_int64),
        ("ld_w_down", c_int64),
        ("stride_w_gate", c_int64),
        ("stride_w_up", c_int64),
        ("stride_w_down", c_int64),
        ("dtype", c_int32),
        ("logits_dtype", c_int32),
        ("compute", c_int32),
        ("weighting", c_int32),
    ]


class MoeGrad(Structure):
    _fields_ = [
        ("tokens", c_int64),
        ("experts", c_int64),
        ("top_k", c_int64),
        ("dim", c_int64),
        ("hidden", c_int64),
        ("grad_y", c_void_p),
        ("x", c_void_p),
        ("logits", c_void_p),
        ("w_gate", c_void_p),
        ("w_up", c_void_p),
        ("w_down", c_void_p),
        ("chosen", c_void_p),
        ("weights", c_void_p),
        ("gate", c_void_p),
        ("up", c_void_p),
        ("grad_x", c_void_p),
        ("grad_logits", c_void_p),
        ("grad_w_gate", c_void_p),
        ("grad_w_up", c_void_p),
        ("grad_w_down", c_void_p),
        ("ld_grad_y", c_int64),
        ("ldx", c_int64),
        ("ld_logits", c_int64),
        ("ld_w_gate", c_int64),
        ("ld_w_up", c_int64),
        ("ld_w_down", c_int64),
        ("stride_w_gate", c_int64),
        ("stride_w_up", c_int64),
        ("stride_w_down", c_int64),
        ("ld_grad_x", c_int64),
        ("ld_grad_logits", c_int64),
        ("ld_grad_w_gate", c_int64),
        ("ld_grad_w_up", c_int64),
        ("ld_grad_w_down", c_int64),
        ("stride_grad_w_gate", c_int64),
        ("stride_grad_w_up", c_int64),
        ("stride_grad_w_down", c_int64),
        ("dtype", c_int32),
        ("logits_dtype", c_int32),
        ("grad_dtype", c_int32),
        ("accumulate", c_int32),
        ("compute", c_int32),
        ("weighting", c_int32),
    ]


class Rotate(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("heads", c_int64),
        ("dim", c_int64),
        ("x", c_void_p),
        ("y", c_void_p),
        ("ldx", c_int64),
        ("ldy", c_int64),
        ("positions", c_void_p),
        ("rope", Rope),
        ("dtype", c_int32),
        ("backward", c_int32),
        ("reserved", c_int64 * 2),
    ]


# By C name. Those in PREFIXES have the first fields of their structure alone.
STRUCTS: dict[str, type[Structure]] = {
    "gpunvme_buf": Buf,
    "gpunvme_gpu_info": GpuInfo,
    "gpunvme_engine_config": EngineConfig,
    "gpunvme_engine_info": EngineInfo,
    "gpunvme_store_info": StoreInfo,
    "gpunvme_path": Path,
    "gpunvme_backend_info": BackendInfo,
    "gpunvme_vec": Vec,
    "gpunvme_io": Io,
    "gpunvme_order": Order,
    "gpunvme_convert": Convert,
    "gpunvme_tensor": Tensor,
    "gpunvme_range": Range,
    "gpunvme_weights_part": WeightsPart,
    "gpunvme_weights_options": WeightsOptions,
    "gpunvme_python": Python,
    "gpunvme_dataset_options": DatasetOptions,
    "gpunvme_dataset_ranges": DatasetRanges,
    "gpunvme_dataset_info": DatasetInfo,
    "gpunvme_dataset_index_options": DatasetIndexOptions,
    "gpunvme_data_range": DataRange,
    "gpunvme_sampler_options": SamplerOptions,
    "gpunvme_sampler_state": SamplerState,
    "gpunvme_sampler_info": SamplerInfo,
    "gpunvme_sample": Sample,
    "gpunvme_loader_source": LoaderSource,
    "gpunvme_loader_options": LoaderOptions,
    "gpunvme_loader_batch": LoaderBatch,
    "gpunvme_loader_stats": LoaderStats,
    "gpunvme_tiers_settings": TiersSettings,
    "gpunvme_tiers_file": TiersFile,
    "gpunvme_tiers_options": TiersOptions,
    "gpunvme_tier_info": TierInfo,
    "gpunvme_tiers_info": TiersInfo,
    "gpunvme_tiers_io": TiersIo,
    "gpunvme_tiers_moves": TiersMoves,
    "gpunvme_tiers_scrub": TiersScrub,
    "gpunvme_kind": Kind,
    "gpunvme_kind_io": KindIo,
    "gpunvme_sqe": Sqe,
    "gpunvme_id_ctrl": IdCtrl,
    "gpunvme_smart_log": SmartLog,
    "gpunvme_error_log_entry": ErrorLogEntry,
    "gpunvme_ns": Ns,
    "gpunvme_ctrl_info": CtrlInfo,
    "gpunvme_ctrl_opts": CtrlOpts,
    "gpunvme_event": Event,
    "gpunvme_sim_report": SimReport,
    "gpunvme_ops_exec": OpsExec,
    "gpunvme_ops_capability": OpsCapability,
    "gpunvme_ops_variant": OpsVariant,
    "gpunvme_matmul": Matmul,
    "gpunvme_matmul_metrics": MatmulMetrics,
    "gpunvme_linear": Linear,
    "gpunvme_linear_grad": LinearGrad,
    "gpunvme_attention_strides": AttentionStrides,
    "gpunvme_rope": Rope,
    "gpunvme_attention": Attention,
    "gpunvme_attention_grad": AttentionGrad,
    "gpunvme_attention_paged": AttentionPaged,
    "gpunvme_kv_append": KvAppend,
    "gpunvme_norm": Norm,
    "gpunvme_norm_grad": NormGrad,
    "gpunvme_cross_entropy": CrossEntropy,
    "gpunvme_adamw_tensor": AdamwTensor,
    "gpunvme_adamw_now": AdamwNow,
    "gpunvme_adamw": Adamw,
    "gpunvme_grad_tensor": GradTensor,
    "gpunvme_grad_norm": GradNorm,
    "gpunvme_embedding": Embedding,
    "gpunvme_embedding_grad": EmbeddingGrad,
    "gpunvme_swiglu": Swiglu,
    "gpunvme_swiglu_grad": SwigluGrad,
    "gpunvme_rotate": Rotate,
    "gpunvme_moe": Moe,
    "gpunvme_moe_grad": MoeGrad,
}
PREFIXES = {"gpunvme_id_ctrl", "gpunvme_smart_log"}

# ---- Functions: what they return, then their arguments. Every pointer is `void *` here. ----------

_FUNCTIONS: dict[str, tuple[type | None, ...]] = {
    # version.h
    "gpunvme_abi": (c_uint,),
    # error.h
    "gpunvme_err_name": (c_char_p, c_int),
    "gpunvme_err_text": (c_char_p, c_int),
    "gpunvme_err_detail": (c_char_p,),
    # memory.h
    "gpunvme_mem_alloc_on": (c_int, c_uint, c_size_t, c_int, c_void_p),
    "gpunvme_mem_free": (c_int, c_void_p),
    "gpunvme_mem_kind_of": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_mem_copy": (c_int, c_void_p, c_int, c_void_p, c_int, c_size_t),
    "gpunvme_mem_checksum": (c_int, c_void_p, c_size_t, c_size_t, c_void_p, c_void_p),
    "gpunvme_mem_checksum_host": (c_uint64, c_void_p, c_size_t),
    "gpunvme_mem_gpu_is_host": (c_bool,),
    "gpunvme_mem_gpu_why_not": (c_char_p,),
    "gpunvme_mem_gpu_count": (c_uint,),
    "gpunvme_mem_gpu_info": (c_int, c_uint, c_void_p),
    "gpunvme_mem_gpu_current": (c_int, c_void_p),
    # engine.h
    "gpunvme_engine_create": (c_int, c_void_p, c_void_p),
    "gpunvme_engine_destroy": (c_int, c_void_p),
    "gpunvme_engine_get_info": (None, c_void_p, c_void_p),
    "gpunvme_register": (c_int, c_void_p, c_void_p, c_size_t, c_int),
    "gpunvme_unregister": (c_int, c_void_p, c_void_p),
    # storage.h
    "gpunvme_open": (c_int, c_char_p, c_uint, c_void_p),
    "gpunvme_open_on": (c_int, c_void_p, c_char_p, c_uint, c_void_p),
    "gpunvme_open_fd": (c_int, c_void_p, c_int, c_char_p, c_char_p, c_uint, c_void_p),
    "gpunvme_close": (c_int, c_void_p),
    "gpunvme_store_get_info": (None, c_void_p, c_void_p),
    "gpunvme_store_size": (c_int, c_void_p, c_void_p),
    "gpunvme_store_resize": (c_int, c_void_p, c_uint64),
    "gpunvme_store_advise": (c_int, c_void_p, c_uint64, c_uint64, c_int),
    "gpunvme_store_read": (c_int, c_void_p, c_uint64, c_void_p, c_int, c_size_t, c_void_p),
    "gpunvme_store_write": (c_int, c_void_p, c_uint64, c_void_p, c_int, c_size_t, c_void_p),
    "gpunvme_store_readv": (c_int, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p),
    "gpunvme_store_writev": (c_int, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p),
    "gpunvme_store_flush": (c_int, c_void_p),
    "gpunvme_store_path": (None, c_void_p, c_void_p),
    "gpunvme_route_name": (c_char_p, c_int),
    "gpunvme_backend_at": (c_bool, c_uint, c_void_p),
    # transfer.h
    "gpunvme_io_submit": (c_int, c_void_p, c_size_t, c_void_p),
    "gpunvme_io_run": (c_int, c_void_p, c_size_t),
    "gpunvme_io_detail": (c_char_p, c_void_p, c_char_p, c_size_t),
    "gpunvme_io_moved": (c_size_t, c_void_p),
    "gpunvme_io_cancel": (None, c_void_p),
    "gpunvme_io_submit_ordered": (c_int, c_void_p, c_size_t, c_void_p, c_void_p),
    "gpunvme_batch_create": (c_int, c_void_p),
    "gpunvme_batch_destroy": (c_int, c_void_p),
    "gpunvme_batch_poll": (c_int, c_void_p, c_size_t, c_size_t, c_void_p, c_void_p, c_uint64),
    "gpunvme_batch_pending": (c_size_t, c_void_p),
    "gpunvme_batch_cancel": (c_int, c_void_p),
    "gpunvme_batch_fd": (c_int, c_void_p),
    # weights.h
    "gpunvme_weights_open": (c_int, c_void_p, c_void_p, c_size_t, c_void_p),
    "gpunvme_weights_close": (c_int, c_void_p),
    "gpunvme_weights_count": (c_size_t, c_void_p),
    "gpunvme_weights_at": (c_void_p, c_void_p, c_size_t),
    "gpunvme_weights_names": (c_int, c_void_p, c_void_p, c_size_t, c_void_p),
    "gpunvme_weights_nfiles": (c_size_t, c_void_p),
    "gpunvme_weights_store": (c_void_p, c_void_p, c_size_t),
    "gpunvme_weights_metadata": (
        c_bool, c_void_p, c_size_t, c_size_t, c_void_p, c_void_p,
    ),
    "gpunvme_weights_load": (c_int, c_void_p, c_void_p, c_size_t, c_void_p),
    "gpunvme_weights_load_start": (
        c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p,
    ),
    "gpunvme_weights_load_next": (
        c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_uint64,
    ),
    "gpunvme_weights_load_cancel": (None, c_void_p),
    "gpunvme_weights_load_end": (c_int, c_void_p),
    "gpunvme_weights_manifest_write": (c_int, c_char_p, c_void_p, c_size_t),
    "gpunvme_weights_manifest_check": (c_int, c_char_p, c_void_p, c_size_t, c_void_p),
    "gpunvme_dtype_name": (c_char_p, c_int),
    # binding.h
    "gpunvme_python_set": (None, c_void_p),
    "gpunvme_python_delete": (None, c_void_p),
    "gpunvme_python_delete_capsule": (None, c_void_p),
    # dataset.h
    "gpunvme_dataset_format_name": (c_char_p, c_uint),
    "gpunvme_dataset_open": (c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    "gpunvme_dataset_from_ranges": (c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    "gpunvme_dataset_close": (c_int, c_void_p),
    "gpunvme_dataset_get_info": (None, c_void_p, c_void_p),
    "gpunvme_dataset_at": (c_int, c_void_p, c_uint64, c_void_p),
    "gpunvme_dataset_uri": (c_char_p, c_void_p, c_uint64),
    "gpunvme_dataset_store": (c_void_p, c_void_p, c_uint64),
    "gpunvme_dataset_checksum": (c_int, c_void_p, c_uint64, c_void_p),
    "gpunvme_dataset_write_index": (c_int, c_void_p, c_char_p, c_void_p),
    # convert.h
    "gpunvme_convert": (c_int, c_void_p, c_void_p),
    "gpunvme_number_nbytes": (c_size_t, c_uint32),
    # loader.h
    "gpunvme_loader_open": (c_int, c_void_p, c_size_t, c_void_p, c_void_p),
    "gpunvme_loader_next": (c_int, c_void_p, c_void_p, c_uint64),
    "gpunvme_loader_release": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_loader_set_depth": (c_int, c_void_p, c_uint32),
    "gpunvme_loader_prefetch": (None, c_void_p),
    "gpunvme_loader_get_state": (None, c_void_p, c_void_p),
    "gpunvme_loader_set_state": (c_int, c_void_p, c_void_p),
    "gpunvme_loader_set_epoch": (c_int, c_void_p, c_uint64),
    "gpunvme_loader_get_stats": (None, c_void_p, c_void_p),
    "gpunvme_loader_get_info": (None, c_void_p, c_void_p),
    "gpunvme_loader_close": (c_int, c_void_p),
    # tiers.h
    "gpunvme_tier_name": (c_char_p, c_int),
    "gpunvme_tiers_create": (c_int, c_void_p),
    "gpunvme_tiers_open": (c_int, c_char_p, c_void_p, c_void_p),
    "gpunvme_tiers_close": (c_int, c_void_p),
    "gpunvme_tiers_configure": (c_int, c_void_p, c_void_p),
    "gpunvme_tiers_get_info": (c_int, c_void_p, c_void_p),
    "gpunvme_tiers_read": (
        c_int, c_void_p, c_char_p, c_uint64, c_void_p, c_int, c_size_t, c_void_p,
    ),
    "gpunvme_tiers_write": (
        c_int, c_void_p, c_char_p, c_uint64, c_void_p, c_int, c_size_t, c_void_p,
    ),
    "gpunvme_tiers_flush": (c_int, c_void_p, c_char_p),
    "gpunvme_tiers_put": (c_int, c_void_p, c_char_p, c_int, c_void_p, c_int, c_size_t),
    "gpunvme_tiers_put_store": (c_int, c_void_p, c_char_p, c_int, c_void_p),
    "gpunvme_tiers_remove": (c_int, c_void_p, c_char_p),
    "gpunvme_tiers_stat": (c_int, c_void_p, c_char_p, c_void_p),
    "gpunvme_tiers_list": (c_int, c_void_p, c_char_p, c_void_p, c_void_p),
    "gpunvme_tiers_open_store": (c_int, c_void_p, c_char_p, c_uint, c_void_p),
    "gpunvme_tiers_read_many": (c_int, c_void_p, c_void_p, c_size_t),
    "gpunvme_tiers_write_many": (c_int, c_void_p, c_void_p, c_size_t),
    "gpunvme_tiers_begin_write": (c_int, c_void_p, c_char_p, c_uint64, c_void_p, c_void_p),
    "gpunvme_tiers_end_write": (c_int, c_void_p, c_void_p),
    "gpunvme_tiers_path": (c_int, c_void_p, c_char_p, c_void_p, c_void_p),
    "gpunvme_tiers_move": (c_int, c_void_p, c_char_p, c_int, c_bool, c_void_p),
    "gpunvme_tiers_migrate": (c_int, c_void_p, c_uint64, c_void_p),
    "gpunvme_tiers_scrub": (c_int, c_void_p, c_uint, c_void_p, c_void_p, c_void_p),
    "gpunvme_tiers_finding_name": (c_char_p, c_int),
    "gpunvme_tiers_rebuild": (c_int, c_char_p),
    # request.h
    "gpunvme_requests_create": (c_int, c_void_p, c_void_p),
    "gpunvme_requests_destroy": (c_int, c_void_p),
    "gpunvme_request_create": (c_int, c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "gpunvme_request_release": (c_int, c_void_p, c_uint64),
    "gpunvme_request_add_kind": (
        c_int, c_void_p, c_uint64, c_char_p, c_uint64, c_uint64, c_uint32,
    ),
    "gpunvme_request_kind": (c_int, c_void_p, c_uint64, c_char_p, c_void_p),
    "gpunvme_request_run": (c_int, c_void_p, c_uint64, c_void_p, c_size_t),
    "gpunvme_request_prepare": (
        c_int, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p, c_void_p,
    ),
    "gpunvme_request_finish": (c_int, c_void_p, c_size_t),
    # controller.h, io.h
    "gpunvme_ctrl_opts_init": (None, c_void_p),
    "gpunvme_ctrl_open_uri": (c_int, c_char_p, c_void_p, c_void_p),
    "gpunvme_ctrl_close": (c_int, c_void_p),
    "gpunvme_ctrl_transport": (c_void_p, c_void_p),
    "gpunvme_ctrl_id": (c_void_p, c_void_p),
    "gpunvme_ctrl_get_info": (None, c_void_p, c_void_p),
    "gpunvme_ctrl_ns_at": (c_void_p, c_void_p, c_uint32),
    "gpunvme_ctrl_ns": (c_int, c_void_p, c_uint32, c_void_p),
    "gpunvme_ctrl_alloc": (c_int, c_void_p, c_size_t, c_int, c_void_p),
    "gpunvme_ctrl_free": (None, c_void_p, c_void_p),
    "gpunvme_ioq_create": (c_int, c_void_p, c_uint32, c_void_p),
    "gpunvme_ioq_delete": (c_int, c_void_p),
    "gpunvme_ctrl_admin": (c_int, c_void_p, c_void_p, c_void_p, c_size_t, c_bool, c_void_p),
    "gpunvme_ctrl_get_log": (
        c_int, c_void_p, c_uint8, c_uint32, c_uint64, c_void_p, c_size_t,
    ),
    "gpunvme_ctrl_get_feature": (c_int, c_void_p, c_uint8, c_uint32, c_void_p),
    "gpunvme_ctrl_set_feature": (c_int, c_void_p, c_uint8, c_uint32, c_uint32),
    "gpunvme_ctrl_next_event": (c_int, c_void_p, c_void_p),
    "gpunvme_ctrl_check": (c_int, c_void_p),
    "gpunvme_ctrl_reset": (c_int, c_void_p),
    "gpunvme_read": (c_int, c_void_p, c_void_p, c_uint64, c_size_t, c_void_p, c_size_t),
    "gpunvme_write": (c_int, c_void_p, c_void_p, c_uint64, c_size_t, c_void_p, c_size_t, c_uint),
    "gpunvme_flush": (c_int, c_void_p, c_void_p),
    # sim.h
    "gpunvme_transport_sim": (c_void_p, c_void_p),
    "gpunvme_sim_fault": (c_int, c_void_p, c_char_p),
    "gpunvme_sim_faults_clear": (None, c_void_p),
    "gpunvme_sim_fatal": (None, c_void_p),
    "gpunvme_sim_remove": (None, c_void_p),
    "gpunvme_sim_power_cycle": (None, c_void_p),
    "gpunvme_sim_report": (None, c_void_p, c_void_p),
}

_OPS_FUNCTIONS: dict[str, tuple[type | None, ...]] = {
    # ops.h
    "gpunvme_ops_abi": (c_uint,),
    "gpunvme_ops_status_name": (c_char_p, c_int),
    "gpunvme_ops_status_text": (c_char_p, c_int),
    "gpunvme_ops_detail": (c_char_p,),
    "gpunvme_ops_dtype_name": (c_char_p, c_int),
    "gpunvme_ops_capability": (c_int, c_int, c_int, c_void_p),
    "gpunvme_ops_variant": (c_int, c_int, c_int, c_uint, c_void_p),
    "gpunvme_matmul": (c_int, c_void_p, c_void_p),
    "gpunvme_matmul_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_matmul_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_matmul_analyze": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_linear_forward": (c_int, c_void_p, c_void_p),
    "gpunvme_linear_forward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_linear_forward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_linear_backward": (c_int, c_void_p, c_void_p),
    "gpunvme_linear_backward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_linear_backward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_attention": (c_int, c_void_p, c_void_p),
    "gpunvme_attention_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_attention_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_attention_backward": (c_int, c_void_p, c_void_p),
    "gpunvme_attention_backward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_attention_backward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_attention_paged": (c_int, c_void_p, c_void_p),
    "gpunvme_attention_paged_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_attention_paged_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_kv_append": (c_int, c_void_p, c_void_p),
    "gpunvme_kv_append_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_kv_append_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_norm_forward": (c_int, c_void_p, c_void_p),
    "gpunvme_norm_forward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_norm_forward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_norm_backward": (c_int, c_void_p, c_void_p),
    "gpunvme_norm_backward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_norm_backward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_cross_entropy": (c_int, c_void_p, c_void_p),
    "gpunvme_cross_entropy_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_cross_entropy_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_adamw": (c_int, c_void_p, c_void_p),
    "gpunvme_adamw_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_adamw_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_grad_norm": (c_int, c_void_p, c_void_p),
    "gpunvme_grad_norm_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_grad_norm_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_embedding_forward": (c_int, c_void_p, c_void_p),
    "gpunvme_embedding_forward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_embedding_forward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_embedding_backward": (c_int, c_void_p, c_void_p),
    "gpunvme_embedding_backward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_embedding_backward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_swiglu_forward": (c_int, c_void_p, c_void_p),
    "gpunvme_swiglu_forward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_swiglu_forward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_swiglu_backward": (c_int, c_void_p, c_void_p),
    "gpunvme_swiglu_backward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_swiglu_backward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_moe_forward": (c_int, c_void_p, c_void_p),
    "gpunvme_moe_forward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_moe_forward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_moe_backward": (c_int, c_void_p, c_void_p),
    "gpunvme_moe_backward_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_moe_backward_choose": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_rotate": (c_int, c_void_p, c_void_p),
    "gpunvme_rotate_workspace": (c_int, c_void_p, c_void_p, c_void_p),
    "gpunvme_rotate_choose": (c_int, c_void_p, c_void_p, c_void_p),
}

# ---- Loading ----------------------------------------------------------------------------------


def _path(name: str) -> str:
    """Where a library is: in GPUNVME_LIBRARY_DIR if that is set, else in the package."""
    folder = os.environ.get("GPUNVME_LIBRARY_DIR")
    return os.path.join(folder or os.path.join(os.path.dirname(__file__), "lib"), name)


def _load(
    name: str, functions: dict[str, tuple[type | None, ...]], abi: str, wanted: int
) -> ctypes.CDLL:
    """Loads a library and declares its functions, if ``abi()`` says that it is the right one."""
    path = _path(name)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"gpunvme: can't load {path}: {error}. Install the package by pip, which builds it, "
            "or name the folder of a built one in GPUNVME_LIBRARY_DIR"
        ) from error
    if hasattr(library, abi) and (found := getattr(library, abi)()) != wanted:
        raise ImportError(
            f"gpunvme: {path} has binary interface {found}, and this package ({__file__}) is made "
            f"for {wanted}: install both from the same version"
        )
    for function, (result, *arguments) in functions.items():
        try:
            declared = getattr(library, function)
        except AttributeError:
            raise ImportError(
                f"gpunvme: {path} has no {function}(): it is of another version than this package"
            ) from None
        declared.restype = result
        declared.argtypes = arguments
    return library


lib = _load("libgpunvme.so", _FUNCTIONS, "gpunvme_abi", ABI)
_ops: ctypes.CDLL | None = None


def ops() -> ctypes.CDLL:
    """libgpunvme_ops, loaded when it is first needed."""
    global _ops
    if _ops is None:
        _ops = _load("libgpunvme_ops.so", _OPS_FUNCTIONS, "gpunvme_ops_abi", OPS_ABI)
    return _ops
