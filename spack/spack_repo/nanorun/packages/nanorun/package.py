# SPDX-License-Identifier: BSD-3-Clause
from pathlib import Path

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Nanorun(CMakePackage, CudaPackage):
    """Trains the NanoGPT speedrun recipe as an MPI batch program: one rank per GPU or core, parallel HDF5 for data and
    checkpoints, a TOML deck for every setting. It is built from the checkout that holds this recipe."""

    git = Path(__file__).resolve().parents[5].as_uri()

    license("BSD-3-Clause")

    version("main", branch="main", preferred=True)
    version("0.2.0", commit="090a7e2e223da6b755cf72b220029265bacd79f6")

    variant("tests", default=False, description="Build the tests")

    generator("ninja")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")

    depends_on("mpi")
    depends_on("hdf5@1.10: +mpi")
    depends_on("kokkos@4: cxxstd=20")
    depends_on("openblas")
    depends_on("fmt")
    depends_on("tomlplusplus")
    depends_on("cli11")
    depends_on("nlohmann-json")
    depends_on("pcre2 +jit", when="@0.2.1:")
    depends_on("googletest", type="build", when="+tests")
    depends_on("python@3.11:", type="build", when="+tests")

    with when("+cuda"):
        # The build itself asks for 90a; other packages know 90 only.
        requires("cuda_arch=90", msg="the CUDA kernels are for compute capability 9.0")
        depends_on("cuda@13:")
        depends_on("nccl +cuda cuda_arch=90")

    def cmake_args(self):
        return [
            # Spack's compiler wrapper names the processor.
            self.define("NANORUN_NATIVE", False),
            self.define_from_variant("NANORUN_CUDA", "cuda"),
            self.define_from_variant("NANORUN_TESTS", "tests"),
        ]

    def test_dry_run(self):
        """The installed program plans the training of an installed deck."""
        nanorun = which(self.prefix.bin.nanorun, required=True)
        nanorun("train", "--dry-run", self.prefix.share.nanorun.inputs.join("quickstart.toml"))
