"""Configures the sources with other libraries than those that CMake finds by itself, and with some that do not fit.

Usage: test_dependencies.py CMAKE SOURCE_DIR [unittest arguments]. What this machine lacks is skipped.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from configure import cache, commands, configure

LIBRARIES = "/usr/lib/*-linux-gnu"  # of Debian


class Dependencies(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-dependencies-")
        self.addCleanup(temporary.cleanup)
        self.build = Path(temporary.name)

    def refusal(self, *options):
        """What CMake says where it refuses the options, on one line."""
        job = subprocess.run([CMAKE, "-S", SOURCE, "-B", self.build, "-DNANORUN_TESTS=OFF", *options],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertNotEqual(job.returncode, 0, job.stdout)
        return " ".join(job.stdout.split())

    def linked(self):
        """The libraries that the program is linked with, by name."""
        links = "".join(file.read_text() for name in ("build.ninja", "src/CMakeFiles/nanorun.dir/link.txt")
                        for file in [self.build / name] if file.is_file())
        return set(re.findall(r"/(lib[a-z0-9]+)[.]so", links))

    def need(self, pattern):
        """The first file that matches."""
        found = sorted(glob.glob(pattern))
        if not found:
            self.skipTest(f"no {pattern}")
        return found[0]


class Hdf5(Dependencies):
    def test_a_blank_where_its_wrapper_cannot_compile(self):
        self.need("/usr/bin/h5pcc")
        self.build = self.build / "a build"
        self.assertIn(f"takes no blank in the path where it compiles, {self.build}: build in a directory without one",
                      self.refusal())


class Mpi(Dependencies):
    def setUp(self):
        super().setUp()
        for program in ("mpicc.mpich", "mpicc.openmpi"):
            if shutil.which(program) is None:
                self.skipTest(f"no {program}")

    def test_hdf5_of_another_mpi_is_refused(self):
        self.need("/usr/bin/h5pcc.openmpi")
        said = self.refusal("-DMPI_C_COMPILER=mpicc.mpich", "-DHDF5_C_COMPILER_EXECUTABLE=/usr/bin/h5pcc.openmpi")
        self.assertRegex(said, r"MPI and HDF5 do not belong together: MPI is libmpich\.so\.12 \(\S+\), and HDF5 \(\S+\) is "
                               r"built with another, libmpi\.so\.[0-9]+\. Name an HDF5 of this MPI")

    def test_mpich_with_its_hdf5(self):
        configure(CMAKE, SOURCE, self.build, "-DMPI_C_COMPILER=mpicc.mpich",
                  f"-DHDF5_C_COMPILER_EXECUTABLE={self.need('/usr/bin/h5pcc.mpich')}")
        self.assertIn("libmpich", self.linked())
        self.assertNotIn("libmpi", self.linked())


class Blas(Dependencies):
    def test_openblas(self):
        self.need(f"{LIBRARIES}/libopenblas.so")
        configure(CMAKE, SOURCE, self.build)
        self.assertIn("libopenblas", self.linked())

    def test_blis(self):
        self.need(f"{LIBRARIES}/libblis.so")
        configure(CMAKE, SOURCE, self.build, "-DBLA_VENDOR=FLAME")
        self.assertIn("libblis", self.linked())
        self.assertNotIn("libopenblas", self.linked())

    def test_a_library_by_its_path(self):
        reference = self.need(f"{LIBRARIES}/blas/libblas.so")
        configure(CMAKE, SOURCE, self.build, f"-DBLAS_LIBRARIES={reference}")
        self.assertIn("libblas", self.linked())
        self.assertNotIn("libopenblas", self.linked())

    def test_cblas_in_a_library_of_its_own(self):
        """As the sources of the reference BLAS build it."""
        cblas = self.build / "lib" / "libcblas.so"
        cblas.parent.mkdir()
        functions = " ".join(f"void cblas_{name}(void) {{}}" for name in ("sdot", "ssymm", "dsyrk"))
        blas = self.build / "lib" / "libblas.so"
        for library, source in ((cblas, functions), (blas, "void sgemm_(void) {}")):
            subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-x", "c", "-", "-o", library],
                           input=source, text=True, check=True)
        configure(CMAKE, SOURCE, self.build, f"-DBLAS_LIBRARIES={blas}")
        self.assertEqual(cache(self.build)["CBLAS_LIBRARY"], str(cblas))
        self.assertLess({"libblas", "libcblas"}, self.linked())

    def test_without_cblas(self):
        blas = self.build / "libfortran.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", blas], input="void sgemm_(void) {}", text=True,
                       check=True)
        said = self.refusal(f"-DBLAS_LIBRARIES={blas}")
        self.assertRegex(said, r"Could NOT find CBLAS .*name a BLAS with its C interface by -DBLA_VENDOR=.*libfortran\.so")

    def test_integers_of_64_bits_are_refused(self):
        self.assertIn("integers of 32 bits (LP64)", self.refusal("-DBLA_VENDOR=Intel10_64ilp"))
        self.assertIn("integers of 32 bits (LP64)", self.refusal("-DBLA_SIZEOF_INTEGER=8"))


class Cuda(Dependencies):
    def setUp(self):
        super().setUp()
        found = shutil.which("nvcc") or self.need("/usr/local/cuda/bin/nvcc")
        release = re.search(r"release ([0-9]+)\.([0-9]+)", subprocess.run([found, "--version"], text=True, check=True,
                                                                          stdout=subprocess.PIPE).stdout)
        if tuple(map(int, release.groups())) < (12, 4):
            self.skipTest("CUDA is older than 12.4")
        before = os.environ.get("CUDACXX")
        self.addCleanup(lambda: os.environ.pop("CUDACXX") if before is None else os.environ.update(CUDACXX=before))
        os.environ["CUDACXX"] = found

    def flags(self, *options):
        """Of the kernels; self.said is what CMake says, on one line."""
        said = configure(CMAKE, SOURCE, self.build, "-DNANORUN_CUDA=ON", *options)
        self.said = " ".join(said.split())
        return " ".join({word for file, command in commands(self.build).items() if file.suffix == ".cu"
                         for word in command})

    def modules_of_cmake_3_25(self):
        """A folder with FindCUDAToolkit as CMake 3.25.1 has it, if this CMake's was mended for CUDA 13."""
        module = Path(cache(self.build)["CMAKE_ROOT"]) / "Modules" / "FindCUDAToolkit.cmake"
        folder = self.build / "modules"
        folder.mkdir()
        text = module.read_text().replace("${CMAKE_CURRENT_LIST_DIR}", str(module.parent))
        (folder / module.name).write_text(text.replace("if(TARGET CUDA::nvToolsExt AND ", "if("))
        return folder

    def test_architectures_are_the_user_s(self):
        self.assertIn("arch=compute_90a,code=[compute_90a,sm_90a]", self.flags())
        self.assertIn("arch=compute_80,code=[compute_80]", self.flags())
        self.assertNotIn("compute_80", self.flags("-DCMAKE_CUDA_ARCHITECTURES=90a"))
        self.assertIn("arch=compute_86,code=[sm_86]", self.flags("-DCMAKE_CUDA_ARCHITECTURES=86-real;90-virtual;90a"))
        self.assertNotIn("kernels for Hopper", self.said)
        self.assertNotIn("90a", self.flags("-DCMAKE_CUDA_ARCHITECTURES=80;90-real"))
        self.assertRegex(self.said, r"CMake Warning .*CMAKE_CUDA_ARCHITECTURES=80;90-real: 90 leaves the kernels for Hopper "
                                    r"out.*: name 90a")
        self.assertIn("arch=compute_90a,code=[sm_90a]",
                      self.flags("-DCMAKE_CUDA_ARCHITECTURES=90a-real",
                                 f"-DCMAKE_MODULE_PATH={self.modules_of_cmake_3_25()}"))

    def test_toolkits_before_12_4_are_refused(self):
        """A compiler that calls itself one of them."""
        old = self.build / "nvcc"
        renamed = "s/release [0-9.]*, V[0-9.]*/release 12.3, V12.3.107/"
        old.write_text(f"#!/bin/sh\n{os.environ['CUDACXX']} \"$@\" | sed '{renamed}'\n")
        old.chmod(0o755)
        os.environ["CUDACXX"] = str(old)
        self.assertRegex(self.refusal("-DNANORUN_CUDA=ON"), r"The CUDA toolkit in \S+ is 12\.3\.107; nanorun needs CUDA "
                                                            r"12\.4 or newer: name its compiler by CUDACXX")

    def test_architectures_without_the_instructions_are_refused(self):
        for names in ("75", "90a;70", "native"):
            said = self.refusal("-DNANORUN_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={names}")
            self.assertIn(f"CMAKE_CUDA_ARCHITECTURES={names}: the CUDA kernels need compute capability 8.0", said)


if __name__ == "__main__":
    CMAKE, SOURCE = sys.argv[1], Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
