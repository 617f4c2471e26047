"""GPUs and drivers that programs with CUDA cannot use, on any machine: staged_devices.cpp plays them."""

import os
import re

from harness import FaultTest, small_run


PTX, NO_IMAGE = 222, 209  # cudaErrorUnsupportedPtxVersion, cudaErrorNoKernelImageForDevice


class Refused(FaultTest):
    def open(self, ranks, code, memory=(), faults=()):
        """Starts a rank on each of these devices; the exit code is as given. `memory`: their bytes, 0 without. `faults`:
        CUDA's errors, by number, where code is loaded."""
        wrapper = ["env", f"LD_PRELOAD={os.environ['NANORUN_STAGED_DEVICES']}",
                   *(f"RANK_{rank}={device}" for rank, device in enumerate(ranks)),
                   *(f"MEMORY_{rank}={size}" for rank, size in enumerate(memory)),
                   *(f"CODE_{rank}={fault}" for rank, fault in enumerate(faults))]
        return self.train(len(ranks), "model.width=128", "model.heads=1", "model.head_dim=128", wrapper=wrapper,
                          code=code)

    def check_refused(self, ranks, *parts, **options):
        self.assert_refused(self.open(ranks, code=2, **options), *parts)
        self.assertFalse(self.run_folder().exists())

    def test_other_model(self):
        self.check_refused(["13000 8 70 Tesla V100-SXM2-32GB"] * 2, "nanorun: rank 0 on node ",
                           ": Tesla V100-SXM2-32GB has compute capability 7.0; this build has kernels for 9.0a, 8.0 "
                           "and higher: ")

    def test_ranks_of_several_models(self):
        ranks = ["13000 8 90 NVIDIA H100"] * 2 + ["13000 8 75 Tesla T4", "13000 8 80 NVIDIA A100"]
        self.check_refused(ranks, "nanorun: rank 2 on node ", ": Tesla T4 has compute capability 7.5; this build has ")

    def test_old_driver(self):
        major = small_run.build_facts()["cuda"].split(".")[0]
        driver = {"12": "driver 525 or newer", "13": "driver 580 or newer"}[major]
        self.check_refused(["13000 2 90 NVIDIA H100", "11080 2 90 NVIDIA H100"], "nanorun: rank 1 on node ",
                           f": the driver supports CUDA 11.8, this nanorun needs {major}.0, {driver}")

    def test_code_that_cannot_be_loaded(self):
        """PTX that is newer than the driver, and no code for the device, as each rank finds out once it opens one."""
        said = (", with a driver for CUDA 13.0, does not run this build's kernels for 9.0a, 8.0 and higher: "
                "cudaFuncGetAttributes: ")
        a100, rtx = "13000 2 80 NVIDIA A100", "13000 2 120 NVIDIA RTX PRO 6000"
        self.check_refused([a100] * 2, "nanorun: rank 0 on node ", f": NVIDIA A100 of compute capability 8.0{said}",
                           ": the driver is older than the CUDA of this build", memory=[80 << 30] * 2, faults=(PTX, PTX))
        self.check_refused([rtx] * 2, "nanorun: rank 0 on node ", f": NVIDIA RTX PRO 6000 of compute capability 12.0{said}",
                           "no kernel image", memory=[80 << 30] * 2, faults=(NO_IMAGE, NO_IMAGE))

    def test_no_driver(self):
        self.check_refused(["0 0 0 none"], "nanorun: rank 0 on node ", " finds no GPU: ")

    def test_no_device(self):
        self.check_refused(["13000 0 0 none"], "nanorun: rank 0 on node ", " finds no GPU: ")

    def test_too_little_memory(self):
        """The device with the least memory counts, on whichever rank."""
        self.check_refused(["13000 2 90 NVIDIA H100"] * 2, "nanorun: a rank needs ", " of memory and has 64 MiB; ",
                           memory=(80 << 30, 64 << 20))

    def test_all_since_ampere_are_opened(self):
        for capability, name in ((90, "NVIDIA H200"), (80, "NVIDIA A100-SXM4-80GB"), (120, "NVIDIA RTX PRO 6000")):
            job = self.open([f"13000 2 {capability} {name}"] * 2, code=1, memory=[80 << 30] * 2)
            self.assertIn("opened by cudaSetDevice", job.text())

    def test_unknown_tier(self):
        os.environ["NANORUN_TIER"] = "7.5"
        try:
            self.check_refused(["13000 2 90 NVIDIA H100"], "nanorun: NANORUN_TIER=7.5: must be 8.0, 8.9 or 9.0")
        finally:
            del os.environ["NANORUN_TIER"]


if __name__ == "__main__":
    small_run.main()
