"""The files of containers/: images from one list of packages, and the command lines by which bin/nanorun starts
Apptainer and podman, whose place stubs take. Also the packages that spack_install.py names.

Usage: test_containers.py [unittest arguments].
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"
PROGRAM = "/opt/nanorun/bin/nanorun"
# Records its arguments and a variable of the ranks; ends as a run that stopped early.
STUB = """#!/usr/bin/env bash
printf '%s\\0' "${0##*/}" "$OMPI_MCA_btl_vader_single_copy_mechanism" "$@" >"$STUBS/arguments"
exit 75
"""


def array(name):
    """Elements of an array of setup.sh."""
    command = ["bash", "-c", f'source "$0"; printf "%s\\n" "${{{name}[@]}}"', ROOT / "jobscripts" / "setup.sh"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def instructions(text):
    """(word, rest) of each instruction of a Dockerfile."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


class Images(unittest.TestCase):
    def setUp(self):
        self.dockerfile = (CONTAINERS / "Dockerfile").read_text()
        self.definition = (CONTAINERS / "nanorun.def").read_text()

    def test_stages(self):
        stages = re.findall(r"^FROM (\S+) AS (\w+)$", self.dockerfile, re.MULTILINE)
        self.assertEqual([base for base, _ in stages if base not in dict(map(reversed, stages))], ["${BASE}"] * 3)
        self.assertLessEqual({"cpu", "gpu"}, {name for _, name in stages})
        self.assertEqual(re.findall(r"^Stage: (\w+)$", self.definition, re.MULTILINE), ["build", "final"])

    def test_the_base_has_no_default(self):
        """Nor is there any host."""
        self.assertIn(["ARG", "BASE"], instructions(self.dockerfile))
        self.assertEqual(re.findall(r"^Bootstrap: .*\nFrom: .*$", self.definition, re.MULTILINE),
                         ["Bootstrap: {{ BOOTSTRAP }}\nFrom: {{ BASE }}"] * 2)
        self.assertNotRegex(self.definition, r"(BASE|BOOTSTRAP)=")
        for file in CONTAINERS.rglob("*"):
            self.assertNotRegex(file.read_text() if file.is_file() else "", r"\w+://|\b(docker|quay|nvcr|ghcr)\.io\b")

    def test_packages_are_those_of_setup(self):
        """No other file lists any, and both images take them by the same steps."""
        packages = array("program_packages")
        self.assertIn("libhdf5-openmpi-dev", packages)
        self.assertLess(set(packages), set(array("packages")))
        listed = [package for package in packages if package.startswith("lib")]
        for text in (self.dockerfile, self.definition, (CONTAINERS / "build.sh").read_text()):
            self.assertEqual([package for package in listed if package in text], [])
            self.assertNotRegex(text, r"apt-get install (?!-y --no-install-recommends \"\$@\")")
        steps = [re.findall(r"/build\.sh (packages|program|libraries)\b", text)
                 for text in (self.dockerfile, self.definition)]
        self.assertEqual(steps, [["packages", *["program", "libraries"] * 2], ["packages", "program", "libraries"]])
        self.assertIn('install_all "${program_packages[@]}"', (CONTAINERS / "build.sh").read_text())

    def test_the_page_on_building_lists_the_same(self):
        page = (ROOT / "docs" / "building.md").read_text()
        listed = [re.sub(r"\\\n", " ", text).split() for text in re.findall(r"apt-get install ((?:.*\\\n)*.*)", page)]
        self.assertEqual(sorted(listed[0]), sorted([*array("program_packages"), "libgtest-dev"]))

    def test_what_an_image_is_built_from(self):
        """The ignored folders hold nothing that the build reads."""
        ignored = (ROOT / ".dockerignore").read_text().split()
        for name in ("CMakeLists.txt", "cmake", "src", "kernels", "inputs", "jobscripts", "docs", "containers"):
            self.assertTrue((ROOT / name).exists(), name)
            self.assertNotIn(name, ignored)
        for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", self.dockerfile, re.MULTILINE):
            for name in copied.split():
                self.assertTrue((ROOT / name).exists(), name)

    def test_the_commit_of_sources_without_history(self):
        with tempfile.TemporaryDirectory(prefix="nanorun-commit-") as folder:
            header = Path(folder) / "nanorun_commit.h"
            for named in ("abc1234", ""):
                subprocess.run(["cmake", f"-DSOURCE={folder}", f"-DOUTPUT={header}", "-P", ROOT / "cmake" / "commit.cmake"],
                               env=os.environ | {"NANORUN_COMMIT": named}, check=True)
                self.assertEqual(header.read_text(), f'#define NANORUN_COMMIT "{named}"\n')

    def test_steps(self):
        job = subprocess.run([CONTAINERS / "build.sh"], capture_output=True, text=True)
        self.assertEqual((job.returncode, job.stdout), (2, ""))
        self.assertIn("build.sh program cpu|gpu", job.stderr)
        job = subprocess.run([CONTAINERS / "build.sh", "program", "tpu"], capture_output=True, text=True)
        self.assertEqual((job.returncode, job.stderr), (2, "build.sh: program takes cpu or gpu, not tpu\n"))


class Program(unittest.TestCase):
    """containers/bin/nanorun, in a working directory whose path has a blank."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun containers-")
        self.addCleanup(temporary.cleanup)
        self.top = Path(temporary.name).resolve()
        self.stubs, self.work, self.data = (self.top / name for name in ("stubs", "my work", "my data"))
        for folder in (self.stubs, self.work, self.data):
            folder.mkdir()
        self.image = self.top / "my image.sif"
        self.image.touch()
        self.environment = {"PATH": "/usr/bin:/bin", "STUBS": str(self.stubs), "NANORUN_GPUS": "no", "TMPDIR": "/tmp"}

    def stub(self, *names):
        for name in names:
            (self.stubs / name).write_text(STUB)
            (self.stubs / name).chmod(0o755)
        self.environment["PATH"] = f"{self.stubs}:/usr/bin:/bin"

    def start(self, *arguments, program=CONTAINERS / "bin" / "nanorun", code=75, **variables):
        """The name and arguments with which the stub was called, or the message without one."""
        job = subprocess.run([program, *arguments], cwd=self.work, env=self.environment | variables,
                             capture_output=True, text=True)
        self.assertEqual(job.returncode, code, job.stderr)
        called = self.stubs / "arguments"
        if code != 75:
            self.assertEqual((called.exists(), job.stdout, job.stderr.count("\n")), (False, "", 1))
            return job.stderr
        words = called.read_text().split("\0")[:-1]
        called.unlink()
        self.single_copy = words.pop(1)
        return words

    def bound(self, words, option):
        return [words[at + 1] for at, word in enumerate(words) if word == option]

    def test_apptainer(self):
        self.stub("apptainer", "singularity", "podman")
        words = self.start("train", "my deck.toml", "run.name=a b", NANORUN_IMAGE=str(self.image))
        self.assertEqual(words[:4], ["apptainer", "exec", "--pwd", str(self.work)])
        self.assertEqual(words[-5:], [str(self.image), PROGRAM, "train", "my deck.toml", "run.name=a b"])
        self.assertEqual(self.bound(words, "--bind"), [str(self.work), "/tmp", str(ROOT)])
        self.assertNotIn("--nv", words)
        self.assertEqual(self.single_copy, "none")

    def test_an_image_may_be_a_directory(self):
        self.stub("singularity")
        words = self.start("info", NANORUN_IMAGE=str(self.data))
        self.assertEqual((words[0], words[-3:]), ("singularity", [str(self.data), PROGRAM, "info"]))

    def test_podman(self):
        self.stub("apptainer", "podman")
        words = self.start("train", "my deck.toml", NANORUN_IMAGE="localhost/nanorun:cpu")
        self.assertEqual(words[:3], ["podman", "run", "--rm"])
        self.assertEqual(words[-3:], ["localhost/nanorun:cpu", "train", "my deck.toml"])
        self.assertEqual(self.bound(words, "--entrypoint"), [PROGRAM])
        self.assertEqual(self.bound(words, "--workdir"), [str(self.work)])
        self.assertEqual(self.bound(words, "--volume"), [f"{path}:{path}" for path in (self.work, "/tmp", ROOT)])
        self.assertLessEqual({"--env-host", "--ipc=host", "--pid=host", "--network=host"}, set(words))
        self.assertEqual("--userns=keep-id" in words, os.geteuid() != 0)

    def test_gpus(self):
        self.stub("apptainer", "podman")
        self.assertIn("--nv", self.start("info", NANORUN_IMAGE=str(self.image), NANORUN_GPUS="yes"))
        words = self.start("info", NANORUN_IMAGE="nanorun", NANORUN_GPUS="yes")
        self.assertEqual(self.bound(words, "--device"), ["nvidia.com/gpu=all"])
        self.assertEqual(self.start("info", code=2, NANORUN_GPUS="2"), "nanorun: NANORUN_GPUS takes yes or no, not 2\n")

    def test_directories(self):
        """Each once, those of the launcher too; what the user set for Open MPI stays."""
        self.stub("apptainer")
        words = self.start("info", NANORUN_IMAGE=str(self.image), NANORUN_BIND=f"{self.data}:/usr:{self.data}",
                           PMIX_SERVER_TMPDIR=str(self.stubs), OMPI_MCA_btl_vader_single_copy_mechanism="cma")
        self.assertEqual(self.bound(words, "--bind"),
                         [str(path) for path in (self.work, "/tmp", ROOT, self.stubs, self.data, "/usr")])
        self.assertEqual(self.single_copy, "cma")

    def test_errors(self):
        self.assertIn("nanorun.sif: no such image; build it, or set NANORUN_IMAGE", self.start("info", code=2))
        self.assertIn("neither apptainer nor singularity is on the PATH",
                      self.start("info", code=2, NANORUN_IMAGE=str(self.image)))
        if shutil.which("podman", path="/usr/bin:/bin") is None:
            self.assertIn("nanorun: no such file, and podman is not on the PATH",
                          self.start("info", code=2, NANORUN_IMAGE="nanorun"))
        self.stub("apptainer")
        self.assertIn("NANORUN_BIND: data is no whole path of a directory",
                      self.start("info", code=2, NANORUN_IMAGE=str(self.image), NANORUN_BIND="data"))
        self.work = self.top / "a,b"
        self.work.mkdir()
        self.assertIn("a,b: a container takes no path with a comma or colon",
                      self.start("info", code=2, NANORUN_IMAGE=str(self.image)))

    def test_in_a_job(self):
        """train.sbatch starts the image, as NANORUN_BUILD says, from a repository whose path has a blank."""
        repository = self.top / "my repository"
        for name in ("containers", "jobscripts"):
            shutil.copytree(ROOT / name, repository / name)
        (repository / "CMakeLists.txt").touch()
        self.stub("apptainer")
        (self.stubs / "srun").write_text('#!/usr/bin/env bash\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"\n')
        (self.stubs / "scontrol").write_text("#!/usr/bin/env bash\n")
        for name in ("srun", "scontrol"):
            (self.stubs / name).chmod(0o755)
        scripts = repository / "jobscripts"
        command = 'export NANORUN_BUILD=$0/containers; source "$0/jobscripts/site.sh"; exec bash "$@"'
        words = self.start("-euc", command, repository, scripts / "train.sbatch", "my deck.toml", program="bash",
                           NANORUN_IMAGE=str(self.image), SLURM_JOB_ID="7", SLURM_SUBMIT_DIR=str(self.work))
        self.assertEqual(words[-4:], [str(self.image), PROGRAM, "train", "my deck.toml"])
        self.assertIn(str(repository), self.bound(words, "--bind"))


class Recipe(unittest.TestCase):
    def test_libraries_of_debian_are_those_of_setup(self):
        """What spack_install.py takes from Debian."""
        sys.path.append(str(Path(__file__).parent))
        from spack_install import EXTERNALS
        named = {package for _, package in EXTERNALS.values()} - {"make", "python3", "python3-numpy"}
        self.assertEqual(named - set(array("packages")), set())
        missing = set(array("packages")) - named
        self.assertEqual(missing, {"g++", "openmpi-bin", "libtrilinos-kokkos-dev"})


    def test_a_public_recipe_differs_in_one_block(self):
        """The page on building shows the lines that go."""
        recipe = next((ROOT / "spack").rglob("package.py")).read_text()
        shown = re.search(r"^```diff\n(.*?)^```$", (ROOT / "docs" / "building.md").read_text(), re.MULTILINE | re.DOTALL)[1]
        gone = [line[1:] for line in shown.splitlines() if line.startswith("-")]
        self.assertEqual([line for line in gone if line not in recipe.splitlines()], [])
        block = re.search(r"\n    # A recipe for a public .*\n((?:    .*\n)+)\n", recipe)[1].splitlines()
        self.assertEqual(gone, ["from pathlib import Path", *block])
        self.assertEqual([name for name in ("homepage", "git", "maintainers", "version") if f"\n+    {name}" not in shown], [])


class Shellcheck(unittest.TestCase):
    def test_scripts(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("no shellcheck")
        scripts = [CONTAINERS / "build.sh", CONTAINERS / "bin" / "nanorun"]
        checked = subprocess.run(["shellcheck", "--external-sources", *scripts], cwd=ROOT, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(checked.returncode, 0, checked.stdout)


if __name__ == "__main__":
    unittest.main()
