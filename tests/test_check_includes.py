"""Breaches of the include directions that check_includes.py must find. Usage: test_check_includes.py"""

import tempfile
import textwrap
import unittest
from pathlib import Path

import check_includes


class CheckIncludes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, path, line):
        """A file that holds one line."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(line + "\n")
        return file

    def breaches(self, path, line):
        return list(check_includes.breaches_of(self.write(path, line), self.root))

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

    def test_folders_include_those_below_them(self):
        self.assertEqual(self.breaches("src/model/model.cpp", '#include "src/model/topology.hpp"'), [])
        self.assertEqual(self.breaches("src/model/model.cpp", '#include "src/base/error.hpp"'), [])
        self.assertEqual(self.breaches("src/main.cpp", '#include "src/run/train.hpp"'), [])
        self.assert_breach("src/base/error.cpp", '#include "src/config/config.hpp"')
        self.assert_breach("src/run/train.cpp", '#include "src/commands/sample.hpp"')
        self.assert_breach("kernels/device/vec.cuh", '#include "kernels/stream/mix.hpp"')
        self.assert_breach("kernels/stream/mix.cpp", '#include "kernels/ops.hpp"')

    def test_folders_without_a_place_are_found(self):
        for header in ("src/new/file.hpp", "src/base/new/file.hpp", "kernels/new/op.cuh"):
            self.assert_breach("kernels/stream/mix.cu" if header.startswith("kernels") else "src/run/train.cpp",
                               f'#include "{header}"')

    def test_includes_name_their_folder(self):
        for header in ("nanorun_commit.h", "nanorun_code.h"):
            self.assertEqual(self.breaches("src/run/provenance.cpp", f'#include "{header}"'), [])
        for header in ("error.hpp", "../base/error.hpp", "base/error.hpp"):
            self.assert_breach("src/base/files.cpp", f'#include "{header}"')

    def test_circles_of_headers_are_found(self):
        files = [self.write("src/a/one.hpp", '#include "src/a/two.hpp"'),
                 self.write("src/a/two.hpp", '#include "src/a/three.hpp"'),
                 self.write("src/a/three.hpp", "#include <string>")]
        self.assertEqual(check_includes.circles(files, self.root), [])
        self.write("src/a/three.hpp", '#include "src/a/one.hpp"')
        self.assertEqual(check_includes.circles(files, self.root), [
            "a circle of includes: src/a/one.hpp -> src/a/two.hpp -> src/a/three.hpp -> src/a/one.hpp"])

    def test_host_code_sees_few_kernel_headers(self):
        for name in ("ops", "device/types", "attention/attention"):
            self.assertEqual(self.breaches("src/model/model.cpp", f'#include "kernels/{name}.hpp"'), [])
        for name in ("linear/matmul.hpp", "device/wire.hpp", "device/vec.cuh", "attention/attention_tiles_sm90.cuh"):
            self.assert_breach("src/model/model.cpp", f'#include "kernels/{name}"')

    def test_what_hopper_alone_has_is_marked(self):
        self.assertEqual(self.breaches("kernels/stream/embedding_sm90.cu", '#include "kernels/hopper/sm90.cuh"'), [])
        self.assertEqual(self.breaches("kernels/stream/embedding_sm80.cu", '#include "kernels/ampere/sm80.cuh"'), [])
        for module, header in (("norm", "hopper/sm90"), ("norm", "ampere/sm80"), ("norm_sm80", "hopper/sm90"),
                               ("norm_sm90", "ampere/sm80")):
            self.assert_breach(f"kernels/stream/{module}.cu", f'#include "kernels/{header}.cuh"')

    def test_kernels_never_include_src(self):
        self.assert_breach("kernels/lm_head/lm_head.cpp", '#include "src/model/model.hpp"')
        self.assert_breach("kernels/device/device.cu", "#include <Kokkos_Core.hpp>")
        self.assert_breach("src/comm/context.cpp", "#include <Kokkos_Core.hpp>")

    def test_modules_are_told_apart_from_folders(self):
        self.assertEqual(self.breaches("src/base/files_own.cpp", "#include <filesystem>"), [])
        self.assert_breach("src/base/filesystem_of.cpp", "#include <filesystem>")

    def test_messages_never_throw(self):
        self.assert_breach("src/model/model.cpp", 'fmt::print(stderr, "nanorun: {}\\n", text);')

    def test_the_page_on_architecture_shows_the_folders(self):
        page = (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text()
        self.assertIn(textwrap.indent(check_includes.FOLDERS.strip(), "    "), page)


if __name__ == "__main__":
    unittest.main()
