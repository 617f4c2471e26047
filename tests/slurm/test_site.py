"""site.sh asks Slurm for what its settings leave open. Slurm's commands, ldd and the program are stubs.

Usage: test_site.py PROGRAM MPIRUN.
"""

import shutil
import subprocess

from scripts import JOBSCRIPTS, Script, small_run

OPEN_MPI = "libmpi.so.40 => /x/libmpi.so.40\nlibopen-pal.so.40 => /x/libopen-pal.so.40\n"
CPU = "version      0.2.0\nmpi          Open MPI v4.1.4\n"
CUDA = CPU + "cuda         13.0\ncuda_driver  none\n"
OFFERED = "MPI plugin types are...\n\tnone\n\tpmi2\n\tcray_shasta\n"
PMIX = "\tpmix\nspecific pmix plugin versions available: pmix_v4\n"
LDD = '#!/bin/sh\ncat "$STUBS/libraries" 2>/dev/null\n'
SRUN = '#!/bin/sh\n[ "$*" = --mpi=list ] && cat "$STUBS/offered"\n'
SINFO = """#!/usr/bin/env bash
echo "$*" >>"$STUBS/asked"
wanted=$(printf '%s\\n' "$@" | sed -n 's/^--partition=//p')
[[ -z $wanted ]] || exec grep -F "|$wanted|" "$STUBS/partitions"
exec cat "$STUBS/partitions"
"""
PROGRAM = '#!/bin/sh\n[ "$*" = info ] && cat "$STUBS/about" 2>/dev/null\n'
OMPI_INFO = '#!/bin/sh\ncat "$STUBS/components" 2>/dev/null\n'
SHOWN = ("SLURM_MPI_TYPE", "SBATCH_PARTITION", "SBATCH_GPUS_PER_NODE")


class AskSlurm(Script):
    def setUp(self):
        super().setUp()
        for name, text in (("ldd", LDD), ("srun", SRUN), ("sinfo", SINFO), ("ompi_info", OMPI_INFO)):
            self.write_stub(name, text)
        for name in ("SLURM_JOB_ID", "NANORUN_JOBSCRIPTS"):
            del self.environment[name]
        self.program = self.top / "build" / "bin" / "nanorun"
        self.program.parent.mkdir(parents=True)
        self.write_stub(self.program, PROGRAM)
        self.environment["NANORUN_BUILD"] = str(self.program.parents[1])
        self.answer(libraries=OPEN_MPI, about=CUDA, offered=OFFERED + PMIX, partitions="up|main*|(null)\n")

    def write_stub(self, name, text):
        (self.stubs / name).write_text(text)
        (self.stubs / name).chmod(0o755)

    def answer(self, **files):
        for name, text in files.items():
            (self.stubs / name).write_text(text)

    def source(self, before="", again="", shell="bash", **variables):
        """The variables of SHOWN that are set, in their order, after site.sh has been sourced; self.said is what it
        said."""
        source = f'source "{JOBSCRIPTS}/site.sh"'
        commands = f"{before}\n{source}\n{again and f'{again}; {source}'}\nenv"
        done = subprocess.run([shell, "-euc", commands], cwd=self.folder, env=self.environment | variables, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.said = done.stderr
        found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
        return tuple(found.get(name, "") for name in SHOWN)

    def test_mpi(self):
        """Open MPI takes PMIx and an older one perhaps PMI2; MPICH takes PMI2 unless it has been linked with PMIx."""
        mpich, intel = "libmpich.so.12 => /x/libmpich.so.12\n", "libmpi.so.12 => /x/libmpi.so.12\n"
        for libraries, offered, expected in (
                (OPEN_MPI, OFFERED + PMIX, "pmix"), (mpich, OFFERED + PMIX, "pmi2"), (intel, OFFERED + PMIX, "pmi2"),
                (mpich + "libpmix.so.2 => /x/libpmix.so.2\n", OFFERED + PMIX, "pmix"), ("", OFFERED + PMIX, "pmix"),
                (OPEN_MPI, OFFERED, ""), (mpich, "MPI plugin types are...\n\tnone\n", ""),
                ("libmpi_gnu_123.so.12 => /x/libmpi_gnu_123.so.12\n", OFFERED + PMIX, "")):
            with self.subTest(libraries=libraries, offered=offered):
                self.answer(libraries=libraries, offered=offered)
                self.assertEqual(self.source()[0], expected)
                self.assertIn(f"srun --mpi={expected or 'MpiDefault'}\n", self.said)
        self.answer(libraries=OPEN_MPI, offered=OFFERED, components="MCA pmix: s2 (MCA v2.1.0)\n")
        self.assertEqual(self.source()[0], "pmi2")

    def test_partition_and_gpus(self):
        cpu, gpu, h100 = "up|cpu*|(null)\n", "up|gpu|gpu:4(S:0-1)\n", "up|hopper|gpu:h100:8(S:0-1),nvme:1\n"
        for about, partitions, expected in (
                (CUDA, "up|main*|gpu:2\n", ("", "2")), (CPU, "up|main*|gpu:2\n", ("", "")),
                (CUDA, cpu + gpu, ("gpu", "4")), (CPU, cpu + gpu, ("", "")),
                (CUDA, gpu.replace("gpu|", "gpu*|", 1) + h100, ("hopper", "h100:8")),
                (CUDA, "up|old|gpu:a100:4\nup|new*|gpu:a100:2\n", ("", "a100:2")),
                (CUDA, "down|hopper|gpu:h100:8\n" + gpu, ("gpu", "4")),
                (CPU, "up|a|(null)\nup|b|(null)\n", ("a", "")),
                (CUDA, "up|main*|(null)\nup|main*|gpu:h200:8\n", ("", "h200:8")),
                (CUDA, cpu, ("", "")), (CUDA, "", ("", ""))):
            with self.subTest(about=about, partitions=partitions):
                self.answer(about=about, partitions=partitions)
                self.assertEqual(self.source()[1:], expected)
                self.assertIn(f"GPUs of a node: {expected[1] or 'none'}, ", self.said)

    def test_settings_hold(self):
        self.answer(partitions="up|main*|gpu:2\nup|big|gpu:8\n")
        for settings, expected in (({"SBATCH_PARTITION": "big"}, ("big", "8")), ({"SBATCH_GRES": "gpu:1"}, ("", "")),
                                   ({"SBATCH_GPUS_PER_NODE": "1"}, ("", "1")), ({"SBATCH_GPUS": "16"}, ("", ""))):
            with self.subTest(settings=settings):
                self.assertEqual(self.source(**settings)[1:], expected)
        site = self.top / "site.sh"
        site.write_text("export SLURM_MPI_TYPE=cray_shasta SBATCH_PARTITION=big SBATCH_GPUS_PER_NODE=0\n")
        self.assertEqual(self.source(NANORUN_SITE=str(site)), ("cray_shasta", "big", "0"))

    def test_what_it_chose_itself_is_no_setting(self):
        """Another build or partition, and what the job step that submits a job has of its own."""
        self.answer(partitions="up|main*|(null)\nup|big|gpu:8\n")
        self.assertEqual(self.source(again=f"echo '{CPU}' >$STUBS/about"), ("pmix", "", ""))
        self.answer(about=CUDA)
        self.assertEqual(self.source(again="echo 'up|new*|gpu:4' >$STUBS/partitions"), ("pmix", "", "4"))
        self.assertEqual(self.source(SLURM_MPI_TYPE="none")[0], "pmix")

    def test_what_it_says(self):
        self.answer(partitions="up|hopper|gpu:h100:8\n")
        line = f"site.sh: jobs run {self.program}, partition hopper, GPUs of a node: h100:8, srun --mpi=pmix\n"
        self.source()
        self.assertEqual(self.said, line)
        line = line.replace("h100:8", "none")
        (self.stubs / "about").unlink()
        self.source()
        self.assertEqual(self.said, f"site.sh: {self.program} info fails here, exit code 1, so jobs ask for no GPUs; "
                                    "SBATCH_GPUS_PER_NODE can\n" + line)
        reason = "nanorun: nanorun.sif: no such image;\nbuild it\n"
        self.write_stub(self.program, f"#!/bin/sh\nprintf '{reason}' >&2; exit 2\n")
        self.source()
        self.assertEqual(self.said, f"{reason}site.sh: {self.program} info fails here, exit code 2, so jobs ask for no GPUs; "
                                    "SBATCH_GPUS_PER_NODE can\n" + line)
        self.write_stub("timeout", f"#!/bin/sh\nshift\n[ $1 = {self.program} ] && exit 124\nexec \"$@\"\n")
        self.source()
        self.assertEqual(self.said, f"site.sh: {self.program} info does not end within 20 seconds, exit code 124, so jobs ask "
                                    "for no GPUs; SBATCH_GPUS_PER_NODE can\n" + line)
        (self.stubs / "timeout").unlink()
        self.write_stub(self.program, "#!/bin/sh\necho a warning >&2\ncat \"$STUBS/about\"\n")
        self.answer(about=CUDA)
        self.source()
        self.assertEqual(self.said, line.replace("none", "h100:8"))
        self.program.unlink()
        self.source()
        self.assertEqual(self.said, f"site.sh: {self.program}: no such program; build it, or set NANORUN_BUILD\n" + line)

    def test_containers(self):
        """The script that starts a container says what the program in it does, which ldd cannot."""
        self.answer(partitions="up|main*|gpu:2\n", libraries="")
        for about, gpus in ((CPU, ""), (CUDA, "2")):
            self.answer(about=about)
            self.assertEqual(self.source(), ("pmix", "", gpus))

    def test_jobs_ask_for_the_mpi_alone(self):
        self.assertEqual(self.source(before="in_job=true"), ("pmix", "", ""))
        self.assertEqual(self.said, "")
        self.assertFalse((self.stubs / "asked").exists())

    def test_without_slurm(self):
        """Also where a command of Slurm fails, or does not end."""
        jobs = f"site.sh: jobs run {self.program}, partition that sbatch chooses, GPUs of a node: none, srun --mpi=MpiDefault\n"
        for script, reason in (("echo 'sinfo: error: first\nslurm_load_partitions: no contact' >&2; exit 1",
                                "slurm_load_partitions: no contact"), ("exit 3", "sinfo ends with exit code 3")):
            for name in ("srun", "sinfo"):
                self.write_stub(name, f"#!/bin/sh\n{script}\n")
            self.assertEqual(self.source(), ("", "", ""))
            self.assertEqual(self.said, f"site.sh: Slurm does not answer: {reason}; run sinfo on a login node of the "
                                        "cluster, or set SBATCH_PARTITION and SBATCH_GPUS_PER_NODE\n" + jobs)
        self.write_stub("timeout", "#!/bin/sh\nshift\n[ $1 = sinfo ] && exit 124\nexec \"$@\"\n")
        self.assertEqual(self.source(), ("", "", ""))
        self.assertEqual(self.said, "site.sh: Slurm does not answer: sinfo said nothing for 10 seconds; source this file again "
                                    "when it does, or set SBATCH_PARTITION and SBATCH_GPUS_PER_NODE\n" + jobs)
        (self.stubs / "timeout").unlink()
        path = self.top / "path"
        path.mkdir()
        for name in ("bash", "dirname", "env"):
            (path / name).symlink_to(shutil.which(name))
        self.assertEqual(self.source(PATH=str(path)), ("", "", ""))
        self.assertEqual(self.said, "")

    def test_no_partition_fits(self):
        what_to_do = "that is up; set SBATCH_PARTITION and SBATCH_GPUS_PER_NODE if there is one\n"
        for about, partitions, settings, kind in (
                (CUDA, "up|cpu*|(null)\n", {}, " with GPUs"), (CPU, "down|cpu*|(null)\n", {}, ""),
                (CPU, "down|big|(null)\nup|cpu*|(null)\n", {"SBATCH_PARTITION": "big"}, " big")):
            self.answer(about=about, partitions=partitions)
            self.source(**settings)
            self.assertTrue(self.said.startswith(f"site.sh: sinfo shows no partition{kind} {what_to_do}"), self.said)
        self.answer(about=CPU, partitions="up|cpu*|(null)\n")
        self.source()
        self.assertEqual(self.said.count("\n"), 1)

    def test_zsh(self):
        if shutil.which("zsh") is None:
            self.skipTest("no zsh")
        self.answer(partitions="up|main*|(null)\nup|hopper|gpu:h100:8\n")
        self.assertEqual(self.source(shell="zsh"), ("pmix", "hopper", "h100:8"))


if __name__ == "__main__":
    small_run.main()
