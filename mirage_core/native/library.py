"""Builds the native library once a machine and loads it once a process.

The library is compiled where it is used, for the torch that is installed there, into a cache
folder named by a digest of all that the binary depends on: sources, flags, torch, Python and
compiler.  So an upgrade builds anew, and a finished build is only opened.  Processes that start
together wait for one build on a file lock; a build that was broken off leaves no marker and is
done again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import torch
from filelock import FileLock
from torch.utils import cpp_extension

from mirage_core.errors import ConfigError, UnsupportedError

_NAME = "mirage_native"
_FOLDER = Path(__file__).parent
_FLAGS = ("-O3", "-fopenmp", "-fvisibility=hidden")
_LINK_FLAGS = ("-fopenmp",)


@functools.cache
def load() -> ModuleType:
    """The native library, built first if this machine has no build of it.

    After this call ``torch.ops.mirage`` has the operators and the module returned has
    ``TransferEngine``.  Raises UnsupportedError on a CPU without AVX2 and FMA, ConfigError when
    the library must be built and no compiler is found, or when the build fails.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise UnsupportedError(
            f"MIRAGE's CPU kernels need x86-64 with AVX2 and FMA; this is {platform.machine()}"
        )
    folder = build_folder()
    marker = folder / "built"
    if marker.exists():
        module = _open(folder / f"{_NAME}.so")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "build.lock"):
            module = _open(folder / f"{_NAME}.so") if marker.exists() else _build(folder)
            marker.touch()
    if not module.cpu_has_avx2_fma():
        raise UnsupportedError("MIRAGE's CPU kernels need AVX2 and FMA, which this CPU lacks")
    return module


def build_folder() -> Path:
    """Where this library's build for this Python, torch and compiler is kept."""
    digest = hashlib.sha256()
    for source in sorted([*_FOLDER.glob("*.h"), *_FOLDER.glob("*.cpp")]):
        digest.update(f"{source.name}\0".encode() + source.read_bytes())
    for part in (*_FLAGS, *_LINK_FLAGS, torch.__version__, sys.version, _compiler()):
        digest.update(f"\0{part}".encode())
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "mirage" / "native" / digest.hexdigest()[:16]


def _compiler() -> str:
    return os.environ.get("CXX", "c++")


def _build(folder: Path) -> ModuleType:
    """Compile into ``folder`` and load; the caller holds the folder's lock."""
    scripts = sysconfig.get_path("scripts")  # ninja may be installed beside this Python only
    path = os.environ.get("PATH", os.defpath)
    search = f"{path}{os.pathsep}{scripts}"
    for tool in (_compiler(), "ninja"):
        if shutil.which(tool, path=search) is None:
            raise ConfigError(
                f"MIRAGE's native library must be built once, and {tool!r} is not on PATH: "
                "install a C++20 compiler (or name one in CXX) and ninja, or copy a build made "
                f"elsewhere by `python -m mirage_core.native` to {folder}"
            )
    # torch's own lock file outlives a process that died while it built, and is waited for forever.
    (folder / "lock").unlink(missing_ok=True)
    os.environ["PATH"] = search
    try:
        return cpp_extension.load(
            name=_NAME,
            sources=[str(source) for source in sorted(_FOLDER.glob("*.cpp"))],
            extra_cflags=list(_FLAGS),
            extra_ldflags=list(_LINK_FLAGS),
            build_directory=str(folder),
        )
    except (RuntimeError, OSError, ImportError) as error:
        raise ConfigError(f"MIRAGE's native library did not build: {error}") from error
    finally:
        os.environ["PATH"] = path


def _open(library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, library)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{library} is not a Python extension")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
