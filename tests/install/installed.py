"""What the tests of an installed nanorun share: a prefix that has been moved."""

import subprocess
import tempfile
import unittest
from pathlib import Path


class Installed(unittest.TestCase):
    """Installs what the build has made, once for each class. CMAKE and BUILD are set by main()."""

    CMAKE = BUILD = None

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-install-")
        cls.addClassCleanup(temporary.cleanup)
        installed = Path(temporary.name) / "installed"
        cls.install(installed)
        cls.prefix = installed.rename(Path(temporary.name) / "moved").resolve()
        cls.elsewhere = cls.prefix.parent

    @classmethod
    def install(cls, prefix, *options):
        subprocess.run([cls.CMAKE, "--install", cls.BUILD, "--prefix", prefix, *options], check=True,
                       stdout=subprocess.DEVNULL)

    def run_program(self, *arguments):
        """Standard output of the installed program, started outside its prefix."""
        command = [self.prefix / "bin" / "nanorun", *arguments]
        job = subprocess.run(command, cwd=self.elsewhere, capture_output=True, text=True)
        self.assertEqual(job.returncode, 0, job.stderr)
        return job.stdout


def main(arguments):
    """Runs the tests of the script. Usage: SCRIPT CMAKE BUILD_DIR [unittest arguments]."""
    Installed.CMAKE, Installed.BUILD = arguments[1], Path(arguments[2])
    unittest.main(argv=[arguments[0], *arguments[3:]])
