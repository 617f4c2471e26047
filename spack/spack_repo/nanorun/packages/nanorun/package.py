# SPDX-License-Identifier: BSD-3-Clause
from pathlib import Path

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Nanorun(CMakePackage, CudaPackage):
    """Trains the NanoGPT speedrun recipe as an MPI batch program: one rank per GPU or core, parallel HDF5 for data and
    checkpoints, a TOML deck for every setting."""

    # A recipe for a public repository of packages differs in this block alone; docs/building.md shows how.
    git = Path(__file__).resolve().parents[5].as_uri()  # the checkout that holds this recipe
    version("main", branch="main", preferred=True)
    version("0.2.0", commit="090a7e2e223da6b755cf72b220029265bacd79f6")

    license("BSD-3-Clause")

    variant("tools", default=True, description="Python with the modules that plots and comparisons of runs need")
    variant("tests", default=False, description="Build the tests")

    generator("ninja")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")

    depends_on("mpi")
    depends_on("hdf5@1.10: +mpi")
    depends_on("kokkos@4: cxxstd=20")
    depends_on("blas")
    depends_on("openblas", when="@0.2.0")
    depends_on("fmt")
    depends_on("tomlplusplus")
    depends_on("cli11")
    depends_on("nlohmann-json")
    depends_on("pcre2 +jit", when="@0.2.1:")
    depends_on("googletest", type="build", when="+tests")
    depends_on("python@3.11:", type="build", when="+tests")

    with when("+tools"), default_args(type="run"):
        depends_on("python@3.11:")
        depends_on("py-numpy")
        depends_on("py-h5py")
        depends_on("py-matplotlib")
        depends_on("py-scipy")

    with when("+cuda"):
        depends_on("cuda@12.4:")
        conflicts("cuda_arch=none", msg="name the architectures of the GPUs, such as 90a (H100) or 80 (A100)")
        for arch in CudaPackage.cuda_arch_values:
            if int(arch.rstrip("af")) < 80:
                conflicts(f"cuda_arch={arch}", msg="the CUDA kernels are for 8.0 (A100) and higher")
            else:
                depends_on(f"nccl +cuda cuda_arch={arch}", when=f"cuda_arch={arch}")
        requires("cuda_arch=90a", "cuda_arch=90", policy="one_of", when="@0.2.0", msg="0.2.0 is for H100 and H200: 90a")

    def cmake_args(self):
        args = [
            # Spack's compiler wrapper names the processor.
            self.define("NANORUN_NATIVE", False),
            self.define_from_variant("NANORUN_CUDA", "cuda"),
            self.define_from_variant("NANORUN_TESTS", "tests"),
            # CMake alone might find another one that lies beside.
            self.define("BLAS_LIBRARIES", self.spec["blas"].libs),
        ]
        if self.spec.satisfies("+cuda"):
            # The kernels for Hopper take what 90a alone has; other packages may know 90 only.
            named = ["90a" if arch == "90" else arch for arch in self.spec.variants["cuda_arch"].value]
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", ";".join(named)))
        return args

    @property
    def program(self):
        return which(self.prefix.bin.nanorun, required=True)

    @property
    def quickstart(self):
        return self.prefix.share.nanorun.inputs.join("quickstart.toml")

    def test_info(self):
        """The installed program names its build and its libraries."""
        if self.spec.satisfies("@0.2.0"):
            raise SkipTest("0.2.0 has no command info")
        out = self.program("info", output=str.split, error=str.split)
        check_outputs([rf"(?m)^{line}" for line in (r"mpi +\S", r"hdf5 +\d", r"blas +\S", r"kokkos +\d")], out)

    def test_dry_run(self):
        """The installed program plans the training of an installed deck."""
        out = self.program("train", "--dry-run", self.quickstart, output=str.split, error=str.split)
        check_outputs(r"(?m)^parameters +\d", out)

    def test_three_steps(self):
        """The installed program makes synthetic tokens and trains on them."""
        self.program("shard", "synthetic", "--synthetic", "60000", "--vocabulary", "257", "--end-of-text", "256")
        out = self.program(
            *("train", self.quickstart, "run.name=three", "run.log_every=1", "train.steps=3"),
            *("data.train=synthetic.h5", "data.validation=synthetic.h5", "validation.tokens=8192"),
            *("checkpoint.every=0", "checkpoint.at_end=false", "checkpoint.restart=none"),
            output=str.split,
            error=str.split,
        )
        check_outputs([r"step +3/3 +loss \d+\.\d+", r"validation at step 3/3: loss \d+\.\d+"], out)
