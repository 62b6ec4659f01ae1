"""terrace from Python: optimizer states and saved tensors in host memory and on disks, for arrays of NumPy, PyTorch and others.

    states = terrace.OptimizerState(terrace.Tiers(host="8GiB", paths=["/mnt/disk"], disk="200GiB"), "adamw")
    for name, p in model.named_parameters():
        states.add(name, p, p.grad)        # both stay yours, at the same address
    states.step(rate=3e-4, clip=1.0)       # after each backward

    with terrace.offload_activations(terrace.Tiers(host="8GiB", paths=["/mnt/disk"], disk="200GiB")):
        loss = model(x).sum()              # what autograd saves goes to the tiers; backward() fetches it

    terrace.train(data="book.txt", steps=100)["eval_loss"]      # the program, with its flags as keywords

Arrays are passed by DLPack, so they are never copied and no library is needed but theirs. They must be contiguous.

Threads: an OptimizerState is for one thread at a time. Calls release the GIL.
Errors:  terrace.Error, whose text says what failed and how to mend it, and whose `status` is its kind ("refused", "does not fit").
"""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import subprocess

_ABI_VERSION = 0
_STATUSES = ["ok", "failed", "refused", "does not fit", "missing", "corrupt", "interrupted", "misuse"]


class Error(RuntimeError):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def _library():
    beside = pathlib.Path(__file__).with_name("libterrace.so")
    name = os.environ.get("TERRACE_LIBRARY") or (str(beside) if beside.exists() else "libterrace.so.0")
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise Error("missing", f"{error}\n  install terrace, or give the path of libterrace.so in TERRACE_LIBRARY") from None
    library.terrace_last_error_message.restype = ctypes.c_char_p
    if library.terrace_abi_version() != _ABI_VERSION:
        raise Error("refused", f"{name} has another binary interface than this module\n  install both from one version")
    return library


_c = _library()


def _call(function, *arguments):
    status = getattr(_c, function)(*arguments)
    if status != 0:
        raise Error(_STATUSES[status] if status < len(_STATUSES) else "failed", _c.terrace_last_error_message().decode())


class _Struct(ctypes.Structure):
    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class _Options(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("device_bytes", ctypes.c_uint64), ("host_bytes", ctypes.c_uint64),
                ("nvme_bytes", ctypes.c_uint64), ("nvme_paths", ctypes.POINTER(ctypes.c_char_p)), ("nvme_path_count", ctypes.c_size_t),
                ("store", ctypes.c_char_p), ("cuda", ctypes.c_int32), ("cuda_ordinal", ctypes.c_int32), ("threads", ctypes.c_int32)]


class _Settings(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), *((name, ctypes.c_double) for name in ("beta1", "beta2", "eps", "weight_decay", "momentum")),
                ("nesterov", ctypes.c_int32)]


class _OptimizerOptions(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("tiers", ctypes.POINTER(_Options)), ("optimizer", ctypes.c_char_p),
                ("recipe", ctypes.c_char_p), ("chunk_elements", ctypes.c_uint64), ("seed", ctypes.c_uint64),
                ("settings", ctypes.POINTER(_Settings))]


class _Tensor(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("weight", ctypes.c_void_p), ("gradient", ctypes.c_void_p),
                ("weight_dtype", ctypes.c_int32), ("gradient_dtype", ctypes.c_int32), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("rank", ctypes.c_size_t), ("rate", ctypes.c_double), ("without_decay", ctypes.c_int32), ("not_hidden", ctypes.c_int32)]


class _Step(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("rate", ctypes.c_double), ("clip", ctypes.c_double), ("gradient_scale", ctypes.c_double),
                ("stream", ctypes.c_void_p)]


class _StepResult(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("norm", ctypes.c_double), ("applied", ctypes.c_int32)]


# DLPack 0.x: https://dmlc.github.io/dlpack/latest/c_api.html
class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_DTYPES = {(2, 32): 0, (4, 16): 1, (2, 64): 2, (2, 16): 3}  # (float or bfloat, bits): terrace_dtype
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _Array:
    """Where an array lies. It keeps the array, not the capsule, which only describes it."""

    def __init__(self, array, what):
        array = array.detach() if hasattr(array, "detach") else array  # PyTorch exports no tensor that requires a gradient
        if not hasattr(array, "__dlpack__"):
            raise Error("refused", f"{what} is a {type(array).__name__}\n  give an array with __dlpack__, as those of NumPy and PyTorch")
        self.kept = array
        capsule = array.__dlpack__()
        tensor = _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
        self.shape = tensor.shape[: tensor.ndim]
        self.bytes = tensor.bits * tensor.lanes // 8
        for size in self.shape:
            self.bytes *= size
        stride = 1
        for size, given in zip(reversed(self.shape), reversed(tensor.strides[: tensor.ndim] if tensor.strides else [])):
            if size != 1 and given != stride:
                raise Error("refused", f"{what} is not contiguous\n  give a copy that is")
            stride *= size
        self.dtype = _DTYPES.get((tensor.code, tensor.bits), -1)
        self.on_gpu = tensor.device_type == 2
        self.address = (tensor.data or 0) + tensor.byte_offset


def _stream(array):
    """The current CUDA stream of PyTorch, for a tensor on a GPU."""
    if not array.on_gpu:
        return None
    import torch
    return torch.cuda.current_stream(array.kept.device).cuda_stream or 1  # 1: cudaStreamLegacy


def _bytes(size):
    """16, "512 MB" or "1.5GiB"."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"([0-9.]+)\s*([KMGT]?)(i?)B?", size)
    if not match:
        raise Error("refused", f'"{size}" is no size\n  give a number of bytes, or a text like "512MiB" or "100GB"')
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2] or " "))


class Tiers:
    """Budgets: `device` for a GPU (with `cuda`, its number), `host`, and `disk` in the folders `paths`. `store`: a folder that lasts."""

    def __init__(self, host, disk=0, paths=(), store=None, device=0, cuda=None, threads=0):
        self._paths = (ctypes.c_char_p * len(paths))(*(os.fsencode(path) for path in paths))
        self.options = _Options(device_bytes=_bytes(device), host_bytes=_bytes(host), nvme_bytes=_bytes(disk),
                                nvme_paths=self._paths if paths else None, nvme_path_count=len(paths),
                                store=os.fsencode(store) if store else None, cuda=int(cuda is not None), cuda_ordinal=cuda or 0,
                                threads=threads)


class _Handle:
    _destroy = None

    def __init__(self, create, *arguments):
        self._handle = ctypes.c_void_p()
        _call(create, *arguments, ctypes.byref(self._handle))

    def __del__(self):
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            getattr(_c, self._destroy)(handle)


class OptimizerState(_Handle):
    """An optimizer over arrays that stay yours, with its states in the tiers. Settings: beta1, beta2, eps, weight_decay, momentum, nesterov."""

    _destroy = "terrace_optimizer_destroy"

    def __init__(self, tiers, optimizer="adamw", recipe="fp32", seed=0, **settings):
        chosen = _Settings()
        _call("terrace_optimizer_default_settings", ctypes.byref(chosen))
        known = [name for name, _ in _Settings._fields_[1:]]
        for name, value in settings.items():
            if name not in known:
                raise Error("refused", f"there is no setting {name}\n  the settings are {', '.join(known)}")
            setattr(chosen, name, value)
        self._arrays = []
        self._stream_of = None
        super().__init__("terrace_optimizer_create", ctypes.byref(_OptimizerOptions(
            tiers=ctypes.pointer(tiers.options), optimizer=optimizer.encode(), recipe=recipe.encode(), seed=seed,
            settings=ctypes.pointer(chosen))))

    def add(self, name, weight, gradient, rate=1.0, decay=True, hidden=True):
        """If the last commit has the tensor, its weights are overwritten with those of the commit."""
        w, g = _Array(weight, f"the weight of {name}"), _Array(gradient, f"the gradient of {name}")
        if w.shape != g.shape or w.on_gpu != g.on_gpu:
            raise Error("refused", f"weight and gradient of {name} are of {w.shape} and {g.shape}\n  both have one shape, and lie on one device")
        shape = (ctypes.c_int64 * len(w.shape))(*w.shape)
        _call("terrace_optimizer_add", self._handle, ctypes.byref(_Tensor(
            name=name.encode(), weight=w.address, gradient=g.address, weight_dtype=w.dtype, gradient_dtype=g.dtype, shape=shape,
            rank=len(w.shape), rate=rate, without_decay=not decay, not_hidden=not hidden)))
        self._arrays += [w.kept, g.kept]
        if w.on_gpu:
            self._stream_of = w

    def step(self, rate, clip=0.0, gradient_scale=1.0):
        """Returns the norm of all gradients, or None without `clip`; a norm that is not finite changes nothing."""
        result = _StepResult()
        stream = _stream(self._stream_of) if self._stream_of else None
        _call("terrace_optimizer_step", self._handle,
              ctypes.byref(_Step(rate=rate, clip=clip, gradient_scale=gradient_scale, stream=stream)), ctypes.byref(result))
        return result.norm if clip else None

    def close(self):
        """Frees the tiers and the store, which another process may then open."""
        self.__del__()

    def commit(self, n):
        _call("terrace_optimizer_commit", self._handle, ctypes.c_uint64(n))

    @property
    def last_commit(self):
        """0: none."""
        n = ctypes.c_uint64()
        _call("terrace_optimizer_last_commit", self._handle, ctypes.byref(n))
        return n.value


class SavedTensors(_Handle):
    """Tensors that a forward saves and its backward fetches. The last one is expected first."""

    _destroy = "terrace_chunks_destroy"

    def __init__(self, tiers):
        super().__init__("terrace_chunks_create", ctypes.byref(tiers.options))

    def offload(self, array):
        return _Saved(self, _Array(array, "the tensor"))


class _Saved(_Handle):
    _destroy = "terrace_saved_drop"

    def __init__(self, owner, array):
        self._owner = owner  # must live longer
        super().__init__("terrace_chunks_save", owner._handle, ctypes.c_void_p(array.address), ctypes.c_uint64(array.bytes),
                         ctypes.c_void_p(_stream(array)))

    def fetch(self, into):
        """Into an array of as many bytes."""
        array = _Array(into, "the target")
        _call("terrace_saved_fetch", self._handle, ctypes.c_void_p(array.address), ctypes.c_uint64(array.bytes), ctypes.c_void_p(_stream(array)))
        return into


@contextlib.contextmanager
def offload_activations(tiers, least_bytes=1 << 20):
    """PyTorch: what autograd saves within goes to the tiers, and comes back in the backward. Smaller tensors and parameters stay."""
    import torch
    saved = SavedTensors(tiers)

    def pack(tensor):
        whole = tensor if tensor._base is None else tensor._base
        if tensor.numel() * tensor.element_size() < least_bytes or whole.is_leaf and whole.requires_grad:
            return tensor
        # With its dimensions from the slowest to the fastest, so that it comes back with the same strides, and so the same bits.
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        dense = tensor.permute(order).contiguous()
        return saved.offload(dense), order, dense.shape, dense.dtype, dense.device

    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        handle, order, shape, dtype, device = packed
        back = [order.index(d) for d in range(len(order))]
        return handle.fetch(torch.empty(shape, dtype=dtype, device=device)).permute(back)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield saved


def run(command, **flags):
    """The program's `command` with --json; returns its objects. `seq_len=64`, `untied=True`, `data=["a", "b"]`: flags."""
    program = os.environ.get("TERRACE_PROGRAM") or shutil.which("terrace")
    if not program:
        raise Error("missing", "there is no program terrace\n  install it, or give its path in TERRACE_PROGRAM")
    words = [program, command, "--json"]
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [] if one is False or one is None else [flag] if one is True else [flag, str(one)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        statuses = {2: "refused", 3: "does not fit", 4: "missing", 5: "corrupt", 75: "interrupted"}
        raise Error(statuses.get(done.returncode, "failed"), done.stderr.strip())
    try:
        return [json.loads(done.stdout)]
    except ValueError:
        return [json.loads(line) for line in done.stdout.splitlines() if line]


def plan(**flags):
    return run("plan", **flags)[0]


def train(**flags):
    """Returns the run's result: the last held-out loss, the hash of its weights."""
    return run("train", **flags)[-1]
