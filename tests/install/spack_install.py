#!/usr/bin/env python3
"""Audits, concretises, installs and tests the recipe in spack/ with an installed Spack and the libraries of this Debian
machine, and concretises spack.yaml. What is installed is HEAD of this checkout, from a clone of its own. Nothing is
fetched, and neither Spack nor its user's settings change.

Usage: spack_install.py SPACK PACKAGES KOKKOS [--clingo DIR] [--work DIR] [--steps STEP,...]. SPACK and PACKAGES are
checkouts of Spack and of its package repository, KOKKOS the prefix of an installed Kokkos 4 or newer.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Spack's name and variants, and the package of Debian whose version it has.
EXTERNALS = {
    "cmake": ("", "cmake"), "ninja": ("", "ninja-build"), "gmake": ("", "make"), "openmpi": ("", "libopenmpi-dev"),
    "hdf5": ("+mpi ~cxx ~fortran", "libhdf5-openmpi-dev"), "openblas": ("threads=pthreads", "libopenblas-dev"),
    "fmt": ("", "libfmt-dev"), "tomlplusplus": ("", "libtomlplusplus-dev"), "cli11": ("", "libcli11-dev"),
    "nlohmann-json": ("", "nlohmann-json3-dev"), "pcre2": ("+jit", "libpcre2-dev"), "googletest": ("", "libgtest-dev"),
    "python": ("", "python3"), "py-numpy": ("", "python3-numpy"), "py-h5py": ("", "python3-h5py"),
    "py-matplotlib": ("", "python3-matplotlib"), "py-scipy": ("", "python3-scipy"),
}


def version_of(package):
    """A package's version, without what Debian adds to it; None where it is not installed."""
    job = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package], capture_output=True,
                         text=True)
    found = re.match(r"installed (?:\d+:)?(\d+(?:\.\d+)*)", job.stdout)
    return found and found[1]


def external(spec, prefix, **more):
    return {"buildable": False, "externals": [{"spec": spec, "prefix": str(prefix), **more}]}


def compiler():
    """The system's GCC, with Fortran where that is installed."""
    programs = {"c": "gcc", "cxx": "g++", "fortran": "gfortran"}
    found = {language: shutil.which(name) for language, name in programs.items() if shutil.which(name)}
    version = subprocess.run(["g++", "-dumpfullversion"], check=True, capture_output=True, text=True).stdout.strip()
    languages = ",".join("c++" if language == "cxx" else language for language in found)
    return {"gcc": {"externals": [{"spec": f"gcc@{version} languages:='{languages}'", "prefix": "/usr",
                                   "extra_attributes": {"compilers": found}}]}}


def kokkos(prefix):
    folders = list(prefix.glob("lib*/cmake/Kokkos"))
    if not folders:
        sys.exit(f"{prefix}: no installed Kokkos (lib*/cmake/Kokkos)")
    # Spack writes 4.6.01 for what CMake calls 4.6.1.
    version = re.search(r'PACKAGE_VERSION "(\d+\.\d+)\.(\d+)', (folders[0] / "KokkosConfigVersion.cmake").read_text())
    devices = re.search(r"Kokkos_DEVICES ([A-Z;]+)", (folders[0] / "KokkosConfigCommon.cmake").read_text())[1]
    backends = " ".join(f"+{name.lower()}" for name in devices.split(";"))
    return external(f"kokkos@{version[1]}.{int(version[2]):02} {backends} cxxstd=20", prefix)


def libraries(prefix):
    packages = {"mpi": {"buildable": False}, "kokkos": kokkos(prefix)}
    versions = {package: version_of(package) for _, package in EXTERNALS.values()}
    missing = [package for package, version in versions.items() if not version]
    if missing:
        sys.exit(f"not installed: {' '.join(missing)}")
    python = {"dependencies": [{"spec": f"python@{versions['python3']}", "deptypes": ["build", "run"]}]}
    for name, (variants, package) in EXTERNALS.items():
        more = python if name.startswith("py-") else {}
        packages[name] = external(f"{name}@{versions[package]} {variants}".strip(), "/usr", **more)
    return packages


class Spack:
    """Spack with settings, installed packages and caches in a directory of their own."""

    def __init__(self, options, checkout):
        self.program, self.work = options.spack / "bin" / "spack", options.work
        self.environment = os.environ | {"SPACK_DISABLE_LOCAL_CONFIG": "1",
                                         "SPACK_USER_CACHE_PATH": str(self.work / "cache"),
                                         "SPACK_PYTHON": sys.executable}
        # Builds are Spack's alone.
        for name in ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_CUDA_COMPILER_LAUNCHER"):
            self.environment.pop(name, None)
        if os.geteuid() == 0:
            self.environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if options.clingo:
            self.environment["PYTHONPATH"] = str(options.clingo)
        common = {
            "config": {"install_tree": {"root": str(self.work / "opt")}, "build_stage": [str(self.work / "stage")],
                       "test_stage": str(self.work / "tests"), "build_jobs": os.cpu_count()},
            "repos": {"nanorun": str(checkout / "spack" / "spack_repo" / "nanorun"),
                      "builtin": str(options.packages / "repos" / "spack_repo" / "builtin")},
            "bootstrap": {"enable": False},
        }
        self.scope("debian", common | {"packages": compiler() | libraries(options.kokkos)})
        self.scope("compiler", common | {"packages": compiler()})

    def scope(self, name, settings):
        folder = self.work / name
        folder.mkdir(parents=True, exist_ok=True)
        for section, values in settings.items():
            # JSON is YAML.
            (folder / f"{section}.yaml").write_text(json.dumps({section: values}, indent=1) + "\n")

    def run(self, *arguments, scope="debian"):
        """Runs a command, shows it with its seconds, and returns what it printed."""
        started = time.monotonic()
        job = subprocess.run([self.program, "-C", self.work / scope, *arguments], env=self.environment, text=True,
                             cwd=self.work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        print(f"spack {' '.join(map(str, arguments))}: {time.monotonic() - started:.0f} s", flush=True)
        if job.returncode != 0:
            sys.exit(job.stdout)
        return job.stdout


def require(found, what, out):
    if not found:
        sys.exit(f"{what}:\n{out}")


def audit(spack, _):
    spack.run("audit", "packages", "nanorun")


def spec(spack, _):
    """With Debian's libraries, and those for GPUs with a compiler alone."""
    for words, scope in ((["~tools", "+tests"], "debian"), (["+cuda", "cuda_arch=90a"], "compiler"),
                         (["~tools", "+cuda", "cuda_arch=90", "^[virtuals=blas]", "blis"], "compiler")):
        out = spack.run("spec", "nanorun", *words, scope=scope)
        require(re.search(r"^ -   nanorun@main", out, re.MULTILINE), "no spec of nanorun", out)
        require(("py-matplotlib@" in out) == ("~tools" not in words), "the modules of Python", out)
        require(("openblas@" in out) == ("blis" not in words), "the BLAS", out)


def environment(spack, checkout):
    """With a compiler alone: the rest would be built."""
    folder = spack.work / "environment"
    shutil.rmtree(folder, ignore_errors=True)
    spack.run("env", "create", "--dir", folder, checkout / "spack.yaml", scope="compiler")
    out = spack.run("--env-dir", folder, "concretize", scope="compiler")
    for name in ("cuda", "nccl", "kokkos", "slurm", "py-h5py"):
        require(re.search(rf"\b{name}@", out), f"{name} is not in the environment", out)


def install(spack, checkout):
    spack.run("install", "nanorun")
    prefix = Path(spack.run("location", "--install-dir", "nanorun").strip())
    head = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    out = subprocess.run([prefix / "bin" / "nanorun", "--version"], check=True, capture_output=True, text=True).stdout
    require(head[:7] in out, f"not the program of {head[:7]}", out)


def test(spack, _):
    out = spack.run("test", "run", "nanorun")
    require(re.search(r"\b3 passed\b|1 passed of 1 spec", out) and "no-tests" not in out, "the tests did not pass", out)
    print(spack.run("test", "results", "--logs"))


STEPS = {"audit": audit, "spec": spec, "environment": environment, "install": install, "test": test}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ("spack", "packages", "kokkos"):
        parser.add_argument(name, type=lambda text: Path(text).resolve())
    parser.add_argument("--clingo", type=lambda text: Path(text).resolve(), help="directory of its Python module")
    parser.add_argument("--work", type=lambda text: Path(text).resolve(), help="keep everything there")
    parser.add_argument("--steps", type=lambda text: text.split(","), default=list(STEPS),
                        help=f"some of {','.join(STEPS)}")
    options = parser.parse_args()
    if not set(options.steps) <= set(STEPS):
        parser.error(f"--steps takes some of {','.join(STEPS)}")
    with tempfile.TemporaryDirectory(prefix="nanorun-spack-") as temporary:
        options.work = options.work or Path(temporary)
        checkout = options.work / "nanorun"
        shutil.rmtree(checkout, ignore_errors=True)
        options.work.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", ROOT, checkout], check=True)
        subprocess.run(["git", "-C", checkout, "checkout", "--quiet", "-B", "main", commit(ROOT)], check=True)
        spack = Spack(options, checkout)
        for step in options.steps:
            STEPS[step](spack, checkout)


def commit(repository):
    return subprocess.run(["git", "-C", repository, "rev-parse", "HEAD"], check=True, capture_output=True,
                          text=True).stdout.strip()


if __name__ == "__main__":
    main()
