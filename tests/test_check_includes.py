"""Breaches of the include directions that check_includes.py must find. Usage: test_check_includes.py"""

import tempfile
import textwrap
import unittest
from pathlib import Path

import check_includes


class CheckIncludes(unittest.TestCase):
    def breaches(self, path, line):
        """What is found in a file that holds one line."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(line + "\n")
            return list(check_includes.breaches_of(file, Path(folder)))

    def assert_breach(self, path, line):
        found = self.breaches(path, line)
        self.assertEqual(len(found), 1, (line, found))
        self.assertTrue(found[0].startswith(f"{path}:1: "), found)

    def test_every_spelling_is_seen(self):
        for directive in ("#include", "# include", "#  include  ", "  #\tinclude\t"):
            for name in ("<mpi.h>", '"src/run/train.hpp"'):
                with self.subTest(directive=directive, name=name):
                    self.assert_breach("src/model/model.cpp", f"{directive} {name}")
        self.assert_breach("src/model/model.cpp", "#include<mpi.h>")

    def test_host_code_sees_few_kernel_headers(self):
        for name in ("ops", "device/types", "attention/attention"):
            self.assertEqual(self.breaches("src/model/model.cpp", f'#include "kernels/{name}.hpp"'), [])
        for name in ("linear/matmul.hpp", "device/wire.hpp", "device/portable.hpp", "device/vec.cuh", "attention/attention.cuh"):
            self.assert_breach("src/model/model.cpp", f'#include "kernels/{name}"')

    def test_kernels_never_include_src(self):
        self.assert_breach("kernels/lm_head/head.cpp", '#include "src/model/model.hpp"')
        self.assert_breach("kernels/device/device.cu", "#include <Kokkos_Core.hpp>")
        self.assert_breach("src/comm/context.cpp", "#include <Kokkos_Core.hpp>")

    def test_messages_never_throw(self):
        self.assert_breach("src/model/model.cpp", 'fmt::print(stderr, "nanorun: {}\\n", text);')

    def test_the_page_on_architecture_shows_the_layers(self):
        page = (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text()
        self.assertIn(textwrap.indent(check_includes.LAYERS.strip(), "    "), page)


if __name__ == "__main__":
    unittest.main()
