"""What check_format.py finds. Usage: test_check_format.py"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import check_format

SCRIPT = Path(__file__).resolve().parent / "check_format.py"


class CheckFormat(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-format-")
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)
        shutil.copy(SCRIPT.parents[1] / ".clang-format", self.root)
        for folder in ("src", "kernels", "tests/cuda"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "src" / "a.hpp").write_text("int f(int a);\n")

    def check(self, **variables):
        job = subprocess.run([sys.executable, "-B", SCRIPT, self.root], text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | variables)
        return job.returncode, job.stdout

    def test_files_that_are_not_formatted_are_named(self):
        if check_format.find_clang_format() is None:
            self.skipTest("no clang-format 14")
        self.assertEqual(self.check(), (0, ""))
        for name in ("src/b.cpp", "kernels/c.cu", "tests/cuda/d.cuh"):
            with self.subTest(name=name):
                (self.root / name).write_text("int  f( int a );\n")
                code, said = self.check()
                self.assertEqual(code, 1)
                self.assertRegex(said, rf"^{name}: run clang-format\S* -i on it\n$")
                (self.root / name).unlink()

    def test_without_clang_format_it_is_skipped(self):
        code, said = self.check(PATH=str(self.root))
        self.assertEqual(code, 77)
        self.assertIn("skipped: no clang-format 14", said)

    def test_no_sources_are_an_error(self):
        (self.root / "src" / "a.hpp").unlink()
        self.assertEqual(self.check(), (1, f"{self.root}: no sources\n"))


if __name__ == "__main__":
    unittest.main()
