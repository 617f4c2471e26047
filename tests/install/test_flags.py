"""Configures the sources as users and developers do, and looks at the flags.

Usage: test_flags.py CMAKE SOURCE_DIR [unittest arguments].
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from configure import cache, commands, configure


class Flags(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="nanorun-flags-")
        self.addCleanup(temporary.cleanup)
        self.build = Path(temporary.name)

    def flags(self, *options):
        """All flags of all sources."""
        configure(CMAKE, SOURCE, self.build, *options)
        return {argument for command in commands(self.build).values() for argument in command}

    def test_warnings_are_errors_where_asked_for_alone(self):
        """A newer compiler may warn of more."""
        plain = self.flags()
        self.assertIn("-Wall", plain)
        self.assertEqual([flag for flag in plain if flag.startswith("-Werror")], [])
        self.assertIn("-Werror", self.flags("-DCMAKE_COMPILE_WARNING_AS_ERROR=ON"))

    def test_presets_of_developers_ask_for_it(self):
        """Those that users build with do not; test.sh asks for it there."""
        presets = json.loads((SOURCE / "CMakePresets.json").read_text())["configurePresets"]
        names = [preset["name"] for preset in presets if not preset.get("hidden")]
        self.assertLess({"cpu", "h100", "asan", "clang", "mpich", "blis", "openmp", "aarch64"}, set(names))
        for name in names:
            shown = subprocess.run([CMAKE, "-N", "--preset", name], cwd=SOURCE, check=True, capture_output=True,
                                   text=True).stdout
            asks = 'CMAKE_COMPILE_WARNING_AS_ERROR="ON"' in shown
            self.assertEqual(asks, name not in ("cpu", "h100"), name)
        self.assertIn("-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", (SOURCE / "jobscripts" / "test.sh").read_text())

    def test_optimises_where_no_build_type_is_given(self):
        self.assertIn("-O3", self.flags())
        debug = self.flags("-DCMAKE_BUILD_TYPE=Debug")
        self.assertTrue("-g" in debug and "-O3" not in debug, debug)

    def test_a_blas_may_be_several_libraries(self):
        """Spack names them all."""
        self.flags()
        libraries = [value for name, value in cache(self.build).items()
                     if re.fullmatch(r"BLAS_\w+_LIBRARY", name) and Path(value).is_file()]
        self.assertNotEqual(libraries, [])
        with tempfile.TemporaryDirectory(prefix="nanorun-flags-") as build:
            configure(CMAKE, SOURCE, build, f"-DBLAS_LIBRARIES={libraries[0]};{libraries[0]}")


if __name__ == "__main__":
    CMAKE, SOURCE = sys.argv[1], Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
